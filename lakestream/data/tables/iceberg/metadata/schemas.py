"""Checks schemas, partition specs and sort orders as JSON, and gives fresh ids to those of a new table.

A client may send anything as a schema, so every part is checked. A malformed part raises `Invalid`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Json = dict[str, Any]

MAX_DEPTH = 64
MAX_INT = (1 << 31) - 1
FIRST_PARTITION_ID = 1000
_V1_TYPES = frozenset(
    (
        "boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz", "string", "uuid",
        "binary",
    )
)  # fmt: skip
_V3_TYPES = frozenset(("unknown", "timestamp_ns", "timestamptz_ns", "variant"))
_FIXED = re.compile(r"fixed\[\s*\d{1,9}\s*\]")
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_GEO = re.compile(r"(geometry|geography)(\(.*\))?")
_TRANSFORM = re.compile(r"identity|void|years?|months?|days?|hours?|(bucket|truncate)\[\d{1,9}\]")


class Invalid(Exception):
    """A client sent JSON that cannot be part of a table's metadata."""


def need(value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    """Returns the value if it is of this kind, else raises Invalid; a boolean is not a number."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise Invalid(f"{what} is missing or malformed")
    return value


def id_of(value: Any, what: str, least: int = 0) -> int:
    if not least <= need(value, int, what) <= MAX_INT:
        raise Invalid(f"{what} is out of range")
    return int(value)


# -- schemas --------------------------------------------------------------------------------------------------------


def check_schema(schema: Any, version: int) -> Json:
    """The schema, if it is one that this format version knows."""
    fields = need(need(schema, dict, "the schema").get("fields"), list, "the schema's fields")
    if schema.get("type", "struct") != "struct":
        raise Invalid("a schema is a struct")
    seen: set[int] = set()
    _check_fields(fields, version, seen, 0)
    for each in need(schema.get("identifier-field-ids") or [], list, "identifier-field-ids"):
        if id_of(each, "an identifier field") not in seen:
            raise Invalid(f"identifier field {each} is not in the schema")
    return schema  # type: ignore[no-any-return]


def _check_fields(fields: list[Any], version: int, seen: set[int], depth: int) -> None:
    names: set[str] = set()
    for field in fields:
        name = need(need(field, dict, "a field").get("name"), str, "a field's name")
        if not name or name in names:
            raise Invalid(f"the name {name!r} is empty or there twice")
        names.add(name)
        _note(field.get("id"), f"the id of {name!r}", seen)
        need(field.get("required"), bool, f"whether {name!r} is required")
        if version < 3 and field.get("initial-default") is not None:
            raise Invalid("defaults of columns need format version 3")
        _check_type(field.get("type"), version, seen, depth + 1)


def _note(value: Any, what: str, seen: set[int]) -> None:
    number = id_of(value, what)
    if number in seen:
        raise Invalid(f"the field id {number} is there twice")
    seen.add(number)


def _check_type(kind: Any, version: int, seen: set[int], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise Invalid("the schema is nested too deeply")
    if isinstance(kind, str):
        if not is_primitive(kind, version):
            raise Invalid(f"{kind!r} is no type of format version {version}")
        return
    name = need(kind, dict, "a type").get("type")
    if name == "struct":
        _check_fields(need(kind.get("fields"), list, "a struct's fields"), version, seen, depth)
    elif name == "list":
        _note(kind.get("element-id"), "an element-id", seen)
        need(kind.get("element-required"), bool, "element-required")
        _check_type(kind.get("element"), version, seen, depth + 1)
    elif name == "map":
        _note(kind.get("key-id"), "a key-id", seen)
        _note(kind.get("value-id"), "a value-id", seen)
        need(kind.get("value-required"), bool, "value-required")
        _check_type(kind.get("key"), version, seen, depth + 1)
        _check_type(kind.get("value"), version, seen, depth + 1)
    else:
        raise Invalid(f"{name!r} is no type")


def is_primitive(kind: str, version: int) -> bool:
    decimal = _DECIMAL.fullmatch(kind)
    if decimal:
        return 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1])
    if kind in _V1_TYPES or _FIXED.fullmatch(kind):
        return True
    return version >= 3 and (kind in _V3_TYPES or _GEO.fullmatch(kind) is not None)


def field_ids(schema: Mapping[str, Any]) -> Iterator[int]:
    """All ids in a checked schema, those of nested fields, too."""
    for field in schema["fields"]:
        yield field["id"]
        yield from _ids_within(field["type"])


def _ids_within(kind: Any) -> Iterator[int]:
    if isinstance(kind, str):
        return
    if kind["type"] == "struct":
        yield from field_ids(kind)
    elif kind["type"] == "list":
        yield kind["element-id"]
        yield from _ids_within(kind["element"])
    else:
        yield from (kind["key-id"], kind["value-id"])
        yield from _ids_within(kind["key"])
        yield from _ids_within(kind["value"])


def fresh_schema(schema: Json) -> tuple[Json, dict[int, int]]:
    """The schema of a new table, its ids counted from 1, level by level; and old ids to new ones."""
    ids: dict[int, int] = {}

    def new(old: int) -> int:
        ids[old] = len(ids) + 1
        return ids[old]

    fields = _fresh_fields(schema["fields"], new)
    fresh = {"type": "struct", "schema-id": 0, "fields": fields}
    identifiers = schema.get("identifier-field-ids")
    if identifiers:
        fresh["identifier-field-ids"] = [ids[each] for each in identifiers]
    return fresh, ids


def _fresh_fields(fields: list[Json], new: Callable[[int], int]) -> list[Json]:
    numbered = [{**field, "id": new(field["id"])} for field in fields]
    return [{**field, "type": _fresh_type(field["type"], new)} for field in numbered]


def _fresh_type(kind: Any, new: Callable[[int], int]) -> Any:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return {**kind, "fields": _fresh_fields(kind["fields"], new)}
    if kind["type"] == "list":
        element_id = new(kind["element-id"])
        return {**kind, "element-id": element_id, "element": _fresh_type(kind["element"], new)}
    key_id, value_id = new(kind["key-id"]), new(kind["value-id"])
    key, value = _fresh_type(kind["key"], new), _fresh_type(kind["value"], new)
    return {**kind, "key-id": key_id, "value-id": value_id, "key": key, "value": value}


def same_schema(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(
        one["fields"] == other["fields"]
        and sorted(one.get("identifier-field-ids") or []) == sorted(other.get("identifier-field-ids") or [])
    )


# -- specs and orders -----------------------------------------------------------------------------------------------


def check_spec(spec: Any, last_partition_id: int) -> Json:
    """The spec with an id for every field; unbound fields get new ones."""
    fields = need(need(spec, dict, "the partition spec").get("fields"), list, "the partition fields")
    made, names = [], set()
    for field in fields:
        name = need(need(field, dict, "a partition field").get("name"), str, "a partition field's name")
        if not name or name in names:
            raise Invalid(f"the partition field {name!r} is empty or there twice")
        names.add(name)
        field_id = field.get("field-id")
        if field_id is None:
            field_id = last_partition_id = last_partition_id + 1
        kept = {"source-id": _source(field), "field-id": id_of(field_id, "a field-id"), "transform": _transform(field)}
        made.append({**field, **kept})
        last_partition_id = max(last_partition_id, field_id)
    return {**spec, "spec-id": id_of(spec.get("spec-id", 0), "spec-id"), "fields": made}


def check_order(order: Any) -> Json:
    fields = need(need(order, dict, "the sort order").get("fields"), list, "the sort fields")
    made = []
    for field in fields:
        need(field, dict, "a sort field")
        direction, nulls = field.get("direction"), field.get("null-order")
        if direction not in ("asc", "desc") or nulls not in ("nulls-first", "nulls-last"):
            raise Invalid("a sort field needs a direction and a null-order")
        made.append({**field, "transform": _transform(field), "source-id": _source(field)})
    return {**order, "order-id": id_of(order.get("order-id", 0), "order-id"), "fields": made}


def _source(field: Json) -> int:
    sources = field.get("source-ids")
    source = sources[0] if field.get("source-id") is None and isinstance(sources, list) and sources else None
    return id_of(field.get("source-id") if source is None else source, "a source-id")


def _transform(field: Json) -> str:
    transform = need(field.get("transform"), str, "a transform")
    if not _TRANSFORM.fullmatch(transform):
        raise Invalid(f"{transform!r} is no transform")
    return str(transform)


def same_spec(one: Json, other: Json) -> bool:
    def told(spec: Json) -> list[tuple[Any, ...]]:
        return [(field["source-id"], field["transform"], field["name"]) for field in spec["fields"]]

    return told(one) == told(other)


def moved_sources(thing: Json, ids: Mapping[int, int]) -> Json:
    """A spec or an order, for a schema whose ids were made fresh."""
    try:
        return {**thing, "fields": [{**field, "source-id": ids[field["source-id"]]} for field in thing["fields"]]}
    except KeyError as error:
        raise Invalid(f"source-id {error} is not in the schema") from None


def check_sources(thing: Json, schema: Json, what: str) -> None:
    known = set(field_ids(schema))
    for field in thing["fields"]:
        if field["transform"] != "void" and field["source-id"] not in known:
            raise Invalid(f"{what} needs the field {field['source-id']}, which the current schema does not have")

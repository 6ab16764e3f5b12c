"""Metadata of tables that any client may have written: checked in every field, made for a new table, or required.

`Invalid` means that a request can never work, `Conflict` that the table has changed since the client loaded it.
Fields that the checks do not know (those of a newer format) go through unchanged.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from lakestream.data.tables.iceberg.metadata.names import unpacked
from lakestream.data.tables.iceberg.metadata.schemas import (
    FIRST_PARTITION_ID,
    Invalid,
    Json,
    check_order,
    check_schema,
    check_spec,
    fresh_schema,
    id_of,
    moved_sources,
    need,
)
from lakestream.data.tables.iceberg.metadata.table_metadata import MAIN, TableMetadata, head_of
from lakestream.errors import Corrupt

NEWEST_VERSION = 3
DEFAULT_VERSION = 2


class Conflict(Exception):
    """The table is not as the request supposed: load it again, and try again."""


# -- whole files ----------------------------------------------------------------------------------------------------


def parse_any(data: bytes | bytearray) -> TableMetadata:
    """The checked metadata of a file of any format version, with the fields that version 1 lacks. Raises Corrupt."""
    try:
        metadata = msgspec.json.decode(unpacked(bytes(data)))
        return TableMetadata(complete(need(metadata, dict, "the metadata")))
    except (msgspec.MsgspecError, Invalid, ValueError, RecursionError) as error:
        raise Corrupt(f"not a table's metadata: {error}") from error


def checked(metadata: TableMetadata) -> TableMetadata:
    """The same metadata with every field decoded and checked. Raises Corrupt."""
    try:
        return TableMetadata(complete(metadata.value_all()))
    except (msgspec.MsgspecError, Invalid, ValueError, RecursionError) as error:
        raise Corrupt(f"not a table's metadata: {error}") from error


def complete(metadata: Json) -> Json:
    """The fields as format version 2 has them, all checked. Raises Invalid if they are not a table's metadata."""
    version = id_of(metadata.get("format-version"), "format-version", 1)
    if version > NEWEST_VERSION:
        raise Invalid(f"format version {version} is not supported")
    made = dict(metadata)
    for name, kind in (("location", str), ("table-uuid", str), ("last-updated-ms", int), ("last-column-id", int)):
        need(made.get(name), kind, name)
    if not made.get("schemas"):
        schema = check_schema(made.get("schema"), version)
        made["schemas"] = [{**schema, "schema-id": schema.get("schema-id", 0)}]
        made["current-schema-id"] = made["schemas"][0]["schema-id"]
    if not made.get("partition-specs"):
        made["partition-specs"] = [check_spec({"fields": made.get("partition-spec") or []}, FIRST_PARTITION_ID - 1)]
        made["default-spec-id"] = 0
    made.pop("schema", None)
    made.pop("partition-spec", None)
    for schema in need(made["schemas"], list, "schemas"):
        check_schema(schema, version)
        id_of(schema.get("schema-id"), "schema-id")
    specs = need(made["partition-specs"], list, "partition-specs")
    made["partition-specs"] = [check_spec(spec, FIRST_PARTITION_ID - 1) for spec in specs]
    highest = [field["field-id"] for spec in made["partition-specs"] for field in spec["fields"]]
    made.setdefault("last-partition-id", max(highest, default=FIRST_PARTITION_ID - 1))
    if not made.get("sort-orders"):
        made["sort-orders"], made["default-sort-order-id"] = [{"order-id": 0, "fields": []}], 0
    made["sort-orders"] = [check_order(order) for order in need(made["sort-orders"], list, "sort-orders")]
    made.setdefault("default-sort-order-id", 0)
    for name in ("current-schema-id", "default-spec-id", "default-sort-order-id", "last-partition-id"):
        id_of(made.get(name), name)
    _complete_snapshots(made)
    for name in ("last-sequence-number", "next-row-id"):
        if version > (1 if name == "last-sequence-number" else 2):
            need(made.setdefault(name, 0), int, name)
    if not any(s["schema-id"] == made.get("current-schema-id") for s in made["schemas"]):
        raise Invalid("the current schema is not among the schemas")
    if not any(s.get("spec-id") == made.get("default-spec-id") for s in made["partition-specs"]):
        raise Invalid("the default partition spec is not among the specs")
    return made


def _complete_snapshots(made: Json) -> None:
    for name, number in (("snapshots", "snapshot-id"), ("snapshot-log", "snapshot-id"), ("metadata-log", None)):
        made[name] = need(made.get(name) or [], list, name)
        for one in made[name]:
            need(need(one, dict, name).get(number or "metadata-file"), int if number else str, name)
    for name in ("statistics", "partition-statistics"):
        for one in need(made.get(name) or [], list, name):
            need(one, dict, name)
    for name in ("properties", "refs"):
        made[name] = need(made.get(name) or {}, dict, name)
    for name, value in made["properties"].items():
        need(value, str, f"the property {name}")
    for name, ref in made["refs"].items():
        need(need(ref, dict, f"the reference {name}").get("snapshot-id"), int, f"the reference {name}")
    current = made.get("current-snapshot-id")
    made["current-snapshot-id"] = current = None if current == -1 else current
    if current is not None and MAIN not in made["refs"]:
        made["refs"] = {**made["refs"], MAIN: {"snapshot-id": need(current, int, MAIN), "type": "branch"}}
    try:
        known = {head_of(snapshot).snapshot_id for snapshot in made["snapshots"]}
    except msgspec.ValidationError as error:
        raise Invalid(f"a snapshot is malformed: {error}") from error
    for name, ref in made["refs"].items():
        if ref["snapshot-id"] not in known:
            raise Invalid(f"the reference {name} is at a snapshot that is not there")


def new_metadata(
    *, uuid: str, location: str, schema: Any, spec: Any, order: Any, properties: Mapping[str, str], now_ms: int
) -> TableMetadata:
    """The metadata of a new table, with fresh ids."""
    kept = {name: value for name, value in properties.items() if name != "format-version"}
    version = version_of(properties)
    fresh, ids = fresh_schema(check_schema(schema, version))
    made_spec = moved_sources(check_spec(without_field_ids(spec), FIRST_PARTITION_ID - 1), ids)
    made_order = moved_sources(check_order(order or {"fields": []}), ids)
    partition_ids = [field["field-id"] for field in made_spec["fields"]]
    order_id = 1 if made_order["fields"] else 0
    made: Json = {
        "format-version": version,
        "table-uuid": uuid,
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": now_ms,
        "last-column-id": max(ids.values(), default=0),
        "current-schema-id": 0,
        "schemas": [fresh],
        "default-spec-id": 0,
        "partition-specs": [{**made_spec, "spec-id": 0}],
        "last-partition-id": max(partition_ids, default=FIRST_PARTITION_ID - 1),
        "default-sort-order-id": order_id,
        "sort-orders": [{**made_order, "order-id": order_id}],
        "properties": kept,
        "current-snapshot-id": None,
        "refs": {},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
    if version == 1:
        del made["last-sequence-number"]
    if version >= 3:
        made["next-row-id"] = 0
    return TableMetadata(made)


def version_of(properties: Mapping[str, str]) -> int:
    text = properties.get("format-version", str(DEFAULT_VERSION))
    if text not in {str(version) for version in range(1, NEWEST_VERSION + 1)}:
        raise Invalid(f"format version {text} is not supported")
    return int(text)


def without_field_ids(spec: Any) -> Any:
    if not isinstance(spec, dict) or not isinstance(spec.get("fields"), list):
        return spec or {"fields": []}
    return {"fields": [{**f, "field-id": None} if isinstance(f, dict) else f for f in spec["fields"]]}


# -- requirements ---------------------------------------------------------------------------------------------------

_ASSERTED = {
    "assert-last-assigned-field-id": ("last-assigned-field-id", "last-column-id", "last assigned field id"),
    "assert-current-schema-id": ("current-schema-id", "current-schema-id", "current schema"),
    "assert-last-assigned-partition-id": (
        "last-assigned-partition-id", "last-partition-id", "last assigned partition id",
    ),
    "assert-default-spec-id": ("default-spec-id", "default-spec-id", "default partition spec"),
    "assert-default-sort-order-id": ("default-sort-order-id", "default-sort-order-id", "default sort order"),
}  # fmt: skip
"""Of each: its field in the requirement, that in the metadata, and its name, which some clients look for."""


def check_requirements(metadata: TableMetadata | None, requirements: Iterable[Any]) -> None:
    """Raises Conflict if one is not met; `metadata` is None if there is no table.

    The messages are those of the reference implementation: engines look for them.
    """
    for one in requirements:
        kind = need(need(one, dict, "a requirement").get("type"), str, "a requirement's type")
        if kind == "assert-create":
            if metadata is not None:
                raise Conflict("Requirement failed: table already exists")
            continue
        if kind not in _ASSERTED and kind not in ("assert-table-uuid", "assert-ref-snapshot-id"):
            raise Invalid(f"unknown requirement {kind!r}")
        if metadata is None:
            raise Conflict("Requirement failed: table does not exist")
        if kind == "assert-table-uuid":
            check_uuid("UUID", one, metadata.uuid)
        elif kind == "assert-ref-snapshot-id":
            _check_ref(metadata, one)
        else:
            name, field, what = _ASSERTED[kind]
            wanted, found = need(one.get(name), int, name), metadata.value(field)
            if wanted != found:
                raise Conflict(f"Requirement failed: {what} changed: expected id {wanted} != {found}")


def check_uuid(what: str, requirement: Json, found: str) -> None:
    wanted = str(need(requirement.get("uuid"), str, "uuid")).lower()
    if wanted != found.lower():
        raise Conflict(f"Requirement failed: {what} does not match: expected {wanted} != {found.lower()}")


def _check_ref(metadata: TableMetadata, requirement: Json) -> None:
    name, wanted = need(requirement.get("ref"), str, "ref"), requirement.get("snapshot-id")
    ref = metadata.refs.get(name)
    if ref is None:
        if wanted is not None:
            raise Conflict(f"Requirement failed: branch or tag {name} is missing, expected {wanted}")
        return
    kind, found = ref.get("type", "branch"), ref["snapshot-id"]
    if wanted is None:
        raise Conflict(f"Requirement failed: {kind} {name} was created concurrently")
    if wanted != found:
        raise Conflict(f"Requirement failed: {kind} {name} has changed: expected id {wanted} != {found}")

"""Messages of kio from plain values, and back: what the conversations write and what the comparer reads."""

import dataclasses
import datetime
import types
import uuid
from functools import cache
from typing import Any, get_args, get_origin

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from lakestream.protocol.kafka.wire.apis import APIS


def build(cls: Any, values: dict[str, Any]) -> Any:
    """An entity with these values; what its version does not have is left out, what is not given is its default."""
    return cls(**{field.name: _field(field, values) for field in dataclasses.fields(cls)})


def plain(value: Any) -> Any:
    """An entity as dicts, lists and scalars."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if isinstance(value, ErrorCode):
        return value.name.upper()
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, uuid.UUID):
        return str(value)
    return value


@cache
def field_names(key: int) -> frozenset[str]:
    """The fields that a request has in any version, its own level only: a wrong name in a case is noticed."""
    api = APIS[key]
    readable = [version for version in range(api.min_version, api.max_version + 1) if api.reads(version)]
    schemas = [load_request_schema(key, version) for version in readable]
    return frozenset(field.name for cls in schemas for field in dataclasses.fields(cls))


def _field(field: Any, values: dict[str, Any]) -> Any:
    kind, nullable = _unwrapped(field.type)
    if field.name in values:
        return _value(kind, field.metadata.get("kafka_type", ""), values[field.name], nullable)
    if field.default is not dataclasses.MISSING:
        return field.default
    if nullable:
        return None
    if get_origin(kind) is tuple:
        return ()
    if dataclasses.is_dataclass(kind):
        return build(kind, {})
    return _value(kind, field.metadata["kafka_type"], _ZEROS.get(field.metadata["kafka_type"], 0), False)


def _unwrapped(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType):
        arms = [arm for arm in get_args(hint) if arm is not type(None)]
        return arms[0], len(arms) < len(get_args(hint))
    return hint, False


def _value(kind: Any, kafka_type: str, value: Any, nullable: bool) -> Any:
    if value is None:
        assert nullable or kafka_type == "uuid", f"a {kafka_type or kind} cannot be null in this version"
        return None
    if get_origin(kind) is tuple:
        (inner, *_) = get_args(kind)
        return tuple(_value(inner, kafka_type, one, False) for one in value)
    if dataclasses.is_dataclass(kind):
        return build(kind, value)
    if kafka_type.startswith("timedelta"):
        return datetime.timedelta(milliseconds=value)
    if kafka_type.startswith("datetime"):
        return None if value == -1 else datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
    return value


_ZEROS: dict[str, Any] = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None}

"""Another codec of the same protocol, generated from Kafka's own schemas (kio), to hold ours against."""

import dataclasses
import datetime
import io
import types
import uuid
from collections.abc import Callable
from random import Random
from typing import Any, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from lakestream.protocol.kafka.wire.apis import APIS, Api

CASES = [
    (api, version, kind)
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
    if api.reads(version)
    for kind in ("request", "response")
]


def case_name(case: Any) -> str:
    return str(case.name if isinstance(case, Api) else case)


def kio_class(api: Api, version: int, kind: str) -> Any:
    return (load_request_schema if kind == "request" else load_response_schema)(api.key, version)


def our_class(api: Api, kind: str) -> type[Any]:
    return api.request if kind == "request" else api.response


def kio_bytes(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def kio_read(cls: Any, data: bytes) -> Any:
    entity, size = entity_reader(cls)(data, 0)
    assert size == len(data)
    return entity


def random_entity(cls: Any, rng: Random) -> Any:
    """An instance of a kio class with every field filled, now and then with its default."""
    return cls(**{f.name: _random_field(f, rng) for f in dataclasses.fields(cls)})


def assert_same(theirs: Any, ours: Any) -> None:
    """Every field of the kio entity is in our message, under its name, with its value."""
    for field in dataclasses.fields(theirs):
        name = field.name if hasattr(ours, field.name) else field.name + "_ms"
        assert_same_value(getattr(theirs, field.name), getattr(ours, name), f"{type(ours).__name__}.{name}")


def assert_same_value(theirs: Any, ours: Any, where: str) -> None:
    if dataclasses.is_dataclass(theirs):
        assert_same(theirs, ours)
    elif isinstance(theirs, tuple):
        assert len(theirs) == len(ours), where
        for a, b in zip(theirs, ours, strict=True):
            assert_same_value(a, b, where)
    else:
        assert ours in _our_values(theirs), where


def _our_values(theirs: Any) -> list[Any]:
    """kio says None for the zero UUID and for the timestamp -1."""
    if theirs is None:
        return [None, bytes(16), -1]
    if isinstance(theirs, ErrorCode):
        return [theirs.value]
    if isinstance(theirs, uuid.UUID):
        return [theirs.bytes]
    if isinstance(theirs, datetime.timedelta):
        return [round(theirs.total_seconds() * 1000)]
    if isinstance(theirs, datetime.datetime):
        return [round(theirs.timestamp() * 1000)]
    return [theirs]


def _random_field(field: dataclasses.Field[Any], rng: Random) -> Any:
    if field.default is not dataclasses.MISSING and rng.random() < 0.2:
        return field.default
    hint: Any = field.type
    kafka_type = field.metadata.get("kafka_type", "")
    if isinstance(hint, types.UnionType):
        nullable = "tag" not in field.metadata or kafka_type not in ("uuid", "string")
        if nullable and rng.random() < 0.3:
            return None
        (hint,) = [arm for arm in get_args(hint) if arm is not type(None)]
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return tuple(_random_value(inner, kafka_type, rng) for _ in range(rng.choice([0, 1, 2, 3])))
    return _random_value(hint, kafka_type, rng)


def _random_value(hint: Any, kafka_type: str, rng: Random) -> Any:
    if dataclasses.is_dataclass(hint):
        return random_entity(hint, rng)
    if kafka_type.startswith("int"):
        bits = int(kafka_type[3:])
        return rng.choice([rng.randrange(-(1 << bits - 1), 1 << bits - 1), rng.randrange(-1, 100)])
    if kafka_type == "string":
        return "".join(rng.choice("abcXYZ.-_0é漢🙂") for _ in range(rng.choice([0, 3, 20, 130, 300])))
    if kafka_type in ("bytes", "records"):
        return rng.randbytes(rng.choice([0, 1, 126, 127, 128, 500, 17000]))
    makers: dict[str, Callable[[], Any]] = {
        "bool": lambda: rng.random() < 0.5,
        "float64": lambda: rng.uniform(-1e9, 1e9),
        "uuid": lambda: uuid.UUID(bytes=b"\1" + rng.randbytes(15)),
        "error_code": lambda: rng.choice(list(ErrorCode)),
        "timedelta_i32": lambda: datetime.timedelta(milliseconds=rng.randrange(-(1 << 31), 1 << 31)),
        "timedelta_i64": lambda: datetime.timedelta(milliseconds=rng.randrange(1 << 40)),
        "datetime_i64": lambda: datetime.datetime.fromtimestamp(rng.randrange(1 << 31), datetime.UTC),
    }
    return makers[kafka_type]()

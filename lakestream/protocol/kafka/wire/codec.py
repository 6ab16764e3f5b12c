"""Compiles a message class, for one version, to a function that reads it and one that writes it.

The functions are Python source made once, on first use: fields of fixed width that follow each other become one call to
struct, and what a version does not have is simply not in its source. To see the source: `print(source(...))`.

Reading trusts nothing. A count is held against the bytes that are left before anything is allocated, and whatever is
wrong with the bytes comes out as Malformed.
"""

import dataclasses
import struct
import types
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from lakestream.interfaces import Buffer
from lakestream.protocol.kafka.messages.types import Versions
from lakestream.protocol.kafka.wire.fields import (
    Decoder,
    Encoder,
    array_of,
    array_writer,
    bytes_writer,
    compact_length,
    copied,
    list_of,
    list_writer,
    long_length,
    maybe_struct,
    maybe_struct_writer,
    put_compact,
    put_long,
    put_short,
    read_tags,
    short_length,
    sized,
    text,
    text_writer,
    viewed,
    write_tags,
)
from lakestream.protocol.kafka.wire.framing import UNREADABLE, Malformed, skip_tags

T = TypeVar("T")

COMPILED_LIMIT: Final = 4096
"""Far above the number of structs times versions; the caches only grow to what is used."""


def decode(cls: type[T], version: int, flexible: bool, buffer: Buffer, pos: int = 0, exact: bool = True) -> T:
    """Read the message that fills the rest of `buffer`, to its last byte if it has to be `exact`."""
    try:
        message, end = decoder(cls, version, flexible)(buffer, pos)  # type: ignore[arg-type]
    except UNREADABLE as error:
        raise Malformed(f"{cls.__name__} version {version}: {error}") from None
    if end != len(buffer) and (exact or end > len(buffer)):
        raise Malformed(f"{cls.__name__} version {version}: {len(buffer) - end} bytes too many")
    return message  # type: ignore[no-any-return]


def encode(message: object, version: int, flexible: bool) -> bytearray:
    """The bytes of a message."""
    out = bytearray()
    encode_into(out, message, version, flexible)
    return out


def encode_into(out: bytearray, message: object, version: int, flexible: bool) -> None:
    encoder(type(message), version, flexible)(message, out)  # type: ignore[arg-type]


@lru_cache(COMPILED_LIMIT)
def decoder(cls: type, version: int, flexible: bool) -> Decoder:
    """(buffer, position) -> (message, position behind it). Raises Malformed or one of UNREADABLE."""
    return _compile("decode", cls, version, flexible)  # type: ignore[no-any-return]


@lru_cache(COMPILED_LIMIT)
def encoder(cls: type, version: int, flexible: bool) -> Encoder:
    """(message, out) appends the message's bytes to out."""
    return _compile("encode", cls, version, flexible)  # type: ignore[no-any-return]


def source(kind: str, cls: type, version: int, flexible: bool) -> str:
    """The Python source that `decoder` or `encoder` compiles; for people."""
    return "\n".join(_lines(kind, _Names(), cls, version, flexible))


# What a version of a struct consists of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    wire: str
    """A struct format character, or one of "str", "bytes", "records", "struct"."""
    struct: Any
    is_list: bool
    may_be_null: bool
    """In this version."""
    tag: int | None
    default: Any

    @property
    def is_fixed(self) -> bool:
        return not self.is_list and self.wire not in ("str", "bytes", "records", "struct")


@lru_cache(COMPILED_LIMIT)
def _fields(cls: type, version: int) -> tuple[list[_Field], list[_Field]]:
    """The fields in their order, and the tagged fields by their tags."""
    hints = get_type_hints(cls, include_extras=True)
    found = [
        _field(spec, versions, hints[spec.name], version)
        for spec in dataclasses.fields(cls)
        for versions in [spec.metadata.get("versions", Versions())]
        if versions.since <= version <= versions.until
    ]
    tagged = sorted((f for f in found if f.tag is not None), key=lambda f: f.tag or 0)
    return [f for f in found if f.tag is None], tagged


def _field(spec: dataclasses.Field[Any], versions: Versions, hint: Any, version: int) -> _Field:
    optional = get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint)
    if optional:
        (hint,) = [arm for arm in get_args(hint) if arm is not type(None)]
    is_list = get_origin(hint) is list
    if is_list:
        (hint,) = get_args(hint)
    metadata = getattr(hint, "__metadata__", None)
    wire = metadata[0] if metadata else hint.__name__ if hint in (str, bytes) else "struct"
    return _Field(
        name=spec.name,
        wire=wire,
        struct=hint if wire == "struct" else None,
        is_list=is_list,
        may_be_null=optional and version >= versions.nullable,
        tag=versions.tag,
        default=spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory(),
    )


def _least_size(field: _Field, version: int, flexible: bool) -> int:
    """How many bytes an item of this list takes at least; no item takes none."""
    if field.wire == "struct":
        inner, _ = _fields(field.struct, version)
        sizes = [1 if f.is_list or f.may_be_null else _least_size(f, version, flexible) for f in inner]
        return max(1, sum(sizes) + flexible)
    if field.wire in ("str", "bytes", "records"):
        return 1
    return struct.calcsize(">" + field.wire)


# Making source


class _Names(dict[str, Any]):
    """The globals of a compiled function: constants get names as they come up."""

    def name(self, prefix: str, value: Any) -> str:
        name = f"{prefix}{len(self)}"
        self[name] = value
        return name


def _compile(kind: str, cls: type, version: int, flexible: bool) -> Any:
    names = _Names(skip_tags=skip_tags, read_tags=read_tags, write_tags=write_tags)
    code = "\n".join(_lines(kind, names, cls, version, flexible))
    exec(compile(code, f"<{kind} {cls.__name__} v{version}>", "exec"), names)
    return names[kind]


def _lines(kind: str, names: _Names, cls: type, version: int, flexible: bool) -> Iterator[str]:
    make = _decode_lines if kind == "decode" else _encode_lines
    return make(names, cls, version, flexible)


def _runs(fields: list[_Field]) -> Iterator[tuple[bool, list[_Field]]]:
    """Groups neighbouring fields of fixed width; each other field stands alone."""
    for fixed, group in groupby(fields, key=lambda f: f.is_fixed):
        if fixed:
            yield True, list(group)
        else:
            yield from ((False, [f]) for f in group)


def _decode_lines(names: _Names, cls: type, version: int, flexible: bool) -> Iterator[str]:
    fields, tagged = _fields(cls, version)
    yield "def decode(b, p):"
    for fixed, run in _runs(fields):
        if fixed:
            packed = struct.Struct(">" + "".join(f.wire for f in run))
            unpack = names.name("unpack", packed.unpack_from)
            yield f"    {', '.join('_' + f.name for f in run)}, = {unpack}(b, p)"
            yield f"    p += {packed.size}"
        else:
            yield f"    _{run[0].name}, p = {names.name('read', _reader(run[0], version, flexible))}(b, p)"
    made = f"{names.name('cls', cls)}({', '.join(f'{f.name}=_{f.name}' for f in fields)})"
    if flexible and not tagged:
        yield "    p = skip_tags(b, p) if b[p] else p + 1"
    if flexible and tagged:
        table = {f.tag: (f.name, _reader(f, version, flexible)) for f in tagged}
        yield f"    m = {made}"
        yield f"    return m, (read_tags(b, p, m, {names.name('tags', table)}) if b[p] else p + 1)"
    else:
        yield f"    return {made}, p"


def _reader(field: _Field, version: int, flexible: bool) -> Decoder:
    """A function for one field that is not part of a run."""
    length = compact_length if flexible else long_length
    if field.is_list:
        least = _least_size(field, version, flexible)
        item = dataclasses.replace(field, is_list=False, may_be_null=False)
        if item.is_fixed:
            return sized(length, field.may_be_null, array_of(item.wire, least))
        return sized(length, field.may_be_null, list_of(_reader(item, version, flexible), least))
    if field.wire == "struct":
        read_struct = decoder(field.struct, version, flexible)
        return maybe_struct(read_struct) if field.may_be_null else read_struct
    if field.is_fixed:
        packed = struct.Struct(">" + field.wire)
        return lambda b, p: (packed.unpack_from(b, p)[0], p + packed.size)
    if field.wire == "str" and not flexible:
        length = short_length
    read = {"str": text, "bytes": copied, "records": viewed}[field.wire]
    return sized(length, field.may_be_null, read)


def _encode_lines(names: _Names, cls: type, version: int, flexible: bool) -> Iterator[str]:
    fields, tagged = _fields(cls, version)
    yield "def encode(m, out):"
    for fixed, run in _runs(fields):
        if fixed:
            pack = names.name("pack", struct.Struct(">" + "".join(f.wire for f in run)).pack)
            yield f"    out += {pack}({', '.join('m.' + f.name for f in run)})"
        else:
            yield f"    {names.name('write', _writer(run[0], version, flexible))}(m.{run[0].name}, out)"
    if flexible and tagged:
        table = [(f.tag, f.name, f.default, _writer(f, version, flexible)) for f in tagged]
        yield f"    write_tags(m, out, {names.name('tags', table)})"
    elif flexible:
        yield "    out.append(0)"
    elif not fields:
        yield "    pass"


def _writer(field: _Field, version: int, flexible: bool) -> Encoder:
    """A function for one field that is not part of a run. Where null cannot be said it is written as empty."""
    length, null = (put_compact, b"\0") if flexible else (put_long, b"\xff\xff\xff\xff")
    if field.wire == "str" and not field.is_list and not flexible:
        length, null = put_short, b"\xff\xff"
    if not field.may_be_null:
        empty = bytearray()
        length(0, empty)
        null = bytes(empty)
    if field.is_list:
        item = dataclasses.replace(field, is_list=False, may_be_null=False)
        if item.is_fixed:
            return array_writer(length, null, item.wire)
        return list_writer(length, null, _writer(item, version, flexible))
    if field.wire == "struct":
        write_struct = encoder(field.struct, version, flexible)
        return maybe_struct_writer(write_struct) if field.may_be_null else write_struct
    if field.is_fixed:
        pack = struct.Struct(">" + field.wire).pack
        return lambda value, out: out.extend(pack(value))
    return text_writer(length, null) if field.wire == "str" else bytes_writer(length, null)

"""Avro container files: the part of the format that Iceberg's manifests need, for files of any writer.

A schema is compiled once into functions that read or write one value; records are plain dictionaries. Fields that we do
not know (another engine's partition values) therefore go through unchanged.
"""

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cramjam

from lakestream.errors import Corrupt

MAGIC = b"Obj\x01"
CODEC = "avro.codec"
SCHEMA = "avro.schema"
SYNC_BYTES = 16
MAX_BLOCK_BYTES = 1 << 28
"""A block that claims to be larger, packed or unpacked, is no manifest of any writer."""

Record = dict[str, Any]
Schema = str | dict[str, Any] | list[Any]
_CramjamError = cramjam.DecompressionError
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")


class Cursor:
    """Bytes, and the position up to which they are read."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def long(self) -> int:
        data = self.data
        at = self.at
        byte = data[at]
        at += 1
        if byte < 0x80:
            self.at = at
            return (byte >> 1) ^ -(byte & 1)
        value = byte & 0x7F
        shift = 7
        while byte & 0x80:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 70:
                raise Corrupt("a number in an Avro file does not end")
        self.at = at
        return (value >> 1) ^ -(value & 1)

    def take(self, length: int) -> bytes:
        end = self.at + length
        if length < 0 or end > len(self.data):
            raise Corrupt("an Avro file ends in the middle of a value")
        found = self.data[self.at : end]
        self.at = end
        return found


Read = Callable[[Cursor], Any]
Write = Callable[[bytearray, Any], None]


@dataclass(frozen=True, slots=True)
class Container:
    """A container file: the entries of its header, and its records."""

    header: dict[str, bytes]
    records: list[Record]


def read_container(data: bytes, skipped: frozenset[str] = frozenset()) -> Container:
    """Read all records, without the fields that are `skipped`, in whatever record they are.

    Raises Corrupt if it is not a complete Avro file.
    """
    try:
        return _read_container(data, skipped)
    except (LookupError, TypeError, ValueError, RecursionError, struct.error, zlib.error, _CramjamError) as error:
        raise Corrupt(f"an Avro file cannot be read: {error}") from error


def read_header(data: bytes) -> dict[str, bytes]:
    """Raises Corrupt."""
    try:
        return _read_header(Cursor(data))
    except (IndexError, ValueError) as error:
        raise Corrupt(f"an Avro file cannot be read: {error}") from error


def _read_header(cursor: Cursor) -> dict[str, bytes]:
    if cursor.take(len(MAGIC)) != MAGIC:
        raise Corrupt("not an Avro file")
    header: dict[str, bytes] = _read_map(_read_bytes)(cursor)
    return header


def _read_container(data: bytes, skipped: frozenset[str]) -> Container:
    cursor = Cursor(data)
    header = _read_header(cursor)
    sync = cursor.take(SYNC_BYTES)
    read = _reader_of(header[SCHEMA].decode(), skipped)
    codec = header.get(CODEC, b"null").decode()
    records: list[Record] = []
    while cursor.at < len(data):
        count = cursor.long()
        block = Cursor(_unpack(cursor.take(cursor.long()), codec))
        if not 0 <= count <= len(block.data):
            raise Corrupt("a block of an Avro file claims more records than it has bytes")
        records.extend([read(block) for _ in range(count)])
        if block.at != len(block.data) or cursor.take(SYNC_BYTES) != sync:
            raise Corrupt("a block of an Avro file does not end where it should")
    return Container(header, records)


def write_container(
    schema: str, header: Mapping[str, str], records: Sequence[Record], sync: bytes, codec: str = "deflate"
) -> bytes:
    """Writes one block for any number of records: packed together they take the least space. `schema` is JSON."""
    out = bytearray(MAGIC)
    entries = {SCHEMA: schema, CODEC: codec, **header}
    _write_long(out, len(entries))
    for key, value in entries.items():
        _write_bytes(out, key.encode())
        _write_bytes(out, value.encode())
    out.append(0)
    out += sync
    if records:
        write = _writer_of(schema)
        block = bytearray()
        for record in records:
            write(block, record)
        packed = _pack(bytes(block), codec)
        _write_long(out, len(records))
        _write_bytes(out, packed)
        out += sync
    return bytes(out)


def _unpack(data: bytes, codec: str) -> bytes:
    if codec == "null":
        return data
    if codec == "deflate":
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        whole = unpacker.decompress(data, MAX_BLOCK_BYTES)
        if unpacker.unconsumed_tail:
            raise Corrupt("a block of an Avro file is too large")
        return whole
    if codec == "snappy":
        return bytes(cramjam.snappy.decompress_raw(data[:-4]))
    if codec == "zstandard":
        return bytes(cramjam.zstd.decompress(data))
    raise Corrupt(f"an Avro file is packed with {codec}, which we do not know")


def _pack(data: bytes, codec: str) -> bytes:
    if codec == "null":
        return data
    assert codec == "deflate", codec
    packer = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


# -- reading -----------------------------------------------------------------------------------------------------------


@lru_cache(64)
def _reader_of(schema: str, skipped: frozenset[str]) -> Read:
    return _Readers(skipped).compile(json.loads(schema))


class _Readers:
    """Compiles a schema into functions that read. Named types may be used again further down."""

    def __init__(self, skipped: frozenset[str]) -> None:
        self._skipped = skipped
        self._named: dict[str, Read] = {}

    def compile(self, schema: Schema) -> Read:
        if isinstance(schema, list):
            return _read_union([self.compile(choice) for choice in schema])
        if isinstance(schema, str):
            return _PRIMITIVE_READERS.get(schema) or self._named[schema]
        kind = schema["type"]
        if kind == "record":
            fields: list[tuple[str, Read, bool]] = []
            read = self._named[schema["name"]] = _read_record(fields)
            fields.extend(self._field(field) for field in schema["fields"])
            return read
        if kind == "array":
            return _read_array(self.compile(schema["items"]))
        if kind == "map":
            return _read_map(self.compile(schema["values"]))
        if kind == "fixed":
            size = int(schema["size"])
            fixed = self._named[schema["name"]] = lambda cursor: cursor.take(size)
            return fixed
        if kind == "enum":
            self._named[schema["name"]] = Cursor.long
            return Cursor.long
        return self.compile(kind)

    def _field(self, field: Mapping[str, Any]) -> tuple[str, Read, bool]:
        kind = field["type"]
        if field["name"] not in self._skipped:
            return field["name"], self.compile(kind), True
        read = self.compile(kind)
        lists = [choice for choice in kind if isinstance(choice, dict)] if isinstance(kind, list) else []
        if len(lists) == 1 and lists[0].get("type") == "array":
            skip = _skip_array(self.compile(lists[0]["items"]))
            read = _read_union([skip if choice is lists[0] else self.compile(choice) for choice in kind])
        return field["name"], read, False


def _read_record(fields: list[tuple[str, Read, bool]]) -> Read:
    def read(cursor: Cursor) -> Record:
        found = {}
        for name, value, wanted in fields:
            if wanted:
                found[name] = value(cursor)
            else:
                value(cursor)
        return found

    return read


def _skip_array(item: Read) -> Read:
    """Skips an array; a block with its size, as ours have, in one step."""

    def skip(cursor: Cursor) -> None:
        while count := cursor.long():
            if count < 0:
                cursor.take(cursor.long())
            else:
                for _ in range(min(count, len(cursor.data) - cursor.at)):
                    item(cursor)

    return skip


def _read_union(choices: list[Read]) -> Read:
    def read(cursor: Cursor) -> Any:
        return choices[cursor.long()](cursor)

    return read


def _read_array(item: Read) -> Read:
    def read(cursor: Cursor) -> list[Any]:
        found: list[Any] = []
        while count := cursor.long():
            if count < 0:
                count = -count
                cursor.long()
            if count > len(cursor.data) - cursor.at:
                raise Corrupt("a list in an Avro file claims more items than there are bytes")
            found.extend([item(cursor) for _ in range(count)])
        return found

    return read


def _read_map(value: Read) -> Read:
    def read(cursor: Cursor) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while count := cursor.long():
            if count < 0:
                count = -count
                cursor.long()
            for _ in range(count):
                key = cursor.take(cursor.long()).decode()
                found[key] = value(cursor)
        return found

    return read


def _read_bytes(cursor: Cursor) -> bytes:
    return cursor.take(cursor.long())


_PRIMITIVE_READERS: dict[str, Read] = {
    "null": lambda cursor: None,
    "boolean": lambda cursor: cursor.take(1) != b"\0",
    "int": Cursor.long,
    "long": Cursor.long,
    "float": lambda cursor: _FLOAT.unpack(cursor.take(4))[0],
    "double": lambda cursor: _DOUBLE.unpack(cursor.take(8))[0],
    "bytes": _read_bytes,
    "string": lambda cursor: cursor.take(cursor.long()).decode(),
}


# -- writing -----------------------------------------------------------------------------------------------------------


@lru_cache(64)
def _writer_of(schema: str) -> Write:
    return _compile_writer(json.loads(schema), {})


def _compile_writer(schema: Schema, named: dict[str, Write]) -> Write:
    if isinstance(schema, list):
        return _write_union(schema, named)
    if isinstance(schema, str):
        return _PRIMITIVE_WRITERS.get(schema) or named[schema]
    kind = schema["type"]
    if not isinstance(kind, str):
        return _compile_writer(kind, named)
    if kind == "record":
        fields: list[tuple[str, Write]] = []
        write = _write_record(fields)
        named[schema["name"]] = write
        fields.extend((field["name"], _compile_writer(field["type"], named)) for field in schema["fields"])
        return write
    if kind == "array":
        return _write_array(_compile_writer(schema["items"], named))
    if kind == "map":
        return _write_map(_compile_writer(schema["values"], named))
    if kind == "fixed":
        named[schema["name"]] = bytearray.extend
        return bytearray.extend
    if kind == "enum":
        named[schema["name"]] = _write_long
        return _write_long
    return _compile_writer(kind, named)


def _write_record(fields: list[tuple[str, Write]]) -> Write:
    def write(out: bytearray, record: Record) -> None:
        for name, field in fields:
            field(out, record.get(name))

    return write


def _write_union(choices: list[Any], named: dict[str, Write]) -> Write:
    """Writes a union with null; Iceberg has no others."""
    assert len(choices) == 2 and "null" in choices, choices
    null = choices.index("null")
    value = _compile_writer(choices[1 - null], named)
    marks = (b"\0", b"\2")

    def write(out: bytearray, item: Any) -> None:
        if item is None:
            out += marks[null]
        else:
            out += marks[1 - null]
            value(out, item)

    return write


def _write_array(item: Write) -> Write:
    """Writes one block with its size (after a negative count), so that readers can skip it."""

    def write(out: bytearray, items: Sequence[Any]) -> None:
        if items:
            block = bytearray()
            for each in items:
                item(block, each)
            _write_long(out, -len(items))
            _write_bytes(out, block)
        out.append(0)

    return write


def _write_map(value: Write) -> Write:
    def write(out: bytearray, items: Mapping[str, Any]) -> None:
        if items:
            _write_long(out, len(items))
            for key, each in items.items():
                _write_bytes(out, key.encode())
                value(out, each)
        out.append(0)

    return write


def _write_long(out: bytearray, value: int) -> None:
    rest = value << 1 if value >= 0 else (~value << 1) | 1
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _write_bytes(out: bytearray, value: bytes | bytearray) -> None:
    _write_long(out, len(value))
    out += value


_PRIMITIVE_WRITERS: dict[str, Write] = {
    "null": lambda out, value: None,
    "boolean": lambda out, value: out.append(1 if value else 0),
    "int": _write_long,
    "long": _write_long,
    "float": lambda out, value: out.extend(_FLOAT.pack(value)),
    "double": lambda out, value: out.extend(_DOUBLE.pack(value)),
    "bytes": _write_bytes,
    "string": lambda out, value: _write_bytes(out, value.encode()),
}

"""How a single field is read and written, once it is not of fixed width: text, bytes, lists, tagged fields.

These are the functions that the source made by codec.py calls. A reader takes (buffer, position) and returns (value,
position behind it); the buffer ends where the frame ends. A writer takes (value, out).
"""

import struct
from collections.abc import Callable
from typing import Any, Final

from lakestream.interfaces import Buffer
from lakestream.protocol.kafka.wire.framing import TAGS_LIMIT, Malformed, read_uvarint, uvarint

Decoder = Callable[[Buffer, int], tuple[Any, int]]
Encoder = Callable[[Any, bytearray], None]
Length = Callable[[Buffer, int], tuple[int, int]]
Put = Callable[[int, bytearray], None]
Sized = Callable[[Buffer, int, int], tuple[Any, int]]
"""(buffer, position, length or count) -> (value, position)."""

ITEMS_LIMIT: Final = 100_000
"""Items of one list: a struct of two bytes on the wire takes a hundred in memory, and so may the answer to a number. A
topic has no more partitions."""

_SHORT: Final = struct.Struct(">h")
_LONG: Final = struct.Struct(">i")


# Reading


def short_length(b: Buffer, p: int) -> tuple[int, int]:
    return _SHORT.unpack_from(b, p)[0], p + 2


def long_length(b: Buffer, p: int) -> tuple[int, int]:
    return _LONG.unpack_from(b, p)[0], p + 4


def compact_length(b: Buffer, p: int) -> tuple[int, int]:
    """One less than what is written, so that null can be written as 0."""
    n, p = read_uvarint(b, p)
    return n - 1, p


def sized(length: Length, may_be_null: bool, read: Sized) -> Decoder:
    """A field that begins with its length or count, which may not be higher than the number of bytes that are left."""

    def reader(b: Buffer, p: int) -> tuple[Any, int]:
        n, p = length(b, p)
        if n < 0:
            if n == -1 and may_be_null:
                return None, p
            raise Malformed(f"a length of {n}")
        if n > len(b) - p:
            raise Malformed(f"a length of {n} where {len(b) - p} bytes are left")
        return read(b, p, n)

    return reader


def text(b: Buffer, p: int, n: int) -> tuple[str, int]:
    return str(b[p : p + n], "utf-8"), p + n


def copied(b: Buffer, p: int, n: int) -> tuple[bytes, int]:
    return bytes(b[p : p + n]), p + n


def viewed(b: Buffer, p: int, n: int) -> tuple[memoryview, int]:
    return memoryview(b)[p : p + n], p + n


def array_of(wire: str, size: int) -> Sized:
    """A list of values of fixed width."""

    def reader(b: Buffer, p: int, n: int) -> tuple[list[Any], int]:
        if n * size > len(b) - p or n > ITEMS_LIMIT:
            raise Malformed(f"{n} values of {size} bytes where {len(b) - p} bytes are left")
        return list(struct.unpack_from(_repeated(wire, n), b, p)), p + n * size

    return reader


def _repeated(wire: str, n: int) -> str:
    return f">{n}{wire}" if len(wire) == 1 else ">" + wire * n


def list_of(read: Decoder, least: int) -> Sized:
    """A list of structs or texts, each of `least` bytes or more."""

    def reader(b: Buffer, p: int, n: int) -> tuple[list[Any], int]:
        if n * least > len(b) - p or n > ITEMS_LIMIT:
            raise Malformed(f"{n} items of {least} bytes or more where {len(b) - p} bytes are left")
        items = []
        for _ in range(n):
            item, p = read(b, p)
            items.append(item)
        return items, p

    return reader


def maybe_struct(read: Decoder) -> Decoder:
    """A struct that may be null: one signed byte in front says so, below zero for null."""

    def reader(b: Buffer, p: int) -> tuple[Any, int]:
        return (None, p + 1) if b[p] & 0x80 else read(b, p + 1)

    return reader


def read_tags(b: Buffer, p: int, message: Any, known: dict[int, tuple[str, Decoder]]) -> int:
    """Set the tagged fields that this version knows, and skip the rest."""
    count, p = read_uvarint(b, p)
    if count > TAGS_LIMIT:
        raise Malformed(f"{count} tagged fields")
    for _ in range(count):
        tag, p = read_uvarint(b, p)
        size, p = read_uvarint(b, p)
        end = p + size
        if end > len(b):
            raise Malformed("a tagged field is longer than its frame")
        if tag in known:
            name, read = known[tag]
            value, p = read(b, p)
            setattr(message, name, value)
            if p != end:
                raise Malformed(f"tagged field {name} is not as long as it says")
        p = end
    return p


# Writing


def put_short(n: int, out: bytearray) -> None:
    out += _SHORT.pack(n)


def put_long(n: int, out: bytearray) -> None:
    out += _LONG.pack(n)


def put_compact(n: int, out: bytearray) -> None:
    out += uvarint(n + 1)


def text_writer(length: Put, null: bytes) -> Encoder:
    def write(value: str | None, out: bytearray) -> None:
        if value is None:
            out += null
        else:
            data = value.encode()
            length(len(data), out)
            out += data

    return write


def bytes_writer(length: Put, null: bytes) -> Encoder:
    def write(value: Buffer | None, out: bytearray) -> None:
        if value is None:
            out += null
        else:
            length(len(value), out)
            out += value

    return write


def array_writer(length: Put, null: bytes, wire: str) -> Encoder:
    def write(values: list[Any] | None, out: bytearray) -> None:
        if values is None:
            out += null
        else:
            length(len(values), out)
            out += struct.pack(_repeated(wire, len(values)), *values)

    return write


def list_writer(length: Put, null: bytes, item: Encoder) -> Encoder:
    def write(values: list[Any] | None, out: bytearray) -> None:
        if values is None:
            out += null
        else:
            length(len(values), out)
            for value in values:
                item(value, out)

    return write


def maybe_struct_writer(write: Encoder) -> Encoder:
    def write_or_null(value: Any, out: bytearray) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write(value, out)

    return write_or_null


def write_tags(message: Any, out: bytearray, table: list[tuple[int, str, Any, Encoder]]) -> None:
    """Only the fields that are not at their default, in the order of their tags."""
    present = [row for row in table if getattr(message, row[1]) != row[2]]
    out += uvarint(len(present))
    for tag, name, _, write in present:
        data = bytearray()
        write(getattr(message, name), data)
        out += uvarint(tag)
        out += uvarint(len(data))
        out += data

"""The frame around every message: lengths, headers, varints and tagged fields. No I/O.

A request is `length, api key, api version, correlation id, client id, [tags], body`; a response is `length,
correlation id, [tags], body`. The tags are there in the flexible versions of an API only. ApiVersions is the exception:
its response header never has tags, since the client that asks cannot know yet what we speak.
"""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from lakestream.errors import LakestreamError
from lakestream.interfaces import Buffer

API_VERSIONS: Final = 18
TAGS_LIMIT: Final = 1000
"""Tagged fields of one struct; the protocol has never had more than four."""
UNREADABLE: Final = (struct.error, IndexError, UnicodeDecodeError)
"""Python's errors for bytes that end too early or are not text; every entry point raises Malformed instead."""

_FIXED_HEADER: Final = struct.Struct(">hhih")
LENGTH_AND_CORRELATION: Final = struct.Struct(">ii")


class Malformed(LakestreamError):
    """The bytes are not what the protocol says: answer with an error or close the connection."""


class RequestHeader(NamedTuple):
    """A request's header. `body` is the position of the first byte behind the header."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int


def parse_header(view: Buffer, pos: int, end: int, flexible_from: Mapping[int, int]) -> RequestHeader:
    """Read the header of the frame view[pos:end] (the length prefix not included).

    `flexible_from` gives each known API's first version with tags. Of an unknown API or version only the fixed part
    can be trusted: a refusal needs no more, and the body may be unreadable.
    """
    try:
        key, version, correlation_id, size = _FIXED_HEADER.unpack_from(view, pos)
        pos += _FIXED_HEADER.size
        client_id = None
        if size >= 0:
            client_id = str(view[pos : pos + size], "utf-8")
            pos += size
        elif size != -1:
            raise Malformed(f"client id of {size} bytes")
        if version >= flexible_from.get(key, 1 << 15):
            pos = skip_tags(view, pos)
    except UNREADABLE as error:
        raise Malformed(f"request header: {error}") from None
    if pos > end:
        raise Malformed("the header is longer than its frame")
    return RequestHeader(key, version, correlation_id, client_id, pos)


def begin_frame(flexible_header: bool) -> bytearray:
    """Room for a response's length and header; append the body, then `end_frame`."""
    return bytearray(9 if flexible_header else 8)


def end_frame(out: bytearray, correlation_id: int) -> bytearray:
    LENGTH_AND_CORRELATION.pack_into(out, 0, len(out) - 4, correlation_id)
    return out


def has_flexible_response_header(api_key: int, flexible: bool) -> bool:
    return flexible and api_key != API_VERSIONS


def read_uvarint(view: Buffer, pos: int) -> tuple[int, int]:
    """An unsigned varint of five bytes at most, and the position behind it."""
    byte = view[pos]
    if byte < 0x80:
        return byte, pos + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        pos += 1
        byte = view[pos]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos + 1
    raise Malformed("a varint of more than five bytes")


_SMALL_UVARINTS: Final = [bytes([n]) if n < 0x80 else bytes([n & 0x7F | 0x80, n >> 7]) for n in range(1 << 14)]


def uvarint(value: int) -> bytes:
    """The bytes of an unsigned varint."""
    if value < 1 << 14:
        return _SMALL_UVARINTS[value]
    if value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tags(view: Buffer, pos: int) -> int:
    """Step over a section of tagged fields, none of which we know."""
    count, pos = read_uvarint(view, pos)
    if count > TAGS_LIMIT:
        raise Malformed(f"{count} tagged fields")
    for _ in range(count):
        _, pos = read_uvarint(view, pos)
        size, pos = read_uvarint(view, pos)
        pos += size
    if pos > len(view):
        raise Malformed("a tagged field is longer than its frame")
    return pos

"""Recognizes clients that speak another protocol, by their first bytes, and clients that ask for an unserved API."""

import struct
from typing import Final

from lakestream.interfaces import Buffer
from lakestream.protocol.kafka.wire.apis import UNSERVED
from lakestream.protocol.kafka.wire.framing import Malformed, parse_header

_KEY: Final = struct.Struct(">hh")

_HTTP: Final = frozenset({b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"TRAC", b"PRI "})


def what_it_looks_like(first: bytes, size: int) -> tuple[str, str]:
    """The kind and the reason of a warning about bytes that are no length of a frame."""
    if first in _HTTP:
        return "http", "the client speaks HTTP, this port speaks Kafka"
    if first[:2] == b"\x16\x03":
        return "tls", "the client speaks TLS, this port does not"
    return "frame", f"a frame of {size} bytes (or something that is not Kafka's protocol)"


def unserved(view: Buffer, start: int, stop: int) -> str:
    """The log line for a request of an unserved API. Kafka closes the connection too, so the client learns no more."""
    key, version = _KEY.unpack_from(view, start)
    name = f"{UNSERVED[key]} (API key {key})" if key in UNSERVED else f"API key {key}"
    try:
        client = parse_header(view, start, stop, {}).client_id
    except Malformed:
        client = None
    asked = f"the client {client!r} asked for" if client else "the client asked for"
    return f"{asked} {name}, version {version}, which is neither advertised nor supported"

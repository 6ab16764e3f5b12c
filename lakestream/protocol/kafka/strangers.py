"""Clients that speak something else than Kafka's protocol, told by their first bytes."""

from typing import Final

_HTTP: Final = frozenset({b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"TRAC", b"PRI "})


def what_it_looks_like(first: bytes, size: int) -> tuple[str, str]:
    """Name the bytes that stand where a frame's length should be: kind and reason of the complaint."""
    if first in _HTTP:
        return "http", "it speaks HTTP, this port speaks Kafka"
    if first[:2] == b"\x16\x03":
        return "tls", "it speaks TLS, this port does not"
    return "frame", f"a frame of {size} bytes (or something that is not Kafka's protocol)"

"""Records as lines: plain text with separators, or JSON that goes both ways. Pure."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakestream.errors import LakestreamError

Header = tuple[str, bytes | None]
READ = ("key", "value", "headers", "partition", "timestamp")
"""The fields of a line of JSON that make a record."""
IGNORED = ("topic", "offset")
"""Those that `consume` prints too, and that whoever writes the line again decides anew."""


class BadLine(LakestreamError):
    """A line that is no record; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A record as somebody typed it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp: int | None = None


def size_of(line: Line) -> int:
    """Bytes that its user gave it: key, value and headers."""
    headers = sum(len(name) + len(value or b"") for name, value in line.headers)
    return len(line.key or b"") + len(line.value or b"") + headers


def parse_text(line: bytes, key_separator: str | None) -> Line:
    if key_separator is None:
        return Line(key=None, value=line)
    key, found, value = line.partition(key_separator.encode())
    if not found:
        raise BadLine(f"there is no key separator {key_separator!r} in it")
    return Line(key=key, value=value)


def parse_json(line: bytes) -> Line:
    """An object with any of the fields READ. Another one is refused, or the record would lack what it says."""
    try:
        document = json.loads(line)
    except ValueError as error:
        raise BadLine(f"it is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadLine('it has to be an object such as {"key": "k", "value": "v"}')
    for name in document:
        if name not in READ + IGNORED:
            ignored = f"{' and '.join(IGNORED)} are ignored"
            raise BadLine(f"there is no field {name!r}; known are {', '.join(READ)} ({ignored})")
    headers = document.get("headers") or []
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(pairs, list) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise BadLine('headers have to be an object or a list of ["name", "value"]')
    return Line(
        key=_from_json(document.get("key")),
        value=_from_json(document.get("value")),
        headers=tuple((str(name), _from_json(value)) for name, value in pairs),
        partition=_whole(document, "partition"),
        timestamp=_whole(document, "timestamp"),
    )


def format_json(topic: str, partition: int, offset: int, timestamp: int, line: Line) -> bytes:
    """What is no UTF-8 becomes {"base64": ...}."""
    document = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "key": _to_json(line.key),
        "value": _to_json(line.value),
        "headers": [[name, _to_json(value)] for name, value in line.headers],
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def format_text(line: Line, key_separator: str | None, with_headers: bool) -> bytes:
    """[HEADERS tab][KEY separator]VALUE, as Kafka's own console consumer has it; null is written so."""
    parts = []
    if with_headers:
        shown = [name.encode() + b":" + (b"null" if value is None else value) for name, value in line.headers]
        parts.append((b",".join(shown) or b"NO_HEADERS") + b"\t")
    if key_separator is not None:
        parts.append((b"null" if line.key is None else line.key) + key_separator.encode())
    parts.append(b"null" if line.value is None else line.value)
    return b"".join(parts) + b"\n"


def _to_json(data: bytes | None) -> str | Mapping[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _from_json(value: Any) -> bytes | None:
    """Text as it is, {"base64": ...} as bytes, anything else as JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except ValueError:
            raise BadLine("its base64 cannot be read") from None
    return json.dumps(value, separators=(",", ":")).encode()


def _whole(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise BadLine(f"{name} has to be a whole number")
    return value

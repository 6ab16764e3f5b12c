"""Records as lines of text: plain with separators, or JSON, which is read and written. Pure."""

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
"""Fields that `consume` prints and `produce` ignores: a record that is written again gets new ones."""


class BadLine(LakestreamError):
    """A line that cannot be a record; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A record as a line of input or output."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp: int | None = None


def size_of(line: Line) -> int:
    """The bytes of the record's key, value and headers."""
    headers = sum(len(name) + len(value or b"") for name, value in line.headers)
    return len(line.key or b"") + len(line.value or b"") + headers


def parse_text(line: bytes, key_separator: str | None) -> Line:
    if key_separator is None:
        return Line(key=None, value=line)
    key, found, value = line.partition(key_separator.encode())
    if not found:
        raise BadLine(f"the line has no key separator {key_separator!r}")
    return Line(key=key, value=value)


def parse_json(line: bytes) -> Line:
    """A line with a JSON object of the fields READ. An unknown field is refused: the record could not hold it."""
    try:
        document = json.loads(line)
    except ValueError as error:
        raise BadLine(f"the line is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadLine('the line has to be an object such as {"key": "k", "value": "v"}')
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
    """A record as a JSON line; bytes that are not UTF-8 become {"base64": ...}."""
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
    """[HEADERS tab][KEY separator]VALUE, as Kafka's console consumer prints it; a missing value is `null`."""
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
    """The bytes of a field: text as it is, {"base64": ...} decoded, any other value as JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except ValueError:
            raise BadLine("its base64 cannot be decoded") from None

    return json.dumps(value, separators=(",", ":")).encode()


def _whole(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise BadLine(f"{name} has to be a whole number")
    return value

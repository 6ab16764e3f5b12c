"""Decodes the JSON of request bodies without stopping the event loop.

A compiled decoder is quick, but no other thread runs until it is done. So large bodies are decoded by Python's own
decoder, one at a time, slower and in a thread, which gives way every millisecond.
"""

import asyncio
import json
from collections.abc import Sequence
from json import decoder, scanner
from math import isinf
from typing import Any, Final, TypeVar, cast

import msgspec

INLINE_BYTES: Final = 64 << 10
"""Up to here a body is decoded at once: in about a millisecond."""

T = TypeVar("T")


class BodyDecoder:
    """Belongs to one event loop."""

    def __init__(self, inline_bytes: int = INLINE_BYTES) -> None:
        self._inline_bytes = inline_bytes
        self._one_at_a_time = asyncio.Lock()

    async def decode(self, body: bytes, kind: type[T]) -> T:
        """Raises MsgspecError or RecursionError if the body is not JSON, or not of this kind."""
        if len(body) <= self._inline_bytes:
            return msgspec.json.decode(body, type=kind)
        async with self._one_at_a_time:
            return await asyncio.to_thread(decode_gently, body, kind)


def decode_gently(body: bytes, kind: type[T]) -> T:
    """Decodes as `decode` does, in many small steps."""
    try:
        found = _gentle().decode(body.decode("utf-8"))
    except ValueError as error:
        raise msgspec.DecodeError(f"JSON is malformed: {error}") from None
    if not isinstance(found, dict):
        return msgspec.convert(found, type=kind)
    # Item by item, since conversion lets no other thread run either: each item is converted as a list of one.
    steps = {name: found[name] for name in found if not isinstance(found[name], list)}
    lists = {name: found[name] for name in found if isinstance(found[name], list)}
    made = msgspec.convert({**steps, **{name: [] for name in lists}}, type=kind)
    for field in msgspec.structs.fields(cast(Any, kind)):
        if field.encode_name in lists:
            items = [item for one in lists[field.encode_name] for item in msgspec.convert([one], type=field.type)]
            msgspec.structs.force_setattr(cast(msgspec.Struct, made), field.name, items)
    return made


def _gentle() -> json.JSONDecoder:
    """A decoder with loops in Python, as strict as the compiled one."""
    made = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_refuse)
    made.parse_object = decoder.JSONObject  # type: ignore[attr-defined]
    made.parse_array = decoder.JSONArray  # type: ignore[attr-defined]
    made.parse_string = _string  # type: ignore[attr-defined]
    made.scan_once = scanner.py_make_scanner(made)  # type: ignore[attr-defined]
    return made


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {_whole(name): value for name, value in pairs}


def _string(text: str, end: int, strict: bool = True) -> tuple[str, int]:
    found, end = decoder.scanstring(text, end, strict)  # type: ignore[attr-defined]
    return _whole(found), end


def _whole(text: str) -> str:
    """Raises for a lone surrogate, which an escape can make: it could not be encoded again."""
    if not text.isascii():
        text.encode()
    return text


def _finite(text: str) -> float:
    found = float(text)
    if isinf(found):
        raise ValueError(f"{text} is out of range")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number")

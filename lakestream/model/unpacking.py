"""Decoding a large msgpack value in small pieces, and freeing it in small pieces.

One call of msgspec holds the interpreter until the whole value is decoded: 0.3 seconds for a checkpoint of 100,000
partitions. Here compiled code, which does not hold the interpreter, finds the ends of the items of large arrays, and
msgspec decodes a few items at a time.
"""

from typing import Any

import msgspec
import numpy as np
from numba import njit

from lakestream.errors import Corrupt
from lakestream.model.kernels.pointers import address_of, load, store64

PIECE_BYTES = 32 * 1024
"""Bytes that are decoded at once, in about half a millisecond; a longer string is one piece."""
FREED_AT_ONCE = 500
MALFORMED = -1

_ARRAY32 = 0xDD
_HEADERS = {0xDC: 2, _ARRAY32: 4}
"""The codes of arrays with a length of so many bytes."""


def unpack(data: memoryview) -> Any:
    """What `msgspec.msgpack.decode` gives for these bytes. Raises Corrupt if they are no msgpack."""
    code = data[0] if len(data) else 0
    if len(data) <= PIECE_BYTES or not (code in _HEADERS or 0x90 <= code <= 0x9F):
        return _decode(data)
    width = _HEADERS.get(code, 0)
    count = int.from_bytes(data[1 : 1 + width], "big") if width else code & 0x0F
    start = 1 + width
    ends = np.empty(min(count, len(data)), np.int64)
    place = int(ends.__array_interface__["data"][0])
    if count > len(data) or item_ends(address_of(data), start, len(data), count, place) != len(data):
        raise Corrupt("these bytes are no msgpack: an array is shorter or longer than it says")
    return _items(data, start, ends)


def _items(data: memoryview, start: int, ends: "np.ndarray[Any, np.dtype[np.int64]]") -> list[Any]:
    """The items of an array, which end there: as many at a time as make a piece, a large one by itself."""
    items: list[Any] = []
    first = 0
    while first < len(ends):
        last = int(np.searchsorted(ends, start + PIECE_BYTES, "right"))
        if last <= first:
            items.append(unpack(data[start : int(ends[first])]))
            last = first + 1
        else:
            items += _decode(bytes((_ARRAY32,)) + (last - first).to_bytes(4, "big") + data[start : int(ends[last - 1])])
        start, first = int(ends[last - 1]), last
    return items


def _decode(data: bytes | memoryview) -> Any:
    try:
        return msgspec.msgpack.decode(data, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"these bytes are no msgpack: {error}") from error


def free(items: list[Any], levels: int = 2) -> None:
    """Empty a list, and the lists in it, some items at a time: the last reference to a large one frees it at once."""
    if levels:
        for item in items:
            if type(item) is list:
                free(item, levels - 1)
    while items:
        del items[-FREED_AT_ONCE:]


@njit(nogil=True, forceinline=True)
def _big(position: int, size: int) -> int:
    """`size` bytes, the highest first."""
    value = 0
    for index in range(size):
        value = value << 8 | load(position + index)
    return value


@njit("int64(int64, int64, int64, int64, int64)", cache=True, nogil=True)
def item_ends(address: int, start: int, end: int, count: int, ends: int) -> int:
    """Write down where each of `count` values ends that lie one after the other; MALFORMED if they are cut short."""
    position = start
    for index in range(count):
        left = 1
        while left > 0:
            if position >= end:
                return MALFORMED
            code = load(address + position)
            position += 1
            left -= 1
            width = 0  # of the length that follows
            items = 0  # for each unit of length
            size = 0
            if code <= 0x7F or code >= 0xE0 or code in (0xC0, 0xC2, 0xC3):
                continue
            if code <= 0x8F:
                left += 2 * (code & 0x0F)
                continue
            if code <= 0x9F:
                left += code & 0x0F
                continue
            if code <= 0xBF:
                size = code & 0x1F
            elif 0xC4 <= code <= 0xC6:
                width = 1 << (code - 0xC4)
            elif 0xC7 <= code <= 0xC9:
                width = 1 << (code - 0xC7)
                size = 1
            elif 0xCA <= code <= 0xCB:
                size = 4 << (code - 0xCA)
            elif 0xCC <= code <= 0xCF:
                size = 1 << (code - 0xCC)
            elif 0xD0 <= code <= 0xD3:
                size = 1 << (code - 0xD0)
            elif 0xD4 <= code <= 0xD8:
                size = 1 + (1 << (code - 0xD4))
            elif 0xD9 <= code <= 0xDB:
                width = 1 << (code - 0xD9)
            elif 0xDC <= code <= 0xDD:
                width = 2 << (code - 0xDC)
                items = 1
            elif 0xDE <= code <= 0xDF:
                width = 2 << (code - 0xDE)
                items = 2
            else:
                return MALFORMED
            if end - position < width:
                return MALFORMED
            length = _big(address + position, width)
            position += width
            if items:
                left += items * length
            else:
                size += length
            if end - position < size:
                return MALFORMED
            position += size
        store64(ends + 8 * index, position)
    return position

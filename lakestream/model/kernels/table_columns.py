"""The columns of a table's rows as compiled code sees them, and the hash of a record that both views agree on.

A *view* is an array of addresses, one slot after another as numbered below: the buffers of Arrow columns, whether they
are being written or were read. A column of bytes takes four slots: its offsets (int32), its bytes, its validity bits
(0: all valid) and the first bit that counts. `stream_headers` uses three of its four, for the list itself.

**The hash of a record** is what the digests of a partition add up (T16): offset, timestamp, key, value and headers,
with null apart from empty. It is taken over what the record says, not over how it is stored, so a batch of the WAL and
a row of the table give the same. Changing it makes all digests in old states worthless: tests/golden holds some.

**An original** is what the columns cannot hold of a record as it was produced, see docs/formats/table-file.md:

    version u8 (1), parts u8 (bits: 1 timestamp, 2 headers), hash of the row's columns as landed u64 (little-endian),
    timestamp i64 (little-endian, if in parts), headers as in the record: count, then each (if in parts)

It is ignored when the columns have another hash: then an engine has changed the row, and the change counts.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from lakestream.model.kernels.pointers import load
from lakestream.model.kernels.record_loops import _headers, _sized, _varint
from lakestream.model.kernels.wide_memory import load32, load64, load_big64, mix, wrapping_add

View = npt.NDArray[np.int64]

ROWS = 0
OFFSET = 1
FLAGS = 2
PARTITION = 3
TIMESTAMP = 4
TIMESTAMP_VALID = 5
TIMESTAMP_BIT = 6
KEY = 7
VALUE = 11
ORIGINAL = 15
HEADERS = 19
HEADER_KEY = 23
HEADER_VALUE = 27
SLOTS = 31

DATA = 1
VALID = 2
BIT = 3
"""Beside the offsets, from the slot of a column of bytes on."""

TOMBSTONE = 1
LOG_APPEND_TIME = 2
HAS_ORIGINAL = 4

ORIGINAL_VERSION = 1
ORIGINAL_TIMESTAMP = 1
ORIGINAL_HEADERS = 2
ORIGINAL_PREFIX = 10

MIN_TIMESTAMP = -62_135_596_800_000
MAX_TIMESTAMP = 253_402_300_799_999
"""The years 1 to 9999 in milliseconds, which every engine can show. Other timestamps go into the original."""

_K0 = -0x5F3B9A8D2C71E04B
_K1 = 0x2D358DCCAA6C78A5
_K2 = -0x7452B6F4A09D3C1F
_K3 = 0x4B33A62ED433D4A3
_NULL = 0x1F67B3B7A4A44073
_SIGN = -(2**63)


@njit(nogil=True, forceinline=True)
def is_set(bits: int, index: int) -> bool:
    """Whether a row is valid by a validity bitmap; without a bitmap all are."""
    return bits == 0 or (load(bits + (index >> 3)) >> (index & 7)) & 1 == 1


@njit(nogil=True, forceinline=True)
def blob(view: View, slot: int, row: int) -> tuple[int, int]:
    """Address and size of the bytes in a row, of size -1 for null."""
    if not is_set(view[slot + VALID], view[slot + BIT] + row):
        return 0, -1
    start = load32(view[slot] + 4 * row)
    return view[slot + DATA] + start, load32(view[slot] + 4 * row + 4) - start


@njit(nogil=True, forceinline=True)
def headers_of(view: View, row: int) -> tuple[int, int]:
    """The range of a row's headers in the header columns."""
    if not is_set(view[HEADERS + VALID], view[HEADERS + BIT] + row):
        return 0, 0
    return load32(view[HEADERS] + 4 * row), load32(view[HEADERS] + 4 * row + 4)


@njit(nogil=True, forceinline=True)
def landed_timestamp(view: View, row: int) -> int:
    """The timestamp that the column says, in milliseconds; -1 for null."""
    if not is_set(view[TIMESTAMP_VALID], view[TIMESTAMP_BIT] + row):
        return -1
    return load64(view[TIMESTAMP] + 8 * row) // 1000


@njit("int64(int64, int64, int64)", cache=True, nogil=True)
def hash_bytes(address: int, size: int, seed: int) -> int:
    """A hash of some bytes, or of null if the size is -1, that goes on from `seed`."""
    if size < 0:
        return mix(seed ^ _NULL, _K3)
    state = mix(seed ^ _K0, size ^ _K1)
    left = size
    while left > 16:
        state = mix(load64(address) ^ _K1, load64(address + 8) ^ state)
        address += 16
        left -= 16
    low = 0
    high = 0
    if left >= 8:
        low = load64(address)
        high = load64(address + left - 8)
    else:
        for index in range(left):
            low |= load(address + index) << (8 * index)
    return mix(low ^ _K2, high ^ state)


@njit("int64(int64, int64)", cache=True, nogil=True)
def hash_encoded_headers(address: int, end: int) -> int:
    """The hash of headers as they lie in a record; they were checked before."""
    count, position = _varint(address, end)
    state = _K3
    for _ in range(count):
        size, start = _sized(position, end, 0)
        state = hash_bytes(start, size, state)
        size, start = _sized(start + size, end, -1)
        state = hash_bytes(start, size, state)
        position = start + max(size, 0)
    return state ^ count


@njit(nogil=True)
def hash_landed_headers(view: View, row: int) -> int:
    """The hash of headers in the columns. A null key, which only other engines can write, counts as empty."""
    first, end = headers_of(view, row)
    state = _K3
    for index in range(first, end):
        address, size = blob(view, HEADER_KEY, index)
        state = hash_bytes(address, max(size, 0), state)
        address, size = blob(view, HEADER_VALUE, index)
        state = hash_bytes(address, size, state)
    return state ^ (end - first)


@njit(nogil=True, forceinline=True)
def hash_record(
    offset: int, timestamp: int, key: int, key_size: int, value: int, value_size: int, headers_hash: int
) -> int:
    """The hash of one record, from its parts."""
    state = mix(offset ^ _K0, timestamp ^ _K2)
    state = hash_bytes(key, key_size, state)
    state = hash_bytes(value, value_size, state)
    return mix(state ^ _K1, headers_hash ^ _K2)


@njit(nogil=True)
def hash_landed(view: View, row: int) -> int:
    """The hash of a row by its columns alone."""
    key, key_size = blob(view, KEY, row)
    value, value_size = blob(view, VALUE, row)
    return hash_record(
        load64(view[OFFSET] + 8 * row),
        landed_timestamp(view, row),
        key,
        key_size,
        value,
        value_size,
        hash_landed_headers(view, row),
    )


@njit(nogil=True)
def open_original(view: View, row: int) -> tuple[int, int, int, int]:
    """The parts, timestamp and headers of an original, if it still belongs to its row."""
    if load32(view[FLAGS] + 4 * row) & HAS_ORIGINAL == 0:
        return 0, 0, 0, 0
    address, size = blob(view, ORIGINAL, row)
    end = address + size
    if size < ORIGINAL_PREFIX or load(address) != ORIGINAL_VERSION or load64(address + 2) != hash_landed(view, row):
        return 0, 0, 0, 0
    parts = load(address + 1)
    position = address + ORIGINAL_PREFIX
    timestamp = 0
    if parts & ORIGINAL_TIMESTAMP:
        if end - position < 8:
            return 0, 0, 0, 0
        timestamp = load64(position)
        position += 8
    if parts & ORIGINAL_HEADERS:
        _, stop = _headers(position, end)
        if stop != end:
            return 0, 0, 0, 0
    return parts, timestamp, position, end


@njit("void(int64[::1], int64[::1])", cache=True, nogil=True)
def hash_rows(view: View, hashes: npt.NDArray[np.int64]) -> None:
    """The hash of every row as the record that was produced."""
    for row in range(view[ROWS]):
        parts, timestamp, headers, end = open_original(view, row)
        if parts & ORIGINAL_TIMESTAMP == 0:
            timestamp = landed_timestamp(view, row)
        if parts & ORIGINAL_HEADERS:
            headers_hash = hash_encoded_headers(headers, end)
        else:
            headers_hash = hash_landed_headers(view, row)
        key, key_size = blob(view, KEY, row)
        value, value_size = blob(view, VALUE, row)
        hashes[row] = hash_record(
            load64(view[OFFSET] + 8 * row), timestamp, key, key_size, value, value_size, headers_hash
        )


@njit("void(int64[::1], int64[::1])", cache=True, nogil=True)
def produced_timestamps(view: View, timestamps: npt.NDArray[np.int64]) -> None:
    """The timestamp of every row as it was produced, in milliseconds; -1 is none."""
    for row in range(view[ROWS]):
        parts, timestamp, _, _ = open_original(view, row)
        timestamps[row] = timestamp if parts & ORIGINAL_TIMESTAMP else landed_timestamp(view, row)


@njit("int64(int64[::1], int64)", cache=True, nogil=True)
def add_up(hashes: npt.NDArray[np.int64], start: int) -> int:
    """The sum of hashes modulo 2^64, from `start` on."""
    for one in hashes:
        start = wrapping_add(start, one)
    return start


@njit(nogil=True, forceinline=True)
def _is_less(left: int, left_size: int, right: int, right_size: int) -> bool:
    """Whether the first bytes sort before the second; compares eight at a time."""
    shorter = min(left_size, right_size)
    index = 0
    while index + 8 <= shorter:
        one = load_big64(left + index)
        other = load_big64(right + index)
        if one != other:
            # The bytes are unsigned, the words are not.
            return one ^ _SIGN < other ^ _SIGN
        index += 8
    while index < shorter:
        byte: int = load(left + index)
        another: int = load(right + index)
        if byte != another:
            return byte < another
        index += 1
    return left_size < right_size


@njit("UniTuple(int64, 3)(int64[::1], int64, int64)", cache=True, nogil=True)
def blob_bounds(view: View, slot: int, prefix: int) -> tuple[int, int, int]:
    """The rows with the least and the greatest bytes of a column (-1 if there are none), and the number of nulls.

    Only the first `prefix` bytes are compared.
    """
    least = greatest = -1
    low = low_size = high = high_size = nulls = 0
    for row in range(view[ROWS]):
        address, size = blob(view, slot, row)
        if size < 0:
            nulls += 1
            continue
        size = min(size, prefix)
        if least < 0 or _is_less(address, size, low, low_size):
            least, low, low_size = row, address, size
        if greatest < 0 or _is_less(high, high_size, address, size):
            greatest, high, high_size = row, address, size
    return least, greatest, nulls

"""The compiled loops that turn record batches into the columns of a table: split, measure, fill.

    split_batches    a slice of the WAL -> one line a batch, for its CRC and its decompression
    measure          all sections (the uncompressed records of a batch) -> how many bytes each column needs, or a fault
    fill             the same walk again, into buffers of exactly that size, with the hash of every record

The two walks read the same bytes, so `fill` trusts what `measure` has found good. The view that `fill` writes is the
one that table_columns.py reads.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from lakestream.model.kernels.pointers import load, store32, store64
from lakestream.model.kernels.record_loops import (
    BAD_LENGTH,
    BYTES_LEFT_OVER,
    FINE,
    OUT_OF_BOUNDS,
    _record,
    _sized,
    _varint,
)
from lakestream.model.kernels.table_columns import (
    DATA,
    FLAGS,
    HAS_ORIGINAL,
    HEADER_KEY,
    HEADER_VALUE,
    HEADERS,
    KEY,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    OFFSET,
    ORIGINAL,
    ORIGINAL_HEADERS,
    ORIGINAL_PREFIX,
    ORIGINAL_TIMESTAMP,
    ORIGINAL_VERSION,
    PARTITION,
    TIMESTAMP,
    TIMESTAMP_VALID,
    TOMBSTONE,
    VALID,
    VALUE,
    View,
    hash_encoded_headers,
    hash_landed,
    hash_record,
)
from lakestream.model.kernels.wide_memory import copy, load_big16, load_big32, load_big64, store8, wrapping_add

Lines = npt.NDArray[np.int64]

# The lines of `split_batches`; positions count from the start of the slice.
B_POSITION, B_LENGTH, B_BASE_OFFSET, B_ATTRIBUTES, B_LAST_DELTA, B_BASE_TIMESTAMP, B_MAX_TIMESTAMP, B_COUNT = range(8)
BATCH_FIELDS = 8

# The lines of `measure` and `fill`: where a section lies, what its header says, and which offsets of it are wanted.
S_ADDRESS, S_LENGTH, S_COUNT, S_BASE_OFFSET, S_BASE_TIMESTAMP, S_MAX_TIMESTAMP, S_ATTRIBUTES = range(7)
S_PARTITION, S_FIRST, S_END = range(7, 10)
SECTION_FIELDS = 10

# What `measure` counts.
M_ROWS, M_KEY, M_VALUE, M_ORIGINAL, M_HEADERS, M_HEADER_KEY, M_HEADER_VALUE, M_SECTION = range(8)
MEASURES = 8

NO_BATCH = -20
_HEADER_SIZE = 61
_PREFIX_SIZE = 12
_MAGIC = 2
_LOG_APPEND_TIME = 0x08
_QUESTION_MARK = 63


@njit("int64(int64, int64)", cache=True, nogil=True)
def count_batches(address: int, length: int) -> int:
    """How many batches fill the slice exactly, or NO_BATCH."""
    position = address
    end = address + length
    count = 0
    while position < end:
        if end - position < _HEADER_SIZE or load(position + 16) != _MAGIC:
            return NO_BATCH
        size = load_big32(position + 8) + _PREFIX_SIZE
        if size < _HEADER_SIZE or size > end - position:
            return NO_BATCH
        if load_big32(position + 23) < 0 or load_big32(position + 57) < 0:
            return NO_BATCH
        position += size
        count += 1
    return count


@njit("void(int64, int64[:, ::1])", cache=True, nogil=True)
def split_batches(address: int, lines: Lines) -> None:
    """Write a line for each batch that `count_batches` has counted."""
    position = address
    for index in range(lines.shape[0]):
        size = load_big32(position + 8) + _PREFIX_SIZE
        lines[index, B_POSITION] = position - address
        lines[index, B_LENGTH] = size
        lines[index, B_BASE_OFFSET] = load_big64(position)
        lines[index, B_ATTRIBUTES] = load_big16(position + 21)
        lines[index, B_LAST_DELTA] = load_big32(position + 23)
        lines[index, B_BASE_TIMESTAMP] = load_big64(position + 27)
        lines[index, B_MAX_TIMESTAMP] = load_big64(position + 35)
        lines[index, B_COUNT] = load_big32(position + 57)
        position += size


@njit(nogil=True)
def is_utf8(position: int, size: int) -> bool:
    """Whether the bytes are UTF-8 as the standard has it: no overlong forms, no surrogates, nothing past U+10FFFF."""
    end = position + size
    while position < end:
        byte = load(position)
        position += 1
        if byte < 0x80:
            continue
        low = 0x80
        high = 0xBF
        if 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            if byte == 0xE0:
                low = 0xA0
            elif byte == 0xED:
                high = 0x9F
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            if byte == 0xF0:
                low = 0x90
            elif byte == 0xF4:
                high = 0x8F
        else:
            return False
        if end - position < more or not low <= load(position) <= high:
            return False
        for index in range(1, more):
            if load(position + index) & 0xC0 != 0x80:
                return False
        position += more
    return True


@njit(nogil=True, forceinline=True)
def _fits(timestamp: int) -> bool:
    return MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP


@njit(nogil=True)
def _measure_headers(address: int, end: int, totals: View) -> bool:
    """Count the bytes of some headers; whether all keys are text."""
    count, position = _varint(address, end)
    totals[M_HEADERS] += count
    text = True
    for _ in range(count):
        size, start = _sized(position, end, 0)
        totals[M_HEADER_KEY] += size
        text = text and is_utf8(start, size)
        size, start = _sized(start + size, end, -1)
        totals[M_HEADER_VALUE] += max(size, 0)
        position = start + max(size, 0)
    return text


@njit("int64(int64[:, ::1], int64[::1])", cache=True, nogil=True)
def measure(sections: Lines, totals: View) -> int:
    """Walk all records and add up what the columns need. FINE or what is wrong, with the section in `totals`."""
    for index in range(sections.shape[0]):
        totals[M_SECTION] = index
        position = sections[index, S_ADDRESS]
        stop = position + sections[index, S_LENGTH]
        stamped = sections[index, S_ATTRIBUTES] & _LOG_APPEND_TIME
        last_delta = -1
        for _ in range(sections[index, S_COUNT]):
            position, timestamp, delta, _, key_size, _, value_size, headers, count, headers_size = _record(
                position, stop, sections[index, S_BASE_TIMESTAMP]
            )
            if position < 0:
                return position
            if delta <= last_delta:
                return BAD_LENGTH
            last_delta = delta
            offset = sections[index, S_BASE_OFFSET] + delta
            if offset < sections[index, S_FIRST] or offset >= sections[index, S_END]:
                continue
            timestamp = sections[index, S_MAX_TIMESTAMP] if stamped else timestamp
            totals[M_ROWS] += 1
            totals[M_KEY] += max(key_size, 0)
            totals[M_VALUE] += max(value_size, 0)
            text = count == 0 or _measure_headers(headers, headers + headers_size, totals)
            if not text or not _fits(timestamp):
                totals[M_ORIGINAL] += ORIGINAL_PREFIX
                totals[M_ORIGINAL] += 0 if text else headers_size
                totals[M_ORIGINAL] += 0 if _fits(timestamp) else 8
        if position != stop:
            return BYTES_LEFT_OVER if position < stop else OUT_OF_BOUNDS
    return FINE


@njit(nogil=True, forceinline=True)
def _set_bit(bits: int, index: int) -> None:
    place = bits + (index >> 3)
    store8(place, load(place) | (1 << (index & 7)))


@njit(nogil=True, forceinline=True)
def _put(view: View, slot: int, row: int, cursor: int, address: int, size: int) -> int:
    """Write some bytes, or null, into a row of a column, and return where the next one goes."""
    store32(view[slot] + 4 * row, cursor)
    if size < 0:
        return cursor
    _set_bit(view[slot + VALID], row)
    copy(view[slot + DATA] + cursor, address, size)
    return cursor + size


@njit(nogil=True)
def _put_headers(view: View, address: int, end: int, first: int, key_cursor: int, value_cursor: int) -> tuple[int, int]:
    """Write the headers of a record. A key that is not text gets a question mark for every byte that is not ASCII."""
    count, position = _varint(address, end)
    for index in range(first, first + count):
        size, start = _sized(position, end, 0)
        text = is_utf8(start, size)
        written = view[HEADER_KEY + DATA] + key_cursor
        key_cursor = _put(view, HEADER_KEY, index, key_cursor, start, size)
        if not text:
            for byte in range(written, written + size):
                if load(byte) >= 0x80:
                    store8(byte, _QUESTION_MARK)
        size, start = _sized(start + size, end, -1)
        value_cursor = _put(view, HEADER_VALUE, index, value_cursor, start, size)
        position = start + max(size, 0)
    return key_cursor, value_cursor


@njit(nogil=True)
def _are_text(address: int, end: int) -> bool:
    count, position = _varint(address, end)
    for _ in range(count):
        size, start = _sized(position, end, 0)
        if not is_utf8(start, size):
            return False
        size, start = _sized(start + size, end, -1)
        position = start + max(size, 0)
    return True


@njit(nogil=True)
def _put_original(view: View, row: int, cursor: int, timestamp: int, headers: int, headers_size: int) -> int:
    """Write the original of a row, with what its columns cannot hold. Call it after the other columns."""
    parts = 0 if _fits(timestamp) else ORIGINAL_TIMESTAMP
    parts |= 0 if _are_text(headers, headers + headers_size) else ORIGINAL_HEADERS
    if parts == 0:
        return cursor
    _set_bit(view[ORIGINAL + VALID], row)
    place = view[ORIGINAL + DATA] + cursor
    store8(place, ORIGINAL_VERSION)
    store8(place + 1, parts)
    store64(place + 2, hash_landed(view, row))
    cursor += ORIGINAL_PREFIX
    if parts & ORIGINAL_TIMESTAMP:
        store64(view[ORIGINAL + DATA] + cursor, timestamp)
        cursor += 8
    if parts & ORIGINAL_HEADERS:
        copy(view[ORIGINAL + DATA] + cursor, headers, headers_size)
        cursor += headers_size
    return cursor


@njit("void(int64[:, ::1], int64[::1], int64[:, ::1])", cache=True, nogil=True)
def fill(sections: Lines, view: View, digests: Lines) -> None:
    """Write all columns; validity bits must be clear. Each section gets its number of rows and the sum of hashes."""
    row = header = 0
    key_at = value_at = original_at = header_key_at = header_value_at = 0
    for index in range(sections.shape[0]):
        position = sections[index, S_ADDRESS]
        stop = position + sections[index, S_LENGTH]
        stamped = sections[index, S_ATTRIBUTES] & _LOG_APPEND_TIME
        first_row = row
        total = 0
        for _ in range(sections[index, S_COUNT]):
            position, timestamp, delta, key, key_size, value, value_size, headers, count, headers_size = _record(
                position, stop, sections[index, S_BASE_TIMESTAMP]
            )
            offset = sections[index, S_BASE_OFFSET] + delta
            if offset < sections[index, S_FIRST] or offset >= sections[index, S_END]:
                continue
            timestamp = sections[index, S_MAX_TIMESTAMP] if stamped else timestamp
            store32(view[PARTITION] + 4 * row, sections[index, S_PARTITION])
            store64(view[OFFSET] + 8 * row, offset)
            known = timestamp != -1 and _fits(timestamp)
            store64(view[TIMESTAMP] + 8 * row, timestamp * 1000 if known else 0)
            if known:
                _set_bit(view[TIMESTAMP_VALID], row)
            key_at = _put(view, KEY, row, key_at, key, key_size)
            store32(view[KEY] + 4 * row + 4, key_at)
            value_at = _put(view, VALUE, row, value_at, value, value_size)
            store32(view[VALUE] + 4 * row + 4, value_at)
            store32(view[HEADERS] + 4 * row, header)
            end = headers + headers_size
            if count:
                header_key_at, header_value_at = _put_headers(
                    view, headers, end, header, header_key_at, header_value_at
                )
            header += count
            # The ends come first: the hash of the row reads them.
            store32(view[HEADERS] + 4 * row + 4, header)
            store32(view[HEADER_KEY] + 4 * header, header_key_at)
            store32(view[HEADER_VALUE] + 4 * header, header_value_at)
            store32(view[ORIGINAL] + 4 * row, original_at)
            before = original_at
            if count or not _fits(timestamp):
                original_at = _put_original(view, row, original_at, timestamp, headers, headers_size)
            flags = (TOMBSTONE if value_size < 0 else 0) | (LOG_APPEND_TIME if stamped else 0)
            store32(view[FLAGS] + 4 * row, flags | (HAS_ORIGINAL if original_at > before else 0))
            headers_hash = hash_encoded_headers(headers, end)
            total = wrapping_add(total, hash_record(offset, timestamp, key, key_size, value, value_size, headers_hash))
            row += 1
        digests[index, 0] = row - first_row
        digests[index, 1] = total
    store32(view[ORIGINAL] + 4 * row, original_at)

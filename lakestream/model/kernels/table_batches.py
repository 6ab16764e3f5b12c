"""The compiled loops that turn rows of a table back into record batches: plan, then write.

Rows with consecutive offsets go into one batch, up to a size. A batch ends early where its header could not speak for
all records: where the timestamp type changes, where the broker's time changes under LogAppendTime, and where two
timestamps lie further apart than 64 bits. Offsets without rows become control batches, so that what a consumer gets
covers every offset (L31); no batch names a producer (L32). The CRC is left to the caller.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from lakestream.model.kernels.table_columns import (
    FLAGS,
    HEADER_KEY,
    HEADER_VALUE,
    KEY,
    LOG_APPEND_TIME,
    OFFSET,
    ORIGINAL_HEADERS,
    ORIGINAL_TIMESTAMP,
    ROWS,
    VALUE,
    View,
    blob,
    headers_of,
    landed_timestamp,
    open_original,
)
from lakestream.model.kernels.wide_memory import copy, load32, load64, store8, store_big16, store_big32, store_big64

Plan = npt.NDArray[np.int64]

# A line of the plan. One without rows is a control batch.
P_FIRST_ROW, P_ROWS, P_BASE_OFFSET, P_LAST_OFFSET, P_BASE_TIMESTAMP, P_MAX_TIMESTAMP, P_STAMPED = range(7)
P_POSITION, P_LENGTH = range(7, 9)
PLAN_FIELDS = 9

NOT_ASCENDING = -1
TOO_LARGE = -2
PLAN_FULL = -3

LONGEST_BATCH = 2**31 - 1
LONGEST_GAP = 2**31 - 1
_HEADER_SIZE = 61
_INT64_MAX = 2**63 - 1
_STAMPED = 0x08
_CONTROL = 0x20


@njit(nogil=True, forceinline=True)
def _varint_size(value: int) -> int:
    rest = (value << 1) ^ (value >> 63)
    size = 1
    rest = (rest >> 7) & 0x01FFFFFFFFFFFFFF
    while rest:
        size += 1
        rest >>= 7
    return size


@njit(nogil=True, forceinline=True)
def _write_varint(position: int, value: int) -> int:
    rest = (value << 1) ^ (value >> 63)
    more = (rest >> 7) & 0x01FFFFFFFFFFFFFF
    while more:
        store8(position, (rest & 0x7F) | 0x80)
        position += 1
        rest = more
        more >>= 7
    store8(position, rest)
    return position + 1


@njit(nogil=True, forceinline=True)
def _blob_size(size: int) -> int:
    return _varint_size(size) + max(size, 0)


@njit(nogil=True, forceinline=True)
def _write_blob(position: int, address: int, size: int) -> int:
    position = _write_varint(position, size)
    if size > 0:
        copy(position, address, size)
        position += size
    return position


@njit(nogil=True)
def _landed_headers_size(view: View, row: int) -> int:
    first, end = headers_of(view, row)
    total = _varint_size(end - first)
    for index in range(first, end):
        _, size = blob(view, HEADER_KEY, index)
        total += _blob_size(max(size, 0))
        _, size = blob(view, HEADER_VALUE, index)
        total += _blob_size(size)
    return total


@njit(nogil=True)
def _write_landed_headers(view: View, row: int, position: int) -> int:
    first, end = headers_of(view, row)
    position = _write_varint(position, end - first)
    for index in range(first, end):
        address, size = blob(view, HEADER_KEY, index)
        position = _write_blob(position, address, max(size, 0))
        address, size = blob(view, HEADER_VALUE, index)
        position = _write_blob(position, address, size)
    return position


@njit(nogil=True, forceinline=True)
def _rest_size(view: View, row: int) -> tuple[int, int]:
    """The timestamp of a row, and the size of its record from the key on."""
    parts, timestamp, headers, end = open_original(view, row)
    if parts & ORIGINAL_TIMESTAMP == 0:
        timestamp = landed_timestamp(view, row)
    headers_size = end - headers if parts & ORIGINAL_HEADERS else _landed_headers_size(view, row)
    _, key_size = blob(view, KEY, row)
    _, value_size = blob(view, VALUE, row)
    return timestamp, _blob_size(key_size) + _blob_size(value_size) + headers_size


@njit(nogil=True, forceinline=True)
def _gap_size(delta: int) -> int:
    # Length, attributes, timestamp delta, offset delta, key (1 + 4), value (1 + 6), headers.
    return _HEADER_SIZE + 1 + 2 + _varint_size(delta) + 5 + 7 + 1


@njit(nogil=True)
def _plan_gap(plan: Plan, lines: int, position: int, first: int, end: int) -> tuple[int, int]:
    """Cover the offsets from `first` up to `end` with control batches; as many as there is room for."""
    while first < end and lines < plan.shape[0]:
        last = min(end - 1, first + LONGEST_GAP)
        plan[lines, P_FIRST_ROW] = 0
        plan[lines, P_ROWS] = 0
        plan[lines, P_BASE_OFFSET] = first
        plan[lines, P_LAST_OFFSET] = last
        plan[lines, P_POSITION] = position
        plan[lines, P_LENGTH] = _gap_size(last - first)
        position += plan[lines, P_LENGTH]
        lines += 1
        first = last + 1
    return lines, position


@njit(nogil=True, forceinline=True)
def _are_apart(timestamp: int, base: int) -> bool:
    """Whether the difference of two timestamps does not fit into 64 bits, with one to spare."""
    if (timestamp < 0) == (base < 0):
        return False
    if timestamp < 0:
        return timestamp < -_INT64_MAX + base
    return base < -_INT64_MAX + timestamp


@njit("UniTuple(int64, 2)(int64[::1], int64, int64, int64, int64[::1], int64[:, ::1])", cache=True, nogil=True)
def plan_batches(
    view: View, expected: int, end: int, target: int, sizes: npt.NDArray[np.int64], plan: Plan
) -> tuple[int, int]:
    """Cut the rows into batches of about `target` bytes and note the size of every record; offsets from `expected` on.

    `end` is the offset after the last that is to be covered, 0 if the rows say it. How many lines of the plan were
    written, or what is wrong, and how many bytes all of it will take.
    """
    lines = position = 0
    open_line = -1
    for row in range(view[ROWS]):
        offset = load64(view[OFFSET] + 8 * row)
        if offset < expected:
            return NOT_ASCENDING, row
        stamped = 1 if load32(view[FLAGS] + 4 * row) & LOG_APPEND_TIME else 0
        timestamp, rest = _rest_size(view, row)
        if open_line >= 0:
            base = plan[open_line, P_BASE_TIMESTAMP]
            if (
                offset != expected
                or plan[open_line, P_LENGTH] + rest > target
                or stamped != plan[open_line, P_STAMPED]
                or (stamped and timestamp != base)
                or _are_apart(timestamp, base)
            ):
                position += plan[open_line, P_LENGTH]
                open_line = -1
        if open_line < 0:
            lines, position = _plan_gap(plan, lines, position, expected, offset)
            if lines >= plan.shape[0]:
                return PLAN_FULL, row
            open_line = lines
            lines += 1
            plan[open_line, P_FIRST_ROW] = row
            plan[open_line, P_ROWS] = 0
            plan[open_line, P_BASE_OFFSET] = offset
            plan[open_line, P_BASE_TIMESTAMP] = timestamp
            plan[open_line, P_MAX_TIMESTAMP] = timestamp if stamped else -1
            plan[open_line, P_STAMPED] = stamped
            plan[open_line, P_POSITION] = position
            plan[open_line, P_LENGTH] = _HEADER_SIZE
        delta = timestamp - plan[open_line, P_BASE_TIMESTAMP]
        size = 1 + _varint_size(delta) + _varint_size(offset - plan[open_line, P_BASE_OFFSET]) + rest
        sizes[row] = size
        plan[open_line, P_ROWS] += 1
        plan[open_line, P_LAST_OFFSET] = offset
        plan[open_line, P_MAX_TIMESTAMP] = max(plan[open_line, P_MAX_TIMESTAMP], timestamp)
        plan[open_line, P_LENGTH] += _varint_size(size) + size
        if plan[open_line, P_LENGTH] > LONGEST_BATCH:
            return TOO_LARGE, row
        expected = offset + 1
    if open_line >= 0:
        position += plan[open_line, P_LENGTH]
    lines, position = _plan_gap(plan, lines, position, expected, end)
    return lines, position


@njit(nogil=True, forceinline=True)
def _write_header(
    position: int, plan: Plan, line: int, attributes: int, base_timestamp: int, max_timestamp: int, count: int
) -> int:
    base_offset = plan[line, P_BASE_OFFSET]
    store_big64(position, base_offset)
    store_big32(position + 8, plan[line, P_LENGTH] - 12)
    store_big32(position + 12, 0)
    store8(position + 16, 2)
    store_big32(position + 17, 0)
    store_big16(position + 21, attributes)
    store_big32(position + 23, plan[line, P_LAST_OFFSET] - base_offset)
    store_big64(position + 27, base_timestamp)
    store_big64(position + 35, max_timestamp)
    store_big64(position + 43, -1)
    store_big16(position + 51, -1)
    store_big32(position + 53, -1)
    store_big32(position + 57, count)
    return position + _HEADER_SIZE


@njit(nogil=True)
def _write_gap(position: int, plan: Plan, line: int) -> None:
    """One control record at the last offset, which reads as a commit marker of no producer."""
    delta = plan[line, P_LAST_OFFSET] - plan[line, P_BASE_OFFSET]
    position = _write_header(position, plan, line, _CONTROL, -1, -1, 1)
    position = _write_varint(position, 15 + _varint_size(delta))
    store_big16(position, 0)
    position = _write_varint(position + 2, delta)
    position = _write_varint(position, 4)
    store_big32(position, 1)
    position = _write_varint(position + 4, 6)
    store_big16(position, 0)
    store_big32(position + 2, 0)
    store8(position + 6, 0)


@njit("void(int64[::1], int64[::1], int64[:, ::1], int64)", cache=True, nogil=True)
def write_batches(view: View, sizes: npt.NDArray[np.int64], plan: Plan, address: int) -> None:
    """Write the planned batches one after another, all but their CRCs."""
    for line in range(plan.shape[0]):
        position = address + plan[line, P_POSITION]
        rows = plan[line, P_ROWS]
        if rows == 0:
            _write_gap(position, plan, line)
            continue
        base_offset = plan[line, P_BASE_OFFSET]
        base_timestamp = plan[line, P_BASE_TIMESTAMP]
        attributes = _STAMPED if plan[line, P_STAMPED] else 0
        position = _write_header(position, plan, line, attributes, base_timestamp, plan[line, P_MAX_TIMESTAMP], rows)
        for row in range(plan[line, P_FIRST_ROW], plan[line, P_FIRST_ROW] + rows):
            parts, timestamp, headers, end = open_original(view, row)
            if parts & ORIGINAL_TIMESTAMP == 0:
                timestamp = landed_timestamp(view, row)
            position = _write_varint(position, sizes[row])
            store8(position, 0)
            position = _write_varint(position + 1, timestamp - base_timestamp)
            position = _write_varint(position, load64(view[OFFSET] + 8 * row) - base_offset)
            key, size = blob(view, KEY, row)
            position = _write_blob(position, key, size)
            value, size = blob(view, VALUE, row)
            position = _write_blob(position, value, size)
            if parts & ORIGINAL_HEADERS:
                copy(position, headers, end - headers)
                position += end - headers
            else:
                position = _write_landed_headers(view, row, position)

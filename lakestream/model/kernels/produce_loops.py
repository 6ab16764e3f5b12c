"""The compiled loops for many tiny Produce requests: find them, join their batches, stamp and answer them.

They do for a run of requests what the parser, `check_batch`, `pack_append`, `stamp` and the encoder of answers do for
one request. A request that is not of the simplest form ends the run, and is served the general way. Addresses are raw:
the rules of record_loops.py hold here too. The code compiled here contains `check_records` and the layout of
append_rows.py, so a change there needs a change in this file, or numba keeps the old code.

A run is a table of int64, a row a request, with the columns below.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from lakestream.model.append_rows import (
    FIRST_SEQUENCE_AT,
    LENGTH_AT,
    MAX_TIMESTAMP_AT,
    POSITION_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORDS_AT,
    ROW_BYTES,
    STREAM_AT,
)
from lakestream.model.batches.header import HEADER_SIZE, LEADER_EPOCH, MAGIC, PREFIX_SIZE
from lakestream.model.kernels.pointers import load, store32, store64
from lakestream.model.kernels.record_loops import FINE, check_records

COLUMNS = 11
STREAM, COUNT, LENGTH, MAX_TIMESTAMP, PRODUCER_ID, EPOCH, SEQUENCE, ADDRESS, CORRELATION, PARTITION, LOG_START = range(
    COLUMNS
)
"""The first seven are a BatchRow (append_rows.py). ADDRESS is where the batch lies."""

_ROW = 8 * COLUMNS
_Generator = tuple[Any, Callable[..., Any]]


def _big(bits: int) -> Callable[[Any, Any], _Generator]:
    def read(_typing: Any, _address: Any) -> _Generator:  # pragma: no cover (called when compiling, not from a cache)
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            value = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            value = builder.bswap(value)
            return builder.sext(value, ir.IntType(64)) if bits < 64 else value

        return types.int64(types.int64), generate

    return read


def _little64(_typing: Any, _address: Any) -> _Generator:  # pragma: no cover (as above)
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)

    return types.int64(types.int64), generate


def _swap64(_typing: Any, _value: Any) -> _Generator:  # pragma: no cover (as above)
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.int64(types.int64), generate


def _copy(_typing: Any, _target: Any, _source: Any, _size: Any) -> _Generator:  # pragma: no cover (as above)
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        target, source = (builder.inttoptr(one, ir.IntType(8).as_pointer()) for one in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


big16: Any = intrinsic(_big(16))
"""Read a big-endian number with a sign."""
big32: Any = intrinsic(_big(32))
big64: Any = intrinsic(_big(64))
native64: Any = intrinsic(_little64)
swapped64: Any = intrinsic(_swap64)
copy: Any = intrinsic(_copy)
"""Target, source, size: the two do not overlap."""


def _crc_tables() -> Any:
    """For CRC32C eight bytes at a time: 8 tables of 256."""
    first = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        first.append(value)
    tables = [first]
    for _ in range(7):
        tables.append([first[value & 0xFF] ^ value >> 8 for value in tables[-1]])
    return np.array(tables, np.int64).ravel()


_TABLES = _crc_tables()


@njit("int64(int64, int64)", cache=True, nogil=True)
def crc32c(address: int, length: int) -> int:
    """As fastcrc's iscsi, which is faster from some hundred bytes on, but not to be called from here."""
    crc = 0xFFFFFFFF
    end = address + length
    while end - address >= 8:
        word = native64(address) ^ crc
        crc = (
            _TABLES[1792 + (word & 0xFF)]
            ^ _TABLES[1536 + (word >> 8 & 0xFF)]
            ^ _TABLES[1280 + (word >> 16 & 0xFF)]
            ^ _TABLES[1024 + (word >> 24 & 0xFF)]
            ^ _TABLES[768 + (word >> 32 & 0xFF)]
            ^ _TABLES[512 + (word >> 40 & 0xFF)]
            ^ _TABLES[256 + (word >> 48 & 0xFF)]
            ^ _TABLES[word >> 56 & 0xFF]
        )
        address += 8
    while address < end:
        crc = crc >> 8 ^ _TABLES[(crc ^ load(address)) & 0xFF]
        address += 1
    return crc ^ 0xFFFFFFFF


@njit(nogil=True, forceinline=True)
def _same(one: int, other: int, size: int) -> bool:
    index = 0
    while size - index >= 8:
        if native64(one + index) != native64(other + index):
            return False
        index += 8
    while index < size:
        if load(one + index) != load(other + index):
            return False
        index += 1
    return True


@njit(nogil=True, forceinline=True)
def _records(position: int, end: int, flexible: int) -> tuple[int, int]:
    """Where the records of a request's last partition lie, whose number is behind us, and their length.

    A length of -1 is anything but one batch or more that ends where the request without tagged fields does. There are
    at least HEADER_SIZE bytes from `position` on.
    """
    if flexible == 0:
        size = big32(position)
        start = position + 4
        return start, size if start + size == end else -1
    a = load(position)
    b = load(position + 1)
    c = load(position + 2)
    if a < 0x80:
        size, start = a - 1, position + 1
    elif b < 0x80:
        size, start = (a & 0x7F | b << 7) - 1, position + 2
    elif c < 0x80:
        size, start = (a & 0x7F | (b & 0x7F) << 7 | c << 14) - 1, position + 3
    else:
        return 0, -1
    stop = start + size
    if size < 0 or stop + 3 != end or load(stop) != 0 or load(stop + 1) != 0 or load(stop + 2) != 0:
        return 0, -1
    return start, size


@njit(nogil=True, forceinline=True)
def _batch(start: int, length: int, earliest: int, latest: int, row: int) -> bool:
    """Check a batch as `check_batch` does, and note it in the table's row; False unless it is fine and plain."""
    count = big32(start + 57)
    producer_id = big64(start + 43)
    epoch = big16(start + 51)
    sequence = big32(start + 53)
    max_timestamp = big64(start + 35)
    if (
        big64(start) != 0
        or load(start + 16) != MAGIC
        or big32(start + 8) != length - PREFIX_SIZE
        or big16(start + 21) != 0
        or count < 1
        or big32(start + 23) != count - 1
        or (producer_id >= 0 and (sequence < 0 or epoch < 0))
        or (big32(start + 17) & 0xFFFFFFFF) != crc32c(start + 21, length - 21)
    ):
        return False
    wrong, least, greatest = check_records(start + HEADER_SIZE, length - HEADER_SIZE, count, big64(start + 27))
    if wrong != FINE or greatest != max_timestamp or greatest > latest or (least != -1 and least < earliest):
        return False
    store64(row + 8 * COUNT, count)
    store64(row + 8 * LENGTH, length)
    store64(row + 8 * MAX_TIMESTAMP, greatest)
    store64(row + 8 * PRODUCER_ID, producer_id)
    store64(row + 8 * EPOCH, epoch)
    store64(row + 8 * SEQUENCE, sequence)
    store64(row + 8 * ADDRESS, start)
    return True


@njit(
    "UniTuple(int64, 3)(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)",
    cache=True,
    nogil=True,
)
def find_run(
    position: int, end: int, limit: int, version: int, prefix: int, prefix_size: int, partitions: int, longest: int,
    earliest: int, latest: int, table: int,
) -> tuple[int, int, int]:  # fmt: skip
    """How many simple requests, `limit` at most, stand in a row from `position` on, where they end, and their bytes.

    Simple is a Produce request with the remembered prefix, of one partition below `partitions` and one sound,
    uncompressed batch of at most `longest` bytes, whose timestamps lie in [earliest, latest]. Only
    the bytes of batches are counted.
    """
    flexible = 1 if version >= 9 else 0
    # Behind the prefix: the partition, the length of the records at its shortest, a batch's header.
    least = 8 + prefix_size + 5 + HEADER_SIZE
    found = 0
    total = 0
    while found < limit and end - position >= 4 + least:
        size = big32(position)
        stop = position + 4 + size
        # The number of the API is two bytes of 0 in front of the version.
        if size < least or size > end - position - 4 or big32(position + 4) != version:
            break
        at = position + 12 + prefix_size
        if not _same(position + 12, prefix, prefix_size):
            break
        partition = big32(at)
        start, length = _records(at + 4, stop, flexible)
        if partition < 0 or partition >= partitions or length < HEADER_SIZE or length > longest:
            break
        row = table + found * _ROW
        if not _batch(start, length, earliest, latest, row):
            break
        store64(row + 8 * CORRELATION, big32(position + 8))
        store64(row + 8 * PARTITION, partition)
        found += 1
        total += length
        position = stop
    return found, position, total


@njit("void(int64, int64, int64, int64, int64, int64)", cache=True, nogil=True)
def join_batches(table: int, order: int, count: int, body: int, position: int, rows: int) -> None:
    """Copy the batches of a table, in this order, to `body` from `position` on, and write the rows of an `Append`."""
    for index in range(count):
        source = table + _ROW * native64(order + 8 * index)
        length = native64(source + 8 * LENGTH)
        copy(body + position, native64(source + 8 * ADDRESS), length)
        row = rows + ROW_BYTES * index
        store32(row + STREAM_AT, native64(source + 8 * STREAM))
        store32(row + RECORDS_AT, native64(source + 8 * COUNT))
        store32(row + POSITION_AT, position)
        store32(row + LENGTH_AT, length)
        store64(row + MAX_TIMESTAMP_AT, native64(source + 8 * MAX_TIMESTAMP))
        store64(row + PRODUCER_ID_AT, native64(source + 8 * PRODUCER_ID))
        # The epoch has two bytes; the sequence is written over the two behind it.
        store32(row + PRODUCER_EPOCH_AT, native64(source + 8 * EPOCH))
        store32(row + FIRST_SEQUENCE_AT, native64(source + 8 * SEQUENCE))
        position += length


@njit("int64(int64, int64, int64, int64)", cache=True, nogil=True)
def stamp_batches(body: int, rows: int, count: int, results: int) -> int:
    """Stamp the base offsets into the batches whose results are such; returns how many records these hold."""
    records = 0
    for index in range(count):
        base = native64(results + 8 * index)
        if base >= 0:
            row = rows + ROW_BYTES * index
            batch = body + (native64(row + POSITION_AT) & 0xFFFFFFFF)
            store64(batch, swapped64(base))
            store32(batch + 12, swapped64(LEADER_EPOCH) >> 32)
            records += native64(row + RECORDS_AT) & 0xFFFFFFFF
    return records


@njit("int64(int64, int64, int64, int64, int64, int64, int64, int64)", cache=True, nogil=True)
def write_answers(
    table: int, count: int, results: int, template: int, size: int, partition_at: int, start_at: int, target: int
) -> int:
    """Write `count` answers, each the template of `size` bytes with its own numbers in it; 0 if a result is an error.

    From `partition_at` on: the partition, two bytes of error code, the base offset. The log start, if `start_at` is
    not negative.
    """
    for index in range(count):
        base = native64(results + 8 * index)
        if base < 0:
            return 0
        row = table + _ROW * index
        answer = target + size * index
        copy(answer, template, size)
        store32(answer + 4, swapped64(native64(row + 8 * CORRELATION)) >> 32)
        store32(answer + partition_at, swapped64(native64(row + 8 * PARTITION)) >> 32)
        store64(answer + partition_at + 6, swapped64(base))
        if start_at >= 0:
            store64(answer + start_at, swapped64(native64(row + 8 * LOG_START)))
    return count


def warm() -> None:
    """Run every kernel once; record_loops.py's `warm` calls this."""
    scratch = np.zeros(2 * COLUMNS, np.int64)
    address = int(scratch.ctypes.data)
    assert find_run(address, address, 1, 9, address, 0, 1, 0, 0, 0, address) == (0, address, 0)
    join_batches(address, address, 0, address, 0, address)
    assert stamp_batches(address, address, 0, address) == 0
    assert write_answers(address, 0, address, address, 0, 0, 0, address) == 0
    assert crc32c(address, 0) == 0

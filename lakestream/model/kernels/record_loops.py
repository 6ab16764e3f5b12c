"""The compiled loops that walk records: check, decode, find a timestamp.

They take raw addresses as integers, because numba unboxes an integer ten times faster than an array: a call costs
about 0.3 us, and the check of a one-record batch is mostly that. The price is C's own: an address is good only while
its caller holds the buffer, and the length given with it must be true. Every read is checked against that length.

A records section is a row of records, each one:

    length varint, attributes i8, timestampDelta varlong, offsetDelta varint,
    keyLength varint (-1: null), key, valueLength varint (-1: null), value,
    headerCount varint, and for each header: keyLength varint, key, valueLength varint (-1: null), value

Small functions are forced inline: their results would otherwise go through memory, at more than twice the time.

Varints are zigzag-encoded, seven bits a byte. One that is longer than its type, or has bits set beyond it, is refused:
readers disagree about those.
"""

from numba import njit

from lakestream.model.batches.frames import lz4_bound, zstd_bound
from lakestream.model.kernels.pointers import address_of, load, store32, store64

FINE = 0
BAD_VARINT = -1
OUT_OF_BOUNDS = -2
BAD_LENGTH = -3
BAD_OFFSET_DELTA = -4
BAD_TIMESTAMP = -5
BYTES_LEFT_OVER = -6

FIELDS = 8
"""The int32 columns of `decode_records`, in order: offset delta, key start, key length (-1: null), value start, value
length (-1: null), headers start, headers count, headers length. Starts are positions in the section."""
KEY_SIZE = 2
"""The column of the key length."""
_INT64_MAX = 2**63 - 1
_INT64_MIN = -(2**63)
_Record = tuple[int, int, int, int, int, int, int, int, int, int]


@njit(nogil=True, forceinline=True)
def _varint(position: int, end: int) -> tuple[int, int]:
    """A zigzag varint of 32 bits and the address after it, or a negative reason in its place."""
    if position >= end:
        return 0, OUT_OF_BOUNDS
    byte = load(position)
    value = byte & 0x7F
    shift = 0
    while byte & 0x80:
        position += 1
        shift += 7
        if shift > 28:
            return 0, BAD_VARINT
        if position >= end:
            return 0, OUT_OF_BOUNDS
        byte = load(position)
        value |= (byte & 0x7F) << shift
    if value >> 32:
        return 0, BAD_VARINT
    return (value >> 1) ^ -(value & 1), position + 1


@njit(nogil=True, forceinline=True)
def _varlong(position: int, end: int) -> tuple[int, int]:
    """The 64-bit variant of `_varint`."""
    if position >= end:
        return 0, OUT_OF_BOUNDS
    byte = load(position)
    value = byte & 0x7F
    shift = 0
    while byte & 0x80:
        position += 1
        shift += 7
        if shift > 63:
            return 0, BAD_VARINT
        if position >= end:
            return 0, OUT_OF_BOUNDS
        byte = load(position)
        if shift == 63 and byte > 1:
            return 0, BAD_VARINT
        value |= (byte & 0x7F) << shift
    return ((value >> 1) & _INT64_MAX) ^ -(value & 1), position + 1


@njit(nogil=True, forceinline=True)
def _sized(position: int, end: int, least: int) -> tuple[int, int]:
    """The length of some bytes, `least` or more, and the address where they start, or a negative reason."""
    size, start = _varint(position, end)
    if start < 0:
        return 0, start
    if size < least:
        return 0, BAD_LENGTH
    if size > end - start:
        return 0, OUT_OF_BOUNDS
    return size, start


@njit(nogil=True, forceinline=True)
def _headers(position: int, end: int) -> tuple[int, int]:
    """The number of headers and the address after them, or a negative reason."""
    count, position = _varint(position, end)
    if count < 0:
        return 0, BAD_LENGTH
    for _ in range(count):
        size, position = _sized(position, end, 0)
        if position < 0:
            break
        size, position = _sized(position + size, end, -1)
        if position < 0:
            break
        position += max(size, 0)
    return count, position


@njit(nogil=True, forceinline=True)
def _refused(reason: int) -> _Record:
    return reason, 0, 0, 0, 0, 0, 0, 0, 0, 0


@njit(nogil=True, forceinline=True)
def _record(position: int, end: int, base_timestamp: int) -> _Record:
    """One record: the address after it or a negative reason, its timestamp, then as in FIELDS but with addresses."""
    size, position = _sized(position, end, 1)
    if position < 0:
        return _refused(position)
    end = position + size
    timestamp_delta, position = _varlong(position + 1, end)
    if position < 0:
        return _refused(position)
    # Asked before adding: compiled sums of signed numbers must not overflow, and the compiler counts on it.
    if (timestamp_delta > 0 and base_timestamp > _INT64_MAX - timestamp_delta) or (
        timestamp_delta < 0 and base_timestamp < _INT64_MIN - timestamp_delta
    ):
        return _refused(BAD_TIMESTAMP)
    timestamp = base_timestamp + timestamp_delta
    delta, position = _varint(position, end)
    if position < 0:
        return _refused(position)
    key_size, key = _sized(position, end, -1)
    if key < 0:
        return _refused(key)
    value_size, value = _sized(key + max(key_size, 0), end, -1)
    if value < 0:
        return _refused(value)
    headers = value + max(value_size, 0)
    header_count, position = _headers(headers, end)
    if position < 0:
        return _refused(position)
    if position != end:
        return _refused(BYTES_LEFT_OVER)
    return end, timestamp, delta, key, key_size, value, value_size, headers, header_count, end - headers


@njit("UniTuple(int64, 3)(int64, int64, int64, int64)", cache=True, nogil=True)
def check_records(address: int, length: int, count: int, base_timestamp: int) -> tuple[int, int, int]:
    """Walk an uncompressed section that a producer sent: exactly `count` records, offset deltas 0, 1, 2 and so on.

    FINE or what is wrong, and the least and the greatest timestamp. -1 stands for none: the least leaves it out while
    there is another, the greatest is never below it.
    """
    position = address
    end = address + length
    least = _INT64_MAX
    greatest = -1
    for index in range(count):
        position, timestamp, offset_delta, _, _, _, _, _, _, _ = _record(position, end, base_timestamp)
        if position < 0:
            return position, 0, 0
        if offset_delta != index:
            return BAD_OFFSET_DELTA, 0, 0
        if timestamp != -1:
            least = min(least, timestamp)
        greatest = max(greatest, timestamp)
    if position != end:
        return BYTES_LEFT_OVER, 0, 0
    return FINE, min(least, greatest), greatest


@njit("boolean(int64, int64, int64)", cache=True, nogil=True)
def all_keyed(address: int, length: int, count: int) -> bool:
    """Whether every record of a section that was checked has a key."""
    position = address
    for _ in range(count):
        position, _, _, _, key_size, _, _, _, _, _ = _record(position, address + length, 0)
        if position < 0 or key_size < 0:
            return False
    return True


@njit("int64(int64, int64, int64, int64, int64, int64)", cache=True, nogil=True)
def decode_records(
    address: int, length: int, count: int, base_timestamp: int, timestamps_address: int, fields_address: int
) -> int:
    """Write the `count` timestamps (int64) and FIELDS columns of `count` int32 each. FINE or what is wrong.

    Offset deltas only have to grow: a stored batch may have lost records.
    """
    column = 4 * count
    position = address
    end = address + length
    last_delta = -1
    for index in range(count):
        position, timestamp, delta, key, key_size, value, value_size, headers, header_count, headers_size = _record(
            position, end, base_timestamp
        )
        if position < 0:
            return position
        if delta <= last_delta:
            return BAD_OFFSET_DELTA
        last_delta = delta
        store64(timestamps_address + 8 * index, timestamp)
        store32(fields_address + 4 * index, delta)
        store32(fields_address + column + 4 * index, key - address)
        store32(fields_address + 2 * column + 4 * index, key_size)
        store32(fields_address + 3 * column + 4 * index, value - address)
        store32(fields_address + 4 * column + 4 * index, value_size)
        store32(fields_address + 5 * column + 4 * index, headers - address)
        store32(fields_address + 6 * column + 4 * index, header_count)
        store32(fields_address + 7 * column + 4 * index, headers_size)
    return FINE if position == end else BYTES_LEFT_OVER


@njit("UniTuple(int64, 2)(int64, int64, int64, int64, int64, int64)", cache=True, nogil=True)
def find_timestamp(
    address: int, length: int, count: int, base_timestamp: int, target: int, first_delta: int
) -> tuple[int, int]:
    """Offset delta and timestamp of the first record at or after `target`; -1 and -1 if there is none.

    Records below `first_delta` do not count: the log start may lie in the middle of a batch. A delta below -1 is not
    found either: what is wrong, less one.
    """
    position = address
    for _ in range(count):
        position, timestamp, delta, _, _, _, _, _, _, _ = _record(position, address + length, base_timestamp)
        if position < 0:
            return position - 1, -1
        if timestamp >= target and delta >= first_delta:
            return delta, timestamp
    return -1, -1


@njit("UniTuple(int64, 2)(int64, int64, int64, int64, int64)", cache=True, nogil=True)
def find_max_timestamp(
    address: int, length: int, count: int, base_timestamp: int, first_delta: int
) -> tuple[int, int]:
    """Offset delta and timestamp of the first record with the greatest timestamp; else as in `find_timestamp`."""
    position = address
    found = -1
    greatest = -1
    for _ in range(count):
        position, timestamp, delta, _, _, _, _, _, _, _ = _record(position, address + length, base_timestamp)
        if position < 0:
            return position - 1, -1
        if delta >= first_delta and (found < 0 or timestamp > greatest):
            found, greatest = delta, timestamp
    return found, greatest


@njit("int64(int64, int64)", cache=True, nogil=True)
def last_batch(address: int, length: int) -> int:
    """Where the last of some whole batches begins, the length of each being in its bytes 8 to 12."""
    last = at = 0
    while at + 12 <= length:
        size = 0
        for index in range(8, 12):
            size = size << 8 | load(address + at + index)
        last = at
        at += 12 + size
    return last


def warm() -> None:
    """Run every kernel once, so that no request waits for code to be compiled or paged in."""
    from lakestream.model.kernels import produce_loops

    section = b"\x0c\x00\x00\x00\x01\x01\x00"
    scratch = bytearray(8 + 4 * FIELDS)
    address, output = address_of(section), address_of(scratch)
    assert check_records(address, len(section), 1, 0)[0] == FINE
    assert not all_keyed(address, len(section), 1)
    assert decode_records(address, len(section), 1, 0, output, output + 8) == FINE
    assert find_timestamp(address, len(section), 1, 0, 0, 0) == (0, 0)
    assert find_max_timestamp(address, len(section), 1, 0, 0) == (0, 0)
    assert last_batch(address, len(section)) == 0
    assert lz4_bound(address, len(section)) == zstd_bound(address, len(section)) == -1
    produce_loops.warm()

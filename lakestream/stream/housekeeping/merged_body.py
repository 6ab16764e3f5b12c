"""The bytes of a merged object: which ranges to read, and how batches get their true offsets, a check and an index."""

import struct
from typing import NamedTuple

from lakestream.errors import LakestreamError
from lakestream.model.batches.header import HEADER_SIZE, MAGIC, checksum, give_append_time, stamp
from lakestream.model.batches.wal_object import HEADER_BYTES, MARK_EVERY_BYTES, BatchMark
from lakestream.model.streams import Entry, WalObject
from lakestream.stream.housekeeping.merging import Merge

READ_BYTES = 4 * 1024 * 1024
"""The most that one read fetches. While a read is under way its bytes are held twice."""
BATCHES_AT_ONCE = 100

_FRAME = struct.Struct(">qi4xbI2xi8xq").unpack_from
"""Base offset, length, magic, CRC, last offset delta, max timestamp."""


class BadSource(LakestreamError):
    """A source object is missing, or its bytes are not those that were written."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"object {number}: {message}")
        self.number = number


class Copy(NamedTuple):
    """A range of a source object, and its place in the merged object."""

    position: int
    length: int
    target: int


def reads_of(merge: Merge) -> list[tuple[WalObject, list[Copy]]]:
    """The ranges to read of each source object, in reads of READ_BYTES at most."""
    copies: dict[int, list[Copy]] = {}
    target = HEADER_BYTES
    for window in merge.windows:
        for entry in window.entries:
            for skip in range(0, entry.length, READ_BYTES):
                length = min(entry.length - skip, READ_BYTES)
                copies.setdefault(entry.object, []).append(Copy(entry.position + skip, length, target + skip))
            target += entry.length
    reads: list[tuple[WalObject, list[Copy]]] = []
    for number, wanted in sorted(copies.items()):
        size = READ_BYTES
        for copy in sorted(wanted):
            size += copy.length
            if size > READ_BYTES:
                reads.append((merge.sources[number], []))
                size = copy.length
            reads[-1][1].append(copy)
    return reads


def finish_batches(
    body: bytearray, at: int, end: int, entry: Entry, offset: int, merged: bool, marks: list[BatchMark],
    append_ms: int | None = None,
) -> tuple[int, int, int]:  # fmt: skip
    """Check, stamp and mark up to BATCHES_AT_ONCE batches of an entry, from the position `at` on.

    Returns the next position, the next offset, and the number of batches. `append_ms` is the append time that a broker
    gave the batches; None if the batches carry their own times.
    """
    view = memoryview(body)
    count = 0
    while at < end and count < BATCHES_AT_ONCE:
        if end - at < HEADER_SIZE:
            raise BadSource(entry.object, "a batch header is cut")
        base, length, magic, crc, last_delta, timestamp = _FRAME(body, at)
        following = at + 12 + length
        if magic != MAGIC or last_delta < 0 or not at + HEADER_SIZE <= following <= end:
            raise BadSource(entry.object, f"there is no batch in the slice at {entry.position}")
        if merged and base != offset:
            raise BadSource(entry.object, f"offset {base} where {offset} should be")
        if crc != checksum(view, at, following - at):
            raise BadSource(entry.object, f"the CRC of offset {offset} is wrong")
        stamp(body, at, offset)
        if append_ms is not None:
            give_append_time(body, at, following - at, append_ms)
            timestamp = _FRAME(body, at)[5]
        if not marks or at - marks[-1].position >= MARK_EVERY_BYTES:
            marks.append(BatchMark(offset, at, timestamp))
        elif timestamp > marks[-1].max_timestamp:
            marks[-1] = marks[-1]._replace(max_timestamp=timestamp)
        offset += last_delta + 1
        at = following
        count += 1
    return at, offset, count

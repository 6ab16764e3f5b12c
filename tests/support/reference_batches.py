"""Batches and index rows made in plain Python, to compare with those that compiled code makes."""

import struct

from lakestream.errors import Corrupt
from lakestream.interfaces import Buffer
from lakestream.model.batches.records import Record, encode_batch
from lakestream.model.batches.wal_object import MARK_EVERY_BYTES, BatchMark, MergedSlice

_COMMIT_MARKER = 1
_BATCH = struct.Struct(">qi4xb6xi8xq")
"""Of a batch header: base offset, length, magic, last offset delta, max timestamp."""
_BATCH_HEADER_BYTES = 61


def control_batch(base_offset: int, last_offset: int, timestamp: int) -> bytes:
    """A batch that covers offsets without records: one control record at the last of them, of no producer (L31).

    It reads as a commit marker, which no client shows and none has to match with a transaction.
    """
    marker = Record(
        offset=last_offset,
        timestamp=timestamp,
        key=struct.pack(">hh", 0, _COMMIT_MARKER),
        value=struct.pack(">hi", 0, 0),
    )
    return encode_batch([marker], base_offset=base_offset, control=True)


def merge_slice(body: Buffer, stream: int, position: int, length: int) -> MergedSlice:
    """The index row of a slice of finished batches, found by walking their headers. Offsets may have gaps."""
    marks: list[BatchMark] = []
    batches, last_offset, at, end = 0, -1, position, position + length
    while at < end:
        if end - at < _BATCH_HEADER_BYTES:
            raise Corrupt(f"stream {stream}: a batch header is cut at {at}")
        offset, batch_length, magic, last_delta, timestamp = _BATCH.unpack_from(body, at)
        following = at + 12 + batch_length
        if magic != 2 or not at + _BATCH_HEADER_BYTES <= following <= end:
            raise Corrupt(f"stream {stream}: there is no batch at {at}")
        if offset <= last_offset or last_delta < 0:
            raise Corrupt(f"stream {stream}: the batch at {at} is out of the order of offsets")
        if not marks or at - marks[-1].position >= MARK_EVERY_BYTES:
            marks.append(BatchMark(offset, at, timestamp))
        elif timestamp > marks[-1].max_timestamp:
            marks[-1] = marks[-1]._replace(max_timestamp=timestamp)
        batches, last_offset, at = batches + 1, offset + last_delta, following
    if not marks:
        raise Corrupt(f"stream {stream}: a merged slice needs a batch")
    return MergedSlice(stream, position, length, batches, marks[0].offset, marks)

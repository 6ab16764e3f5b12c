"""Rebuilds record batches from rows of a table; each record is byte for byte the one that was produced."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from fastcrc import crc32

from lakestream.data.tables.files.arrow_view import view_of
from lakestream.data.tables.files.stream_columns import RAW_COLUMNS
from lakestream.errors import Corrupt
from lakestream.model.batches import header
from lakestream.model.batches.compression import compress
from lakestream.model.batches.header import CHECKED_POSITION, CRC_POSITION, HEADER_SIZE, Codec
from lakestream.model.kernels import table_batches
from lakestream.model.kernels.table_batches import P_LENGTH, P_POSITION, P_ROWS

TARGET_BYTES = 256 * 1024
"""The size at which the next batch starts: large enough for clients, small beside a fetch."""
SPARE_LINES = 16
ROWS_AT_ONCE = 1 << 20


def rebuild(
    rows: pa.Table,
    first: int | None = None,
    end: int | None = None,
    *,
    codec: int = Codec.NONE,
    target_bytes: int = TARGET_BYTES,
) -> list[memoryview]:
    """The batches of one partition's rows, which cover every offset from `first` up to `end`, or those of the rows.

    Offsets without rows are covered by control batches (L31); no batch has a producer (L32). Rows in another order are
    sorted first. Raises Corrupt if an offset has two rows, or lies outside what is asked for.
    """
    rows = in_order(RAW_COLUMNS.conform(rows))
    if not rows.num_rows:
        batches, begin, stop = [pa.RecordBatch.from_pylist([], schema=rows.schema)], first or 0, end or 0
    else:
        batches = rows.to_batches(max_chunksize=ROWS_AT_ONCE)
        begin, stop = _checked(rows, first, end)
    return list(_written(batches, begin, stop, codec, target_bytes))


def in_order(rows: pa.Table) -> pa.Table:
    """The rows sorted by partition and offset; nearly always they are sorted already (T4)."""
    previous: tuple[int, int] | None = None
    for one in rows.to_batches():
        if not one.num_rows:
            continue
        partitions, offsets = one.column("stream_partition").to_numpy(), one.column("stream_offset").to_numpy()
        steps = np.diff(partitions)
        ascending = bool(((steps > 0) | ((steps == 0) & (np.diff(offsets) > 0))).all())
        start = (int(partitions[0]), int(offsets[0]))
        if not ascending or (previous is not None and start <= previous):
            return rows.sort_by([("stream_partition", "ascending"), ("stream_offset", "ascending")])
        previous = (int(partitions[-1]), int(offsets[-1]))
    return rows


def _checked(rows: pa.Table, first: int | None, end: int | None) -> tuple[int, int]:
    """The offsets that are to be covered, if sorted rows can be of one partition and lie among them."""
    partitions, offsets = rows.column("stream_partition"), rows.column("stream_offset")
    if partitions[0] != partitions[-1]:
        raise Corrupt(f"rows of partitions {partitions[0]} and {partitions[-1]} in one stream")
    last = int(offsets[-1].as_py())
    if end is not None and last >= end:
        raise Corrupt(f"a row at offset {last} in what ends at {end}")
    return int(offsets[0].as_py()) if first is None else first, last + 1 if end is None else end


def _written(
    batches: list[pa.RecordBatch], expected: int, end: int, codec: int, target_bytes: int
) -> Iterator[memoryview]:
    body_bytes = max(target_bytes - HEADER_SIZE, 0)
    for index, one in enumerate(batches):
        last_offset = one.column("stream_offset")[-1].as_py() if one.num_rows else expected - 1
        stop = end if index == len(batches) - 1 else last_offset + 1
        # A line for each row and for a gap before it, and more for gaps longer than one batch can cover.
        room = 2 * one.num_rows + SPARE_LINES + (max(stop - expected, 0) >> 31)
        plan = np.empty((room, table_batches.PLAN_FIELDS), dtype=np.int64)
        sizes = np.empty(one.num_rows, dtype=np.int64)
        held = view_of(one)
        lines, total = table_batches.plan_batches(held.view, expected, stop, body_bytes, sizes, plan)
        if lines < 0:
            offset = one.column("stream_offset")[total].as_py()
            raise Corrupt(f"{_WRONG[lines]} at offset {offset}, where {expected} or later was expected")
        buffer = np.empty(total, dtype=np.uint8)
        plan = plan[:lines]
        table_batches.write_batches(held.view, sizes, plan, buffer.ctypes.data)
        yield from _finished(buffer.data, plan[:, (P_POSITION, P_LENGTH, P_ROWS)].tolist(), codec)
        expected = max(stop, expected)


def _finished(buffer: memoryview, places: list[list[int]], codec: int) -> Iterator[memoryview]:
    """Each batch with its CRC, compressed if a codec is given."""
    crc = crc32.iscsi
    for start, length, rows in places:
        view = buffer[start : start + length]
        if codec != Codec.NONE and rows:
            view = _compressed(view, codec)
        view[CRC_POSITION:CHECKED_POSITION] = crc(view[CHECKED_POSITION:]).to_bytes(4, "big")
        yield view


def _compressed(view: memoryview, codec: int) -> memoryview:
    body = compress(codec, bytes(view[HEADER_SIZE:]))
    packed = bytearray(HEADER_SIZE + len(body))
    packed[:HEADER_SIZE] = view[:HEADER_SIZE]
    packed[HEADER_SIZE:] = body
    packed[8:12] = (len(packed) - header.PREFIX_SIZE).to_bytes(4, "big")
    packed[CHECKED_POSITION + 1] |= codec
    return memoryview(packed)


_WRONG = {
    table_batches.NOT_ASCENDING: "two rows, or a row that was not asked for,",
    table_batches.TOO_LARGE: "a record that no batch can hold",
    table_batches.PLAN_FULL: "more gaps than there can be",
}

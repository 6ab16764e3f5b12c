"""The stream as consumers get it, compared with the ledger of the table: every row, by offset and hash.

The hash (model/kernels/table_columns.py) covers offset, timestamp, key, value and headers, and tells null from empty.
Rows of both sides are compared in arrays. Above the progress lies the tail, which has to be dense: each offset has a
record.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from lakestream.data.tables.files.arrow_view import row_hashes
from lakestream.data.tables.files.decode import STAMPED, WalSlice, decode_pieces, decode_slices
from lakestream.errors import Corrupt, LakestreamError
from lakestream.lake.verify.ledger import HASH, OFFSET, Ledger, LedgerCursor, Numbers
from lakestream.lake.verify.ranges import Ranges
from lakestream.lake.verify.report import Finding, FindingKind, Range
from lakestream.model.batches.header import CONTROL, HEADER, HEADER_SIZE, PREFIX_SIZE


class Unreadable(LakestreamError):
    """The brokers do not give the records at an offset."""


class RecordSource(Protocol):
    """A reader of streams by Kafka's protocol."""

    async def fetch(self, topic: str, partition: int, offset: int) -> bytes:
        """Batches from the one that holds `offset` on, the last one perhaps cut. Raises Unreadable."""
        ...


@dataclass(frozen=True, slots=True)
class FetchedPiece:
    """The result of a fetch: all records in [start, end), and the offsets that control batches cover."""

    start: int
    end: int
    offsets: Numbers
    hashes: Numbers
    controls: list[Range]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A partition at one moment: offsets from `start` are the stream's, those below `landed` rows of the table."""

    topic: str
    partition: int
    start: int
    landed: int
    end: int


@dataclass(slots=True)
class Compared:
    """The result of a comparison. `differs` is the first offset at which the two rows differ."""

    findings: list[Finding]
    rows: int = 0
    tail: int = 0
    differs: int | None = None


async def pieces(source: RecordSource, extent: Extent) -> AsyncIterator[FetchedPiece]:
    """The whole stream, in order. Raises Unreadable or Corrupt."""
    at = extent.start
    while at < extent.end:
        data = memoryview(await source.fetch(extent.topic, extent.partition, at))
        batches = list(_batches(data))
        if not batches:
            raise Unreadable(f"nothing comes at offset {at}, though the stream ends at {extent.end}")
        expected = at
        for base, last, _, _ in batches:
            # Below the first one may lie what comes before the offset asked for, but never a gap (L31).
            if base > expected or (base < expected and expected > at):
                raise Unreadable(f"a batch begins at offset {base}, where {expected} was expected")
            expected = base + last + 1
        end = min(max(base + last + 1 for base, last, _, _ in batches), extent.end)
        if end <= at:
            raise Unreadable(f"a fetch at offset {at} gives only what lies before it")
        whole = data[: batches[-1][3]]
        offsets, hashes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for decoded in decode_pieces([WalSlice(extent.partition, STAMPED, whole, at, extent.end)]):
            offsets.append(decoded.rows.column(1).to_numpy())
            hashes.append(row_hashes(decoded.rows))
        controls = [(base, base + last + 1) for base, last, attributes, _ in batches if attributes & CONTROL]
        yield FetchedPiece(at, end, np.concatenate(offsets), np.concatenate(hashes), controls)
        at = end


async def compare(
    source: RecordSource, extent: Extent, table: Ledger, progress: Callable[[int], None] = lambda _: None
) -> Compared:
    """Read the stream once, from its start to its end."""
    compared = Compared([])
    cursor = LedgerCursor(table, extent.partition, extent.start)
    only_table, only_stream, other, holes = Ranges(), Ranges(), Ranges(), Ranges()
    at = extent.start
    try:
        async for piece in pieces(source, extent):
            at = piece.end
            cut = int(np.searchsorted(piece.offsets, extent.landed))
            rows = cursor.take(min(piece.end, extent.landed))
            compared.rows += len(rows)
            _compare(rows, piece.offsets[:cut], piece.hashes[:cut], only_table, only_stream, other)
            compared.tail += len(piece.offsets) - cut
            holes.add(_holes(piece, extent.landed, piece.offsets[cut:]))
            # Offsets, not records: where rows were deleted it would never come to its end.
            progress(piece.end - piece.start)
    except (Unreadable, Corrupt) as error:
        text = f"the stream cannot be read from offset {at} on: {error}"
        compared.findings.append(_finding(FindingKind.UNREADABLE, extent, text, ranges=[(at, extent.end)]))
    compared.differs = other.first[0][0] if other else None
    for ranges, kind, text in (
        (only_table, FindingKind.STREAM_DIFFERS, "rows of the table that consumers do not get"),
        (only_stream, FindingKind.STREAM_DIFFERS, "records that consumers get and the table does not have"),
        (other, FindingKind.STREAM_DIFFERS, "consumers get other bytes than the table has"),
        (holes, FindingKind.TAIL_HOLE, "offsets behind the progress that hold no record"),
    ):
        if ranges:
            compared.findings.append(_finding(kind, extent, text, ranges.first, ranges.count))
    return compared


async def record_at(source: RecordSource, extent: Extent, offset: int) -> pa.Table:
    """One record as a row, or none. Raises Unreadable or Corrupt."""
    data = memoryview(await source.fetch(extent.topic, extent.partition, offset))
    whole = data[: max((end for _, _, _, end in _batches(data)), default=0)]
    return decode_slices([WalSlice(extent.partition, STAMPED, whole, offset, offset + 1)])


def columns_that_differ(record: pa.Table, row: pa.Table) -> list[str]:
    """The columns in which a record differs from the table's row."""
    return [name for name in _COMPARED if record[name].combine_chunks() != row[name].combine_chunks()]


_COMPARED = ("stream_timestamp", "stream_key", "value", "stream_headers", "stream_original")


def _compare(
    rows: Numbers, offsets: Numbers, hashes: Numbers, only_table: Ranges, only_stream: Ranges, other: Ranges
) -> None:
    if len(rows) == len(offsets) and (rows[:, OFFSET] == offsets).all() and (rows[:, HASH] == hashes).all():
        return
    only_table.add(np.setdiff1d(rows[:, OFFSET], offsets))
    only_stream.add(np.setdiff1d(offsets, rows[:, OFFSET]))
    _, left, right = np.intersect1d(rows[:, OFFSET], offsets, return_indices=True)
    other.add(offsets[right[rows[left, HASH] != hashes[right]]])


def _holes(piece: FetchedPiece, landed: int, offsets: Numbers) -> Numbers:
    """Offsets of the tail without a record, those aside that a control batch covers."""
    start = max(piece.start, landed)
    if piece.end - start == len(offsets):
        return np.empty(0, np.int64)
    missing = np.setdiff1d(np.arange(start, piece.end), offsets)
    for first, end in piece.controls:
        missing = missing[(missing < first) | (missing >= end)]
    return missing


def _batches(data: memoryview) -> "list[tuple[int, int, int, int]]":
    """Base offset, last delta, attributes and end of every whole batch."""
    found, start = [], 0
    while start + HEADER_SIZE <= len(data):
        head = HEADER.unpack_from(data, start)
        end = start + head[1] + PREFIX_SIZE
        if end > len(data) or head[1] + PREFIX_SIZE < HEADER_SIZE:
            break
        found.append((head[0], head[6], head[5], end))
        start = end
    return found


def _finding(kind: FindingKind, extent: Extent, text: str, ranges: list[Range], rows: int = 0) -> Finding:
    return Finding(
        kind=kind, text=text, topic=extent.topic, partition=extent.partition, ranges=ranges, rows=rows
    )

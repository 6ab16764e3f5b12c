"""Reads a topic, table and tail, piece by piece, as a worker of the Spark source does for one range of offsets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from lakestream.data.tables.files.arrow_view import produced_timestamps
from lakestream.data.tables.files.decode import STAMPED, WalSlice, decode_pieces
from lakestream.data.tables.files.slices import TailObject, TailSlice
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.reading.added_columns import added_columns
from lakestream.data.tables.reading.table_reader import ReadCaches, TableReader
from lakestream.data.tables.reading.tail import TopicTail, fetch_tail
from lakestream.data.tables.stores.routed_store import open_store_of
from lakestream.data.tables.stores.small_files import SmallFiles
from lakestream.data.tables.stores.table_store import TableStore, open_table_store
from lakestream.errors import Missing

PIECE_BYTES = 8 << 20
TABLE_ROWS = 2_000_000
"""Offsets of a table that one task reads."""
TAIL_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPiece:
    """Offsets [start, end) of one partition, either of the table or of the tail (then `slices` cover them).

    `added`: rows of the table have the columns that users added; in rows of the tail these are null.
    """

    broker: str
    topic: str
    root: str
    partition: int
    start: int
    end: int
    metadata_location: str = ""
    objects: tuple[TailObject, ...] = ()
    slices: tuple[TailSlice, ...] = ()
    added: bool = False


Ranges = Mapping[int, tuple[int, int]]
"""By partition: [start, end)."""


def columns_of(tail: TopicTail) -> list[pa.Field]:
    """The columns that users added to a topic's table. Raises Missing or Corrupt."""
    if not tail.metadata_location:
        return []
    store = open_store_of(tail.root, tail.metadata_location)
    return added_columns(TableMetadata.parse(store.get(tail.metadata_location)))


def pieces(broker: str, tail: TopicTail, wanted: Ranges, *, added: bool = False) -> list[ScanPiece]:
    """The pieces to read for these offsets; each offset is in one piece."""
    found: list[ScanPiece] = []
    for bounds in tail.partitions:
        start, end = wanted.get(bounds.partition, (0, 0))
        start, end = max(start, bounds.start), min(end, bounds.end)
        base = ScanPiece(
            broker=broker, topic=tail.topic, root=tail.root, partition=bounds.partition, start=start, end=end,
            added=added,
        )  # fmt: skip
        for at in range(start, min(end, bounds.landed), TABLE_ROWS):
            upto = min(at + TABLE_ROWS, end, bounds.landed)
            found.append(replace(base, start=at, end=upto, metadata_location=tail.metadata_location))
        found += _tail_pieces(base, tail, max(start, bounds.landed), end)
    return found


def _tail_pieces(base: ScanPiece, tail: TopicTail, start: int, end: int) -> Iterator[ScanPiece]:
    group: list[TailSlice] = []
    for one in tail.slices_of(base.partition):
        if one.end <= start or one.first >= end:
            continue
        if group and sum(each.length for each in group) + one.length > TAIL_BYTES:
            yield _tail_piece(base, tail, group, start, end)
            group = []
        group.append(one)
    if group:
        yield _tail_piece(base, tail, group, start, end)


def _tail_piece(base: ScanPiece, tail: TopicTail, group: Sequence[TailSlice], start: int, end: int) -> ScanPiece:
    used = sorted({one.object for one in group})
    return replace(
        base,
        start=max(start, group[0].first),
        end=min(end, group[-1].end),
        objects=tuple(tail.objects[number] for number in used),
        slices=tuple(one._replace(object=used.index(one.object)) for one in group),
    )


def read(piece: ScanPiece) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, in order. If its files are gone, the broker is asked once for their new place."""
    at = piece.start
    try:
        for batch in _read(piece):
            yield batch
            at = batch.column(1)[-1].as_py() + 1
    except Missing:
        now = fetch_tail(piece.broker, piece.topic)
        for rest in pieces(piece.broker, now, {piece.partition: (at, piece.end)}, added=piece.added):
            yield from _read(rest)


def _read(piece: ScanPiece) -> Iterator[pa.RecordBatch]:
    if piece.slices:
        return _read_tail(open_table_store(piece.root), piece)
    return _read_table(open_store_of(piece.root, piece.metadata_location), piece)


def _read_table(store: TableStore, piece: ScanPiece) -> Iterator[pa.RecordBatch]:
    with_files = SmallFiles(store)
    try:
        added = added_columns(TableMetadata.parse(store.get(piece.metadata_location))) if piece.added else []
        reader = TableReader(store, with_files, ReadCaches(), lambda: piece.metadata_location, added)
        at = piece.start
        while at < piece.end:
            found = reader.read_rows(piece.partition, at, piece.end, PIECE_BYTES)
            yield from (batch for batch in found.rows.to_batches() if batch.num_rows)
            at = found.end
    finally:
        with_files.close()


def _read_tail(store: TableStore, piece: ScanPiece) -> Iterator[pa.RecordBatch]:
    for one in piece.slices:
        source = piece.objects[one.object]
        [data] = store.read(f"{piece.root}/{source.key}", [(one.position, one.length)])
        base = STAMPED if source.stamped else one.base
        first, end = max(one.first, piece.start), min(one.end, piece.end)
        wanted = WalSlice(one.partition, base, data, first, end, one.append_ms)
        for decoded in decode_pieces([wanted], piece_bytes=PIECE_BYTES):
            yield decoded.rows


def offset_at(tail: TopicTail, partition: int, timestamp: int) -> int:
    """The first offset whose record is not older than `timestamp` (ms), or the end."""
    bounds = next(one for one in tail.partitions if one.partition == partition)
    store = open_table_store(tail.root)
    if bounds.start < bounds.landed and tail.metadata_location:
        table_store = open_store_of(tail.root, tail.metadata_location)
        files = SmallFiles(table_store)
        try:
            reader = TableReader(table_store, files, ReadCaches(), lambda: tail.metadata_location)
            found = reader.find_time(partition, timestamp, bounds.start, bounds.landed)
        finally:
            files.close()
        if found is not None:
            return found.offset
    for one, greatest in zip(tail.slices, tail.max_timestamps, strict=True):
        if one.partition != partition or greatest < timestamp:
            continue
        base = ScanPiece(broker="", topic="", root=tail.root, partition=partition, start=one.first, end=one.end)
        for batch in _read_tail(store, _tail_piece(base, tail, [one], one.first, one.end)):
            for offset, time in zip(batch.column(1).to_pylist(), produced_timestamps(batch).tolist(), strict=True):
                if time >= timestamp:
                    return int(offset)
    return bounds.end

"""A topic as DuckDB scans it: rows of the table's files, then the tail from the WAL, as a broker told them.

Files without deletes are a dataset of Arrow: DuckDB asks it for the columns and rows that a query needs, and files
whose bounds say that they have none are not opened. Files in which another engine deleted rows by position, and the
tail, are streams of all their rows, which start again with each scan. No source is in memory as a whole. Where users
added columns to the table, the footer of each file says how it holds them; in the tail they are null.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from lakestream.data.tables.files.decode import STAMPED, WalSlice, decode_pieces
from lakestream.data.tables.files.runs import FIRST, LAST, MAX_TIMESTAMP, PARTITION
from lakestream.data.tables.files.slices import TailSlice
from lakestream.data.tables.files.stream_columns import RAW_COLUMNS
from lakestream.data.tables.reading.added_columns import added_columns, with_nulls
from lakestream.data.tables.reading.footers import read_footer, read_group
from lakestream.data.tables.reading.index import FILE, IndexedFile, TableView
from lakestream.data.tables.reading.position_deletes import parse_deletes, within
from lakestream.data.tables.reading.table_reader import ReadCaches, TableReader
from lakestream.data.tables.reading.tail import TopicTail
from lakestream.data.tables.stores.routed_store import open_store_of
from lakestream.data.tables.stores.small_files import SmallFiles
from lakestream.data.tables.stores.table_store import TableStore, open_table_store
from lakestream.errors import Corrupt, LakestreamError
from lakestream.lake.sql.columns import StoredColumns, held_in
from lakestream.lake.sql.files import ReadFaults, StoreFiles

PIECE_BYTES = 8 << 20
READS_AHEAD = 8
DELETES_KEPT = 64
TIMESTAMP_MAX_MS = (2**63 - 1) // 1000 - 1

S = TypeVar("S")
T = TypeVar("T")


class RepeatableRows:
    """Rows that DuckDB may scan as often as a query names them: each scan starts from the beginning."""

    def __init__(self, schema: pa.Schema, batches: Callable[[], Iterable[pa.RecordBatch]], faults: ReadFaults) -> None:
        self._schema = schema
        self._batches = batches
        self._faults = faults

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self._schema, self._noting()).__arrow_c_stream__()

    def _noting(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches()
        except LakestreamError as error:
            self._faults.note(error)
            raise


class Stores(NamedTuple):
    """Where a topic's table is read from, and where its WAL: the same, unless the table is in another catalog."""

    table: TableStore
    wal: TableStore


def open_stores(tail: TopicTail) -> Stores:
    wal = open_table_store(tail.root)
    return Stores(open_store_of(tail.root, tail.metadata_location) if tail.metadata_location else wal, wal)


class ScannedPart(NamedTuple):
    """A source that DuckDB scans, and the SELECT list that makes the topic's columns of it."""

    source: Any
    select: str = "*"


def topic_parts(stores: Stores, tail: TopicTail, faults: ReadFaults) -> list[ScannedPart]:
    """The sources that together have each row of the topic once. Raises Missing if files of the table are gone."""
    store = stores.table
    view = _view(store, tail) if tail.metadata_location else TableView()
    added = added_columns(view.table.metadata) if view.table is not None else []
    schema = RAW_COLUMNS.with_added(added)
    slow = [file for file in view.files.values() if _touching(view, file)] if view.deletes else []
    clean = [file for file in view.files.values() if file not in slow] if slow else list(view.files.values())
    # The first part gives its types to the columns, also where others have nothing of them.
    parts = [ScannedPart(schema.empty_table())] if added or not (view.files or tail.slices) else []
    spans = _spans(view, tail)
    for held, files in _by_columns(store, clean, added).items():
        if held is None:
            slow += files
        else:
            parts.append(ScannedPart(_dataset(store, files, spans, held.schema(), faults), held.select(added)))
    if slow:
        parts.append(ScannedPart(RepeatableRows(schema, lambda: undeleted_rows(store, view, slow, added), faults)))
    if tail.slices:
        nulls = partial(with_nulls, added=added)
        parts.append(ScannedPart(RepeatableRows(schema, lambda: map(nulls, tail_rows(stores.wal, tail)), faults)))
    return parts


def _by_columns(
    store: TableStore, files: Sequence[IndexedFile], added: Sequence[pa.Field]
) -> dict[StoredColumns | None, list[IndexedFile]]:
    """The files by how they hold the added columns, as their footers say."""
    if not added or not files:
        return {StoredColumns(()): list(files)} if files else {}
    found: dict[StoredColumns | None, list[IndexedFile]] = {}

    def held(file: IndexedFile) -> StoredColumns | None:
        return held_in(read_footer(store, file.path, file.size), added)

    for file, one in zip(files, ahead(held, files, READS_AHEAD), strict=True):
        found.setdefault(one, []).append(file)
    return found


def _view(store: TableStore, tail: TopicTail) -> TableView:
    files = SmallFiles(store)
    try:
        return TableReader(store, files, ReadCaches(), lambda: tail.metadata_location).view()
    finally:
        files.close()


def _touching(view: TableView, file: IndexedFile) -> list[Any]:
    return [each for each in view.deletes if each.may_touch(file.path, file.sequence)]


# -- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileBounds:
    """The bounds of the rows of a file."""

    partitions: tuple[int, int]
    offsets: tuple[int, int]
    latest_ms: int | None = None


def _spans(view: TableView, tail: TopicTail) -> dict[int, FileBounds]:
    """Those of the files whose runs are known, by their numbers."""
    runs = np.concatenate([view.runs(bounds.partition).runs for bounds in tail.partitions])
    runs = runs[np.argsort(runs[:, FILE], kind="stable")]
    numbers, starts = np.unique(runs[:, FILE], return_index=True)
    if not len(numbers):
        return {}
    least = np.minimum.reduceat(runs, starts, axis=0).tolist()
    most = np.maximum.reduceat(runs, starts, axis=0).tolist()
    return {
        number: FileBounds((low[PARTITION], high[PARTITION]), (low[FIRST], high[LAST]), high[MAX_TIMESTAMP])
        for number, low, high in zip(numbers.tolist(), least, most, strict=True)
    }


def _dataset(
    store: TableStore,
    files: Sequence[IndexedFile],
    spans: Mapping[int, FileBounds],
    schema: pa.Schema,
    faults: ReadFaults,
) -> Any:
    system = fs.PyFileSystem(StoreFiles(store, {file.path: file.size for file in files}, faults))
    kind = ds.ParquetFileFormat()
    fragments = []
    for file in files:
        span = spans.get(file.number) or FileBounds(file.partitions, file.offsets)
        fragments.append(kind.make_fragment(file.path, filesystem=system, partition_expression=_known_of(span)))
    return ds.FileSystemDataset(fragments, schema, kind, system)


def _known_of(span: FileBounds) -> Any:
    """A condition that holds for every row of a file: a filter that contradicts it skips the file."""
    partition, offset, time = (ds.field(name) for name in RAW_COLUMNS.schema.names[:3])
    lowest, highest = (pa.scalar(_int32(bound), pa.int32()) for bound in span.partitions)
    known = (partition >= lowest) & (partition <= highest)
    known &= (offset >= span.offsets[0]) & (offset <= span.offsets[1])
    if span.latest_ms is not None and abs(span.latest_ms) < TIMESTAMP_MAX_MS:
        # Another engine may have written microseconds, which the index cuts off.
        end = pa.scalar((span.latest_ms + 1) * 1000, RAW_COLUMNS.schema.field("stream_timestamp").type)
        known &= (time < end) | time.is_null()
    return known


def _int32(bound: int) -> int:
    """A partition's bound as int32; unknown bounds are those of a long."""
    return min(max(bound, -(2**31)), 2**31 - 1)


def undeleted_rows(
    store: TableStore, view: TableView, files: Sequence[IndexedFile], added: Sequence[pa.Field] = ()
) -> Iterator[pa.RecordBatch]:
    """The rows of files that have deletes, or whose added columns a scan cannot convert."""
    parsed: dict[str, Any] = {}
    for file in files:
        positions = []
        for each in _touching(view, file):
            if each.path not in parsed:
                if len(parsed) >= DELETES_KEPT:
                    parsed.clear()
                parsed[each.path] = parse_deletes(store.get(each.path))
            if file.path in parsed[each.path]:
                positions.append(parsed[each.path][file.path])
        footer = read_footer(store, file.path, file.size)
        for group, start in enumerate(footer.starts[:-1]):
            rows = read_group(store, footer, group, added)
            gone = within(positions, start, rows.num_rows)
            if len(gone):
                rows = rows.take(pa.array(np.delete(np.arange(rows.num_rows), gone)))
            if rows.num_rows:
                yield rows


# -- the tail --------------------------------------------------------------------------------------------------------


def tail_rows(store: TableStore, tail: TopicTail) -> Iterator[pa.RecordBatch]:
    """The rows that have not landed. Each object is read once, several at a time."""
    by_object: dict[int, list[TailSlice]] = {}
    for one in tail.slices:
        by_object.setdefault(one.object, []).append(one)

    def read(number: int) -> list[WalSlice]:
        source, slices = tail.objects[number], by_object[number]
        found = store.read(f"{tail.root}/{source.key}", [(one.position, one.length) for one in slices])
        for one, data in zip(slices, found, strict=True):
            if len(data) != one.length:
                raise Corrupt(f"{source.key} is cut short: {len(data)} bytes at {one.position}, not {one.length}")
        return [
            WalSlice(one.partition, STAMPED if source.stamped else one.base, data, one.first, one.end, one.append_ms)
            for one, data in zip(slices, found, strict=True)
        ]

    for slices in ahead(read, list(by_object), READS_AHEAD):
        for piece in decode_pieces(slices, piece_bytes=PIECE_BYTES):
            yield piece.rows


def ahead(work: Callable[[S], T], items: Sequence[S], count: int) -> Iterator[T]:
    """The results in order, `count` of them under way at a time.

    Eight threads read footers 5 times as fast from a store that answers in 10 ms (bench/table_threads.py).
    """
    if len(items) < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(count, "sql-read") as pool:
        waiting: list[Future[T]] = [pool.submit(work, item) for item in items[:count]]
        try:
            for place in range(len(items)):
                yield waiting.pop(0).result()
                if place + count < len(items):
                    waiting.append(pool.submit(work, items[place + count]))
        finally:
            for future in waiting:
                future.cancel()

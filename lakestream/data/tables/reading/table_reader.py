"""Reads a topic's table: rows of a partition in the order of their offsets, whichever engine wrote the files.

    view of the current snapshot -> window of row groups -> decode (each once, kept for a while) -> drop deleted rows
    -> sort if need be -> cut by bytes

Blocking; for threads. If a file is gone in the middle of a read, the table is loaded again, once (T5).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from lakestream.data.tables.files.arrow_view import produced_timestamps
from lakestream.data.tables.files.parquet import row_sizes
from lakestream.data.tables.files.runs import FIRST, MAX_TIMESTAMP
from lakestream.data.tables.files.stream_columns import RAW_COLUMNS
from lakestream.data.tables.iceberg.metadata.table_metadata import Table, TableMetadata
from lakestream.data.tables.reading.footers import FileFooter, read_footer, read_group, runs_in_file
from lakestream.data.tables.reading.index import IndexedFile, TableView, latest_first
from lakestream.data.tables.reading.position_deletes import parse_deletes, within
from lakestream.data.tables.stores.lru import Lru
from lakestream.data.tables.stores.small_files import SmallFiles
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, Missing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lakestream.data.tables.reading.position_deletes import Positions

T = TypeVar("T")
GroupKey = tuple[str, int]
"""A row group: the file's path, and its number in the file."""
RESOLVED_AT_ONCE = 16
WINDOWS_MAX = 64
"""Row groups in a row that one read goes through, so that many small files make it shorter, not slower."""
WARMED_BYTES = 6 << 20
"""Reading ahead stops behind the row group that makes it so much: one of the usual ones, two of an ordered file."""
WARMED_WINDOWS_MAX = 8
EVERY_ROW = 1 << 40
LEAST_ROW_BYTES = 64
"""To guess how many rows a fetch may take."""


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """All rows of a partition in [start, end), in order; an offset without a row is a gap (deleted, aborted ...)."""

    rows: pa.Table
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row found by its time (ms)."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A decoded row group: all its rows, sorted by partition and offset, in whatever order the file has them."""

    rows: pa.RecordBatch
    partitions: "NDArray[np.int32]"
    offsets: "NDArray[np.int64]"
    places: "NDArray[np.int64] | None"
    """Where each of them is in the file's row group; None if they are as in the file."""


class ReadCaches:
    """The caches that readers of all tables share, each with a limit."""

    def __init__(
        self, *, row_group_bytes: int = 128 << 20, delete_bytes: int = 16 << 20, footer_count: int = 512
    ) -> None:
        self.groups: Lru[GroupKey, RowGroup] = Lru(row_group_bytes)
        self.deletes: Lru[str, dict[str, Positions]] = Lru(delete_bytes)
        self.footers: Lru[str, FileFooter] = Lru(footer_count)
        self._decoding: dict[GroupKey, Future[RowGroup]] = {}
        self._lock = Lock()

    def group(self, key: "GroupKey", decode: "Callable[[], RowGroup]") -> RowGroup:
        """A row group, decoded once for all threads that ask for it at the same time. Raises the errors of `decode`."""
        found = self.groups.get(key)
        if found is not None:
            return found
        with self._lock:
            others = self._decoding.get(key)
            if others is None:
                own = self._decoding[key] = Future()
        if others is not None:
            return others.result()
        try:
            # Another thread may have finished decoding between the two lookups.
            found = self.groups.get(key) or decode()
            self.groups.put(key, found, found.rows.nbytes)
            own.set_result(found)
        except BaseException as error:
            own.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._decoding[key]
        return found

    def clear(self) -> int:
        """Drops all large values; returns their bytes."""
        return self.groups.clear() + self.deletes.clear()


class TableReader:
    """Reads one table. `current` names its current metadata file, each time anew; `files` may be shared with others.

    Rows have the `added` columns behind those of the stream; `caches` are then for this reader alone.
    """

    def __init__(
        self, store: TableStore, files: SmallFiles, caches: ReadCaches, current: Callable[[], str],
        added: Sequence[pa.Field] = (),
    ) -> None:  # fmt: skip
        self._store = store
        self._added = added
        self._schema = RAW_COLUMNS.with_added(added)
        self._files = files
        self._caches = caches
        self._current = current
        self._view = TableView()
        self._moving = Lock()

    def __repr__(self) -> str:
        return f"TableReader({self._view!r})"

    def read_rows(self, partition: int, offset: int, upto: int, max_bytes: int) -> PartitionRows:
        """Rows from `offset` on, below `upto`, of about `max_bytes`; one row at least, if there is any.

        Raises Missing if files are gone after the table was loaded again, Corrupt if the table cannot be a stream's.
        """
        return self._retried(lambda view: self._read_rows(view, partition, offset, upto, max_bytes))

    def find_time(self, partition: int, timestamp: int, start: int, upto: int) -> FoundRow | None:
        """The first row of [start, upto) that is not older than `timestamp`."""
        return self._retried(lambda view: self._find_time(view, partition, timestamp, start, upto))

    def latest_time(self, partition: int, start: int, upto: int) -> FoundRow | None:
        """The row of [start, upto) with the greatest timestamp, the first of them."""
        return self._retried(lambda view: self._latest_time(view, partition, start, upto))

    def warm(self, partition: int, offset: int, upto: int) -> None:
        """Decodes the row groups that a consumer at `offset` reads next.

        Few at a time, since the next read asks again.
        """
        view = self.view()
        left = WARMED_BYTES
        for _ in range(WARMED_WINDOWS_MAX):
            window = view.window(partition, offset, upto, EVERY_ROW)
            for file, group in window.groups:
                if self._caches.groups.get((file.path, group)) is None:
                    left -= self._group(file, group).rows.nbytes
                if left <= 0:
                    return
            offset = window.end

    def overlapping(self, partition: int, offset: int) -> int:
        """How many files lie over an offset (T4); for a metric."""
        return self.view().runs(partition).overlapping(offset)

    # -- the view -----------------------------------------------------------------------------------------------------

    def view(self) -> TableView:
        """The index at the current snapshot."""
        location = self._current()
        view = self._view
        if view.table is not None and view.table.metadata_location == location:
            return view
        with self._moving:
            if self._view.table is None or self._view.table.metadata_location != location:
                table = Table(location, TableMetadata.parse(self._store.get(location)))
                self._view = self._view.moved(table, self._files.get_all)
            return self._view

    def _retried(self, read: Callable[[TableView], T]) -> T:
        try:
            return read(self.view())
        except Missing:
            return read(self.view())

    def _resolved(self, view: TableView, partition: int, start: int, end: int) -> TableView:
        """A view of the same snapshot in which all files that may hold rows of the range are resolved."""
        while near := view.unresolved_near(partition, start, end):
            view = self._resolve(view, near[:RESOLVED_AT_ONCE])
        return view

    def _resolve(self, view: TableView, files: list[IndexedFile]) -> TableView:
        runs = self._files.at_once(lambda file: runs_in_file(self._store, self._footer(file)), files)
        answers = list(zip(files, runs, strict=True))
        with self._moving:
            if self._view.table is view.table:
                self._view = self._view.resolved(answers)
                return self._view
        return view.resolved(answers)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _read_rows(self, view: TableView, partition: int, offset: int, upto: int, max_bytes: int) -> PartitionRows:
        taken: list[pa.RecordBatch] = []
        left = max_bytes
        at = offset
        windows = 0
        while at < upto and (not taken or (left > 0 and windows < WINDOWS_MAX)):
            window = view.window(partition, at, upto, max(left, 1) // LEAST_ROW_BYTES + 1)
            # The lowest first: their runs may end the window before the others.
            if near := view.unresolved_near(partition, at, window.end):
                view = self._resolve(view, near[:RESOLVED_AT_ONCE])
                continue
            windows += 1
            found = [self._select(view, *group, partition, at, window.end) for group in window.groups]
            fitting, used, whole = _fitting(found, left, at_least_one=not taken)
            left -= used
            if fitting.num_rows:
                taken.append(fitting)
            if not whole:
                at = fitting.column(1)[-1].as_py() + 1 if fitting.num_rows else max(at, window.start)
                break
            at = window.end
            self._leave(window.groups, partition)
        return PartitionRows(pa.Table.from_batches(taken, schema=self._schema), offset, at)

    def _select(
        self, view: TableView, file: IndexedFile, group: int, partition: int, start: int, end: int
    ) -> pa.RecordBatch:
        """The live rows of a partition in [start, end) out of one row group, in order."""
        held = self._group(file, group)
        first, last = np.searchsorted(held.partitions, [partition, partition + 1])
        low, high = first + np.searchsorted(held.offsets[first:last], [start, end])
        rows = held.rows.slice(int(low), int(high - low))
        deleted = self._deleted(view, file, group, len(held.offsets))
        if not len(deleted):
            return rows
        places = np.arange(low, high) if held.places is None else held.places[low:high]
        live = np.isin(places, deleted, invert=True)
        return rows if live.all() else rows.filter(pa.array(live))

    def _group(self, file: IndexedFile, group: int) -> RowGroup:
        return self._caches.group((file.path, group), lambda: self._decoded(file, group))

    def _decoded(self, file: IndexedFile, group: int) -> RowGroup:
        rows = read_group(self._store, self._footer(file), group, self._added)
        partitions, offsets = rows.column(0).to_numpy(), rows.column(1).to_numpy()
        steps = np.diff(partitions)
        if ((steps > 0) | ((steps == 0) & (np.diff(offsets) > 0))).all():
            return RowGroup(rows, partitions, offsets, None)
        # Sorted once, when it is decoded: the reads that follow then cut slices out of it.
        places = np.lexsort((offsets, partitions))
        rows = rows.take(pa.array(places))
        return RowGroup(rows, partitions[places], offsets[places], places)

    def _leave(self, groups: Sequence[tuple[IndexedFile, int]], partition: int) -> None:
        """Marks the row groups that end with this partition as the first to go: the reader has passed them.

        Otherwise a long replay would push out the row groups that it needs next.
        """
        for file, group in groups:
            held = self._caches.groups.get((file.path, group))
            if held is not None and len(held.partitions) and held.partitions[-1] == partition:
                self._caches.groups.cool((file.path, group))

    def _footer(self, file: IndexedFile) -> FileFooter:
        found = self._caches.footers.get(file.path)
        if found is None:
            found = read_footer(self._store, file.path, file.size)
            self._caches.footers.put(file.path, found, 1)
        return found

    def _deleted(self, view: TableView, file: IndexedFile, group: int, count: int) -> "Positions":
        touching = [each for each in view.deletes if each.may_touch(file.path, file.sequence)]
        if not touching:
            return np.empty(0, np.int64)
        found = [self._delete_file(each.path).get(file.path) for each in touching]
        return within([each for each in found if each is not None], self._footer(file).starts[group], count)

    def _delete_file(self, path: str) -> "dict[str, Positions]":
        found = self._caches.deletes.get(path)
        if found is None:
            found = parse_deletes(self._store.get(path))
            self._caches.deletes.put(path, found, sum(each.nbytes for each in found.values()))
        return found

    # -- times --------------------------------------------------------------------------------------------------------

    def _find_time(self, view: TableView, partition: int, timestamp: int, start: int, upto: int) -> FoundRow | None:
        view = self._resolved(view, partition, start, upto)
        best: FoundRow | None = None
        for run in view.runs(partition).at_or_after(start):
            if run[FIRST] >= (upto if best is None else best.offset):
                break
            if run[MAX_TIMESTAMP] < timestamp:
                continue
            rows = self._select(view, *view.group(run), partition, start, upto)
            times = produced_timestamps(rows) if rows.num_rows else np.empty(0, np.int64)
            places = np.flatnonzero(times >= timestamp)
            if len(places):
                found = FoundRow(rows.column(1)[int(places[0])].as_py(), int(times[places[0]]))
                best = found if best is None or found.offset < best.offset else best
        return best

    def _latest_time(self, view: TableView, partition: int, start: int, upto: int) -> FoundRow | None:
        view = self._resolved(view, partition, start, upto)
        best: FoundRow | None = None
        for run in latest_first(view.runs(partition).at_or_after(start, upto)):
            if best is not None and run[MAX_TIMESTAMP] < best.timestamp:
                break
            rows = self._select(view, *view.group(run), partition, start, upto)
            if not rows.num_rows:
                continue
            times = produced_timestamps(rows)
            place = int(np.argmax(times))
            found = FoundRow(rows.column(1)[place].as_py(), int(times[place]))
            if best is None or (-found.timestamp, found.offset) < (-best.timestamp, best.offset):
                best = found
        return best


def _fitting(
    found: list[pa.RecordBatch], max_bytes: int, *, at_least_one: bool
) -> tuple[pa.RecordBatch, int, bool]:
    """As many rows as fit, in the order of offsets, their bytes, and whether these are all. Each part is in order.

    Only rows that are returned are copied, from however many overlapping row groups. Raises Corrupt if an offset is
    there twice.
    """
    some = [rows for rows in found if rows.num_rows]
    if not some:
        return pa.RecordBatch.from_pylist([], schema=RAW_COLUMNS.schema), 0, True
    offsets = np.concatenate([rows.column(1).to_numpy() for rows in some])
    sizes = np.concatenate([row_sizes(rows) for rows in some])
    steps = np.diff(offsets)
    mixed = len(some) > 1 and not (steps > 0).all()
    if mixed:
        order = np.argsort(offsets, kind="stable")
        offsets, sizes = offsets[order], sizes[order]
        steps = np.diff(offsets)
    if (steps == 0).any():
        twice = int(offsets[1:][steps == 0][0])
        raise Corrupt(f"the table holds offset {twice} of partition {some[0].column(0)[0]} twice")
    totals = np.cumsum(sizes)
    count = max(int(np.searchsorted(totals, max_bytes, side="right")), 1 if at_least_one else 0)
    if not count:
        return some[0].slice(0, 0), 0, False
    below = int(offsets[count - 1]) + 1
    parts = [rows.slice(0, int(np.searchsorted(rows.column(1).to_numpy(), below))) for rows in some]
    whole = parts[0] if len(parts) == 1 else pa.concat_batches([rows for rows in parts if rows.num_rows])
    if mixed:
        whole = whole.take(pa.array(np.argsort(whole.column(1).to_numpy(), kind="stable")))
    return whole, int(totals[count - 1]), count == len(offsets)

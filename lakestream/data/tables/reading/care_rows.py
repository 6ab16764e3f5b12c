"""Rows of data files for table care: with the columns that users added, without rows deleted by position, in order.

    RowSource    one file, row group by row group
    SortedRows   several files as one: the rows of a partition by their offsets, a stretch at a time
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lakestream.data.tables.files.arrow_view import digest_rows
from lakestream.data.tables.files.parquet import read_whole_row_group, row_group_range
from lakestream.data.tables.files.runs import FIRST, LAST, PARTITION, ROW_GROUP
from lakestream.data.tables.files.stream_columns import RAW_COLUMNS
from lakestream.data.tables.reading.footers import read_footer, runs_in_file
from lakestream.data.tables.reading.position_deletes import parse_deletes, within
from lakestream.data.tables.stores.lru import Lru
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt

if TYPE_CHECKING:
    from lakestream.data.tables.files.runs import RunMatrix
    from lakestream.data.tables.reading.position_deletes import Positions

HELD_BYTES = 192 << 20
"""Decoded row groups that are kept while the partitions in them are gone through."""


class RowSource:
    """One data file. Raises Missing or Corrupt."""

    def __init__(self, store: TableStore, path: str, size: int, rows: int, deletes: Sequence[str]) -> None:
        self.path = path
        self._store = store
        self._footer = read_footer(store, path, size)
        self._deletes = deletes
        # Not a cached_property: that of Python 3.11 has one lock for all files, and reading takes long.
        self._known_runs: RunMatrix | None = None
        self._known_dead: Positions | None = None
        if self._footer.starts[-1] != rows:
            raise Corrupt(f"{path} has {self._footer.starts[-1]} rows, not {rows}")

    @property
    def groups(self) -> int:
        return int(self._footer.metadata.num_row_groups)

    @property
    def live_rows(self) -> int:
        return int(self._footer.starts[-1]) - len(self._dead)

    @cached_property
    def added(self) -> list[pa.Field]:
        """The columns that users added."""
        return RAW_COLUMNS.added_fields(self._footer.metadata.schema.to_arrow_schema())

    @property
    def runs(self) -> "RunMatrix":
        if self._known_runs is None:
            self._known_runs = runs_in_file(self._store, self._footer)
        return self._known_runs

    @property
    def _dead(self) -> "Positions":
        if self._known_dead is None:
            self._known_dead = self._read_deletes()
        return self._known_dead

    def _read_deletes(self) -> "Positions":
        found = [parse_deletes(self._store.get(one)).get(self.path) for one in self._deletes]
        some = [places for places in found if places is not None]
        dead = np.unique(np.concatenate(some)) if some else np.empty(0, np.int64)
        return dead[dead < self._footer.starts[-1]]

    def live(self, group: int) -> pa.RecordBatch:
        """The rows of a row group that are not deleted."""
        start, length = row_group_range(self._footer.metadata, group)
        [data] = self._store.read(self.path, [(start, length)])
        stored = read_whole_row_group(self._footer.metadata, group, start, data)
        table = RAW_COLUMNS.conform_with_added(stored).combine_chunks()
        batches = table.to_batches()
        if len(batches) > 1:
            raise Corrupt(f"row group {group} of {self.path} is too large for one batch")
        if not batches:
            return pa.RecordBatch.from_pylist([], schema=RAW_COLUMNS.with_added(self.added))
        dead = within([self._dead], self._footer.starts[group], table.num_rows)
        if not len(dead):
            return batches[0]
        kept = np.delete(np.arange(table.num_rows), dead)
        return batches[0].take(pa.array(kept))


class SortedRows:
    """The rows of several files, in order. They may overlap in any way; where they do not, little memory is needed."""

    def __init__(self, sources: Sequence[RowSource]) -> None:
        self._sources = sources
        matrices = [np.insert(one.runs, 0, at, axis=1) for at, one in enumerate(sources) if len(one.runs)]
        self._runs = np.concatenate(matrices) if matrices else np.empty((0, 7), np.int64)
        self._held: Lru[tuple[int, int], pa.RecordBatch] = Lru(HELD_BYTES)

    @property
    def partitions(self) -> list[int]:
        return [int(one) for one in np.unique(self._runs[:, PARTITION + 1])]

    def of(self, partition: int) -> Iterator[pa.RecordBatch]:
        """The rows of a partition. Raises Corrupt if an offset is there twice."""
        own = self._runs[self._runs[:, PARTITION + 1] == partition]
        own = own[np.argsort(own[:, FIRST + 1], kind="stable")]
        stretch: list[tuple[int, int]] = []
        reach = -1
        for run in own:
            if stretch and run[FIRST + 1] > reach:
                yield from self._sorted(partition, stretch)
                stretch = []
            stretch.append((int(run[0]), int(run[ROW_GROUP + 1])))
            reach = max(reach, int(run[LAST + 1]))
        if stretch:
            yield from self._sorted(partition, stretch)

    def _sorted(self, partition: int, stretch: Sequence[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        parts = []
        for source, group in stretch:
            rows = self._group(source, group)
            mine = rows.column(0).to_numpy() == partition
            part = rows if mine.all() else rows.filter(pa.array(mine))
            if part.num_rows:
                parts.append(part)
        if not parts:
            return
        before = [digest_rows(RAW_COLUMNS.select(part)).get(partition) for part in parts]
        whole = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        offsets = whole.column(1).to_numpy()
        if len(offsets) > 1 and not (np.diff(offsets) > 0).all():
            order = np.argsort(offsets, kind="stable")
            if (np.diff(offsets[order]) == 0).any():
                raise Corrupt(f"an offset of partition {partition} is in the table twice")
            whole = whole.take(pa.array(order))
        after = digest_rows(RAW_COLUMNS.select(whole)).get(partition)
        total = before[0]
        for one in before[1:]:
            assert total is not None and one is not None
            total = total + one
        if total != after:
            raise Corrupt(f"sorting rows of partition {partition} has changed them")
        yield whole

    def _group(self, source: int, group: int) -> pa.RecordBatch:
        found = self._held.get((source, group))
        if found is None:
            found = self._sources[source].live(group)
            self._held.put((source, group), found, found.nbytes)
        return found

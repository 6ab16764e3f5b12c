"""The work of Spark's workers in care: rows of some files are read and written again, or counted.

Files are read row group by row group, their rows in the order of partition and offset, whichever engine wrote or sorted
them (T4). Rows that were deleted by position stay deleted; columns that users added are kept. Nothing here commits.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lakestream.data.tables.conditions.condition import BadCondition, RowCondition
from lakestream.data.tables.conditions.process import ConditionHung, ConditionProcess
from lakestream.data.tables.files.arrow_view import digest_rows
from lakestream.data.tables.files.file_stats import Digest, FileStats
from lakestream.data.tables.files.parquet import FileWriter, row_sizes
from lakestream.data.tables.files.stream_columns import RAW_COLUMNS
from lakestream.data.tables.reading.care_rows import RowSource, SortedRows
from lakestream.data.tables.reading.sort_orders import in_order, transformed
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, LakestreamError, Missing
from lakestream.pipeline.care.plan import ORDERED_GROUPS
from lakestream.pipeline.care.tasks import (
    DIGEST,
    MERGE,
    PLACES_MAX,
    Cared,
    CareFailed,
    CareTask,
    CountedRows,
    PartitionValue,
    Scattered,
    SpecField,
    pack_care,
    unpack_care_task,
)
from lakestream.pipeline.landing.worker import store_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]
    Offsets = NDArray[np.int64]

log = logging.getLogger(__name__)

ORDERED_BYTES = 16 << 20
"""Raw bytes in a file of a table with a user's order."""
ORDERED_GROUP_BYTES = ORDERED_BYTES // ORDERED_GROUPS + (256 << 10)
"""Raw bytes in its row groups: a little more than a share, or the last rows would become one more row group."""
SPANS_MAX = 10_000
"""A longer list of ranges is given as one range around them."""


def care_task(body: bytes, attempt: int) -> list[bytes]:
    """Do one task; one answer."""
    task = unpack_care_task(body)
    return care_in(lambda: store_at(task.root, task.store_options), task, attempt)


def care_in(
    open_store: Callable[[], TableStore], task: CareTask, attempt: int,
    open_condition: Callable[[str], RowCondition] = ConditionProcess,
) -> list[bytes]:  # fmt: skip
    """Do one task with a store, and a process for conditions, that the caller opens."""
    try:
        store = open_store()
        if task.mode == MERGE:
            return [pack_care(merge(store, task, attempt))]
        if task.mode == DIGEST:
            return [pack_care(digest(store, task))]
        if not task.where:
            return [pack_care(filtered(store, task, attempt, None))]
        with closing(open_condition(task.where)) as condition:
            return [pack_care(filtered(store, task, attempt, condition))]
    except (LakestreamError, BadCondition) as error:
        lost, scattered = isinstance(error, Missing | Corrupt), isinstance(error, Scattered)
        hung = isinstance(error, ConditionHung)
        return [pack_care(CareFailed(task.number, str(error), lost, scattered, hung))]
    except Exception as error:
        # Care can wait: an unexpected error must not fail the job of other tables.
        log.exception("a table could not be taken care of")
        return [pack_care(CareFailed(task.number, f"{type(error).__name__}: {error}"))]


# -- many files into few ----------------------------------------------------------------------------------------------


def merge(store: TableStore, task: CareTask, attempt: int) -> Cared:
    """All live rows of the files, sorted by partition and offset, in as few files as the target allows.

    A user's order applies inside each file: which rows a file gets is a matter of partitions and offsets alone.
    """
    made: list[FileStats] = []
    places: list[dict[str, PartitionValue]] = []
    sources = [RowSource(store, *file) for file in task.files]
    kinds: dict[str, list[RowSource]] = {}
    for source in sources:
        kinds.setdefault(str(pa.schema(source.added)), []).append(source)
    for number, alike in enumerate(kinds.values()):
        rows = SortedRows(alike)
        outs: dict[tuple[PartitionValue, ...], Output] = {}
        for partition in rows.partitions:
            for batch in rows.of(partition):
                for place, part in by_place(batch, task.spec):
                    if place not in outs:
                        if len(outs) >= PLACES_MAX:
                            raise Scattered(f"the table's partitioning makes over {PLACES_MAX} files of one task")
                        outs[place] = Output(store, task, attempt, f"{number}-{len(outs)}", alike[0].added)
                    outs[place].add(partition, part)
        for place, out in outs.items():
            files = out.finish()
            made += files
            places += [dict(zip((one.name for one in task.spec), place, strict=True)) for _ in files]
    live = sum(source.live_rows for source in sources)
    if live != sum(stats.rows for stats in made):
        raise Corrupt(f"{live} rows gave {sum(stats.rows for stats in made)}")
    return Cared(task.number, [file.path for file in task.files], made, [], places if task.spec else [])


def by_place(
    rows: pa.RecordBatch, spec: Sequence[SpecField]
) -> Iterator[tuple[tuple[PartitionValue, ...], pa.RecordBatch]]:
    """The rows by their partition in a user's spec, each in the order of the rows (T19)."""
    if not spec:
        yield (), rows
        return
    columns: list[pa.Array] = []
    combined = np.zeros(rows.num_rows, np.int64)
    for one in spec:
        values = transformed(rows.column(one.column), one.transform, one.type)
        columns.append(values)
        coded = values.dictionary_encode()
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        combined = np.unique(combined * (len(coded.dictionary) + 1) + codes + 1, return_inverse=True)[1]
    _, firsts, numbers = np.unique(combined, return_index=True, return_inverse=True)
    for number, first in enumerate(firsts.tolist()):
        there = np.flatnonzero(numbers == number)
        place = tuple(_plain(column[first]) for column in columns)
        yield place, rows if len(there) == rows.num_rows else rows.take(pa.array(there))


def _plain(value: pa.Scalar) -> PartitionValue:
    """A partition value as Avro holds it: days, hours and the like are numbers."""
    if not value.is_valid:
        return None
    if pa.types.is_timestamp(value.type) or pa.types.is_date(value.type):
        return int(value.value)
    plain: PartitionValue = value.as_py()
    return plain


class Output:
    """The files that a task writes, one after the other, each whole and durable before the next begins.

    With a user's order the rows of a file are gathered, put into that order and written. A consumer of old records has
    to read all of such a file, wherever it begins, so the file is small. Its row groups are smaller still, so that an
    engine that looks for some values reads few of them.
    """

    def __init__(
        self, store: TableStore, task: CareTask, attempt: int, name: str, added: Sequence[pa.Field]
    ) -> None:
        self._store = store
        self._task = task
        self._name = f"{task.folder}/care-{task.number:05d}-{attempt}-{name}"
        self._number = 0
        self._added = added
        self._made: list[FileStats] = []
        self._sink: pa.BufferOutputStream | None = None
        self._writer: FileWriter | None = None
        self._partition = -1
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0

    def add(self, partition: int, rows: pa.RecordBatch) -> None:
        if not self._task.order:
            self._write(partition, rows)
            return
        if self._task.split and partition != self._partition:
            self._close_ordered()
        self._partition = partition
        sizes = np.cumsum(row_sizes(rows))
        start = 0
        while start < rows.num_rows:
            before = int(sizes[start - 1]) if start else 0
            full = int(np.searchsorted(sizes, before + ORDERED_BYTES - self._gathered_bytes))
            stop = min(full + 1, rows.num_rows)
            self._gathered.append(rows.slice(start, stop - start))
            self._gathered_bytes += int(sizes[stop - 1]) - before
            if self._gathered_bytes >= ORDERED_BYTES:
                self._close_ordered()
            start = stop

    def _close_ordered(self) -> None:
        if not self._gathered:
            return
        rows = pa.concat_batches(self._gathered)
        self._gathered, self._gathered_bytes = [], 0
        ordered = in_order(rows, self._task.order)
        if digest_rows(RAW_COLUMNS.select(ordered)) != digest_rows(RAW_COLUMNS.select(rows)):
            raise Corrupt("sorting rows has changed them")
        self._write(self._partition, ordered)
        self._close()

    def _write(self, partition: int, rows: pa.RecordBatch) -> None:
        if self._writer is not None and self._sink is not None:
            another = self._task.split and partition != self._partition
            if another or self._sink.tell() >= self._task.target_bytes:
                self._close()
        if self._writer is None:
            self._sink = pa.BufferOutputStream()
            self._writer = self._new_file(self._sink)
        self._partition = partition
        self._writer.add(rows)

    def _new_file(self, sink: pa.BufferOutputStream) -> FileWriter:
        if not self._task.order:
            return FileWriter(sink, extra=self._added)
        by = frozenset(key.field_id for key in self._task.order)
        return FileWriter(sink, extra=self._added, row_group_bytes=ORDERED_GROUP_BYTES, statistics_of=by)

    def finish(self) -> list[FileStats]:
        self._close_ordered()
        if self._writer is not None:
            self._close()
        return self._made

    def _close(self) -> None:
        assert self._writer is not None and self._sink is not None
        uri = f"{self._name}-{self._number}.parquet"
        stats = self._writer.finish(uri)
        self._store.put(uri, self._sink.getvalue().to_pybytes())
        self._made.append(stats)
        self._number += 1
        self._writer = self._sink = None


# -- a file without some of its rows ----------------------------------------------------------------------------------


def filtered(store: TableStore, task: CareTask, attempt: int, condition: RowCondition | None) -> Cared:
    """Write each file again without the rows that go; files that lose none are not written."""
    keep_from = dict(task.keep_from)
    replaced: list[str] = []
    made: list[FileStats] = []
    gone = Tally()
    for file in task.files:
        source = RowSource(store, *file)
        masks = [_going(source.live(group), condition, keep_from) for group in range(source.groups)]
        if not any(mask.any() for mask in masks):
            continue
        replaced.append(file.path)
        out = Output(store, task, attempt, str(len(replaced)), source.added)
        for group, mask in enumerate(masks):
            rows = source.live(group)
            gone.add(rows.filter(pa.array(mask)))
            if not mask.all():
                out.add(0, rows.filter(pa.array(~mask)))
        made += out.finish()
    return Cared(task.number, replaced, made, gone.counted())


def _going(rows: pa.RecordBatch, condition: RowCondition | None, keep_from: dict[int, int]) -> "Mask":
    plain = RAW_COLUMNS.select(rows)
    if condition is not None:
        return condition.holds(pa.Table.from_batches([plain]))
    partitions, offsets = plain.column(0).to_numpy(), plain.column(1).to_numpy()
    values, places = np.unique(partitions, return_inverse=True)
    firsts = np.array([keep_from.get(value, 0) for value in values.tolist()], np.int64)
    return offsets < firsts[places] if len(firsts) else np.zeros(0, np.bool_)


# -- rows counted ------------------------------------------------------------------------------------------------------


def digest(store: TableStore, task: CareTask) -> Cared:
    """The live rows of the files, counted and hashed."""
    tally = Tally()
    for file in task.files:
        source = RowSource(store, *file)
        for group in range(source.groups):
            tally.add(source.live(group))
    return Cared(task.number, [], [], tally.counted())


class Tally:
    """Counts rows by partition: where they are, how many, the sum of their hashes (T16)."""

    def __init__(self) -> None:
        self._digests: dict[int, Digest] = {}
        self._offsets: dict[int, list[Offsets]] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        plain = RAW_COLUMNS.select(rows)
        for partition, one in digest_rows(plain).items():
            self._digests[partition] = self._digests.get(partition, Digest()) + one
        partitions, offsets = plain.column(0).to_numpy(), plain.column(1).to_numpy()
        for partition in np.unique(partitions).tolist():
            self._offsets.setdefault(partition, []).append(offsets[partitions == partition])

    def counted(self) -> list[CountedRows]:
        return [
            CountedRows(partition, list(spans(self._offsets[partition])), one.records, one.hash)
            for partition, one in sorted(self._digests.items())
        ]


def spans(parts: "Sequence[Offsets]") -> Iterator[tuple[int, int]]:
    """Offsets as ranges without gaps; as one range with gaps if those would be too many."""
    offsets = np.unique(np.concatenate(parts))
    breaks = np.flatnonzero(np.diff(offsets) > 1)
    if len(breaks) >= SPANS_MAX:
        yield int(offsets[0]), int(offsets[-1]) + 1
        return
    starts = np.concatenate((offsets[:1], offsets[breaks + 1]))
    ends = np.concatenate((offsets[breaks], offsets[-1:])) + 1
    yield from zip(starts.tolist(), ends.tolist(), strict=True)

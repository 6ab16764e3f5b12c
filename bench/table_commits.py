"""The time of a table commit with ten and with a thousand past ones, and of a fetch at a random old offset.

    python -m bench.table_commits [folder] [gigabytes]

Commits are real: manifest, list and metadata file, synced to the folder. The fetches go the way of a broker's: index,
row group, rows, record batches; the row group cache is far smaller than the table. Start-up is left out.
"""

import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.figures import Figure, at_most
from bench.yard import Yard
from lakestream.data.tables.files.parquet import FileWriter
from lakestream.data.tables.files.rebuild import rebuild
from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA
from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.manifests.files import NewFile
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.iceberg.progress import OffsetRange
from lakestream.data.tables.iceberg.snapshot_history import SnapshotHistory
from lakestream.data.tables.iceberg.summaries import CARE_KEY
from lakestream.data.tables.iceberg.topic_table import STREAM_ORDER, new_topic_table
from lakestream.data.tables.reading.table_reader import ReadCaches, TableReader
from lakestream.data.tables.stores.small_files import SmallFiles
from lakestream.data.tables.stores.table_store import FolderTableStore

NOW_MS = 1_700_000_000_000
ROUND_MS = 3000
"""A commit every three seconds: of a thousand snapshots the older ones are thinned, as in a table in use."""
COMMITS = 1000
WINDOW = 60
YOUNG = 10
PARTITIONS = 12
REWRITTEN = 32
"""The number of files that care joins at a time."""
FETCHES = 200
FETCH_BYTES = 1 << 20


def measure(yard: Yard) -> list[Figure]:
    few, many = commit_times(yard.folder / "table-commits")
    cared_few, cared_many = commit_times(yard.folder / "table-commits-cared", care=True)
    return [
        Figure(
            name="table commit, 1,000 past ones", unit="ms", ours=[many], base_name="10 past ones", base=[few],
            bar=at_most(2), note=f"medians of {WINDOW} commits each, in turns",
        ),
        Figure(
            name="table commit, 1,000 past ones, with care", unit="ms", ours=[cared_many], base_name="10 past ones",
            base=[cared_few], bar=at_most(2), note=f"{REWRITTEN} files rewritten after as many commits",
        ),
    ]  # fmt: skip


def commit_times(folder: Path, care: bool = False) -> tuple[float, float]:
    """Median milliseconds of a commit with about ten past ones and with a thousand, measured alternately.

    With `care` small files are rewritten as the caretaker does it, so that the past has other snapshots than appends.
    """
    store = FolderTableStore(folder)
    committer = Committer(store, random.Random(1), history=SnapshotHistory())
    old = Committing(store, committer, "old", care)
    for _ in range(COMMITS):
        old.commit()
    few, many = [], []
    for turn in range(WINDOW):
        if turn % YOUNG == 0:
            young = Committing(store, committer, f"young-{turn}", care)
            for _ in range(YOUNG):
                young.commit()
        few.append(young.commit())
        many.append(old.commit())
    committer.close()
    return statistics.median(few), statistics.median(many)


class Committing:
    """A table with a commit of one new small file every few seconds."""

    def __init__(self, store: FolderTableStore, committer: Committer, name: str, care: bool = False) -> None:
        self._care = care
        self._small: list[str] = []
        self._store = store
        self._committer = committer
        self._table = create_table(committer, store, name)
        self._number = 0

    def commit(self) -> float:
        """Milliseconds from the table's name in the catalog to the new metadata file."""
        number = self._number
        self._number += 1
        ranges = [OffsetRange(partition, 100 * number, 100 * number + 100) for partition in range(PARTITIONS)]
        cells = [(each.partition, each.start, each.end) for each in ranges]
        file = data_file(self._store, self._table, number, cells, 100)
        started = time.perf_counter()
        table = self._committer.load(self._table.metadata_location)
        commit = self._committer.append(table, [file], ranges, now_ms=NOW_MS + number * ROUND_MS)
        spent = (time.perf_counter() - started) * 1000
        self._table = commit.table
        self._store.delete(commit.obsolete)
        self._small.append(file.stats.path)
        if self._care and len(self._small) == REWRITTEN:
            self._rewrite()
        return spent

    def _rewrite(self) -> None:
        """Join the last files into one; this time does not count as a landing's."""
        last = self._number
        cells = [(partition, 100 * (last - REWRITTEN), 100 * last) for partition in range(PARTITIONS)]
        merged = data_file(self._store, self._table, 100_000 + last, cells, 100)
        base = self._table.metadata.current_snapshot_id
        assert base is not None
        commit = self._committer.rewrite(
            self._table, base, frozenset(self._small), [merged], now_ms=NOW_MS + last * ROUND_MS,
            notes={CARE_KEY: "optimize"},
        )  # fmt: skip
        self._table, self._small = commit.table, []
        self._store.delete(commit.obsolete)


def random_fetches(folder: Path, gigabytes: float, value_bytes: int = 1000) -> tuple[list[float], float]:
    """Milliseconds of fetches at random offsets of random partitions, and of the first load of the index."""
    store = FolderTableStore(folder)
    committer = Committer(store, random.Random(1))
    table = create_table(committer, store, "fetched")
    rows = 8000
    files = int(gigabytes * 2**30 / (rows * PARTITIONS * value_bytes)) + 1
    for number in range(files):
        ranges = [(partition, rows * number, rows * number + rows) for partition in range(PARTITIONS)]
        file = data_file(store, table, number, ranges, value_bytes)
        landed = [OffsetRange(*each) for each in ranges]
        table = committer.append(table, [file], landed, now_ms=NOW_MS + number * ROUND_MS).table
    committer.close()
    recent = SmallFiles(store)
    reader = TableReader(store, recent, ReadCaches(), lambda: table.metadata_location)
    started = time.perf_counter()
    reader.view()
    loading = (time.perf_counter() - started) * 1000
    chance = random.Random(2)
    upto = files * rows
    spent = []
    for number in range(FETCHES + 5):
        partition, offset = chance.randrange(PARTITIONS), chance.randrange(upto)
        started = time.perf_counter()
        found = reader.read_rows(partition, offset, upto, FETCH_BYTES)
        batches = rebuild(found.rows, found.start, found.end)
        if number >= 5:
            spent.append((time.perf_counter() - started) * 1000)
        assert batches and found.rows.num_rows
    recent.close()
    return spent, loading


def create_table(committer: Committer, store: FolderTableStore, name: str) -> Table:
    location = f"{store.root}/streams/{name}"
    return committer.create(
        new_topic_table(
            table_uuid="00000000-0000-4000-8000-000000000001", topic_id=bytes(16), location=location, now_ms=NOW_MS
        )
    )


def data_file(
    store: FolderTableStore, table: Table, number: int, ranges: list[tuple[int, int, int]], value_bytes: int
) -> NewFile:
    """One round's file: a quarter of each value is random bytes, as in the other benchmarks."""
    uri = f"{table.metadata.location}/data/1-1-{number}/0-0.parquet"
    sink = pa.BufferOutputStream()
    writer = FileWriter(sink)
    noise = np.random.default_rng(number)
    for partition, start, end in ranges:
        writer.add(stream_rows(noise, partition, start, end, value_bytes))
    stats = writer.finish(uri)
    data = sink.getvalue().to_pybytes()
    store.put(uri, data)
    return NewFile(stats=replace(stats, bytes=len(data)), sort_order_id=STREAM_ORDER)


def stream_rows(noise: np.random.Generator, partition: int, start: int, end: int, value_bytes: int) -> pa.RecordBatch:
    count = end - start
    values = np.full((count, value_bytes), ord("x"), np.uint8)
    values[:, : value_bytes // 4] = noise.integers(0, 256, (count, value_bytes // 4), np.uint8)
    starts = np.arange(count + 1, dtype=np.int32) * value_bytes
    value = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(starts), pa.py_buffer(values)])
    offsets = np.arange(start, end)
    return pa.record_batch(
        [
            pa.array(np.full(count, partition, np.int32)),
            pa.array(offsets),
            pa.array((NOW_MS + offsets) * 1000).cast(pa.timestamp("us", "UTC")),
            pa.nulls(count, pa.binary()),
            pa.array([[]] * count, ARROW_SCHEMA.field("stream_headers").type),
            pa.array(np.zeros(count, np.int32)),
            pa.nulls(count, pa.binary()),
            value,
        ],
        schema=ARROW_SCHEMA,
    )


def main() -> None:
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    gigabytes = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
    with tempfile.TemporaryDirectory(dir=where) as folder:
        few, many = commit_times(Path(folder) / "commits")
        print(f"commit with 10 past ones    {few:6.1f} ms")
        print(f"commit with 1,000 past ones {many:6.1f} ms, {many / few:.2f} times (bar: 2)")
        few, many = commit_times(Path(folder) / "cared", care=True)
        print(f"with care: {few:.1f} ms and {many:.1f} ms, {many / few:.2f} times (bar: 2)")
        spent, loading = random_fetches(Path(folder) / "fetches", gigabytes)
        p50, p99 = statistics.median(spent), sorted(spent)[int(len(spent) * 0.99)]
        print(f"fetch at a random offset of {gigabytes:g} GB: p50 {p50:.1f} ms (bar: 30), p99 {p99:.1f} ms")
        print(f"first load of its index     {loading:6.1f} ms")


if __name__ == "__main__":
    main()

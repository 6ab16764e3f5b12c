"""What threads bring where tables are read and written: the same work with and without them.

    python -m bench.table_threads

The stores are a folder, and one that answers after ten milliseconds, as an object store does. Reading a row group is
mostly decoding; the rest is waiting for the store.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bench.table_commits import NOW_MS, create_table, data_file, stream_rows
from lakestream.data.tables.files.parquet import FileWriter
from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.progress import OffsetRange
from lakestream.data.tables.reading.footers import read_footer, read_group
from lakestream.data.tables.reading.table_readers import TableReaders, TableReadLimits
from lakestream.data.tables.stores.small_files import SmallFiles
from lakestream.data.tables.stores.table_store import FolderTableStore
from lakestream.lake.sql.sources import READS_AHEAD, ahead

FILES = 24
FILE_BYTES = 8192
DELAY_S = 0.01
TURNS = 5
ROWS = 7000
VALUE_BYTES = 1000
GROUPS = 24
CONSUMER_S = 0.005


class SlowStore(FolderTableStore):
    """A folder that answers as late as an object store."""

    def get(self, uri: str) -> bytes:
        time.sleep(DELAY_S)
        return super().get(uri)

    def put(self, uri: str, data: bytes) -> None:
        time.sleep(DELAY_S)
        super().put(uri, data)

    def read(self, uri: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        time.sleep(DELAY_S)
        return super().read(uri, ranges)


def main() -> None:
    for kind in (FolderTableStore, SlowStore):
        with tempfile.TemporaryDirectory() as folder:
            store = kind(Path(folder))
            _small_files(store)
            _replay(store)
            asyncio.run(_read_ahead(store))


def _small_files(store: FolderTableStore) -> None:
    names = iter(range(10**6))
    data = bytes(FILE_BYTES)

    def put(at_once: int) -> None:
        store.requests_at_once = at_once
        files = SmallFiles(store, 0)
        files.put_all({f"{store.root}/m{next(names)}.avro": data for _ in range(FILES)})
        files.close()

    def get(at_once: int) -> None:
        store.requests_at_once = at_once
        files = SmallFiles(store, 0)
        files.get_all([f"{store.root}/m{number}.avro" for number in range(FILES)])
        files.close()

    threads = store.requests_at_once
    _tell(f"{type(store).__name__}: put {FILES} small files", threads, put)
    _tell(f"{type(store).__name__}: get {FILES} small files", threads, get)


def _replay(store: FolderTableStore) -> None:
    """Row groups are fetched and decoded, as by `table-read`."""
    uri = f"{store.root}/rows.parquet"
    with Path(uri.removeprefix("file://")).open("wb") as sink:
        noise = np.random.default_rng(1)
        writer = FileWriter(sink)
        for group in range(GROUPS):
            writer.add(stream_rows(noise, 0, group * ROWS, group * ROWS + ROWS, VALUE_BYTES))
        size = writer.finish(uri).bytes
    footer = read_footer(store, uri, size)
    groups = list(range(footer.metadata.num_row_groups))

    def read(at_once: int) -> None:
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(lambda group: read_group(store, footer, group).num_rows, groups))

    def look(at_once: int) -> None:
        for _ in ahead(lambda _: read_footer(store, uri, size), range(FILES), at_once):
            pass

    _tell(f"{type(store).__name__}: read {len(groups)} row groups", TableReadLimits().threads, read)
    _tell(f"{type(store).__name__}: read {FILES} footers (SQL)", READS_AHEAD, look)


async def _read_ahead(store: FolderTableStore) -> None:
    """A consumer of one partition that takes a few milliseconds for each answer, with and without reading ahead."""
    committer = Committer(store, random.Random(1))
    table = create_table(committer, store, "replayed")
    file = data_file(store, table, 0, [(0, 0, GROUPS * ROWS)], VALUE_BYTES)
    table = committer.append(table, [file], [OffsetRange(0, 0, GROUPS * ROWS)], now_ms=NOW_MS).table
    committer.close()
    spent: dict[int, list[float]] = {0: [], 8: []}
    for _ in range(TURNS):
        for streams, times in spent.items():
            readers = TableReaders(store, TableReadLimits(ahead_streams=streams))
            started, offset = time.perf_counter(), 0
            while offset < GROUPS * ROWS:
                found = await readers.rows("t", lambda: table.metadata_location, 0, offset, GROUPS * ROWS, 1 << 20)
                offset = found.end
                await asyncio.sleep(CONSUMER_S)
            times.append((time.perf_counter() - started) * 1000)
            await readers.close()
    without, ahead = (statistics.median(times) for times in spent.values())
    name = f"{type(store).__name__}: replay {GROUPS} row groups"
    print(f"{name:<44} not ahead {without:6.1f} ms, ahead {ahead:8.1f} ms: {without / ahead:5.1f} times", flush=True)


def _tell(name: str, threads: int, work: Callable[[int], None]) -> None:
    """Prints the medians with one thread and with several, measured in turns, and their ratio."""
    spent: tuple[list[float], list[float]] = [], []
    for _ in range(TURNS):
        for count, times in zip((1, threads), spent, strict=True):
            started = time.perf_counter()
            work(count)
            times.append((time.perf_counter() - started) * 1000)
    one, many = (statistics.median(times) for times in spent)
    print(f"{name:<44} 1 thread {one:8.1f} ms, {threads} threads {many:8.1f} ms: {one / many:5.1f} times", flush=True)


if __name__ == "__main__":
    main()

"""Reads tables for the event loop: with threads of their own, one reader for each table, and reading ahead.

Replay must never starve the tail: all reads of tables share two threads of low priority and wait for each other, not
for the hot path. Two threads are for latency: a slow read does not stop the other consumers (on two busy cores they
read row groups 0.8 to 1.4 times as fast as one). A third thread decodes the next row group of a consumer that reads on,
which makes a replay 1.2 to 1.3 times as fast (bench/table_threads.py). After some seconds without a read the memory
goes back to the system.
"""

import asyncio
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from lakestream.data.tables.reading.table_reader import FoundRow, PartitionRows, ReadCaches, TableReader
from lakestream.data.tables.stores.small_files import SmallFiles
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import LakestreamError
from lakestream.process.allocator import give_back

T = TypeVar("T")
NICE = 5
AT_ONCE_S = 1.0
"""Partitions that were read within so long count as replayed at the same time."""
Current = Callable[[], str]
"""Returns the current metadata file of a table, from the state."""


@dataclass(frozen=True, slots=True)
class TableReadLimits:
    """The limits of all reads of tables together."""

    threads: int = 2
    row_group_bytes: int = 128 << 20
    ahead_streams: int = 8
    """With more partitions replayed at once nothing is read ahead: it would push out needed row groups."""
    idle_s: float = 10.0
    """After so long without a read the row groups are dropped."""
    small_file_bytes: int = 8 << 20
    footers: int = 512
    tables: int = 256
    """Tables whose index is kept."""
    streams: int = 4096
    """Partitions for which the end of the last read is kept."""


class TableReaders:
    """Reads all tables of one store. One for a broker."""

    def __init__(self, store: TableStore, limits: TableReadLimits | None = None) -> None:
        self._limits = limits or TableReadLimits()
        self._store = store
        self._files = SmallFiles(store, self._limits.small_file_bytes)
        self._caches = ReadCaches(row_group_bytes=self._limits.row_group_bytes, footer_count=self._limits.footers)
        self._readers: OrderedDict[str, TableReader] = OrderedDict()
        self._ends: OrderedDict[tuple[str, int], tuple[int, float]] = OrderedDict()
        self._read_at = 0.0
        self._resting: asyncio.TimerHandle | None = None
        self._threads = ThreadPoolExecutor(self._limits.threads, "table-read", _step_back)
        self._ahead = ThreadPoolExecutor(1, "table-ahead", _step_back)
        self._reading_ahead: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"TableReaders({self._store!r}, {len(self._readers)} tables)"

    @property
    def held_bytes(self) -> int:
        """Of decoded row groups."""
        return self._caches.groups.weight

    async def rows(
        self, table_uuid: str, current: Current, partition: int, offset: int, upto: int, max_bytes: int
    ) -> PartitionRows:
        """Rows of a partition from `offset` on, below `upto` (what the state says has landed): see TableReader."""
        return await self.made_of_rows(table_uuid, current, partition, offset, upto, max_bytes, lambda found: found)

    async def made_of_rows(
        self, table_uuid: str, current: Current, partition: int, offset: int, upto: int, max_bytes: int,
        make: Callable[[PartitionRows], T],
    ) -> T:  # fmt: skip
        """The result of `make` for the rows; it runs in the same thread."""
        reader = self._reader(table_uuid, current)

        def work() -> tuple[int, T]:
            found = reader.read_rows(partition, offset, upto, max_bytes)
            return found.end, make(found)

        end, made = await self._run(work)
        if self._goes_on((table_uuid, partition), offset, end) and end < upto and self._few():
            self._read_ahead(reader, partition, end, upto)
        return made

    async def find_time(
        self, table_uuid: str, current: Current, partition: int, timestamp: int, start: int, upto: int
    ) -> FoundRow | None:
        """The first row of [start, upto) that is not older than `timestamp` (ms)."""
        reader = self._reader(table_uuid, current)
        return await self._run(lambda: reader.find_time(partition, timestamp, start, upto))

    async def latest_time(
        self, table_uuid: str, current: Current, partition: int, start: int, upto: int
    ) -> FoundRow | None:
        """The row of [start, upto) with the greatest timestamp."""
        reader = self._reader(table_uuid, current)
        return await self._run(lambda: reader.latest_time(partition, start, upto))

    def forget(self, table_uuid: str) -> None:
        """Drops the caches of a table that is missing or damaged, so that restored files are read."""
        self._readers.pop(table_uuid, None)
        self._files.forget()
        self._caches.footers.clear()
        self._caches.deletes.clear()

    async def close(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
        for pool in (self._ahead, self._threads):
            await asyncio.to_thread(pool.shutdown)
        await asyncio.to_thread(self._files.close)

    def _reader(self, table_uuid: str, current: Current) -> TableReader:
        found = self._readers.pop(table_uuid, None) or TableReader(self._store, self._files, self._caches, current)
        self._readers[table_uuid] = found
        if len(self._readers) > self._limits.tables:
            self._readers.popitem(last=False)
        return found

    def _goes_on(self, stream: tuple[str, int], offset: int, end: int) -> bool:
        """Whether this read began where the last one of the partition ended."""
        before, _ = self._ends.pop(stream, (None, 0.0))
        self._ends[stream] = (end, self._read_at)
        if len(self._ends) > self._limits.streams:
            self._ends.popitem(last=False)
        return before == offset

    def _few(self) -> bool:
        """Whether the caches have room for the next row groups of all partitions that are being replayed."""
        recent = islice(reversed(self._ends.values()), self._limits.ahead_streams + 1)
        return sum(at > self._read_at - AT_ONCE_S for _, at in recent) <= self._limits.ahead_streams

    def _read_ahead(self, reader: TableReader, partition: int, offset: int, upto: int) -> None:
        """Starts to read ahead, unless another read ahead is under way."""
        if self._reading_ahead is None or self._reading_ahead.done():
            loop = asyncio.get_running_loop()
            self._reading_ahead = loop.run_in_executor(self._ahead, _try_to_warm, reader, partition, offset, upto)

    async def _run(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        self._read_at = loop.time()
        if self._resting is None:
            self._resting = loop.call_later(self._limits.idle_s, self._rest)
        return await loop.run_in_executor(self._threads, work)

    def _rest(self) -> None:
        """Gives memory back to the system after a time without reads; otherwise looks again later."""
        loop = asyncio.get_running_loop()
        left = self._read_at + self._limits.idle_s - loop.time()
        if left > 0:
            self._resting = loop.call_later(left, self._rest)
        else:
            self._resting = None
            self._ahead.submit(_let_go, self._caches)


def _step_back() -> None:
    """Lowers this thread's priority, which Linux has for each thread: serving the tail goes before replay."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def _let_go(caches: ReadCaches) -> None:
    """Drops the caches and returns their memory to the system, not only to the allocators."""
    if caches.clear():
        pa.default_memory_pool().release_unused()
        give_back()


def _try_to_warm(reader: TableReader, partition: int, offset: int, upto: int) -> None:
    """Ignores failures: the read that follows meets them itself."""
    try:
        reader.warm(partition, offset, upto)
    except LakestreamError:
        return

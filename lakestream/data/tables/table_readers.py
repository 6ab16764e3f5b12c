"""The way to the tables from the event loop: threads of their own, a reader a table, and reading ahead.

Replay must never starve the tail: reads of tables have few threads, shared by all, and wait for each other, not for the
hot path. A consumer that goes on where it stopped finds the next row group decoded.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from lakestream.data.tables.recent_files import RecentFiles
from lakestream.data.tables.store import TableStore
from lakestream.data.tables.table_reader import FoundRow, ReadCaches, Rows, TableReader
from lakestream.errors import LakestreamError

T = TypeVar("T")
Current = Callable[[], str]
"""Names the current metadata file of a table, out of the state, whenever it is asked."""


@dataclass(frozen=True, slots=True)
class TableReadLimits:
    """How much the reads of all tables together may take."""

    threads: int = 2
    row_group_bytes: int = 64 << 20
    small_file_bytes: int = 8 << 20
    footers: int = 512
    tables: int = 256
    """Tables whose index is kept."""
    streams: int = 4096
    """Partitions of which it is remembered where the last read ended."""


class TableReaders:
    """Reads all tables of one store. One for a broker."""

    def __init__(self, store: TableStore, limits: TableReadLimits | None = None) -> None:
        self._limits = limits or TableReadLimits()
        self._store = store
        self._files = RecentFiles(store, self._limits.small_file_bytes)
        self._caches = ReadCaches(row_group_bytes=self._limits.row_group_bytes, footer_count=self._limits.footers)
        self._readers: OrderedDict[str, TableReader] = OrderedDict()
        self._ends: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._threads = ThreadPoolExecutor(self._limits.threads, "table-read")
        self._ahead = ThreadPoolExecutor(1, "table-ahead")
        self._reading_ahead: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"TableReaders({self._store!r}, {len(self._readers)} tables)"

    async def rows(
        self, table_uuid: str, current: Current, partition: int, offset: int, upto: int, max_bytes: int
    ) -> Rows:
        """Rows of a partition from `offset` on, below `upto` (what the state says has landed): see TableReader."""
        reader = self._reader(table_uuid, current)
        found = await self._run(lambda: reader.read_rows(partition, offset, upto, max_bytes))
        if self._goes_on((table_uuid, partition), offset, found.end) and found.end < upto:
            self._read_ahead(reader, partition, found.end, upto)
        return found

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
        """Drop what is known of a table that is gone."""
        self._readers.pop(table_uuid, None)

    async def close(self) -> None:
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
        before = self._ends.pop(stream, None)
        self._ends[stream] = end
        if len(self._ends) > self._limits.streams:
            self._ends.popitem(last=False)
        return before == offset

    def _read_ahead(self, reader: TableReader, partition: int, offset: int, upto: int) -> None:
        """One at a time; whoever comes while another is read ahead does without."""
        if self._reading_ahead is None or self._reading_ahead.done():
            loop = asyncio.get_running_loop()
            self._reading_ahead = loop.run_in_executor(self._ahead, _try_to_warm, reader, partition, offset, upto)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _try_to_warm(reader: TableReader, partition: int, offset: int, upto: int) -> None:
    """A failure is for the read that comes after: it will see it itself."""
    try:
        reader.warm(partition, offset, upto)
    except LakestreamError:
        return

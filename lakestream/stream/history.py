"""History: records below a stream's progress lie in its topic's table, and are served as batches again.

    topic -> its table in the state -> rows (threads, cached row groups) -> batches without a gap (L31, L32)

Only the look-up of the table runs in the event loop. The libraries that read tables are large, so they are imported
with the first read of history.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, Fenced, Halted, Missing, Retry, Unknown
from lakestream.metadata.replica import Replica
from lakestream.model.batches.header import Codec
from lakestream.model.streams import Stream

if TYPE_CHECKING:
    from lakestream.data.tables.reading.table_reader import FoundRow, PartitionRows
    from lakestream.data.tables.reading.table_readers import TableReaders

log = logging.getLogger(__name__)

T = TypeVar("T")
READ_BYTES_MAX = 8 << 20
"""The most that one read takes out of a table, whatever a consumer asks for."""
BATCH_BYTES = 256 << 10
COMPRESSION = "compression.type"
CODECS = {"gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
"""Values of the topic's config; any other value leaves batches uncompressed."""


class HistoryReader:
    """Reads the tables of all topics for the reader."""

    def __init__(self, replica: Replica, store: TableStore) -> None:
        self.reads = 0
        self.errors = 0
        self._replica = replica
        self._store = store
        self._readers: TableReaders | None = None
        self._opening = asyncio.Lock()
        self._reported: set[str] = set()

    async def read(self, stream: Stream, offset: int, max_bytes: int, at_least_one: bool) -> list[memoryview]:
        """Batches that cover every offset from `offset` on, of which all are below the stream's progress.

        At most `max_bytes`, unless one batch has to be `at_least_one`. Raises Corrupt or Retry.
        """
        upto = stream.landed
        wanted = min(max(max_bytes, 1), READ_BYTES_MAX)

        codec = CODECS.get(stream.topic.configs.get(COMPRESSION, ""), Codec.NONE)

        async def batches(readers: "TableReaders", uuid: str) -> list[memoryview]:
            return await readers.made_of_rows(
                uuid, self._current(stream, uuid), stream.partition, offset, upto, wanted,
                lambda found: _rebuilt(found, min(wanted, BATCH_BYTES), codec),
            )  # fmt: skip

        views = await self._asked(stream, batches)
        taken: list[memoryview] = []
        left = max_bytes
        for view in views:
            if len(view) > left and (taken or not at_least_one):
                break
            taken.append(view)
            left -= len(view)
        return taken

    async def find_time(self, stream: Stream, timestamp: int, start: int, upto: int) -> "FoundRow | None":
        """The first record of [start, upto) that is not older than `timestamp`."""

        async def find(readers: "TableReaders", uuid: str) -> "FoundRow | None":
            return await readers.find_time(
                uuid, self._current(stream, uuid), stream.partition, timestamp, start, upto
            )

        return await self._asked(stream, find)

    async def latest_time(self, stream: Stream, start: int, upto: int) -> "FoundRow | None":
        """The record of [start, upto) with the greatest timestamp, the first of several."""

        async def find(readers: "TableReaders", uuid: str) -> "FoundRow | None":
            return await readers.latest_time(uuid, self._current(stream, uuid), stream.partition, start, upto)

        return await self._asked(stream, find)

    async def close(self) -> None:
        if self._readers is not None:
            await self._readers.close()

    # -- asking a table ----------------------------------------------------------------------------------------------

    async def _asked(self, stream: Stream, ask: "Callable[[TableReaders, str], Awaitable[T]]") -> T:
        """The answer of the table. A fault of the table is never reported as a fault of the offset (T2)."""
        readers = await self._opened()
        uuid = self._uuid(stream)
        self.reads += 1
        try:
            try:
                answer = await ask(readers, uuid)
            except Missing:
                # The table was rewritten, and this broker has not folded that yet (T5).
                await self._replica.catch_up()
                answer = await ask(readers, uuid)
        except (Retry, Unknown, Fenced, Halted) as error:
            self._failed(uuid, stream, error)
            raise
        except Exception as error:
            # Each library fails in its own way on a damaged or forged file.
            self._failed(uuid, stream, error)
            readers.forget(uuid)
            raise Corrupt(f"{stream!r} cannot be read from its table: {error}") from error
        self._reported.discard(uuid)
        return answer

    def _failed(self, uuid: str, stream: Stream, error: Exception) -> None:
        self.errors += 1
        if uuid not in self._reported:
            self._reported.add(uuid)
            log.error("%r cannot be read from its table, consumers wait: %s", stream, error)

    def _uuid(self, stream: Stream) -> str:
        table = self._replica.state.catalog.of_topic(stream.topic.id)
        if table is None:
            raise Corrupt(f"{stream!r} has landed up to {stream.landed}, but the catalog has no table of it")
        return table.uuid

    def _current(self, stream: Stream, uuid: str) -> Callable[[], str]:
        """A function for threads: it names the newest metadata file of a table, from the state of the moment."""
        topic_id = stream.topic.id

        def location() -> str:
            table = self._replica.state.catalog.of_topic(topic_id)
            if table is None or table.uuid != uuid:
                raise Missing(f"the table {uuid} is gone")
            return table.location

        return location

    async def _opened(self) -> "TableReaders":
        if self._readers is None:
            async with self._opening:
                if self._readers is None:
                    try:
                        self._readers = await asyncio.to_thread(_open, self._store)
                    except ImportError as error:
                        raise Retry(f"tables cannot be read here, install lakestream again: {error}") from error
        return self._readers


def _open(store: TableStore) -> "TableReaders":
    from lakestream.data.tables.reading.table_readers import TableReaders

    return TableReaders(store)


def _rebuilt(found: "PartitionRows", batch_bytes: int, codec: int) -> list[memoryview]:
    from lakestream.data.tables.files.rebuild import rebuild

    return rebuild(found.rows, found.start, found.end, codec=codec, target_bytes=batch_bytes)

"""A broker and a pipeline without Spark whose topics have their tables in another catalog, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog

from lakestream.data.folder import FolderWal
from lakestream.data.tables.other_catalog import CatalogAddress
from lakestream.data.tables.store import open_table_store
from lakestream.data.tables.wider_store import WiderStore, outside_roots, store_options
from lakestream.metadata.stores.memory import MemoryLogStore
from lakestream.model.batch import HEADER
from lakestream.model.catalog_landing import Landing
from lakestream.model.records import decode_batch
from lakestream.model.streams import Stream
from lakestream.pipeline.repair import Tools
from lakestream.stream.history import History
from lakestream.stream.limits import ReadLimits
from lakestream.stream.reader import Reader
from tests.core import TestBroker, batch, start_broker
from tests.pipeline_live import TestPipeline, start_pipeline

CONTROL = 0x20


def sql_catalog(folder: Path, namespace: str = "streams") -> CatalogAddress:
    """PyIceberg's SQL catalog on SQLite; its tables lie beside the cluster's folder, not in it."""
    (folder / "lake").mkdir(exist_ok=True)
    return CatalogAddress(f"sqlite:///{folder}/catalog.db", namespace, {"warehouse": f"file://{folder}/lake"})


@dataclass
class OutsideWorld:
    """A broker, a pipeline, and a catalog that they and other engines use."""

    folder: Path
    log: MemoryLogStore
    address: CatalogAddress
    broker: TestBroker
    pipeline: TestPipeline
    reader: Reader

    @property
    def catalog(self) -> Catalog:
        """As another engine sees it."""
        return load_catalog(self.address.name, **self.address.given())

    def table(self, topic: str = "orders") -> Any:
        return self.catalog.load_table((self.address.namespace, topic))

    def landing(self, topic: str = "orders") -> Landing:
        state = self.pipeline.replica.state
        return state.catalog.landings[state.topics.by_name[topic].id]

    def offsets(self, topic: str = "orders") -> list[tuple[int, int]]:
        """The rows, as the other engine reads them."""
        rows = self.table(topic).scan(selected_fields=("stream_partition", "stream_offset")).to_arrow()
        return sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True))

    async def fill(self, *streams: Stream, records: int = 10, tag: str = "v") -> None:
        values = [f"{tag}{n}".encode() for n in range(records)]
        made = ((stream, batch(*values)) for stream in sorted(streams, key=lambda one: one.id))
        assert all(base >= 0 for base in await self.broker.append(*made))

    async def land(self) -> int:
        """All that waits; how many topics could not."""
        return await self.pipeline.driver.drain()

    async def follow(self) -> None:
        """Look at every table once, as the pipeline does every few seconds, and let the broker know."""
        follower = self.pipeline.lander._follower
        assert follower is not None
        await follower.follow()
        await self.broker.replica.catch_up()

    async def values(self, stream: Stream) -> list[bytes | None]:
        """What a consumer gets from the beginning."""
        await self.broker.replica.catch_up()
        offset, found = 0, []
        while offset < stream.next:
            for view in await self.reader.read(stream, offset, 1 << 20):
                while view:
                    one, view = view[: (length := 12 + int.from_bytes(view[8:12], "big"))], view[length:]
                    head = HEADER.unpack_from(one)
                    if not head[5] & CONTROL:
                        found += [record.value for record in decode_batch(one) if record.offset >= offset]
                    offset = head[0] + head[6] + 1
        return found

    async def another(self, member: int = 1_000_000, seed: int = 8) -> TestPipeline:
        """One more pipeline; with the same member it takes over."""
        return await start_pipeline(self.folder, self.log, member=member, seed=seed, catalog=self.address)


@asynccontextmanager
async def outside_world(folder: Path, address: CatalogAddress) -> AsyncIterator[OutsideWorld]:
    data = folder / "data"
    data.mkdir()
    log = MemoryLogStore()
    broker = await start_broker(log, FolderWal(data))
    pipeline = await start_pipeline(data, log, catalog=address)
    own = open_table_store(f"file://{data}")
    options = store_options(address.given())
    store = WiderStore(own, lambda: outside_roots(broker.replica.state.catalog), lambda: options)
    history = History(broker.replica, store)
    reader = Reader(broker.replica, broker.wal, broker.cache, ReadLimits(), history)
    try:
        yield OutsideWorld(data, log, address, broker, pipeline, reader)
    finally:
        await history.close()
        await pipeline.stop()
        await broker.stop()


def tools_of(pipeline: TestPipeline) -> Tools:
    lander = pipeline.lander
    return Tools(
        pipeline.replica, pipeline.store, lander._committer, lander._clock, lander._random, lander._outside
    )

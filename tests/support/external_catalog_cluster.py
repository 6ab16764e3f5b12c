"""A broker and a pipeline without Spark whose topics have their tables in another catalog, for tests.

The fixtures are imported by name; `world` and `stream` are what tests call them.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from lakestream.data.folder import FolderWal
from lakestream.data.tables.iceberg.pyiceberg_catalog import CatalogAddress
from lakestream.data.tables.stores.routed_store import RoutedStore, external_roots, store_options
from lakestream.data.tables.stores.table_store import open_table_store
from lakestream.metadata.stores.memory import MemoryLogStore
from lakestream.model.batches.header import HEADER
from lakestream.model.batches.records import decode_batch
from lakestream.model.catalog.landed import Landing
from lakestream.model.streams import Stream
from lakestream.pipeline.care.caretaker import Caretaker
from lakestream.pipeline.care.plan import CareLimits
from lakestream.pipeline.care.repair import Tools
from lakestream.stream.history import HistoryReader
from lakestream.stream.limits import ReadLimits
from lakestream.stream.reader import Reader
from tests.support.broker_and_pipeline import TestPipeline, start_pipeline
from tests.support.care_cluster import balance, caretaker, holds
from tests.support.memory_broker import TestBroker, batch, start_broker

CONTROL = 0x20
VALUES = [f"{tag}{n}".encode() for tag in "vw" for n in range(10)]
"""What `landed` has landed."""


def sql_catalog(folder: Path, namespace: str = "streams") -> CatalogAddress:
    """PyIceberg's SQL catalog on SQLite; its tables lie beside the cluster's folder, not in it."""
    (folder / "lake").mkdir(exist_ok=True)
    return CatalogAddress(f"sqlite:///{folder}/catalog.db", namespace, {"warehouse": f"file://{folder}/lake"})


@dataclass
class OutsideWorld:
    """A broker, a pipeline, and a catalog that they and other engines use."""

    folder: Path
    log: MemoryLogStore
    address: CatalogAddress | None
    broker: TestBroker
    pipeline: TestPipeline
    reader: Reader

    @property
    def catalog(self) -> Catalog:
        """As another engine sees it."""
        assert self.address is not None
        return load_catalog(self.address.name, **self.address.given())

    def table(self, topic: str = "orders") -> Any:
        assert self.address is not None
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

    async def landed(self, topic: str = "orders") -> Stream:
        """A topic of which two rounds have landed, ten records each."""
        [stream] = await self.broker.topic(topic)
        for tag in ("v", "w"):
            await self.fill(stream, tag=tag)
            assert await self.land() == 0
        return stream

    async def follow(self) -> None:
        """Look at every table once, as the pipeline does every few seconds, and let the broker know."""
        watch = self.pipeline.tables.catalogs._watch
        assert watch is not None
        await watch.look_at_all()
        await self.broker.replica.catch_up()

    def proven(self, topic: str = "orders", pipeline: TestPipeline | None = None) -> bool:
        """Whether what landed, less what is noted as removed, is what the table holds, at its last snapshot (T16)."""
        pipeline = pipeline or self.pipeline
        state = pipeline.replica.state
        landing = state.catalog.landings[state.topics.by_name[topic].id]
        last = self.table(topic).current_snapshot().sequence_number
        same = balance(pipeline, topic) == holds(pipeline, topic)
        return same and landing.accounted == last and not landing.unproven

    def caretaker(self, limits: CareLimits | None = None, pipeline: TestPipeline | None = None) -> Caretaker:
        return caretaker(pipeline or self.pipeline, self.folder, limits)

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
async def outside_world(folder: Path, address: CatalogAddress | None) -> AsyncIterator[OutsideWorld]:
    """Without an address the tables are in our own catalog."""
    data = folder / "data"
    data.mkdir()
    log = MemoryLogStore()
    broker = await start_broker(log, FolderWal(data))
    pipeline = await start_pipeline(data, log, catalog=address)
    own = open_table_store(f"file://{data}")
    options = store_options(address.given()) if address is not None else {}
    store = RoutedStore(own, lambda: external_roots(broker.replica.state.catalog), lambda: options)
    history = HistoryReader(broker.replica, store)
    reader = Reader(broker.replica, broker.wal, broker.cache, ReadLimits(), history)
    try:
        yield OutsideWorld(data, log, address, broker, pipeline, reader)
    finally:
        await history.close()
        await pipeline.stop()
        await broker.stop()


@pytest.fixture(name="world")
async def sql_world(tmp_path: Path) -> AsyncIterator[OutsideWorld]:
    async with outside_world(tmp_path, sql_catalog(tmp_path)) as world:
        yield world


@pytest.fixture(name="stream")
async def landed_stream(world: OutsideWorld) -> Stream:
    return await world.landed()


def tools_of(pipeline: TestPipeline) -> Tools:
    own = pipeline.tables.catalogs.own
    return Tools(pipeline.replica, pipeline.tables, own._clock, own._random)

"""A broker and a pipeline without Spark on one folder and one command log, for tests of landing."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow as pa

from lakestream.data.folder import FolderWal
from lakestream.data.tables.files.parquet import read_parquet
from lakestream.data.tables.iceberg.manifests.files import read_manifest, read_manifest_list
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.iceberg.pyiceberg_catalog import CatalogAddress, PyIcebergCatalog
from lakestream.data.tables.stores.routed_store import RoutedStore, external_roots, store_options
from lakestream.data.tables.stores.table_store import TableStore, open_table_store
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.catalog.names import Warehouse
from lakestream.model.commands import Register
from lakestream.model.levels import NEWEST
from lakestream.pipeline.landing.driver import Driver
from lakestream.pipeline.landing.freshness import Freshness, FreshnessLimits
from lakestream.pipeline.landing.lander import Lander
from lakestream.pipeline.landing.planner import RoundLimits
from lakestream.pipeline.landing.rounds import Engine, LocalEngine
from lakestream.pipeline.landing.sweeper import Sweeper
from lakestream.pipeline.tables.external_catalog import ExternalCatalog
from lakestream.pipeline.tables.topic_tables import TopicTables, committer_of, open_tables
from lakestream.process.clock import SystemClock
from tests.support.memory_broker import TestBroker, start_broker

PIPELINE = 1_000_000


@dataclass
class TestPipeline:
    """One pipeline, joined; `driver.drain` lands all that waits."""

    __test__ = False
    replica: Replica
    membership: Membership
    tables: TopicTables
    lander: Lander
    driver: Driver
    store: TableStore

    async def stop(self) -> None:
        self.tables.close()
        await self.replica.stop()

    def rows(self, topic: str) -> pa.Table:
        """All rows of a topic's table, as its metadata tells."""
        state = self.replica.state
        table = state.catalog.of_topic(state.topics.by_name[topic].id)
        assert table is not None
        return read_rows(self.store, table.location)


def live_files(store: TableStore, location: str) -> list[str]:
    current = TableMetadata.parse(store.get(location)).current
    if current is None:
        return []
    listed = read_manifest_list(store.get(current.manifest_list))
    manifests = [read_manifest(store.get(one.path), one) for one in listed]
    return [manifest.entries[at]["data_file"]["file_path"] for manifest in manifests for at in manifest.live()]


def read_rows(store: TableStore, location: str) -> pa.Table:
    tables = [read_parquet(store.get(uri)) for uri in live_files(store, location)]
    rows = pa.concat_tables(tables) if tables else pa.table({"stream_partition": [], "stream_offset": []})
    return rows.sort_by([("stream_partition", "ascending"), ("stream_offset", "ascending")])


async def start_both(
    folder: Path, limits: RoundLimits | None = None, engine: Engine | None = None
) -> tuple[TestBroker, TestPipeline, MemoryLogStore]:
    log = MemoryLogStore()
    broker = await start_broker(log, FolderWal(folder))
    return broker, await start_pipeline(folder, log, limits, engine), log


async def start_pipeline(
    folder: Path,
    log: MemoryLogStore,
    limits: RoundLimits | None = None,
    engine: Engine | None = None,
    member: int = PIPELINE,
    seed: int = 7,
    store_of: Callable[[str], TableStore] = open_table_store,
    catalog: CatalogAddress | None = None,
) -> TestPipeline:
    clock, random = SystemClock(), Random(seed)
    wal = FolderWal(folder)
    replica = Replica(MemoryLog(log), wal, clock, member)
    about = Register(b"", "", "pipeline", "", 0, "", 1, NEWEST)
    membership = Membership(replica, clock, random, about, Timing())
    await replica.start()
    await membership.join()
    root = f"file://{folder}"
    store: TableStore = store_of(root)
    external = None
    if catalog is not None:
        options = store_options(catalog.given())
        wider = RoutedStore(store, lambda: external_roots(replica.state.catalog), lambda: options)
        committer = committer_of(replica, wider, random)
        external = ExternalCatalog(replica, PyIcebergCatalog(catalog), wider, committer, clock, random)
        store = wider
    warehouse = Warehouse(f"{root}/{replica.state.cluster}/tables")
    tables = open_tables(replica, store, lambda: warehouse, clock, random, external)
    lander, sweeper = Lander(replica, tables), Sweeper(replica, tables)
    freshness = Freshness(FreshnessLimits())
    driver = Driver(replica, lander, sweeper, engine or LocalEngine(), clock, freshness, limits or RoundLimits(), root)
    membership.settled = driver.settled
    return TestPipeline(replica, membership, tables, lander, driver, store)

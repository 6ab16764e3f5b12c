"""The pipeline as a process: Spark, a member of the cluster, and the driver between them, from start to stop.

    fold the log beside starting Spark -> warm up -> join -> rounds -> SIGTERM: end the round -> leave -> stop Spark

There is one pipeline at a time. A new one takes the member's id over at once, which ends the old one's epoch; the old
one then stands by until the new one is gone.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from lakestream.data.tables.iceberg.pyiceberg_catalog import CatalogAddress, PyIcebergCatalog
from lakestream.data.tables.iceberg.snapshot_history import SnapshotHistory
from lakestream.data.tables.stores.routed_store import RoutedStore, external_roots, store_options
from lakestream.data.tables.stores.table_store import open_table_store
from lakestream.errors import LakestreamError
from lakestream.interfaces import Clock, CommandLog, Wal
from lakestream.metadata.cluster_clock import ClusterClock
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.care import NotePipeline
from lakestream.model.catalog.names import Warehouse, warehouse_uri
from lakestream.model.commands import Register
from lakestream.model.levels import NEWEST
from lakestream.pipeline.care.caretaker import CareSchedule, Caretaker
from lakestream.pipeline.care.jobs import CareJobs
from lakestream.pipeline.care.plan import CareLimits
from lakestream.pipeline.landing.driver import Driver
from lakestream.pipeline.landing.freshness import Freshness, FreshnessLimits
from lakestream.pipeline.landing.lander import Lander
from lakestream.pipeline.landing.planner import RoundLimits
from lakestream.pipeline.landing.sweeper import Sweeper
from lakestream.pipeline.landing.worker import land_task
from lakestream.pipeline.spark.session import Spark
from lakestream.pipeline.tables.external_catalog import ExternalCatalog
from lakestream.pipeline.tables.topic_tables import committer_of, open_tables

log = logging.getLogger(__name__)

MEMBER_ID = 1_000_000
"""The member that a cluster's pipeline is; brokers count from 0."""
ROLE = "pipeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """How a pipeline runs."""

    root: str
    """The URI of the folder or bucket that records and tables live in."""
    master: str = "local[*]"
    member_id: int = MEMBER_ID
    conf: Mapping[str, str] = field(default_factory=dict)
    """Further settings of Spark."""
    timing: Timing = field(default_factory=Timing)
    limits: RoundLimits = field(default_factory=RoundLimits)
    freshness: FreshnessLimits = field(default_factory=FreshnessLimits)
    care: CareLimits = field(default_factory=CareLimits)
    schedule: CareSchedule = field(default_factory=CareSchedule)
    history: SnapshotHistory = field(default_factory=SnapshotHistory)
    catalog: CatalogAddress | None = None
    """The external catalog that new tables are made in; None: our own catalog."""
    drain_s: float = 10.0
    once: bool = False
    """Land all waiting records, then stop."""


class OneAtATime(Membership):
    """Joins at once when the process starts; later only when no other incarnation of this member lives."""

    joined = False

    async def join(self) -> None:
        if self.joined:
            log.info("another pipeline has taken over; waiting until it is gone")
        free = asyncio.Event()

        def look() -> None:
            if not self.joined or not self._taken():
                free.set()

        self._replica.on_fold.append(look)
        look()
        await free.wait()
        self._replica.on_fold.remove(look)
        await super().join()
        self.joined = True

    def _taken(self) -> bool:
        member = self._replica.state.members.by_id.get(self._replica.member_id)
        return member is not None and member.alive


class Pipeline:
    """The parts of one process."""

    def __init__(
        self, command_log: CommandLog, wal: Wal, clock: Clock, random: Random, options: ServiceOptions
    ) -> None:
        self._options = options
        self._random = random
        self.replica = Replica(command_log, wal, clock, options.member_id)
        self._clock = ClusterClock(self.replica, clock)
        about = Register(b"", "", ROLE, "", 0, "", os.getpid(), NEWEST)
        self.membership = OneAtATime(self.replica, clock, random, about, options.timing)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End the round that is under way, then everything."""
        self._stopping.set()

    async def run(self, on_ready: Callable[[], None]) -> int:
        """Until stopped; an exit code. Raises NoJava or SparkFailed if Spark cannot start, JobFailed if it died."""
        starting = asyncio.ensure_future(asyncio.to_thread(Spark.start, self._options.master, self._options.conf))
        try:
            await self.replica.start()
            spark = await starting
        except BaseException as error:
            await asyncio.gather(starting, return_exceptions=True)
            if isinstance(error, LakestreamError):
                await self._tell_trouble(str(error))
            await self.replica.stop()
            raise
        try:
            return await self._work(spark, on_ready)
        finally:
            await asyncio.to_thread(spark.stop)
            await self.replica.stop()

    async def _tell_trouble(self, reason: str) -> None:
        """Say in the state why no pipeline runs, if none does: `lakestream tables` shows it."""
        members = self.replica.state.members.live()
        if any(member.role == ROLE for member in members) or self.replica.state.care.trouble == reason:
            return
        try:
            await self.membership.join()
            await self.replica.propose(NotePipeline(reason))
            await self.membership.leave()
        except LakestreamError as error:
            log.warning("why the pipeline does not start could not be noted: %s", error)

    async def _work(self, spark: Spark, on_ready: Callable[[], None]) -> int:
        await asyncio.to_thread(spark.warm_up, land_task)
        options, replica = self._options, self.replica
        store = store_with_external(options.root, replica, options.catalog)
        external = self._external(store)
        tables = open_tables(
            replica, store, self._warehouse, self._clock, self._random, external, options.history
        )
        driver = Driver(
            replica, Lander(replica, tables), Sweeper(replica, tables), spark, self._clock,
            Freshness(options.freshness), options.limits, options.root,
        )  # fmt: skip
        jobs = CareJobs(tables, driver, spark, options.care, options.root)
        caretaker = Caretaker(replica, tables, jobs, self._clock, self._random, options.care, options.schedule)
        self.membership.settled = driver.settled
        await self.membership.join()
        if replica.state.care.trouble:
            await replica.propose(NotePipeline(""))
        on_ready()
        log.info("lands with Spark at %s, %d tasks at a time", options.master, spark.slots)
        beating = asyncio.create_task(self.membership.run(), name="membership")
        working = asyncio.create_task(self._drained(driver) if options.once else driver.run(), name="driver")
        stopping = asyncio.create_task(self._stopping.wait(), name="stop")
        caring = [] if options.once else [asyncio.create_task(caretaker.run(), name="care")]
        try:
            await asyncio.wait([working, stopping, beating], return_when=asyncio.FIRST_COMPLETED)
            driver.stop()
            await asyncio.wait([working], timeout=options.drain_s)
            return await working if working.done() else 1
        finally:
            caretaker.requests.stopping = True
            for task in (working, stopping, beating, *caring):
                task.cancel()
            await asyncio.gather(working, stopping, beating, *caring, return_exceptions=True)
            await self.membership.leave()
            tables.close()

    async def _drained(self, driver: Driver) -> int:
        waiting = await driver.drain()
        await driver.sweep()
        if waiting:
            log.error("%d topics could not be landed", waiting)
        return 1 if waiting else 0

    def _external(self, store: RoutedStore) -> ExternalCatalog | None:
        if self._options.catalog is None:
            return None
        catalog, committer = PyIcebergCatalog(self._options.catalog), committer_of(self.replica, store, self._random)
        return ExternalCatalog(self.replica, catalog, store, committer, self._clock, self._random)

    def _warehouse(self) -> Warehouse:
        return Warehouse(warehouse_uri(self._options.root, self.replica.state.cluster))


def store_with_external(root: str, replica: Replica, catalog: CatalogAddress | None) -> RoutedStore:
    """The cluster's store, and the folders where an external catalog has placed tables."""
    return RoutedStore(
        open_table_store(root),
        lambda: external_roots(replica.state.catalog),
        lambda: store_options(catalog.all_properties()) if catalog is not None else {},
    )

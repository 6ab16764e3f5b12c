"""A broker with its HTTP port and a pipeline without Spark, for tests of tables and their care."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from random import Random

from click.testing import CliRunner, Result

from lakestream.assembly.lake import Lake
from lakestream.cli.main import cli
from lakestream.data.tables.files.arrow_view import digest_rows
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.reading.table_reader import ReadCaches, TableReader
from lakestream.data.tables.stores.small_files import SmallFiles
from lakestream.metadata.stores.memory import MemoryLogStore
from lakestream.metrics import Metrics
from lakestream.model.streams import Stream
from lakestream.pipeline.care.caretaker import CareSchedule, Caretaker
from lakestream.pipeline.care.jobs import CareJobs
from lakestream.pipeline.care.plan import CareLimits
from lakestream.pipeline.landing.rounds import Engine
from lakestream.process.clock import SystemClock
from lakestream.protocol.http.server import HttpServer, HttpSources
from lakestream.settings import Settings
from tests.support.broker_and_pipeline import TestPipeline, live_files, start_both
from tests.support.memory_broker import TestBroker, batch


@dataclass
class CareWorld:
    """Everything of one cluster in this process."""

    broker: TestBroker
    pipeline: TestPipeline
    log: MemoryLogStore
    lake: Lake
    http: HttpServer
    page: str
    metrics: Metrics
    folder: Path
    jobs: CareJobs

    async def fill(self, *streams: Stream, records: int = 10, tag: str = "v") -> None:
        """One object with a batch for each stream."""
        values = [f"{tag}{n}".encode() for n in range(records)]
        ordered = sorted(streams, key=lambda one: one.id)
        answer = await self.broker.append(*((stream, batch(*values)) for stream in ordered))
        assert all(base >= 0 for base in answer), answer

    async def land(self, *streams: Stream, records: int = 10, tag: str = "v") -> None:
        await self.fill(*streams, records=records, tag=tag)
        await self.pipeline.replica.catch_up()
        assert await self.pipeline.driver.drain() == 0

    def metadata(self, topic: str) -> TableMetadata:
        """The table as the pipeline's state knows it."""
        location = self.pipeline.replica.state.catalog.tables["streams", topic].location
        return TableMetadata.parse(self.pipeline.store.get(location))

    def files(self, topic: str) -> list[str]:
        location = self.pipeline.replica.state.catalog.tables["streams", topic].location
        return live_files(self.pipeline.store, location)

    def balance(self, topic: str) -> dict[int, tuple[int, int]]:
        return balance(self.pipeline, topic)

    def holds(self, topic: str) -> dict[int, tuple[int, int]]:
        return holds(self.pipeline, topic)

    async def command(self, *argv: str) -> Result:
        """`lakestream tables ...`, against this broker."""
        await self.broker.replica.catch_up()
        return await asyncio.to_thread(CliRunner().invoke, cli, ["tables", *argv, "--http", self.page])

    async def stop(self) -> None:
        await self.http.stop()
        await self.lake.history.close()
        await self.pipeline.stop()
        await self.broker.stop()


def balance(pipeline: TestPipeline, topic: str) -> dict[int, tuple[int, int]]:
    """What landed less what was noted as removed, by partition: it has to be what the table holds (T16)."""
    state = pipeline.replica.state
    landing = state.catalog.landings[state.topics.by_name[topic].id]
    found: dict[int, tuple[int, int]] = {}
    for partition in landing.landed:
        marks, gone = list(landing.marks(partition)), landing.removed.get(partition, [])
        records = sum(one.records for one in marks) - sum(one.records for one in gone)
        hashes = sum(one.digest for one in marks) - sum(one.digest for one in gone)
        found[partition] = (records, hashes % 2**64)
    return {partition: one for partition, one in found.items() if one != (0, 0)}


def holds(pipeline: TestPipeline, topic: str) -> dict[int, tuple[int, int]]:
    """The same out of the table's rows, as a reader that honours deletes finds them."""
    known = pipeline.replica.state.topics.by_name[topic]
    bound = pipeline.replica.state.catalog.of_topic(known.id)
    assert bound is not None
    recent = SmallFiles(pipeline.store)
    reader = TableReader(pipeline.store, recent, ReadCaches(), lambda: bound.location)
    found = {}
    for partition in range(len(known.streams)):
        rows = reader.read_rows(partition, 0, 1 << 40, 1 << 30).rows
        for number, one in digest_rows(rows).items():
            found[number] = (one.records, one.hash)
    recent.close()
    return found


def caretaker(
    pipeline: TestPipeline, folder: Path, limits: CareLimits | None = None, schedule: CareSchedule | None = None
) -> Caretaker:
    """One that looks for orphans at once, if nothing else is said."""
    limits = limits or CareLimits()
    jobs = care_jobs(pipeline, folder, limits)
    schedule = schedule or CareSchedule(orphans_first_s=0.0)
    return Caretaker(pipeline.replica, pipeline.tables, jobs, SystemClock(), Random(6), limits, schedule)


async def start_world(folder: Path, engine: Engine | None = None) -> CareWorld:
    broker, pipeline, log = await start_both(folder, engine=engine)
    lake = Lake(Settings(data=str(folder), tables=True), broker.replica, SystemClock(), Random(5))
    metrics = Metrics()
    lake.publish(metrics)

    async def none(after: int, limit: int, wait_s: float) -> bytes:
        return b""

    sources = HttpSources(
        ready=lambda: None, brokers=list, metadata=lambda: [b"{}"], commands=none, metrics=metrics, tail=lake.tail,
        tables=lake.table_sources(),
    )  # fmt: skip
    http = HttpServer(sources, "127.0.0.1", 0)
    host, port = await http.start()
    jobs = care_jobs(pipeline, folder)
    return CareWorld(broker, pipeline, log, lake, http, f"{host}:{port}", metrics, folder, jobs)


def care_jobs(pipeline: TestPipeline, folder: Path, limits: CareLimits | None = None) -> CareJobs:
    driver = pipeline.driver
    return CareJobs(pipeline.tables, driver, driver._engine, limits or CareLimits(), f"file://{folder}")


async def quiet(_: str) -> None:
    """Progress that nobody looks at."""

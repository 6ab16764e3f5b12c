"""One broker on real ports and a pipeline without Spark beside it, in one process: for tests of the checker.

    with verify_world(folder) as world:
        world.append("orders", 0, [Record(...), ...])
        world.land()
        world.verify("orders")        # the command itself; exit code and JSON
"""

import asyncio
import json
import socket
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from click.testing import CliRunner
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from lakestream.assembly.core import build_core
from lakestream.assembly.http import build_http
from lakestream.assembly.kafka import build_kafka
from lakestream.broker import Broker, Parts
from lakestream.cli.verify import verify
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.stores.table_store import FolderTableStore, open_table_store
from lakestream.metadata.checkpoint import dump_in_process
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.metrics import Metrics
from lakestream.model.batches.records import Record, encode_batch
from lakestream.model.catalog.names import STREAMS, Warehouse, warehouse_uri
from lakestream.model.catalog.tables import CommitTables, TableChange
from lakestream.model.commands import CreateTopic, Register
from lakestream.model.levels import NEWEST
from lakestream.model.state import State
from lakestream.pipeline.landing.driver import Driver
from lakestream.pipeline.landing.freshness import Freshness, FreshnessLimits
from lakestream.pipeline.landing.lander import Lander
from lakestream.pipeline.landing.planner import RoundLimits
from lakestream.pipeline.landing.rounds import LocalEngine
from lakestream.pipeline.landing.sweeper import Sweeper
from lakestream.pipeline.tables.topic_tables import open_tables
from lakestream.process.clock import SystemClock
from lakestream.settings import Settings, data_uri
from lakestream.stream.submissions import Submission
from tests.support.broker_and_pipeline import live_files

PIPELINE = 1_000_000
TIME_MS = 1_700_000_000_000
T = TypeVar("T")


@dataclass(frozen=True)
class Checked:
    """What the command said."""

    code: int
    report: dict[str, Any]

    @property
    def topic(self) -> dict[str, Any]:
        [topic] = self.report["topics"]
        return dict(topic)

    @property
    def kinds(self) -> set[str]:
        return {one["kind"] for one in self.findings}

    @property
    def findings(self) -> list[dict[str, Any]]:
        return [*self.report["findings"], *(one for topic in self.report["topics"] for one in topic["findings"])]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.findings if one["kind"] == kind]


class VerifyWorld:
    """Made by `verify_world`."""

    def __init__(self, folder: Path, data: str) -> None:
        self.folder = folder
        kafka, http = _free_port(), _free_port()
        self.bootstrap, self.http = f"127.0.0.1:{kafka}", f"127.0.0.1:{http}"
        self.settings = Settings(
            data=data or str(folder), metadata=f"sqlite://{folder}/log.sqlite", kafka_port=kafka, http_port=http,
            tables=True,
        )  # fmt: skip
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.store = open_table_store(data_uri(self.settings))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    async def main(self) -> None:
        core = self.core = await build_core(self.settings, 0)
        kafka, metrics = build_kafka(core), Metrics()
        http = build_http(core, kafka, metrics, lambda: self.broker.ready())
        self.broker = Broker(
            Parts(
                command_log=core.command_log, wal=core.wal, replica=core.replica, membership=core.membership,
                appender=core.appender, waiting=core.waiting, listeners=[kafka.server, http], background=[],
                before_drain=core.streams.groups.stop, dump=dump_in_process,
            ),
            1.0,
        )  # fmt: skip
        await self.broker.listen()
        await self.broker.run(lambda: asyncio.ensure_future(self._join()))  # type: ignore[arg-type, return-value]
        if core.lake is not None:
            await core.lake.history.close()

    async def _join(self) -> None:
        clock, random = SystemClock(), Random(7)
        replica = self.replica = Replica(self.core.command_log, self.core.wal, clock, PIPELINE)
        about = Register(b"", "", "pipeline", "", 0, "", 1, NEWEST)
        membership = Membership(replica, clock, random, about, Timing())
        await replica.start()
        await membership.join()
        root = data_uri(self.settings)
        self.tables = open_tables(
            replica, self.store, lambda: Warehouse(warehouse_uri(root, replica.state.cluster)), clock, random
        )
        freshness = Freshness(FreshnessLimits())
        lander, sweeper = Lander(replica, self.tables), Sweeper(replica, self.tables)
        self.driver = Driver(replica, lander, sweeper, LocalEngine(), clock, freshness, RoundLimits(), root)
        membership.settled = self.driver.settled
        self.beating = asyncio.ensure_future(membership.run())
        self.ready.set()

    async def leave(self) -> None:
        self.beating.cancel()
        self.tables.close()
        await self.replica.stop()
        self.broker.stop()

    # -- what tests do ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        self.call(self.core.replica.catch_up())
        return self.core.replica.state

    def topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        topic_id = name.encode().ljust(16, b".")
        assert self.call(self.core.replica.propose(CreateTopic(name, topic_id, partitions, 1, configs))) == partitions

    def append(self, topic: str, partition: int, records: Sequence[Record], **how: Any) -> None:
        """One batch; offsets are given by the broker."""

        async def append() -> list[int]:
            batch = encode_batch([replace(one, offset=n) for n, one in enumerate(records)], **how)
            stream = self.core.replica.state.topics.by_name[topic].streams[partition]
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            row = (stream, len(records), len(batch), max(one.timestamp for one in records), -1, -1, -1)
            self.core.appender.submit(Submission([row], [memoryview(batch)], lambda: None, done.set_result))
            return list(await done)

        assert self.call(append())[0] >= 0

    def land(self) -> None:
        assert self.call(self.driver.drain()) == 0

    def landed(self, topic: str, count: int = 100, partitions: int = 1) -> None:
        """A topic of its own with so many landed records in each partition."""
        self.topic(topic, partitions)
        for partition in range(partitions):
            self.append(topic, partition, plain_records(count, f"{topic}-{partition}"))
        self.land()

    def location(self, topic: str) -> str:
        return self.state.catalog.tables[STREAMS, topic].location

    def metadata(self, topic: str) -> TableMetadata:
        return TableMetadata.parse(self.store.get(self.location(topic)))

    def files(self, topic: str) -> list[Path]:
        return [self.path(uri) for uri in live_files(self.store, self.location(topic))]

    def path(self, uri: str) -> Path:
        assert isinstance(self.store, FolderTableStore), "only files have paths"
        return self.store.path(uri)

    def table(self, topic: str) -> Table:
        return RestCatalog("lake", uri=f"http://{self.http}/iceberg").load_table((STREAMS, topic))

    def swap(self, topic: str, location: str) -> None:
        """Make another metadata file the topic's, past all judgement of the catalog: for forgeries."""
        found = self.state.catalog.tables[STREAMS, topic]
        change = TableChange(STREAMS, topic, found.uuid, found.location, location, topic_id=found.topic_id)
        assert self.call(self.core.replica.propose(CommitTables([change]))) == 1

    def verify(self, *topics: str, flags: Sequence[str] = ()) -> Checked:
        arguments = [*topics, "--bootstrap", self.bootstrap, "--http", self.http, "--json", *flags]
        result = CliRunner().invoke(verify, arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return Checked(result.exit_code, json.loads(result.stdout) if result.stdout else {"topics": [], "findings": []})


def plain_records(count: int, tag: str) -> list[Record]:
    return [
        Record(timestamp=TIME_MS + n, key=b"k%d" % n, value=f"{tag}-{n}".encode(), headers=(("n", b"%d" % n),))
        for n in range(count)
    ]


@contextmanager
def verify_world(folder: Path, data: str = "") -> Iterator[VerifyWorld]:
    """`data`: a bucket's URL, else the folder."""
    world = VerifyWorld(folder, data)

    def run() -> None:
        asyncio.set_event_loop(world.loop)
        world.loop.run_until_complete(world.main())

    thread = threading.Thread(target=run, name="broker", daemon=True)
    thread.start()
    try:
        assert world.ready.wait(30), "the broker does not come up"
        yield world
    finally:
        asyncio.run_coroutine_threadsafe(world.leave(), world.loop).result(20)
        thread.join(20)
        world.loop.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""The speed of landing from the WAL to a committed table, and the price of Spark, on local[2], warm.

    python -m bench.landing [FOLDER]

"plain" is the same work without Spark: two processes that decode and write the same objects, and commit nothing.
"streaming" is what a user would run today (streaming.py): Structured Streaming from Kafka into Iceberg, on local[2]
too, the broker beside it on one of the two cores. Both sides get records of which a quarter does not compress.
"""

import asyncio
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np

from bench.figures import Figure, at_least
from bench.process import cpu_seconds, descendants, say
from bench.streaming import Streaming, missing
from bench.yard import Yard
from lakestream.data.folder import FolderWal
from lakestream.data.tables.stores.table_store import open_table_store
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.batches.header import HEADER
from lakestream.model.batches.records import Record, encode_batch
from lakestream.model.catalog.names import Warehouse, warehouse_uri
from lakestream.model.commands import CreateTopic, Register
from lakestream.model.levels import NEWEST
from lakestream.pipeline.landing.driver import Driver, sources_of
from lakestream.pipeline.landing.freshness import Freshness, FreshnessLimits
from lakestream.pipeline.landing.lander import Lander
from lakestream.pipeline.landing.planner import RoundLimits, choose, divide
from lakestream.pipeline.landing.sweeper import Sweeper
from lakestream.pipeline.landing.tasks import RoundPlaces, describe, pack_task
from lakestream.pipeline.landing.worker import land_task
from lakestream.pipeline.spark.session import Spark
from lakestream.pipeline.tables.topic_tables import TopicTables, open_tables
from lakestream.process.clock import SystemClock
from lakestream.stream.appender import Appender
from lakestream.stream.cache import Cache
from lakestream.stream.limits import AppendLimits
from lakestream.stream.submissions import AppendAnswer, Submission

PARTITIONS = 12
BATCH_BYTES = 64 << 10
POOL_BYTES = 16 << 20
"""The number of random bytes: more than a compressor looks back."""
NOISE = 0.25
TOTAL_BYTES = 256 << 20
SMALL_ROUNDS = 12
TOPICS = 200
STREAMING_BARS = {100: 5.0, 1000: 2.0}
"""The bar on the ratio to Structured Streaming's records/s, by the size of a record."""
SIZES = tuple(STREAMING_BARS)
LIMITS = RoundLimits()


@dataclass(frozen=True)
class World:
    """A broker's write path and a pipeline, in this process, on one folder."""

    replica: Replica
    appender: Appender
    tables: TopicTables
    driver: Driver
    root: str

    @classmethod
    async def start(cls, folder: Path, spark: Spark) -> "World":
        clock, random = SystemClock(), Random(1)
        wal = FolderWal(folder)
        replica = Replica(MemoryLog(MemoryLogStore()), wal, clock, 0)
        about = Register(b"", "", "broker", "127.0.0.1", 1, "", 1, NEWEST)
        await replica.start()
        await Membership(replica, clock, random, about, Timing()).join()
        root = f"file://{folder}"
        place = Warehouse(warehouse_uri(root, replica.state.cluster))
        tables = open_tables(replica, open_table_store(root), lambda: place, clock, random)
        lander, sweeper = Lander(replica, tables), Sweeper(replica, tables)
        driver = Driver(replica, lander, sweeper, spark, clock, Freshness(FreshnessLimits()), LIMITS, root)
        return cls(replica, Appender(replica, wal, Cache(1 << 20), clock, AppendLimits()), tables, driver, root)

    async def topic(self, name: str, partitions: int) -> list[int]:
        topic_id = name.encode().ljust(16, b".")
        assert await self.replica.propose(CreateTopic(name, topic_id, partitions, 1, {})) == partitions
        return self.replica.state.topics.by_name[name].streams

    async def append(self, streams: list[int], batches: list[bytes]) -> None:
        answered: asyncio.Future[AppendAnswer] = asyncio.get_running_loop().create_future()
        heads = [HEADER.unpack_from(batch) for batch in batches]
        rows = [
            (stream, head[12], len(batch), head[8], head[9], head[10], head[11])
            for stream, batch, head in zip(streams, batches, heads, strict=True)
        ]
        views = [memoryview(batch) for batch in batches]
        self.appender.submit(Submission(rows, views, lambda: None, answered.set_result))
        answer = await answered
        assert isinstance(answer, list) and min(answer) >= 0, answer

    async def fill(self, streams: list[int], size: int) -> int:
        """Write about TOTAL_BYTES of records of `size` bytes; returns their number."""
        pool = made_batches(size)
        records = HEADER.unpack_from(pool[0])[12]
        each = (8 << 20) // (len(pool[0]) * len(streams)) or 1
        order = [stream for stream in streams for _ in range(each)]
        chosen = cycle(pool)
        total = 0
        while total * size < TOTAL_BYTES:
            await self.append(order, list(islice(chosen, len(order))))
            total += records * len(order)
        return total

    def plain_tasks(self, topic: str) -> list[bytes]:
        """The tasks of the next round, with folders of their own."""
        state = self.replica.state
        works = choose(state, [state.topics.by_name[topic].id], RoundLimits(round_bytes=1 << 40))
        sources = sources_of(state.cluster, state.streams.objects, works)
        folders = {work.topic_id: f"{self.root}/plain/{topic}-{time.monotonic_ns()}" for work in works}
        places = RoundPlaces(self.root, sources, folders, {})
        shares = divide(works, 2, LIMITS)
        return [pack_task(describe(number, share, places)) for number, share in enumerate(shares)]


def made_batches(size: int) -> list[bytes]:
    """Batches of values; a quarter of each value does not compress."""
    chance, own = np.random.default_rng(size), int(size * NOISE)
    made = []
    for _ in range(POOL_BYTES // BATCH_BYTES):
        values = [chance.bytes(own) + b"x" * (size - own) for _ in range(max(BATCH_BYTES // size, 1))]
        records = [Record(offset=n, timestamp=1_700_000_000_000 + n, value=value) for n, value in enumerate(values)]
        made.append(encode_batch(records))
    return made


def measure(yard: Yard) -> list[Figure]:
    folder = yard.folder / "landing"
    folder.mkdir(parents=True, exist_ok=True)
    beside = _streaming(yard, folder / "streaming")
    try:
        return asyncio.run(_measure(folder, yard.rounds, beside))
    finally:
        if beside is not None:
            beside.streaming.stop()


@dataclass(frozen=True)
class Beside:
    """Structured Streaming, and topics in Kafka with as many records of each size as Lakestream's."""

    streaming: Streaming
    topics: dict[int, str]


def _streaming(yard: Yard, folder: Path) -> Beside | None:
    lacking = missing()
    if yard.kafka is None or lacking:
        print(f"SKIPPED: Structured Streaming beside landing; missing: {lacking or 'Apache Kafka'}", flush=True)
        return None
    topics = {}
    for size in SIZES:
        topics[size] = yard.topic(yard.kafka, PARTITIONS)
        asked = {"topic": topics[size], "partitions": PARTITIONS, "size": size, "noise": NOISE}
        yard.client(yard.kafka, "produce", records=TOTAL_BYTES // size, idempotent=True, **asked)
    say("# starting Structured Streaming")
    return Beside(Streaming(folder, yard.kafka.bootstrap), topics)


async def _measure(folder: Path, rounds: int, beside: Beside | None = None) -> list[Figure]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        began = time.perf_counter()
        spark = await asyncio.to_thread(Spark.start, "local[2]")
        session_s = time.perf_counter() - began
        await asyncio.to_thread(spark.warm_up, land_task)
        first_s = time.perf_counter() - began
        try:
            world = await World.start(folder, spark)
            figures = [
                Figure(name="Spark: session", unit="s", ours=[session_s]),
                Figure(name="Spark: first result", unit="s", ours=[first_s]),
                Figure(name="landing: small warm round", unit="s", ours=await small_rounds(world)),
                Figure(name=f"landing: round of {TOPICS} topics", unit="s", ours=await wide_rounds(world)),
            ]
            for size in SIZES:
                figures += await throughput(world, pool, size, rounds, beside)
            world.tables.close()
            await world.replica.stop()
        finally:
            await asyncio.to_thread(spark.stop)
    return figures


async def small_rounds(world: World) -> list[float]:
    streams = await world.topic("small", 3)
    batch = encode_batch([Record(offset=n, timestamp=1, value=b"v") for n in range(10)])
    took = []
    for _ in range(SMALL_ROUNDS):
        await world.append(streams, [batch] * len(streams))
        began = time.perf_counter()
        assert await world.driver.drain() == 0
        took.append(time.perf_counter() - began)
    return took[2:]


async def wide_rounds(world: World) -> list[float]:
    """Many topics with few records each, for which the freshness target has to hold."""
    streams = [(await world.topic(f"wide-{n}", 1))[0] for n in range(TOPICS)]
    batch = encode_batch([Record(offset=n, timestamp=1, value=b"v" * 100) for n in range(100)])
    took = []
    for _ in range(4):
        await world.append(streams, [batch] * len(streams))
        began = time.perf_counter()
        assert await world.driver.drain() == 0
        took.append(time.perf_counter() - began)
    return took[1:]


async def throughput(
    world: World, pool: ProcessPoolExecutor, size: int, rounds: int, beside: Beside | None
) -> list[Figure]:
    """Run landing, the plain loop and Structured Streaming alternately; with processor times of the first and last."""
    name = f"records-{size}"
    streams = await world.topic(name, PARTITIONS)
    ours, plain, theirs = Pace(), Pace(), Pace()
    for n in range(rounds + 1):
        records = await world.fill(streams, size)
        began = time.perf_counter()
        tasks = world.plain_tasks(name)
        done = list(pool.map(land_task, tasks, range(len(tasks))))
        plain.add(records, time.perf_counter() - began, 0.0)
        assert len(done) == len(tasks)
        pids = [os.getpid(), *descendants(os.getpid())]
        began, spent = time.perf_counter(), _cpu_s(pids)
        assert await world.driver.drain() == 0
        ours.add(records, time.perf_counter() - began, _cpu_s(pids) - spent)
        if beside is not None:
            spent = _cpu_s(beside.streaming.pids)
            told = await asyncio.to_thread(beside.streaming.run, beside.topics[size])
            theirs.add(told["rows"], told["seconds"], _cpu_s(beside.streaming.pids) - spent)
        if n == 0:  # the first warms all
            ours, plain, theirs = Pace(), Pace(), Pace()
    title, note = f"landing: records of {size} B", f"{size * ours.rates[-1] / 1e6:.0f} MB/s in the last repeat"
    figures = [
        Figure(
            name=title, unit="records/s", ours=ours.rates, base_name="plain", base=plain.rates, bar=at_least(0.6),
            note=note,
        )
    ]  # fmt: skip
    if theirs.rates:
        bar = at_least(STREAMING_BARS[size])
        figures += [
            Figure(
                name=title, unit="records/s", ours=ours.rates, base_name="streaming", base=theirs.rates, bar=bar,
                note="Kafka's own processor time is not counted, its records are in the page cache",
            ),
            Figure(
                name=f"{title}, CPU", unit="s/million", ours=ours.costs, base_name="streaming", base=theirs.costs,
            ),
        ]  # fmt: skip
    return figures


@dataclass
class Pace:
    """Repeats: records a second, and processor seconds for a million."""

    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def add(self, records: float, seconds: float, cpu_s: float) -> None:
        self.rates.append(records / seconds)
        self.costs.append(cpu_s / records * 1e6)


def _cpu_s(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            total += sum(cpu_seconds(pid))
    return total


def main() -> None:
    if len(sys.argv) > 1:
        figures = asyncio.run(_measure(Path(sys.argv[1]).absolute(), 3))
    else:
        with TemporaryDirectory(prefix="lakestream-bench-") as folder:
            figures = asyncio.run(_measure(Path(folder), 3))
    for figure in figures:
        print(figure, flush=True)


if __name__ == "__main__":
    main()

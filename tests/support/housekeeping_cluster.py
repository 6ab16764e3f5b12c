"""A small cluster in memory whose time stands still unless told: real replicas, appenders, readers and housekeeping."""

import asyncio
from dataclasses import dataclass, field
from random import Random

from lakestream.data.memory import MemoryWal
from lakestream.errors import LakestreamError
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.append_rows import BatchRow
from lakestream.model.batches.header import stamp
from lakestream.model.batches.records import Record, encode_batch
from lakestream.model.commands import AdvanceLogStart, CreateTopic, DeleteTopic, Heartbeat, Leave, Register
from lakestream.model.levels import NEWEST
from lakestream.model.streams import Stream
from lakestream.model.topics import Topic
from lakestream.stream.appender import Appender
from lakestream.stream.cache import Cache
from lakestream.stream.housekeeping.collector import Collector
from lakestream.stream.housekeeping.merging import MoveLimits
from lakestream.stream.housekeeping.mover import Mover
from lakestream.stream.housekeeping.retention import Expiry, Retention
from lakestream.stream.limits import AppendLimits, ReadLimits
from lakestream.stream.reader import Reader, key_of
from lakestream.stream.rules import Rules
from lakestream.stream.submissions import Submission

CLUSTER = "c0ffee"
GRACE_MS = 600_000
START_MS = 1_700_000_000_000
SMALL = MoveLimits(small_entries=0, quiet_ms=1000, many_entries=16, dead_age_ms=60_000, dead_bytes=500)


class StillClock:
    """Time that moves only when a test says so."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return self.now_ms


@dataclass
class World:
    """What the brokers share, and what a test knows of the records: every batch of every stream, as it must read."""

    clock: StillClock = field(default_factory=StillClock)
    store: MemoryLogStore = field(default_factory=MemoryLogStore)
    wal: MemoryWal = field(default_factory=MemoryWal)
    random: Random = field(default_factory=lambda: Random(7))
    written: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)

    async def broker(self, member: int = 1, limits: MoveLimits = SMALL, expiry: Expiry | None = None) -> "Broker":
        broker = Broker(self, member, limits, expiry or Expiry())
        await broker.start()
        return broker


class Broker:
    """One broker without its sockets."""

    def __init__(self, world: World, member: int, limits: MoveLimits, expiry: Expiry) -> None:
        self.world = world
        self.log = MemoryLog(world.store)
        self.replica = Replica(self.log, world.wal, world.clock, member)
        self.cache = Cache(1 << 20)
        # Where time stands still nothing may be waited for.
        self.appender = Appender(self.replica, world.wal, self.cache, world.clock, AppendLimits(gather_s=0.0))
        self.rules = Rules(self.replica, {})
        self.mover = Mover(self.replica, world.wal, self.cache, self.rules.of, limits)
        self.collector = Collector(self.replica, self.log, world.wal, self.cache, GRACE_MS)
        self.retention = Retention(self.replica, self.rules.of, world.clock, expiry)

    async def start(self) -> None:
        await self.replica.start()
        await self.register()

    async def register(self) -> None:
        incarnation = self.world.random.randbytes(16)
        await self.replica.register(Register(incarnation, CLUSTER, "broker", "here", 9092, "", 1, NEWEST))
        await self.beat()

    async def beat(self, passed_ms: int = 0) -> None:
        """Let time pass, and tell it to the cluster."""
        self.world.clock.now_ms += passed_ms
        state = self.replica.state
        settled = self.appender.settled(), self.mover.settled()
        await self.replica.propose(Heartbeat(self.world.clock.wall_ms(), state.sequence, state.digest, *settled))

    async def create(self, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> Topic:
        topic_id = self.world.random.randbytes(16)
        assert await self.replica.propose(CreateTopic(name, topic_id, partitions, 1, configs or {})) == partitions
        return self.replica.state.topics.by_name[name]

    async def delete(self, topic: Topic) -> None:
        await self.replica.propose(DeleteTopic(topic.id))

    async def trim(self, stream: int, start: int) -> None:
        await self.replica.propose(AdvanceLogStart([(stream, start)]))

    async def leave(self) -> None:
        await self.replica.propose(Leave())
        await self.replica.stop()

    async def append(self, batches: list[tuple[int, bytes, int]], producer: tuple[int, int] = (-1, -1)) -> list[int]:
        """One tick of (stream, batch, record count); what is accepted becomes what the world expects to read."""
        answer: asyncio.Future[list[int] | LakestreamError] = asyncio.get_running_loop().create_future()
        rows: list[BatchRow] = [
            (stream, count, len(one), timestamp_of(one), producer[0], 0 if producer[0] >= 0 else -1, producer[1])
            for stream, one, count in batches
        ]
        views = [memoryview(bytearray(one)) for _, one, _ in batches]
        self.appender.submit(Submission(rows, views, lambda: None, answer.set_result))
        results = await answer
        assert isinstance(results, list), results
        for (stream, one, _), result in zip(batches, results, strict=True):
            known = self.world.written.setdefault(stream, [])
            if result >= 0 and (not known or known[-1][0] < result):
                stamped = bytearray(one)
                stamp(stamped, 0, result)
                known.append((result, bytes(stamped)))
        return results

    async def fill(self, stream: int, ticks: int, size: int = 100, records: int = 2, step_ms: int = 10) -> None:
        """So many ticks of one batch each."""
        for _ in range(ticks):
            self.world.clock.now_ms += step_ms
            await self.append([(stream, self.batch(records, size), records)])
        await self.beat()

    def batch(self, records: int, size: int) -> bytes:
        now = self.world.clock.wall_ms()
        return encode_batch(
            [Record(offset=i, timestamp=now + i, value=self.world.random.randbytes(size)) for i in range(records)]
        )

    def stream(self, stream: int) -> Stream:
        return self.replica.state.streams.by_id[stream]

    def reader(self, limits: ReadLimits | None = None) -> Reader:
        """One that has nothing in memory."""
        return Reader(self.replica, self.world.wal, Cache(1 << 22), limits or ReadLimits())

    async def check(self, limits: ReadLimits | None = None, max_bytes: int = 1 << 20) -> None:
        """Every batch that should be there reads back, byte for byte, and nothing else does."""
        reader = self.reader(limits)
        for stream in list(self.replica.state.streams.by_id.values()):
            expected = [
                (base, one) for base, one in self.world.written.get(stream.id, []) if end_of(one) > stream.start
            ]
            found: list[tuple[int, bytes]] = []
            offset = stream.start
            while offset < stream.next:
                views = await reader.read(stream, offset, max_bytes)
                found += [(int.from_bytes(one[:8], "big"), one) for view in views for one in split(bytes(view))]
                offset = end_of(found[-1][1])
            assert found == expected, stream

    async def check_wal(self) -> None:
        """The stored objects are exactly those that the state refers to."""
        streams = self.replica.state.streams
        listed = {one.key for one in await self.world.wal.list(f"{CLUSTER}/")}
        assert listed == {key_of(CLUSTER, one) for one in [*streams.objects.values(), *streams.dead.values()]}
        assert sum(len(stream.bases) for stream in streams.by_id.values()) == streams.entries


def split(view: bytes) -> list[bytes]:
    batches = []
    while view:
        length = 12 + int.from_bytes(view[8:12], "big")
        batches.append(view[:length])
        view = view[length:]
    return batches


def timestamp_of(batch: bytes) -> int:
    return int.from_bytes(batch[35:43], "big")


def end_of(batch: bytes) -> int:
    """The offset behind a stamped batch."""
    return int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big") + 1

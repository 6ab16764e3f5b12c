"""LogAppendTime never goes back in a partition, whichever broker stamps, and everybody reads the same time (L19)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from lakestream.data.memory import MemoryWal
from lakestream.data.tables.files.decode import STAMPED, WalSlice, decode_slices
from lakestream.data.tables.files.slices import slices_of, source_of
from lakestream.metadata.describe import describe_command
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.batches.header import HEADER, checksum
from lakestream.model.commands import CreateTopic, DeleteTopic, Heartbeat, Register
from lakestream.model.levels import BOUNDED, FIRST
from lakestream.model.state import dump, load
from lakestream.model.streams import Stream
from lakestream.model.topics import Topic
from lakestream.process.clock import SystemClock
from lakestream.stream.appender import Appender
from lakestream.stream.batch_tables import ManyBatches, table_of
from lakestream.stream.cache import Cache
from lakestream.stream.housekeeping.merging import MoveLimits
from lakestream.stream.housekeeping.mover import Mover
from lakestream.stream.limits import AppendLimits, ReadLimits
from lakestream.stream.reader import Reader
from lakestream.stream.rules import Rules
from lakestream.stream.submissions import AppendAnswer, Submission
from tests.support.memory_broker import batch

NOW = 1_700_000_000_000
HOUR = 3_600_000
TOPIC = b"t" * 16


class SetClock(SystemClock):
    """Real pace for timers, and a wall clock that is set by hand."""

    __slots__ = ("now_ms",)

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms


class Broker:
    """One of several brokers of a log; it stamps what it appends."""

    def __init__(self, store: MemoryLogStore, wal: MemoryWal, number: int, now_ms: int, level: int) -> None:
        self.clock = SetClock(now_ms)
        self.wal, self.store = wal, store
        self.replica = Replica(MemoryLog(store), wal, self.clock, number, level)
        about = Register(b"", "", "broker", f"host-{number}", 1, "", 1, level)
        timing = Timing(heartbeat_s=0.01, session_s=0.1)
        self.membership = Membership(self.replica, self.clock, Random(number), about, timing)
        self.cache = Cache(1 << 20)
        self.appender = Appender(self.replica, wal, self.cache, self.clock, AppendLimits())

    @property
    def stream(self) -> Stream:
        return self.replica.state.streams.by_id[1]

    async def start(self) -> "Broker":
        await self.replica.start()
        await self.membership.join()
        return self

    async def append(self, *values: bytes, beside: bool = False) -> int:
        """One batch that is stamped, perhaps in one tick with a table of others; its base offset."""
        data = bytearray(batch(*values, timestamp=5))
        head = HEADER.unpack_from(data)
        row = (1, head[12], len(data), head[8], head[9], head[10], head[11])
        answered: asyncio.Future[AppendAnswer] = asyncio.get_running_loop().create_future()
        others: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if beside:
            other = bytearray(batch(b"x", timestamp=9))
            plain = Submission([(2, 1, len(other), 9, -1, -1, -1)], [memoryview(other)], nothing, nothing_of)
            self.appender.submit(ManyBatches(table_of(plain), len(other), nothing, others.set_result))
        self.appender.submit(Submission([row], [memoryview(data)], nothing, answered.set_result, [0]))
        answer = await answered
        assert isinstance(answer, list)
        if beside:
            await others
        return answer[0]

    async def times(self) -> list[int]:
        """The append time of each record, as a consumer at this broker reads it; all CRCs are right."""
        await self.replica.catch_up()
        reader = Reader(self.replica, self.wal, self.cache, ReadLimits())
        found, offset = [], 0
        while offset < self.stream.next:
            for view in await reader.read(self.stream, offset, 1 << 20):
                at = 0
                while at < len(view):
                    head = HEADER.unpack_from(view, at)
                    assert checksum(view, at, head[1] + 12) == head[4] and head[5] & 8 and head[0] == offset
                    found += [head[8]] * head[12]
                    offset += head[12]
                    at += head[1] + 12
        return found

    def rows(self) -> list[int]:
        """The same, as the pipeline decodes it from the WAL."""
        state, slices = self.replica.state, []
        for one in slices_of(self.stream, 0, state.streams.append_times):
            source = source_of(state.cluster, state.streams.objects[one.object])
            data = self.wal._objects[source.key][one.position : one.position + one.length]  # type: ignore[attr-defined]
            base = STAMPED if source.stamped else one.base
            slices.append(WalSlice(one.partition, base, data, one.first, one.end, one.append_ms))
        stamps = decode_slices(slices)["stream_timestamp"].cast("int64").to_pylist()
        return [stamp // 1000 for stamp in stamps]


def nothing() -> None:
    pass


def nothing_of(_: AppendAnswer) -> None:
    pass


async def pair(level: int) -> list[Broker]:
    store, wal = MemoryLogStore(), MemoryWal()
    brokers = [Broker(store, wal, number, NOW, level) for number in range(2)]
    for broker in brokers:
        await broker.start()
    await brokers[0].replica.propose(CreateTopic("t", TOPIC, 2, 1, {}))
    await brokers[1].replica.catch_up()
    return brokers


@pytest.fixture
async def brokers() -> AsyncIterator[list[Broker]]:
    made = await pair(BOUNDED)
    assert made[0].replica.state.level == BOUNDED
    yield made
    for broker in made:
        await broker.replica.stop()


async def skewed(brokers: list[Broker]) -> None:
    """Broker 1 is 40 seconds behind broker 0, and then both go on."""
    ahead, behind = brokers
    for step in range(4):
        ahead.clock.now_ms = NOW + step
        behind.clock.now_ms = NOW + step - 40_000
        await ahead.append(b"a", b"b")
        await behind.append(b"c", beside=step == 2)
    behind.clock.now_ms = NOW + 100
    await behind.append(b"d")


EXPECTED = [NOW, NOW, NOW, NOW + 1, NOW + 1, NOW + 1, NOW + 2, NOW + 2, NOW + 2, NOW + 3, NOW + 3, NOW + 3, NOW + 100]


async def test_l19_append_times_do_not_go_back_whichever_broker_stamps(brokers: list[Broker]) -> None:
    await skewed(brokers)
    for broker in brokers:
        assert await broker.times() == EXPECTED, "from the cache of who appended it, and from the WAL"
        assert broker.rows() == EXPECTED, "the table gets what consumers get"


async def test_l19_a_level_below_keeps_what_each_broker_stamped() -> None:
    brokers = await pair(FIRST)
    await skewed(brokers)
    times = await brokers[0].times()
    assert any(later < earlier for earlier, later in pairwise(times)) and brokers[0].rows() == times
    for broker in brokers:
        await broker.replica.stop()


async def test_l19_merged_objects_carry_the_append_times(brokers: list[Broker]) -> None:
    await skewed(brokers)
    ahead = brokers[0]
    ahead.clock.now_ms = NOW + HOUR // 2
    await ahead.replica.propose(Heartbeat(ahead.clock.now_ms, 0, 0, 0))
    await brokers[1].membership.leave()
    await ahead.replica.propose(Heartbeat(ahead.clock.now_ms, 0, 0, 0))
    limits = MoveLimits(quiet_ms=1, many_entries=2, window_entries=2, growth=2)
    mover = Mover(ahead.replica, ahead.wal, ahead.cache, Rules(ahead.replica, {}).of, limits)
    before = len(ahead.stream.bases)
    while await mover.step():
        pass
    assert len(ahead.stream.bases) < before
    assert await ahead.times() == ahead.rows() == EXPECTED


async def test_l19_offsets_are_found_by_append_time(brokers: list[Broker]) -> None:
    await skewed(brokers)
    for broker in brokers:
        await broker.replica.catch_up()
        reader = Reader(broker.replica, broker.wal, Cache(1 << 20), ReadLimits())
        for timestamp, offset in ((NOW - 40_000, 0), (NOW + 1, 3), (NOW + 3, 9), (NOW + 4, 12)):
            found = await reader.find_timestamp(broker.stream, timestamp)
            assert found is not None and (found.offset, found.timestamp) == (offset, EXPECTED[offset])
        latest = await reader.find_max_timestamp(broker.stream)
        assert latest is not None and (latest.offset, latest.timestamp) == (12, NOW + 100)


async def test_l19_a_clock_far_ahead_of_cluster_time_does_not_stamp(brokers: list[Broker]) -> None:
    wrong = brokers[1]
    wrong.clock.now_ms = NOW + 365 * 24 * HOUR
    await wrong.append(b"a")
    brokers[0].clock.now_ms = NOW + 1000
    await brokers[0].append(b"b")
    assert await brokers[0].times() == [NOW, NOW + 1000]


async def test_l19_what_is_known_of_append_times_survives_a_checkpoint_and_goes_with_topic_and_object(
    brokers: list[Broker],
) -> None:
    await skewed(brokers)
    state = brokers[0].replica.state
    await brokers[0].replica.catch_up()
    loaded = load(dump(state))
    assert dump(loaded) == dump(state)
    times = loaded.streams.append_times
    assert times.by_stream == {1: NOW + 100} and len(times.objects) == 9
    await brokers[0].replica.propose(DeleteTopic(TOPIC))
    gone = brokers[0].replica.state.streams.append_times
    assert (gone.by_stream, gone.objects) == ({}, {})


async def test_a_stamped_append_is_told_in_words(brokers: list[Broker]) -> None:
    await brokers[0].append(b"a")
    told = [describe_command(*one) for one in brokers[0].store.commands]
    [appended] = [one for one in told if one["command"] == "StampedAppend"]
    body = appended["body"]
    assert isinstance(body, dict) and body["append_time_ms"] == NOW and body["stamped_streams"] == [1]


class GatedWal:
    """Reads wait until the gate is opened."""

    def __init__(self, wal: MemoryWal) -> None:
        self._wal = wal
        self.gate, self.reached = asyncio.Event(), asyncio.Event()

    async def read(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytearray]:
        self.reached.set()
        await self.gate.wait()
        return await self._wal.read(key, ranges)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wal, name)


class MoverOfAll(Mover):
    """Takes every topic for its own, as two brokers do while one of them joins or leaves."""

    def _own_topics(self) -> list[Topic]:
        return list(self._replica.state.topics.by_id.values())


def mover_of_all(broker: Broker, wal: Any, cache: Cache) -> Mover:
    limits = MoveLimits(quiet_ms=1, many_entries=2, window_entries=2, growth=2)
    return MoverOfAll(broker.replica, wal, cache, Rules(broker.replica, {}).of, limits)


async def two_that_may_merge() -> list[Broker]:
    brokers = await pair(BOUNDED)
    await skewed(brokers)
    for broker in brokers:
        await broker.replica.catch_up()
        broker.clock.now_ms = NOW + HOUR // 2
    for broker in brokers:
        await broker.replica.propose(Heartbeat(broker.clock.now_ms, 0, 0, 0))
    for broker in brokers:
        await broker.replica.catch_up()
    return brokers


async def test_a_reader_whose_object_dies_while_it_reads_serves_the_time_of_the_fold_L19() -> None:
    first, second = await two_that_may_merge()
    gated = GatedWal(first.wal)
    reader = Reader(second.replica, gated, Cache(1 << 20), ReadLimits())  # type: ignore[arg-type]
    reading = asyncio.create_task(reader.read(second.stream, 5, 100))
    await gated.reached.wait()
    mover = mover_of_all(first, first.wal, first.cache)
    while await mover.step():
        pass
    await second.replica.catch_up()
    gated.gate.set()
    [view, *_] = await reading
    assert HEADER.unpack_from(view)[8] == EXPECTED[5]


async def test_a_merge_whose_sources_die_meanwhile_keeps_the_times_of_the_fold_L19() -> None:
    first, second = await two_that_may_merge()
    gated = GatedWal(first.wal)
    late = asyncio.create_task(mover_of_all(second, gated, Cache(1 << 20)).step())
    await gated.reached.wait()
    await mover_of_all(first, first.wal, first.cache).step()
    await second.replica.catch_up()
    gated.gate.set()
    await late
    for broker in (first, second):
        await broker.replica.catch_up()
    first.cache = Cache(1 << 20)
    assert await first.times() == EXPECTED == first.rows()

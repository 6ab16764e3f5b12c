"""Whatever is appended, deleted, trimmed, merged and collected, in any order: what is left reads back byte for byte."""

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.model.batches.wal_object import merged_key, wal_key
from lakestream.model.state import dump, load
from lakestream.stream.housekeeping.merging import MoveLimits
from lakestream.stream.limits import ReadLimits
from tests.support.housekeeping_cluster import CLUSTER, GRACE_MS, Broker, World

LIMITS = MoveLimits(
    merge_bytes=200_000, merge_entries=60, quiet_ms=2000, many_entries=16, window_entries=4,
    dead_age_ms=20_000, dead_bytes=300,
)  # fmt: skip
READS = (ReadLimits(), ReadLimits(whole_object_bytes=0, chunk_bytes=1), ReadLimits(whole_object_bytes=3000))
ACTIONS = (
    "append", "append", "append", "repeat", "wait", "create", "delete", "trim", "retain", "move", "move", "collect",
    "crash", "check",
)  # fmt: skip


class Story:
    """One run: two brokers, a few topics, and a dice."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.world = World(random=self.dice)
        self.brokers: list[Broker] = []
        self.names = 0
        self.sequences: dict[int, int] = {}

    async def run(self, actions: list[str]) -> None:
        self.brokers = [await self.world.broker(member, LIMITS) for member in (1, 2)]
        for action in ["create", *actions]:
            await getattr(self, action)(self.dice.choice(self.brokers))
            for broker in self.brokers:
                await broker.replica.catch_up()
        await self.settle()
        for broker in self.brokers:
            await broker.replica.stop()

    def streams(self, broker: Broker) -> list[int]:
        return list(broker.replica.state.streams.by_id)

    async def append(self, broker: Broker) -> None:
        """A burst of ticks, each with batches of some streams."""
        streams = self.streams(broker)
        for _ in range(self.dice.randrange(1, 12) if streams else 0):
            chosen = self.dice.choices(streams, k=self.dice.randrange(1, 4))
            sizes = [(self.dice.randrange(1, 4), int(10 ** self.dice.uniform(0, 4))) for _ in chosen]
            await broker.append(
                [(one, broker.batch(*size), size[0]) for one, size in zip(chosen, sizes, strict=True)]
            )

    async def repeat(self, broker: Broker) -> None:
        """An idempotent producer that sends a batch twice, in one tick with others: its slice is split."""
        for stream in self.streams(broker)[:1]:
            sequence = self.sequences.get(stream, 0)
            self.sequences[stream] = sequence + 1
            one = (stream, broker.batch(1, 30), 1)
            results = await broker.append([one, one, (stream, broker.batch(1, 20), 1)], producer=(stream, sequence))
            assert results[0] == results[1]

    async def wait(self, broker: Broker) -> None:
        await self.let_pass(self.dice.choice((100, 3000, 25_000, GRACE_MS)))

    async def create(self, broker: Broker) -> None:
        self.names += 1
        configs = self.dice.choice(
            [{}, {}, {"retention.ms": "30000"}, {"retention.bytes": "5000"}, {"retention.ms": "60000"}]
        )
        await broker.create(f"t{self.names}", self.dice.randrange(1, 4), configs)

    async def delete(self, broker: Broker) -> None:
        topics = list(broker.replica.state.topics.by_id.values())
        if len(topics) > 2:
            await broker.delete(self.dice.choice(topics))

    async def trim(self, broker: Broker) -> None:
        streams = self.streams(broker)
        if streams:
            stream = broker.stream(self.dice.choice(streams))
            await broker.trim(stream.id, self.dice.randint(stream.start, stream.next))

    async def retain(self, broker: Broker) -> None:
        await broker.retention.apply()

    async def move(self, broker: Broker) -> None:
        await broker.mover.step()

    async def collect(self, broker: Broker) -> None:
        await broker.collector.collect()

    async def crash(self, broker: Broker) -> None:
        """It dies with objects written and not committed, and comes back under a new epoch."""
        epoch, member = broker.replica.epoch, broker.replica.member_id
        for key in (wal_key(CLUSTER, member, epoch, 10**6), merged_key(CLUSTER, member, epoch, 10**6)):
            await self.world.wal.put(key, [b"never committed"])
        await broker.replica.stop()
        index = self.brokers.index(broker)
        self.brokers[index] = await self.world.broker(member, LIMITS)

    async def check(self, broker: Broker) -> None:
        await broker.check(self.dice.choice(READS), self.dice.choice((1, 1000, 1 << 20)))

    async def settle(self) -> None:
        """Give everything its time: then few entries are left, and no object that nobody needs."""
        for passed_ms in (30_000, GRACE_MS, 0):
            await self.let_pass(passed_ms)
            for broker in self.brokers:
                steps = 0
                while await broker.mover.step():
                    steps += 1
                    assert steps < 500
            await self.brokers[0].retention.apply()
            await self.let_pass(GRACE_MS)
            await self.brokers[0].collector.collect()
        for broker in self.brokers:
            await broker.replica.catch_up()
            await broker.check(self.dice.choice(READS))
            for stream in broker.replica.state.streams.by_id.values():
                assert len(stream.bases) <= 40, stream
        await self.brokers[0].check_wal()
        first, second = (broker.replica.state for broker in self.brokers)
        assert dump(first) == dump(second) == dump(load(dump(first)))

    async def let_pass(self, passed_ms: int) -> None:
        self.world.clock.now_ms += passed_ms
        for broker in self.brokers:
            await broker.beat()
        await self.brokers[0].replica.catch_up()


@pytest.mark.parametrize("seed", range(12))
def test_long_stories_end_well(seed: int) -> None:
    dice = Random(seed)
    asyncio.run(Story(seed).run(dice.choices(ACTIONS, k=150)))


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), actions=st.lists(st.sampled_from(ACTIONS), min_size=5, max_size=60))
def test_what_survives_reads_the_same_and_nothing_leaks(seed: int, actions: list[str]) -> None:
    """L20, L22, L23, L24, L25 together."""
    asyncio.run(Story(seed).run(actions))

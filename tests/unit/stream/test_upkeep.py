"""The schedule of housekeeping: everything gets its turn, and no failure ends it."""

import asyncio
from random import Random

import pytest

from lakestream.errors import Retry
from lakestream.interfaces import StoredObject
from lakestream.metadata.membership import Membership, Timing
from lakestream.model.batches.wal_object import merged_prefix, wal_prefix
from lakestream.model.commands import Heartbeat, Register
from lakestream.model.levels import NEWEST
from lakestream.process.clock import SystemClock
from lakestream.stream.housekeeping.long_topics import LongTopics
from lakestream.stream.housekeeping.upkeep import Upkeep, UpkeepSchedule
from tests.support.housekeeping_cluster import CLUSTER, GRACE_MS, START_MS, Broker, World

OFTEN = UpkeepSchedule(collect_s=0.01, retention_s=0.01, move_s=0.01)


async def joined(broker: Broker) -> Membership:
    about = Register(b"", "", "broker", "here", 9092, "", 1, NEWEST)
    membership = Membership(broker.replica, SystemClock(), Random(3), about, Timing())
    membership.settled = lambda: (broker.appender.settled(), broker.mover.settled())
    await membership.join()
    return membership


def upkeep_of(broker: Broker, membership: Membership) -> Upkeep:
    return Upkeep(membership, broker.collector, broker.retention, broker.mover, OFTEN, LongTopics(broker.replica))


async def pass_ms(broker: Broker, passed_ms: int) -> None:
    now = broker.replica.state.members.time_ms + passed_ms
    await broker.replica.propose(Heartbeat(now, 0, 0, broker.appender.settled(), broker.mover.settled()))


async def until_quiet(broker: Broker) -> None:
    before = -1
    while broker.replica.state.sequence != before:
        before = broker.replica.state.sequence
        await asyncio.sleep(0.1)


async def test_merging_retention_and_collecting_go_hand_in_hand() -> None:
    broker = await World().broker()
    membership = await joined(broker)
    kept = (await broker.create("kept")).streams[0]
    aged = (await broker.create("aged", configs={"retention.ms": "1000"})).streams[0]
    for _ in range(100):
        await broker.append([(stream, broker.batch(1, 60), 1) for stream in (kept, aged)])
    await pass_ms(broker, 5000)
    task = asyncio.create_task(upkeep_of(broker, membership).run())
    await until_quiet(broker)
    assert (len(broker.stream(kept).bases), broker.stream(aged).start) == (1, 100)
    await pass_ms(broker, GRACE_MS)
    await until_quiet(broker)
    assert await broker.world.wal.list(wal_prefix(CLUSTER)) == []
    assert len(await broker.world.wal.list(merged_prefix(CLUSTER))) == 1
    await broker.check()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await broker.replica.stop()


async def test_a_failing_store_puts_a_round_off_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    broker = await World().broker()
    membership = await joined(broker)
    topic = await broker.create("t")
    await broker.fill(topic.streams[0], 3)
    await broker.delete(topic)
    await pass_ms(broker, GRACE_MS)
    listing, troubles = broker.world.wal.list, [Retry("the store is away"), ZeroDivisionError("a bug")]

    async def list_with_trouble(prefix: str) -> list[StoredObject]:
        if troubles:
            raise troubles.pop(0)
        return await listing(prefix)

    broker.world.wal.list = list_with_trouble  # type: ignore[assignment, method-assign]
    task = asyncio.create_task(upkeep_of(broker, membership).run())
    await until_quiet(broker)
    assert broker.collector.collected == 3
    assert "Collector.collect failed and runs again in 0.01 s: the store is away" in caplog.text
    assert "a fault in Collector.collect" in caplog.text
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await broker.replica.stop()


async def test_l13_nothing_is_judged_by_a_broker_whose_heartbeats_do_not_fold() -> None:
    broker = await World().broker()
    membership = await joined(broker)
    topic = await broker.create("t")
    await broker.fill(topic.streams[0], 3)
    await broker.delete(topic)
    await pass_ms(broker, GRACE_MS)
    membership._last_heartbeat -= 60
    assert not membership.current and broker.replica.state.members.time_ms > START_MS
    task = asyncio.create_task(upkeep_of(broker, membership).run())
    await asyncio.sleep(0.1)
    assert broker.collector.collected == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await broker.replica.stop()

"""Retention: by age and by size, in whole entries, in cluster time; and forgetting what nobody uses."""

from collections.abc import AsyncIterator

import pytest

from lakestream.model.commands import AllocateProducerId, AlterConfigs
from lakestream.model.groups.offsets import CommitOffsets
from lakestream.stream.housekeeping import retention
from lakestream.stream.housekeeping.retention import Expiry, due
from tests.support.housekeeping_cluster import GRACE_MS, Broker, World


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await World().broker(expiry=Expiry(producers_ms=100_000, offsets_ms=200_000, every_s=60))
    yield broker
    await broker.replica.stop()


async def test_nothing_goes_by_default(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    await broker.fill(one, 5)
    await broker.beat(10_000_000_000)
    assert await broker.retention.apply() == 0
    await broker.check()


async def test_l14_entries_go_by_the_cluster_time_of_their_append(broker: Broker) -> None:
    [one] = (await broker.create("t", configs={"retention.ms": "10000"})).streams
    await broker.fill(one, 3)
    await broker.beat(6000)
    await broker.fill(one, 2)
    await broker.beat(4000)
    assert await broker.retention.apply() == 3
    assert broker.stream(one).start == 6
    broker.world.clock.now_ms += 1_000_000
    assert await broker.retention.apply() == 0, "no heartbeat has told the cluster of this time"
    await broker.beat()
    assert await broker.retention.apply() == 2
    assert broker.stream(one).start == broker.stream(one).next == 10
    await broker.check()


async def test_of_a_large_stream_at_least_the_limit_stays(broker: Broker) -> None:
    [one] = (await broker.create("t", configs={"retention.bytes": "1000"})).streams
    await broker.fill(one, 20)
    size = broker.stream(one).size // 20
    await broker.retention.apply()
    stream = broker.stream(one)
    assert 1000 <= stream.size < 1000 + size
    assert stream.size == len(stream.bases) * size
    await broker.check()
    assert await broker.retention.apply() == 0


async def test_the_cluster_may_set_what_topics_do_not(broker: Broker) -> None:
    plain, own = await broker.create("plain"), await broker.create("own", configs={"retention.ms": "-1"})
    await broker.fill(plain.streams[0], 3)
    await broker.fill(own.streams[0], 3)
    await broker.replica.propose(AlterConfigs(b"", [("log.retention.ms", "1000")]))
    await broker.beat(5000)
    assert await broker.retention.apply() == 3
    assert broker.stream(own.streams[0]).start == 0


async def test_l24_the_log_start_moves_first_and_the_bytes_follow(broker: Broker) -> None:
    [one] = (await broker.create("t", configs={"retention.ms": "0"})).streams
    await broker.fill(one, 4)
    await broker.beat(1000)
    await broker.retention.apply()
    assert await broker.collector.collect() == 0
    await broker.beat(GRACE_MS)
    assert await broker.collector.collect() == 4
    await broker.check_wal()


async def test_one_command_drops_a_bounded_number_of_entries(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ENTRIES_AT_ONCE", 10)
    topic = await broker.create("t", 3, configs={"retention.ms": "1000"})
    for stream in topic.streams:
        await broker.fill(stream, 27)
    await broker.beat(10_000)
    assert all(trim.entries <= 10 for trim in due(broker.replica.state, [topic], broker.rules.of, 1 << 60))
    before = broker.replica.state.sequence
    assert await broker.retention.apply() == 81
    assert broker.replica.state.sequence - before >= 9
    assert broker.replica.state.streams.entries == 0


async def test_only_the_first_broker_works() -> None:
    world = World()
    first, second = await world.broker(1), await world.broker(2)
    [one] = (await first.create("t", configs={"retention.ms": "1000"})).streams
    await first.fill(one, 3)
    world.clock.now_ms += 10_000
    await first.beat()
    await second.beat()
    assert await second.retention.apply() == 0
    assert await first.retention.apply() == 3
    for broker in (first, second):
        await broker.replica.stop()


async def test_l18_idle_producers_are_forgotten_by_whole_ids(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    idle = await broker.replica.propose(AllocateProducerId())
    await broker.append([(one, broker.batch(1, 10), 1)], producer=(idle, 0))
    await broker.beat(90_000)
    busy = await broker.replica.propose(AllocateProducerId())
    before = broker.replica.state.sequence
    await broker.retention.apply()
    assert broker.replica.state.sequence == before, "nothing is due, so nothing is said"
    await broker.beat(59_000)
    await broker.retention.apply()
    assert set(broker.replica.state.producers.by_id) == {idle, busy}, "it was looked at less than a minute ago"
    await broker.beat(2000)
    await broker.retention.apply()
    assert set(broker.replica.state.producers.by_id) == {busy}


async def test_offsets_of_groups_that_are_gone_are_forgotten(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    await broker.replica.propose(CommitOffsets("g", -1, "", None, [(one, 5, 0, "")]))
    await broker.beat(150_000)
    await broker.retention.apply()
    assert "g" in broker.replica.state.groups.by_name
    await broker.beat(61_000)
    await broker.retention.apply()
    assert "g" not in broker.replica.state.groups.by_name

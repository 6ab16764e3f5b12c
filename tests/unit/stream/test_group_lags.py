"""The lags of consumer groups as figures."""

import asyncio

import pytest

from lakestream.metadata.stores.memory import MemoryLogStore
from lakestream.model.commands import DeleteTopic
from lakestream.model.groups.membership import coordinator
from lakestream.model.groups.offsets import CommitOffsets
from lakestream.stream.groups import lags
from lakestream.stream.groups.lags import NAME_MAX, GroupLags
from tests.support.memory_broker import TestBroker, batch, start_broker


async def commit(broker: TestBroker, group: str, *offsets: tuple[int, int]) -> None:
    rows = [(stream, offset, -1, "") for stream, offset in offsets]
    assert await broker.replica.propose(CommitOffsets(group, -1, "", None, rows)) == [0] * len(rows)


async def test_lags_are_summed_by_group_and_topic_and_never_negative() -> None:
    broker = await start_broker()
    one, two = await broker.topic("t", 2)
    [other] = await broker.topic("other")
    [gone] = await broker.topic("gone")
    await broker.append((one, batch(b"1", b"2", b"3")), (two, batch(b"1", b"2")), (other, batch(b"1")))
    await commit(broker, "slow", (one.id, 1), (two.id, 0), (other.id, 1), (gone.id, 0))
    await commit(broker, "ahead", (one.id, 9))
    await broker.replica.propose(DeleteTopic(gone.topic.id))
    lags = GroupLags(broker.replica)
    assert (lags.records, lags.left_out) == ({}, 0)
    assert await lags.measure() == 3
    assert (lags.records, lags.left_out) == ({("slow", "t"): 4, ("slow", "other"): 0, ("ahead", "t"): 0}, 0)
    await commit(broker, "slow", (one.id, 3), (two.id, 1))
    await lags.measure()
    assert lags.records["slow", "t"] == 1
    await broker.stop()


async def test_each_group_is_measured_by_its_coordinator_alone() -> None:
    store = MemoryLogStore()
    brokers = [await start_broker(store, broker_id=broker_id) for broker_id in (0, 1)]
    [stream] = await brokers[0].topic("t")
    names = [f"group-{number}" for number in range(20)]
    for name in names:
        await commit(brokers[0], name, (stream.id, 0))
    found = []
    for broker in brokers:
        await broker.replica.catch_up()
        lags = GroupLags(broker.replica)
        await lags.measure()
        mine = [name for name in names if coordinator(broker.replica.state, name) == broker.replica.member_id]
        assert {group for group, _ in lags.records} == set(mine)
        found += mine
        await broker.stop()
    assert sorted(found) == sorted(names)


async def test_the_largest_are_shown_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "SERIES_MAX", 2)
    broker = await start_broker()
    [stream] = await broker.topic("t")
    await broker.append((stream, batch(*[b"x"] * 9)))
    for offset in (5, 1, 7, 3):
        await commit(broker, f"at {offset}", (stream.id, offset))
    await commit(broker, "g" * (NAME_MAX + 1), (stream.id, 0))
    measured = GroupLags(broker.replica)
    await measured.measure()
    assert (measured.records, measured.left_out) == ({("at 1", "t"): 8, ("at 3", "t"): 6}, 3)
    await broker.stop()


async def test_others_have_their_turn_and_may_change_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "OFFSETS_AT_ONCE", 1)
    broker = await start_broker()
    streams = await broker.topic("t", 50)
    await commit(broker, "g", *((stream.id, 0) for stream in streams))
    await commit(broker, "h", (streams[0].id, 0))
    measuring = asyncio.create_task(GroupLags(broker.replica).measure())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not measuring.done()
    await broker.replica.propose(DeleteTopic(streams[0].topic.id))
    await measuring
    await broker.stop()

"""The front door to streams: a protocol that knows nothing else can append, read, wait and find."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from lakestream.errors import Fenced, Rejected, Retry
from lakestream.metadata.stores.memory import MemoryLogStore
from lakestream.model.append_rows import BatchRow
from lakestream.model.batches.header import HEADER
from lakestream.model.reasons import Reason
from lakestream.model.streams import Stream
from lakestream.stream.reader import FoundRecord
from lakestream.stream.streams import TIME_LOOKUPS, FrontDoor
from tests.support.front_door import front_door
from tests.support.memory_broker import TestBroker, batch, start_broker


@dataclass
class World:
    broker: TestBroker
    streams: FrontDoor
    stream: Stream


@pytest.fixture
async def world() -> AsyncIterator[World]:
    broker = await start_broker()
    parts = {"appender": broker.appender, "reader": broker.reader, "waiting": broker.waiting}
    [stream] = await broker.topic("t")
    yield World(broker, front_door(broker.replica, **parts), stream)
    await broker.stop()


def row(stream: Stream, data: bytes) -> BatchRow:
    head = HEADER.unpack_from(data)
    return stream.id, head[12], len(data), head[8], head[9], head[10], head[11]


async def append(world: World, *batches: bytes) -> list[int]:
    return await world.streams.append([row(world.stream, one) for one in batches], [memoryview(one) for one in batches])


async def test_batches_that_are_appended_are_read_with_their_offsets(world: World) -> None:
    assert await append(world, batch(b"a", b"b"), batch(b"c")) == [0, 2]
    views = await world.streams.read(world.stream, 2, 1 << 20)
    assert [HEADER.unpack_from(view)[0] for view in views] == [2]
    assert (world.stream.start, world.stream.next) == (0, 3)


async def test_a_refused_batch_is_a_negative_reason_beside_the_offsets_of_the_others(world: World) -> None:
    first, gap = batch(b"a", producer=7, epoch=0, sequence=0), batch(b"b", producer=7, epoch=0, sequence=5)
    results = await append(world, first, gap, batch(b"c"))
    assert (results[0], results[2]) == (0, 1)
    assert Reason(-results[1])


async def test_an_append_that_fails_as_a_whole_raises(world: World) -> None:
    world.broker.replica.epoch = 0
    with pytest.raises(Fenced):
        await append(world, batch(b"a"))


async def test_a_stream_is_found_by_the_name_and_by_the_id_of_its_topic(world: World) -> None:
    topic = world.stream.topic
    assert world.streams.stream("t", 0) is world.streams.stream(topic.id, 0) is world.stream
    assert world.streams.stream("t", 1) is None
    assert world.streams.stream("t", -1) is None
    assert world.streams.topic("other") is None


async def test_l6_a_stream_of_another_broker_is_found_and_an_unknown_one_is_refused_when_current() -> None:
    store = MemoryLogStore()
    first, second = await start_broker(store, broker_id=0), await start_broker(store, broker_id=1)
    try:
        await first.topic("late")
        streams = front_door(second.replica, reader=second.reader)
        assert (await streams.current_stream("late", 0)).topic.name == "late"
        with pytest.raises(Rejected) as refused:
            await streams.current_stream("late", 1)
        assert refused.value.reason == Reason.UNKNOWN_TOPIC
    finally:
        await first.stop()
        await second.stop()


async def test_a_waiter_wakes_when_its_stream_moves(world: World) -> None:
    waiting = asyncio.create_task(world.streams.wait([world.stream.id], 20))
    await asyncio.sleep(0)
    await append(world, batch(b"a"))
    assert await waiting
    assert not await world.streams.wait([world.stream.id], 0)


async def test_an_offset_is_found_by_its_time(world: World) -> None:
    await append(world, batch(b"a", b"b", timestamp=1000), batch(b"c", timestamp=500))
    assert await world.streams.find_time(world.stream, 1001) == FoundRecord(1, 1001)
    assert await world.streams.find_time(world.stream, 1002) is None
    assert await world.streams.find_latest(world.stream) == FoundRecord(1, 1001)


async def test_a_time_is_looked_up_again_while_the_log_start_moves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    async def moving(stream: Stream, timestamp: int) -> FoundRecord:
        tries.append(timestamp)
        if len(tries) < TIME_LOOKUPS:
            raise Rejected(Reason.OFFSET_OUT_OF_RANGE)
        return FoundRecord(3, timestamp)

    monkeypatch.setattr(world.broker.reader, "find_timestamp", moving)
    assert await world.streams.find_time(world.stream, 9) == FoundRecord(3, 9)
    tries.clear()
    monkeypatch.setattr("lakestream.stream.streams.TIME_LOOKUPS", 1)
    with pytest.raises(Retry):
        await world.streams.find_time(world.stream, 9)


async def test_the_coordinator_of_a_group_is_a_live_broker(world: World) -> None:
    found = world.streams.coordinator("g")
    assert found is not None and (found.id, found.host) == (0, "127.0.0.1")
    found.alive = False
    assert world.streams.coordinator("g") is None

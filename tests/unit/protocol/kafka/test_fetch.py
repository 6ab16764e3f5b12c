"""Fetch on memory stores: when a long poll is answered, and with what."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from lakestream.model.commands import AdvanceLogStart, DeleteTopic
from lakestream.process.clock import SystemClock
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.fetch import FetchApi
from lakestream.protocol.kafka.fetch_sessions import PARTITIONS_AT_ONCE, PartitionKey, Sessions
from lakestream.protocol.kafka.wire.fast_answers import FetchedPartition
from lakestream.protocol.kafka.wire.fast_requests import ParsedFetch, Topic, Wanted
from lakestream.protocol.serving.answer_budget import AnswerBudget
from tests.support.counted_turns import turns_beside
from tests.support.front_door import front_door
from tests.support.memory_broker import TestBroker, batch, start_broker
from tests.support.toy_kafka_server import eventually

LONG_MS = 20_000
SOON_S = 2.0
MANY = 20_000


@dataclass
class World:
    """One broker that answers Fetch."""

    broker: TestBroker
    api: FetchApi
    unsent: int = 0

    async def fetch(self, *partitions: int, **asked: int) -> dict[PartitionKey, FetchedPartition]:
        """What is read for a request for the beginning of these partitions of the topic "t"."""
        wanted = {("t", one): Wanted(one, 0, 0, -1, -1, 50 << 20) for one in partitions}
        return await self.api._gather(request(**asked), wanted)

    def polling(self, *partitions: int, **asked: int) -> "asyncio.Task[dict[PartitionKey, FetchedPartition]]":
        return asyncio.create_task(self.fetch(*partitions, **asked))


def request(min_bytes: int = 1, max_bytes: int = 50 << 20, max_wait_ms: int = LONG_MS) -> ParsedFetch:
    return ParsedFetch(
        max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[], forgotten=[], rack_id="",
    )  # fmt: skip


@asynccontextmanager
async def world(limit_bytes: int = 1 << 30) -> AsyncIterator[World]:
    broker = await start_broker()
    clock = SystemClock()
    made: World

    def unsent() -> int:
        return made.unsent

    room = AnswerBudget(50 << 20, limit_bytes, unsent)
    sessions = Sessions(Random(1), clock)
    streams = front_door(broker.replica, reader=broker.reader, waiting=broker.waiting)
    made = World(broker, FetchApi(streams, sessions, clock, room))
    try:
        yield made
    finally:
        await broker.stop()


def sizes(results: dict[PartitionKey, FetchedPartition]) -> list[int]:
    return [sum(map(len, fetched.records)) for fetched in results.values()]


async def asleep(polling: "asyncio.Task[Any]") -> bool:
    await asyncio.sleep(0.05)
    return not polling.done()


async def test_a_long_poll_is_answered_when_something_is_appended() -> None:
    async with world() as one:
        [stream] = await one.broker.topic("t")
        polling = one.polling(0)
        assert await asleep(polling)
        await one.broker.append((stream, batch(b"a")))
        assert sizes(await asyncio.wait_for(polling, SOON_S)) == [len(batch(b"a"))]


async def test_long_polls_end_when_the_broker_stops_and_none_begins() -> None:
    async with world() as one:
        await one.broker.topic("t")
        polling = one.polling(0)
        assert await asleep(polling)
        one.broker.waiting.close()
        assert sizes(await asyncio.wait_for(polling, SOON_S)) == [0]
        assert sizes(await asyncio.wait_for(one.fetch(0), SOON_S)) == [0]


async def test_what_fills_the_answer_is_not_held_back_for_min_bytes() -> None:
    async with world() as one:
        [stream] = await one.broker.topic("t")
        await one.broker.append((stream, batch(b"a" * 1000)))
        await one.broker.append((stream, batch(b"a" * 1000)))
        for max_bytes in (900, 1500):
            waiting = one.fetch(0, min_bytes=1 << 20, max_bytes=max_bytes)
            assert sizes(await asyncio.wait_for(waiting, SOON_S)) == [len(batch(b"a" * 1000))]
        polling = one.polling(0, min_bytes=5000, max_bytes=5000)
        assert await asleep(polling)
        polling.cancel()


async def test_an_answer_that_takes_all_the_room_there_is_is_not_held_back_and_without_room_it_waits() -> None:
    async with world(limit_bytes=4000) as one:
        [stream] = await one.broker.topic("t")
        await one.broker.append((stream, batch(b"a" * 1000)))
        waiting = one.fetch(0, min_bytes=2000)
        assert sizes(await asyncio.wait_for(waiting, SOON_S)) == [len(batch(b"a" * 1000))]
        one.unsent = 8000
        polling = one.polling(0, max_wait_ms=200)
        assert await asleep(polling)
        assert sizes(await asyncio.wait_for(polling, SOON_S)) == [0]


async def test_what_was_read_is_not_read_again_for_every_drop_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as one:
        [stream, other] = await one.broker.topic("t", 2)
        each = len(batch(b"a" * 1000))
        await one.broker.append((stream, batch(b"a" * 1000)))
        reads = []
        cached = one.broker.reader.cached
        monkeypatch.setattr(
            one.broker.reader, "cached", lambda stream, *asked: reads.append(stream) or cached(stream, *asked)
        )
        polling = one.polling(0, 1, min_bytes=20 * each)
        assert await asleep(polling)
        for _ in range(9):
            await one.broker.append((stream, batch(b"a" * 1000)))
            await one.broker.append((other, batch(b"a" * 1000)))
            assert reads == [stream]
        await one.broker.append((other, batch(b"a" * 1000)))
        assert sizes(await asyncio.wait_for(polling, SOON_S)) == [10 * each, 10 * each]
        assert reads == [stream, stream, other]


async def test_when_the_time_is_over_what_came_meanwhile_is_in_the_answer() -> None:
    async with world() as one:
        [stream] = await one.broker.topic("t")
        polling = one.polling(0, min_bytes=10_000, max_wait_ms=300)
        assert await asleep(polling)
        await one.broker.append((stream, batch(b"a")))
        assert sizes(await asyncio.wait_for(polling, SOON_S)) == [len(batch(b"a"))]


async def test_a_long_poll_for_much_ends_when_its_topic_goes() -> None:
    async with world() as one:
        [stream] = await one.broker.topic("t")
        polling = one.polling(0, min_bytes=10_000)
        assert await asleep(polling)
        await one.broker.replica.propose(DeleteTopic(stream.topic.id))
        [fetched] = (await asyncio.wait_for(polling, SOON_S)).values()
        assert fetched.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_long_poll_for_much_learns_with_the_next_batch_that_the_log_start_has_passed_it() -> None:
    async with world() as one:
        [stream] = await one.broker.topic("t")
        polling = one.polling(0, min_bytes=10_000)
        assert await asleep(polling)
        await one.broker.append((stream, batch(b"a")))
        await one.broker.replica.propose(AdvanceLogStart([(stream.id, 1)]))
        await one.broker.append((stream, batch(b"a")))
        [fetched] = (await asyncio.wait_for(polling, SOON_S)).values()
        assert fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_other_clients_have_their_turn_beside_a_fetch_of_very_many_partitions() -> None:
    """In a full request, in an incremental one, and while they wait."""
    async with world() as one:
        streams = await one.broker.topic("t", MANY)
        context: Any = SimpleNamespace(version=12, correlation_id=7)
        partitions = [Wanted(partition, 0, 0, -1, -1, 1 << 20) for partition in range(MANY)]
        named: list[tuple[Topic, list[Wanted]]] = [("t", partitions)]
        full = replace(request(max_wait_ms=0), topics=named, session_epoch=0)
        answer, turns = await turns_beside(one.api.fetch(context, full))
        assert turns > 3 * MANY // PARTITIONS_AT_ONCE and sum(map(len, answer)) > 20 * MANY
        [session] = one.api._sessions._by_id
        polling = asyncio.create_task(
            turns_beside(one.api.fetch(context, replace(request(), session_id=session, session_epoch=1)))
        )
        await eventually(lambda: len(one.broker.waiting._waiters) == MANY)
        assert await asleep(polling)
        await one.broker.append((streams[MANY - 1], batch(b"a")))
        answer, turns = await asyncio.wait_for(polling, SOON_S)
        assert turns > 6 * MANY // PARTITIONS_AT_ONCE and batch(b"a")[8:] in b"".join(answer)
        assert not one.broker.waiting._waiters


async def test_a_batch_that_comes_while_very_many_streams_begin_to_be_watched_ends_the_wait() -> None:
    async with world() as one:
        streams = await one.broker.topic("t", MANY)
        polling = one.polling(*range(MANY))
        while not one.broker.waiting._waiters:  # noqa: ASYNC110 - by the turn
            await asyncio.sleep(0)
        await one.broker.append((streams[MANY - 1], batch(b"a")))
        assert sum(sizes(await asyncio.wait_for(polling, SOON_S))) == len(batch(b"a"))

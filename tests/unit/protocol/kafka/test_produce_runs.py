"""Runs of simple Produce requests: what becomes one, and what happens to one when things go wrong."""

import asyncio
import os
import struct
from collections.abc import Sequence

import pytest
from fastcrc import crc32

from lakestream.data.memory import MemoryWal
from lakestream.errors import Retry
from lakestream.interfaces import Buffer
from lakestream.model.append_rows import AppendRow, pack_append
from lakestream.model.batches.wal_object import verify
from lakestream.model.kernels.pointers import address_of
from lakestream.model.kernels.produce_loops import COLUMNS, CORRELATION, crc32c
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.wire.fast_answers import encode_one_produced
from lakestream.protocol.serving.admission import Limits
from lakestream.stream.batch_tables import JoinedTables, ManyBatches, table_of
from lakestream.stream.submissions import Submission
from tests.support.produce_connection import World, batch, produce


def requests(count: int, version: int = 9, topic: str = "plain") -> bytes:
    return b"".join(
        produce(number, bytes(batch(b"%d" % number)), partitions=[number % 3], version=version, topic=topic)
        for number in range(count)
    )


def told(world: World) -> list[tuple[int, int, int]]:
    """Correlation id, error code and base offset of each answer."""
    found = []
    for answer in world.answers():
        at = answer.index(b"plain") + 6
        found.append((*struct.unpack_from(">i", answer, 4), *struct.unpack_from(">hq", answer, at + 4)))
    return found


async def test_requests_that_arrive_together_are_submitted_at_once_and_answered_each_l16() -> None:
    world = await World.make()
    await world.send(requests(100))
    assert world.runs == [99], "the first one is remembered by the general way"
    assert told(world) == [(number, 0, number // 3) for number in range(100)]
    assert world.wire.writes <= 3
    assert world.board.stats.requests[0] == 100
    assert world.broker.appender.stats.acked_records == world.broker.appender.stats.acked_batches == 100
    await world.broker.stop()


@pytest.mark.parametrize("version", [3, 4, 5, 7, 8, 9, 12, 13])
async def test_the_answers_of_a_run_are_those_of_the_encoder(version: int) -> None:
    world = await World.make()
    await world.send(requests(20, version))
    assert world.runs == [19]
    name: str | bytes = b"plain...........".ljust(16, b".") if version >= 13 else "plain"
    expected = [encode_one_produced(version, n, name, n % 3, 0, n // 3, -1, 0) for n in range(20)]
    assert world.answers() == expected
    await world.broker.stop()


async def test_a_few_requests_are_no_run() -> None:
    world = await World.make()
    await world.send(requests(4))
    assert world.runs == []
    assert [one[0] for one in told(world)] == [0, 1, 2, 3]
    await world.broker.stop()


async def test_a_run_takes_no_more_than_may_be_in_flight() -> None:
    world = await World.make(Limits(max_in_flight=10))
    await world.send(requests(50))
    assert max(world.runs) <= 10
    assert [one[:2] for one in told(world)] == [(number, 0) for number in range(50)]
    assert world.connection.in_runs == 0
    await world.broker.stop()


async def test_a_frame_that_is_too_long_is_no_part_of_a_run() -> None:
    world = await World.make(Limits(max_frame_bytes=200))
    await world.send(requests(20) + produce(20, bytes(batch(b"x" * 200))) + requests(20))
    assert world.runs == [19]
    assert world.wire.closed
    assert [end for end, _, _ in await world.streams()][:3] == [7, 7, 6]
    await world.broker.stop()


async def test_topics_with_the_brokers_time_have_no_runs_l19() -> None:
    world = await World.make()
    await world.send(requests(20, topic="stamped"))
    assert world.runs == []
    assert len(world.answers()) == 20
    await world.broker.stop()


class FullWal(MemoryWal):
    """Takes no ticks any more."""

    full = False

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        if self.full:
            raise Retry("the disk is full")
        await super().put(key, parts)


async def test_a_run_whose_tick_fails_gets_an_error_for_each_request_and_the_next_is_served() -> None:
    wal = FullWal()
    world = await World.make(wal=wal)
    await world.send(requests(1))
    wal.full = True
    await world.send(requests(30))
    assert world.runs == [30]
    assert [one[:2] for one in told(world)[1:]] == [(n, ErrorCode.KAFKA_STORAGE_ERROR) for n in range(30)]
    wal.full = False
    await world.send(requests(30))
    assert [one[1] for one in told(world)[31:]] == [0] * 30
    await world.broker.stop()


async def test_a_run_that_waits_behind_a_failed_tick_of_its_stream_fails_too_l16() -> None:
    wal = FullWal()
    world = await World.make(wal=wal)
    await world.send(requests(1))
    wal.full = True
    await world.send(requests(60), [3000, 100, 3000])
    assert {one[1] for one in told(world)[1:]} == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert [one[0] for one in told(world)[1:]] == list(range(60))
    assert world.broker.appender.under_way_bytes == 0
    await world.broker.stop()


async def test_without_an_epoch_a_run_is_refused_at_once() -> None:
    world = await World.make()
    await world.send(requests(1))
    world.broker.replica.epoch = 0
    await world.send(requests(10))
    assert [one[:2] for one in told(world)[1:]] == [(n, ErrorCode.NOT_LEADER_OR_FOLLOWER) for n in range(10)]
    await world.broker.stop()


async def test_a_refused_batch_in_a_run_is_told_its_own_reason_l18() -> None:
    world = await World.make()
    sequences = [0, 1, 2, 2, 9, 3]
    frames = [produce(n, bytes(batch(b"x", producer=7, sequence=s))) for n, s in enumerate(sequences)]
    await world.send(requests(1) + b"".join(frames))
    assert world.runs == [6]
    codes = [one[1] for one in told(world)[1:]]
    assert codes == [0, 0, 0, 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0]
    assert told(world)[4][2] == told(world)[3][2], "a duplicate is told the offset of the original"
    await world.broker.stop()


async def test_a_run_of_a_topic_near_its_share_is_answered_late_and_told_so_l20() -> None:
    world = await World.make()
    await world.send(requests(1))
    streams, topic = world.broker.replica.state.streams, world.broker.replica.state.topics.by_name["plain"]
    streams.limit, streams.entries = 4000, 2100
    topic.entries = 2100
    await world.send(requests(10))
    await asyncio.sleep(0.3)
    answers = world.answers()[1:]
    assert len(answers) == 10
    assert all(struct.unpack_from(">i", one, len(one) - 5)[0] > 0 for one in answers)
    await world.broker.stop()


async def test_a_connection_that_is_lost_takes_nothing_of_its_run_along() -> None:
    world = await World.make()
    await world.send(requests(1))
    data = requests(30)
    room = world.connection.get_buffer(-1)
    room[: len(data)] = data
    world.connection.buffer_updated(len(data))
    world.connection.connection_lost(None)
    world.wire.closed = True
    await world.settle()
    assert [end for end, _, _ in await world.streams()][:3] == [11, 10, 10]
    await world.broker.stop()


def test_the_checksum_is_that_of_fastcrc() -> None:
    for length in range(200):
        data = bytearray(os.urandom(length) + b"end")
        assert crc32c(address_of(data), length) == crc32.iscsi(bytes(data[:length]))


def test_tables_are_joined_as_batches_are_one_by_one() -> None:
    batches = [bytes(batch(b"v" * n, producer=n - 2, sequence=n)) for n in range(12)]
    rows = [(n * 7 % 5 + 1, 1, len(b), n - 6, n - 2, n - 3, 2**31 - 1 - n) for n, b in enumerate(batches)]
    first = Submission(rows[:5], [memoryview(b) for b in batches[:5]], lambda: None, lambda answer: None)
    rest = Submission(rows[5:], [memoryview(b) for b in batches[5:]], lambda: None, lambda answer: None)
    table = table_of(rest)
    assert table.shape == (7, COLUMNS)
    assert not table[:, CORRELATION].any()
    many = ManyBatches(table, rest.size, lambda: None, lambda answer: None)
    joined = JoinedTables([first, many], 7)
    expected: list[AppendRow] = []
    position = 16
    for n in sorted(range(12), key=lambda n: rows[n][0]):
        stream, count, length, timestamp, producer_id, epoch, sequence = rows[n]
        expected.append((stream, count, position, length, timestamp, producer_id, epoch, sequence))
        assert joined.body[position : position + length] == batches[n]
        position += length
    assert joined.payload(3, 99) == pack_append(3, 99, expected)
    assert joined.streams() == {1, 2, 3, 4, 5}
    outcome = [-3 if n == 4 else 1000 + n for n in range(12)]
    assert joined.settle(outcome) == 11
    given = dict(zip(sorted(range(12), key=lambda n: rows[n][0]), outcome, strict=True))
    assert first.results + many.results.tolist() == [given[n] for n in range(12)]
    for row, result in zip(expected, outcome, strict=True):
        (stamped,) = struct.unpack_from(">q", joined.body, row[2])
        assert stamped == max(result, 0)


async def test_what_a_run_leaves_in_the_write_ahead_log_verifies() -> None:
    world = await World.make()
    await world.send(requests(200))
    wal = world.broker.wal
    objects = [one for one in await wal.list("") if "/wal/" in one.key]
    slices = [len(verify((await wal.read(one.key, [(0, one.size)]))[0])) for one in objects]
    assert sum(slices) >= 3
    await world.broker.stop()

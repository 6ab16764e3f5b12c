"""The appender and the reader on memory stores: order, duplicates, refused batches, reading back."""

import asyncio
import threading
import tracemalloc
from typing import Any

import pytest

from lakestream.data.memory import MemoryWal
from lakestream.errors import Fenced, Rejected, Retry
from lakestream.interfaces import Buffer
from lakestream.metadata.stores.memory import MemoryLogStore
from lakestream.model.batches import records as records_module
from lakestream.model.batches.header import Codec
from lakestream.model.batches.records import Record, encode_batch
from lakestream.model.commands import AdvanceLogStart, DeleteTopic
from lakestream.model.producers import AGAIN_MAX, Producer, Producers, ProducerSequence
from lakestream.model.reasons import Reason
from lakestream.model.state import dump, load
from lakestream.stream.limits import AppendLimits, ReadLimits
from lakestream.stream.reader import LOOK_UPS_AT_ONCE, FoundRecord
from lakestream.stream.submissions import AppendAnswer, Submission
from tests.support.memory_broker import batch, start_broker


async def test_records_come_back_with_their_offsets_and_bytes() -> None:
    broker = await start_broker()
    first, second = await broker.topic("t", 2)
    assert await broker.append((first, batch(b"a", b"b")), (second, batch(b"c"))) == [0, 0]
    assert await broker.append((second, batch(b"d")), (first, batch(b"e"))) == [1, 2]
    assert [(r.offset, r.value) for r in await broker.records(first)] == [(0, b"a"), (1, b"b"), (2, b"e")]
    assert [(r.offset, r.value) for r in await broker.records(second)] == [(0, b"c"), (1, b"d")]
    await broker.stop()


async def test_a_callback_that_raises_harms_no_other_request_of_its_tick() -> None:
    broker = await start_broker()
    [stream] = await broker.topic("t")
    told: list[AppendAnswer] = []

    def raises(answer: AppendAnswer) -> None:
        raise ValueError("a fault of the caller")

    for done in (raises, told.append):
        row = (stream.id, 1, len(batch(b"a")), 0, -1, -1, -1)
        broker.appender.submit(Submission([row], [memoryview(batch(b"a"))], lambda: None, done))
    await asyncio.wait_for(broker.appender.drain(), 10)
    assert told == [[1]]
    assert broker.appender.under_way_bytes == 0
    await broker.stop()


async def test_another_broker_reads_from_the_wal_what_one_appended() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    one = await start_broker(store, wal, 0)
    [stream] = await one.topic("t")
    for number in range(20):
        await one.append((stream, batch(b"x%d" % number, b"y")))
    for limits in (ReadLimits(), ReadLimits(whole_object_bytes=0)):
        other = await start_broker(store, wal, 1, read_limits=limits)
        mine = other.replica.state.streams.by_id[stream.id]
        for max_bytes in (1, 100, 1 << 20):
            records = await other.records(mine, 0, max_bytes)
            assert [r.offset for r in records] == list(range(40))
            assert [r.value for r in records[::2]] == [b"x%d" % n for n in range(20)]
        assert (await other.records(mine, 7))[0].offset == 6
        await other.stop()
    await one.stop()


async def test_a_producer_goes_on_where_it_is_in_a_topic_that_was_made_again() -> None:
    """It does not know, and counts on; anywhere else a producer that is known begins with 0 (L18)."""
    broker = await start_broker()
    replica = broker.replica

    def five(sequence: int) -> bytes:
        return batch(b"a", producer=5, epoch=0, sequence=sequence)

    old = await broker.topic("t", 2)
    assert await broker.append((old[0], five(0)), (old[0], five(1))) == [0, 1]
    for again, answer in ((False, -Reason.OUT_OF_ORDER), (True, 0)):
        topic = replica.state.topics.by_name["t"]
        await replica.propose(DeleteTopic(topic.id, again))
        new = await broker.topic("t", 2)
        assert await broker.append((new[0], five(2))) == [answer]
        if not again:
            assert await broker.append((new[0], five(0))) == [0]
    assert await broker.append((new[0], five(2))) == [0], "a retry is one all the same"
    assert await broker.append((new[0], five(3)), (new[0], five(9))) == [1, -Reason.OUT_OF_ORDER]
    assert await broker.append((new[1], five(2))) == [-Reason.OUT_OF_ORDER], "it never wrote there"
    await replica.propose(DeleteTopic(replica.state.topics.by_name["t"].id, again=True))
    [other] = await broker.topic("other")
    assert await broker.append((other, five(4))) == [-Reason.OUT_OF_ORDER], "nor there"
    state = replica.state
    assert state.producers.by_id[5].again == {("t", 0): None}
    assert dump(load(dump(state))) == dump(state)
    assert load(dump(state)).producers.by_id[5].again == {("t", 0): None}
    await broker.stop()


def test_only_so_many_partitions_that_are_gone_are_remembered_of_a_producer() -> None:
    producers = Producers()
    one = producers.by_id[1] = Producer()
    for n in range(AGAIN_MAX + 3):
        one.streams[n] = ProducerSequence(0)
        producers.forget_streams({n: (f"t{n}", 0)})
    assert len(one.again) == AGAIN_MAX and not one.streams
    assert next(iter(one.again)) == ("t3", 0)


async def test_a_retry_is_answered_with_the_first_offset_and_appends_nothing() -> None:
    broker = await start_broker()
    [stream] = await broker.topic("t")
    sent = batch(b"a", b"b", producer=5, epoch=0, sequence=0)
    assert await broker.append((stream, sent)) == [0]
    assert await broker.append((stream, sent)) == [0]
    assert await broker.append((stream, batch(b"c", producer=5, epoch=0, sequence=2))) == [2]
    assert await broker.append((stream, batch(b"d", producer=5, epoch=0, sequence=9))) == [-Reason.OUT_OF_ORDER]
    assert [r.value for r in await broker.records(stream)] == [b"a", b"b", b"c"]
    await broker.stop()


async def test_bytes_of_a_duplicate_in_the_middle_of_a_slice_are_never_served_L20() -> None:
    broker = await start_broker()
    [stream] = await broker.topic("t")
    sent = batch(b"a", producer=5, epoch=0, sequence=0)
    await broker.append((stream, sent))
    results = await broker.append((stream, batch(b"p")), (stream, sent), (stream, batch(b"q")))
    assert results == [1, 0, 2]
    assert [r.value for r in await broker.records(stream)] == [b"a", b"p", b"q"]
    await broker.stop()


async def test_an_offset_outside_the_log_is_refused() -> None:
    broker = await start_broker()
    [stream] = await broker.topic("t")
    await broker.append((stream, batch(b"a")))
    assert await broker.reader.read(stream, 1, 100) == []
    with pytest.raises(Rejected):
        await broker.reader.read(stream, 2, 100)
    await broker.stop()


class FailingWal(MemoryWal):
    """Refuses to write while `broken`."""

    broken = False

    async def put(self, key: str, parts: "list[Buffer]") -> None:  # type: ignore[override]
        if self.broken:
            raise Retry("no space left")
        await super().put(key, parts)


async def test_a_tick_that_cannot_be_written_fails_its_batches_and_nothing_is_appended() -> None:
    wal = FailingWal()
    broker = await start_broker(wal=wal)
    [stream] = await broker.topic("t")
    wal.broken = True
    answer = await broker.append((stream, batch(b"a")))
    assert isinstance(answer, Retry)
    wal.broken = False
    assert await broker.append((stream, batch(b"b"))) == [0]
    await broker.appender.drain()
    assert [r.value for r in await broker.records(stream)] == [b"b"]
    await broker.stop()


async def test_when_the_epoch_is_gone_all_that_was_gathered_is_told_so_also_what_is_more_than_a_tick() -> None:
    broker = await start_broker(append_limits=AppendLimits(tick_bytes=100))
    [stream] = await broker.topic("t")
    appending = [asyncio.create_task(broker.append((stream, batch(b"a")))) for _ in range(3)]
    await asyncio.sleep(0)
    broker.replica.epoch = 0
    answers = await asyncio.wait_for(asyncio.gather(*appending), 2)
    assert [type(answer) for answer in answers] == [Fenced] * 3
    await asyncio.wait_for(broker.appender.drain(), 2)
    await broker.stop()


async def test_records_are_found_by_their_time() -> None:
    broker = await start_broker()
    [stream] = await broker.topic("t")
    for number in range(5):
        await broker.append((stream, batch(b"a", b"b", timestamp=number * 100)))
    found = await broker.reader.find_timestamp(stream, 201)
    assert found is not None and (found.offset, found.timestamp) == (5, 201)
    assert await broker.reader.find_timestamp(stream, 10_000) is None
    greatest = await broker.reader.find_max_timestamp(stream)
    assert greatest is not None and (greatest.offset, greatest.timestamp) == (9, 401)
    await broker.stop()


async def test_times_are_found_behind_a_log_start_in_the_middle_of_a_batch() -> None:
    broker = await start_broker()
    [stream] = await broker.topic("t")
    records = [Record(offset=i, timestamp=t, key=None, value=b"v") for i, t in enumerate((300, 100, 200))]
    await broker.append((stream, encode_batch(records)))
    await broker.replica.propose(AdvanceLogStart([(stream.id, 1)]))
    first = await broker.reader.find_timestamp(stream, 150)
    greatest = await broker.reader.find_max_timestamp(stream)
    assert (first, greatest) == (FoundRecord(2, 200), FoundRecord(2, 200))
    await broker.stop()


async def test_a_large_batch_that_the_log_start_cut_is_searched_without_an_object_for_each_record() -> None:
    broker = await start_broker()
    [stream] = await broker.topic("t")
    await broker.append((stream, encode_batch([Record(offset=i, timestamp=i % 7) for i in range(20_000)])))
    await broker.replica.propose(AdvanceLogStart([(stream.id, 1)]))
    tracemalloc.start()
    try:
        assert await broker.reader.find_timestamp(stream, 0) == FoundRecord(1, 1)
        assert await broker.reader.find_max_timestamp(stream) == FoundRecord(6, 6)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()
    await broker.stop()


@pytest.mark.parametrize(
    ("codec", "size", "apart"),
    [(Codec.ZSTD, 8 << 20, True), (Codec.GZIP, 10, True), (Codec.NONE, 2 << 20, True), (Codec.NONE, 10, False)],
)
async def test_times_are_looked_up_in_a_thread_where_that_may_take_long(
    codec: Codec, size: int, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start_broker()
    [stream] = await broker.topic("t")
    await broker.append((stream, encode_batch([Record(timestamp=7, value=bytes(size))], codec=codec)))
    threads = []
    for find in (records_module.find_timestamp, records_module.find_max_timestamp):

        def noted(*args: Any, find: Any = find) -> Any:
            threads.append(threading.current_thread())
            return find(*args)

        monkeypatch.setattr(records_module, find.__name__, noted)
    assert await broker.reader.find_timestamp(stream, 5) == FoundRecord(0, 7)
    assert await broker.reader.find_max_timestamp(stream) == FoundRecord(0, 7)
    assert [thread is not threading.main_thread() for thread in threads] == [apart] * 2
    await broker.stop()


async def test_others_have_their_turn_between_look_ups_of_times() -> None:
    broker = await start_broker()
    streams = await broker.topic("t", 20)
    await broker.append(*((stream, batch(b"a", timestamp=5)) for stream in streams))
    looking = asyncio.gather(*(broker.reader.find_timestamp(stream, 5) for stream in streams))
    turns = 0
    while not looking.done():
        turns += 1
        await asyncio.sleep(0)
    assert set(await looking) == {FoundRecord(0, 5)}
    assert turns >= len(streams) / LOOK_UPS_AT_ONCE
    await broker.stop()

"""The mover: many entries become one, mostly dead objects let go of their bytes, and every offset reads as before."""

from collections.abc import AsyncIterator
from itertools import pairwise
from random import Random

import pytest

from lakestream.errors import Retry
from lakestream.interfaces import Buffer
from lakestream.model.batches.wal_object import merged_prefix, parse_footer, parse_merged_index, verify, wal_prefix
from lakestream.stream.housekeeping.merging import MoveLimits, worthwhile
from lakestream.stream.limits import ReadLimits
from tests.support.housekeeping_cluster import CLUSTER, GRACE_MS, SMALL, Broker, World, split

PIECEMEAL = ReadLimits(whole_object_bytes=0, chunk_bytes=300_000)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await World().broker()
    yield broker
    await broker.replica.stop()


async def move_all(broker: Broker) -> int:
    steps = 0
    while await broker.mover.step():
        steps += 1
        assert steps < 200, "the mover does not come to rest"
    return steps


async def test_l20_many_entries_become_few_and_read_the_same(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    await broker.fill(one, 200)
    await broker.beat(5000)
    assert len(broker.stream(one).bases) == 200
    await move_all(broker)
    assert len(broker.stream(one).bases) < 16
    await broker.check()
    await broker.check(PIECEMEAL, max_bytes=500)


async def test_the_newest_entries_are_left_alone(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    await broker.fill(one, 50)
    await broker.beat(5000)
    await broker.fill(one, 20)
    assert await move_all(broker) == 1
    assert len(broker.stream(one).bases) == 21


async def test_few_entries_are_not_worth_a_merge(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    await broker.fill(one, SMALL.many_entries)
    await broker.beat(5000)
    assert await move_all(broker) == 0


async def test_a_merged_object_holds_streams_in_order_with_marks_for_their_offsets(broker: Broker) -> None:
    topic = await broker.create("t", 3)
    for _ in range(40):
        await broker.append([(stream, broker.batch(3, 9000), 3) for stream in reversed(topic.streams)])
    await broker.beat(5000)
    await move_all(broker)
    [stored] = await broker.world.wal.list(merged_prefix(CLUSTER))
    [whole] = await broker.world.wal.read(stored.key, [(0, stored.size)])
    assert [row.stream for row in verify(whole)] == sorted(topic.streams)
    footer = parse_footer(whole)
    index = whole[footer.index_position : footer.index_position + footer.index_length]
    for row in parse_merged_index(footer, index):
        assert (row.batches, row.base_offset) == (40, 0)
        assert len(row.marks) == 4, "27 kB a batch, a mark about every 256 kB"
        for mark in row.marks:
            assert int.from_bytes(whole[mark.position : mark.position + 8], "big") == mark.offset


@pytest.mark.parametrize("max_bytes", [1, 30_000, 100_000, 10_000_000])
@pytest.mark.parametrize("limits", [PIECEMEAL, ReadLimits()], ids=["piecemeal", "whole"])
async def test_every_offset_of_a_merged_object_can_be_the_first(
    broker: Broker, limits: ReadLimits, max_bytes: int
) -> None:
    topic = await broker.create("t", 2)
    one, two = topic.streams
    for _ in range(40):
        await broker.append([(one, broker.batch(3, 9000), 3), (two, broker.batch(2, 50), 2)])
    await broker.beat(5000)
    await move_all(broker)
    reader = broker.reader(limits)
    for stream in (broker.stream(one), broker.stream(two)):
        assert len(stream.bases) == 1
        known = dict(broker.world.written[stream.id])
        for offset in range(stream.next):
            views = await reader.read(stream, offset, max_bytes)
            batches = split(b"".join(views))
            first = max(base for base in known if base <= offset)
            bases = [int.from_bytes(batch[:8], "big") for batch in batches]
            assert bases == [base for base in known if base >= first][: len(bases)] and bases
            assert all(known[base] == batch for base, batch in zip(bases, batches, strict=True))
            assert sum(map(len, views)) <= max_bytes or len(batches) == 1
            assert reader.cached(stream, offset, max_bytes) in (None, views)


async def test_a_reader_that_takes_little_at_a_time_loads_each_piece_once(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    await broker.fill(one, 60, size=20_000, records=1)
    await broker.beat(5000)
    await move_all(broker)
    reader, stream = broker.reader(PIECEMEAL), broker.stream(one)
    for offset in range(stream.next):
        await reader.read(stream, offset, 1)
    pieces = 1 + 60 * 20_000 // 256_000
    assert reader._cache.misses <= pieces + 1


@pytest.mark.parametrize("limits", [PIECEMEAL, ReadLimits()], ids=["piecemeal", "whole"])
async def test_timestamps_are_found_in_merged_objects(broker: Broker, limits: ReadLimits) -> None:
    [one] = (await broker.create("t")).streams
    await broker.fill(one, 60, size=9000, records=3, step_ms=100)
    await broker.beat(5000)
    stream = broker.stream(one)
    wanted = [broker.world.clock.now_ms - 5000 - 100 * back + extra for back in range(62) for extra in (0, 1, 2, 3)]
    before = [await broker.reader(limits).find_timestamp(stream, timestamp) for timestamp in wanted]
    greatest = await broker.reader(limits).find_max_timestamp(stream)
    await move_all(broker)
    assert len(stream.bases) == 1
    reader = broker.reader(limits)
    assert [await reader.find_timestamp(stream, timestamp) for timestamp in wanted] == before
    assert await reader.find_max_timestamp(stream) == greatest
    assert greatest is not None and greatest.offset == stream.next - 1


async def test_bytes_are_rewritten_a_logarithmic_number_of_times(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    for _ in range(60):
        await broker.fill(one, 20)
        await broker.beat(2000)
        await move_all(broker)
        assert len(broker.stream(one).bases) < 64
    assert broker.mover.merged_bytes < 6 * broker.stream(one).size
    await broker.check()


def test_a_window_grows_by_the_factor_asked_for_or_is_not_taken() -> None:
    random = Random(5)
    for _ in range(500):
        lengths = [int(10 ** random.uniform(1, 6)) for _ in range(random.randrange(40))]
        found = worthwhile(lengths, 8, 4)
        good = [
            (start, stop)
            for start in range(len(lengths))
            for stop in range(start + 8, len(lengths) + 1)
            if max(lengths[start:stop]) * 4 <= sum(lengths[start:stop])
        ]
        assert (found in good) if good else (found is None)


async def test_the_live_slices_of_a_mostly_dead_object_are_moved_out_of_it(broker: Broker) -> None:
    fast, slow = (await broker.create("fast")), (await broker.create("slow"))
    for _ in range(5):
        await broker.append([(fast.streams[0], broker.batch(1, 5000), 1), (slow.streams[0], broker.batch(1, 80), 1)])
    await broker.delete(fast)
    await broker.beat(30_000)
    assert await move_all(broker) == 0, "they are not old enough"
    await broker.beat(60_000)
    assert await move_all(broker) == 1
    assert len(broker.stream(slow.streams[0]).bases) == 1
    await broker.check()
    await broker.beat(GRACE_MS)
    assert await broker.collector.collect() == 5
    assert await broker.world.wal.list(wal_prefix(CLUSTER)) == []
    await broker.check()
    await broker.check_wal()


async def test_small_objects_that_are_all_alive_are_never_taken_for_dead(broker: Broker) -> None:
    topic = await broker.create("t", 50)
    for _ in range(3):
        await broker.append([(stream, broker.batch(1, 1), 1) for stream in topic.streams])
    await broker.beat(3_600_000)
    assert await move_all(broker) == 0


async def test_duplicates_between_the_slices_are_left_behind(broker: Broker) -> None:
    """A batch that is refused or repeated splits its slice into entries; the merge closes the gap (L20)."""
    [one] = (await broker.create("t")).streams
    first, second = broker.batch(1, 60), broker.batch(1, 60)
    await broker.append([(one, first, 1)], producer=(4, 0))
    for sequence in range(1, 20):
        await broker.append([(one, second, 1)], producer=(4, sequence))
        repeated = await broker.append([(one, second, 1)], producer=(4, sequence))
        assert repeated == [sequence]
    await broker.beat(5000)
    assert await move_all(broker) == 1
    assert broker.stream(one).size == 20 * len(first)
    await broker.check()


async def test_a_merge_whose_premise_went_changes_nothing(broker: Broker) -> None:
    topic = await broker.create("t", 2)
    kept, trimmed = topic.streams
    for _ in range(40):
        await broker.append([(stream, broker.batch(1, 60), 1) for stream in topic.streams])
    await broker.beat(5000)
    put = broker.world.wal.put

    async def put_late(key: str, parts: list[Buffer]) -> None:
        await put(key, parts)
        await broker.trim(trimmed, 5)

    broker.world.wal.put = put_late  # type: ignore[assignment, method-assign]
    await broker.mover.step()
    assert (len(broker.stream(kept).bases), len(broker.stream(trimmed).bases)) == (1, 35)
    await broker.check()


async def test_l22_a_merge_that_cannot_be_written_is_given_up_and_tried_again(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    await broker.fill(one, 40)
    await broker.beat(5000)
    put = broker.world.wal.put

    async def fail(key: str, parts: list[Buffer]) -> None:
        await put(key, parts)
        raise Retry("no answer")

    broker.world.wal.put = fail  # type: ignore[assignment, method-assign]
    assert await broker.mover.step() == 0
    assert (broker.mover.settled(), len(broker.stream(one).bases)) == (1, 40)
    broker.world.wal.put = put  # type: ignore[method-assign]
    await broker.beat()
    assert await broker.collector.collect() == 1, "what was stored after all is an orphan"
    assert await broker.mover.step() > 0
    assert broker.mover.settled() == 2
    await broker.check()


async def test_a_lost_object_stops_only_its_own_merges(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    [one] = (await broker.create("t")).streams
    await broker.fill(one, 60)
    await broker.beat(5000)
    broker.cache.forget(broker.replica.state.streams.objects)
    victim = (await broker.world.wal.list(wal_prefix(CLUSTER)))[30]
    await broker.world.wal.delete([victim.key])
    for _ in range(4):
        await broker.mover.step()
    assert "is left out of merges" in caplog.text
    assert len(broker.stream(one).bases) == 3


async def test_what_is_in_memory_is_not_read_again(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    await broker.fill(one, 40)
    await broker.beat(5000)
    listed = await broker.world.wal.list(wal_prefix(CLUSTER))
    await broker.world.wal.delete([one.key for one in listed])
    assert await broker.mover.step() > 0
    assert len(broker.stream(one).bases) == 1
    broker.cache.forget(broker.replica.state.streams.objects)
    await broker.check()


async def test_a_spoilt_batch_is_never_copied(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    await broker.fill(one, 40)
    await broker.beat(5000)
    broker.cache.forget(broker.replica.state.streams.objects)
    victim = (await broker.world.wal.list(wal_prefix(CLUSTER)))[0]
    [whole] = await broker.world.wal.read(victim.key, [(0, victim.size)])
    whole[100] ^= 1
    await broker.world.wal.delete([victim.key])
    await broker.world.wal.put(victim.key, [whole])
    for _ in range(3):
        await broker.mover.step()
    assert len(broker.stream(one).bases) == 2


async def test_one_broker_moves_a_topic() -> None:
    world = World()
    brokers = [await world.broker(member) for member in (1, 2, 3)]
    topics = [await brokers[0].create(f"t{index}") for index in range(30)]
    for broker in brokers:
        await broker.replica.catch_up()
    own = [{topic.name for topic in broker.mover._own_topics()} for broker in brokers]
    assert sum(map(len, own)) == len(set.union(*own)) == len(topics)
    assert all(own)
    for broker in brokers:
        await broker.replica.stop()


async def test_retention_limits_how_much_one_entry_spans() -> None:
    """Whole entries go: what may be kept for an hour must not end up in one entry with what was written a day later."""
    broker = await World().broker(limits=MoveLimits(quiet_ms=0, many_entries=16))
    old = (await broker.create("aged", configs={"retention.ms": "80000"})).streams[0]
    small = (await broker.create("small", configs={"retention.bytes": "16000"})).streams[0]
    for _ in range(100):
        await broker.append([(stream, broker.batch(1, 100), 1) for stream in (old, small)])
        await broker.beat(1000)
    await move_all(broker)
    objects = broker.replica.state.streams.objects
    times = [objects[entry.object].time_ms for entry in broker.stream(old).entries(0)]
    assert len(times) >= 9 and all(later - earlier <= 20_000 for earlier, later in pairwise(times))
    assert all(entry.length <= 2000 for entry in broker.stream(small).entries(0))
    await broker.check()
    await broker.replica.stop()


async def test_a_full_state_is_merged_even_where_it_pays_less() -> None:
    """Above half of the bound, L20 comes before the cost of rewriting."""
    broker = await World().broker(limits=MoveLimits(quiet_ms=0))
    topic = await broker.create("t", 20)
    for _ in range(10):
        await broker.append([(stream, broker.batch(1, 60), 1) for stream in topic.streams])
    await broker.beat(100)
    assert not broker.mover.state_is_filling and await broker.mover.step() == 0
    broker.replica.state.streams.limit = 300
    assert broker.mover.state_is_filling
    await move_all(broker)
    assert broker.replica.state.streams.entries == 20
    await broker.check()
    await broker.replica.stop()


async def test_while_the_state_is_small_so_are_merges() -> None:
    """A large write holds up acknowledgements that wait for the same disk."""
    limits = MoveLimits(quiet_ms=0, many_entries=16, merge_bytes=1 << 20, small_bytes=10_000, small_entries=50)
    broker = await World().broker(limits=limits)
    [one] = (await broker.create("t")).streams
    await broker.fill(one, 45)
    assert 0 < await broker.mover.step() <= 10_100
    await broker.fill(one, 60)
    assert await broker.mover.step() > 15_000
    await broker.check()
    await broker.replica.stop()

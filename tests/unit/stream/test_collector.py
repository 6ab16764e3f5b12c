"""The collector: what is dead, orphaned or outdated goes, and nothing else ever does."""

import itertools
from collections.abc import AsyncIterator

import pytest

from lakestream.interfaces import CheckpointNote
from lakestream.model.batches.wal_object import checkpoint_key, checkpoint_prefix, merged_key, wal_key, wal_prefix
from lakestream.stream.housekeeping import collector
from lakestream.stream.housekeeping.collector import judge, read_names
from lakestream.stream.long_work import at_once
from tests.support.housekeeping_cluster import CLUSTER, GRACE_MS, Broker, World
from tests.support.memory_broker import checkpoint_now


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await World().broker()
    yield broker
    await broker.replica.stop()


async def keys(broker: Broker) -> list[str]:
    return [one.key for one in await broker.world.wal.list("")]


async def test_l23_an_object_outlives_its_last_entry_by_the_grace(broker: Broker) -> None:
    topic = await broker.create("t")
    await broker.fill(topic.streams[0], 3)
    await broker.delete(topic)
    await broker.beat(GRACE_MS - 1)
    assert await broker.collector.collect() == 0
    assert len(await keys(broker)) == 3
    await broker.beat(1)
    assert await broker.collector.collect() == 3
    assert await keys(broker) == []
    assert broker.replica.state.streams.dead == {}
    assert broker.collector.collected == 3


async def test_what_is_cached_of_dead_objects_goes_at_once_and_is_told_when_that_was_all(broker: Broker) -> None:
    topic, kept = await broker.create("t"), await broker.create("kept")
    await broker.fill(topic.streams[0], 3)
    [alive] = kept.streams
    await broker.fill(alive, 1)
    told: list[int] = []

    async def emptied() -> None:
        told.append(1)

    broker.collector.on_cache_empty = emptied
    numbers = list(broker.replica.state.streams.objects)
    for number in numbers:
        broker.cache.add(number, bytearray(100))
    assert await broker.collector.drop_dead_from_cache() == 0
    await broker.delete(topic)
    assert await broker.collector.drop_dead_from_cache() == 300 and told == []
    await broker.delete(kept)
    assert await broker.collector.drop_dead_from_cache() == 100 and told == [1]
    assert broker.cache.size_bytes == 0 and await broker.collector.drop_dead_from_cache() == 0
    assert len(await keys(broker)) == 4, "the objects themselves have their grace"


async def test_l24_a_log_start_frees_the_objects_below_it(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    await broker.fill(one, 6, records=2)
    await broker.trim(one, 7)
    await broker.beat(GRACE_MS)
    assert await broker.collector.collect() == 3, "the entry that holds offset 7 stays"
    await broker.check()
    await broker.check_wal()


async def test_an_object_without_any_accepted_batch_goes(broker: Broker) -> None:
    assert (await broker.append([(77, broker.batch(1, 10), 1)]))[0] < 0
    await broker.beat(GRACE_MS)
    assert await broker.collector.collect() == 1
    assert await keys(broker) == []


async def test_l22_an_uncommitted_tick_of_a_live_epoch_is_never_deleted(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    await broker.fill(one, 2)
    epoch = broker.replica.epoch
    under_way = [wal_key(CLUSTER, 1, epoch, 3), merged_key(CLUSTER, 1, epoch, 1)]
    for key in under_way:
        await broker.world.wal.put(key, [b"being written"])
    await broker.beat(10 * GRACE_MS)
    assert await broker.collector.collect() == 0
    await broker.fill(one, 0)
    await broker.check()
    assert set(under_way) <= set(await keys(broker))


async def test_l22_a_tick_that_was_given_up_goes_once_its_number_is_settled(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    epoch = broker.replica.epoch
    await broker.fill(one, 2)
    left = [wal_key(CLUSTER, 1, epoch, 1), wal_key(CLUSTER, 1, epoch, 2)]
    assert await keys(broker) == left
    broker.appender._next_tick = 4
    orphan = wal_key(CLUSTER, 1, epoch, 3)
    await broker.world.wal.put(orphan, [b"it took too long"])
    assert await broker.collector.collect() == 0
    await broker.fill(one, 1)
    assert await broker.collector.collect() == 1
    assert orphan not in await keys(broker)
    await broker.check()


async def test_orphans_of_a_dead_epoch_go_at_once_and_its_records_stay(broker: Broker) -> None:
    [one] = (await broker.create("t")).streams
    await broker.fill(one, 2)
    old = broker.replica.epoch
    orphans = [wal_key(CLUSTER, 1, old, 900), merged_key(CLUSTER, 1, old, 900)]
    for key in orphans:
        await broker.world.wal.put(key, [b"never committed"])
    assert await broker.collector.collect() == 0
    await broker.register()
    assert broker.replica.epoch > old
    assert await broker.collector.collect() == 2
    await broker.check()
    await broker.check_wal()


async def test_a_member_that_left_leaves_no_orphans() -> None:
    world = World()
    first, second = await world.broker(1), await world.broker(2)
    orphan = wal_key(CLUSTER, 2, second.replica.epoch, 1)
    await world.wal.put(orphan, [b"never committed"])
    assert await first.collector.collect() == 0
    await second.leave()
    assert await first.collector.collect() == 1
    await first.replica.stop()


async def test_names_that_are_not_ours_are_never_touched(broker: Broker) -> None:
    await broker.create("t")
    strangers = [
        f"{CLUSTER}/wal/readme.txt",
        f"{CLUSTER}/wal/1/{0:020d}/{1:020d}.tmp",
        f"{CLUSTER}/wal/01/{0:020d}/{1:020d}",
        f"{CLUSTER}/tables/orders/metadata.json",
        f"{CLUSTER}/checkpoints/notes",
        wal_key("other-cluster", 1, 0, 1),
        checkpoint_key("other-cluster", 0, 1, 0),
        wal_key(CLUSTER, 1, 10_000, 1),
    ]
    for key in strangers:
        await broker.world.wal.put(key, [b"precious"])
    await broker.beat(10 * GRACE_MS)
    assert await broker.collector.collect() == 0
    assert sorted(strangers) == await keys(broker)
    state = broker.replica.state
    listing = at_once(read_names(strangers, CLUSTER))
    assert at_once(judge(listing, state, [CheckpointNote(1 << 40, "elsewhere")], 0)).orphans == []


async def test_the_two_noted_checkpoints_stay_and_older_ones_go(broker: Broker) -> None:
    replica = broker.replica
    for _ in range(4):
        await broker.beat(10)
        await checkpoint_now(replica, broker.log, broker.world.wal)
    newer = checkpoint_key(CLUSTER, replica.state.sequence + 1, 1, replica.epoch)
    await broker.world.wal.put(newer, [b"about to be noted"])
    assert await broker.collector.collect() == 2
    noted = [note.key for note in await broker.log.checkpoints()]
    listed = [one.key for one in await broker.world.wal.list(checkpoint_prefix(CLUSTER))]
    assert listed == sorted([*noted, newer])


async def test_l22_what_is_committed_and_settled_between_two_steps_of_the_judge_is_no_orphan(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two steps."""
    monkeypatch.setattr(collector, "OBJECTS_PER_STEP", 1)
    topic = await broker.create("t")
    await broker.fill(topic.streams[0], 4)
    state = broker.replica.state
    member, objects = state.members.by_id[1], state.streams.objects
    listing = at_once(read_names(await keys(broker), CLUSTER))
    last, tick = max(objects), member.tick
    assert objects[last].tick == tick
    for turns in itertools.count():
        late, member.tick = objects.pop(last), tick - 1
        judging = judge(listing, state, [], GRACE_MS)
        ended = sum(1 for _ in itertools.islice(judging, turns)) < turns
        objects[last], member.tick = late, tick
        if ended:
            break
        assert at_once(judging).orphans == [], turns
    assert turns > 6


async def test_one_broker_collects_and_two_do_no_harm() -> None:
    world = World()
    first, second = await world.broker(1), await world.broker(2)
    topic = await first.create("t", 2)
    await first.fill(topic.streams[0], 5)
    await second.replica.catch_up()
    await second.fill(topic.streams[1], 5)
    await first.trim(topic.streams[0], 6)
    world.clock.now_ms += GRACE_MS
    await first.beat()
    await second.beat()
    await second.replica.catch_up()
    assert await second.collector.collect() == 0, "the live broker with the lowest id collects"
    second.replica.state.members.by_id[1].alive = False
    listed = await world.wal.list(wal_prefix(CLUSTER))
    listing = at_once(read_names([one.key for one in listed], CLUSTER))
    verdict = at_once(judge(listing, second.replica.state, [], GRACE_MS))
    second.replica.state.members.by_id[1].alive = True
    assert (len(verdict.dead), verdict.orphans) == (3, [])
    assert await first.collector.collect() == 3
    await world.wal.delete([key for _, key in verdict.dead])
    await first.check()
    await first.check_wal()
    for broker in (first, second):
        await broker.replica.stop()


async def test_an_interrupted_collection_is_finished_by_the_next(broker: Broker) -> None:
    """The bytes go before the names: whoever comes after deletes what is gone already, and forgets the names."""
    topic = await broker.create("t")
    await broker.fill(topic.streams[0], 3)
    await broker.delete(topic)
    await broker.beat(GRACE_MS)
    await broker.world.wal.delete(await keys(broker))
    assert await broker.collector.collect() == 3
    assert broker.replica.state.streams.dead == {}

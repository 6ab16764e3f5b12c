"""Topics too large for one command: made whole or not at all, gone at once, and finished by any broker."""

import asyncio

import pytest

from lakestream.data.memory import MemoryWal
from lakestream.errors import Fenced, Unknown
from lakestream.metadata.stores.memory import MemoryLogStore
from lakestream.model.commands import AlterConfigs, CreatePartitions, CreateTopic, DeleteTopic, Expire
from lakestream.model.groups.offsets import CommitOffsets
from lakestream.model.levels import BOUNDED
from lakestream.model.pieces import BeginTopic, Dismantle, ExtendTopic
from lakestream.model.reasons import No, Reason
from lakestream.model.state import dump, load
from lakestream.stream.housekeeping.long_topics import LongTopics, create_topic, grow_topic
from tests.support.bounded_state import BoundedState
from tests.support.memory_broker import TestBroker, batch, start_broker

TOPIC = b"t" * 16


def begin(partitions: int, name: str = "t", topic_id: bytes = TOPIC) -> BeginTopic:
    return BeginTopic(name, topic_id, partitions, 1, {})


def test_a_long_topic_is_seen_when_its_last_partition_is_made_and_not_before() -> None:
    cluster = BoundedState(command_partitions=2)
    assert cluster.say(begin(5)) == 5
    assert [cluster.say(ExtendTopic(TOPIC)) for _ in range(2)] == [2, 4]
    assert not cluster.state.topics.by_name and not cluster.state.streams.by_id
    assert cluster.say(ExtendTopic(TOPIC)) == 5
    assert len(cluster.streams("t")) == len(cluster.state.streams.by_id) == 5
    assert cluster.append(*((stream, -1, -1) for stream in cluster.streams("t"))) == [0] * 5
    refused = cluster.say(ExtendTopic(TOPIC))
    assert isinstance(refused, No) and refused.reason == Reason.UNKNOWN_TOPIC


def test_a_topic_that_is_being_made_holds_its_name_and_its_room() -> None:
    cluster = BoundedState(max_partitions=6, max_topics=2)
    cluster.say(begin(5))
    assert [cluster.topic(name).reason for name in ("t", "T")] == [Reason.TOPIC_EXISTS, Reason.INVALID_TOPIC_NAME]
    assert cluster.topic("other", 2).reason == Reason.TOO_MANY_PARTITIONS
    assert cluster.topic("other", 1) == 1
    assert cluster.topic("third", 1).reason == Reason.TOO_MANY_TOPICS


def deleted_long_topic() -> BoundedState:
    """A topic of three partitions with entries, whose deletion is not finished; producer 4 wrote to all of them."""
    cluster = BoundedState(command_partitions=1)
    cluster.topic("t", 3)
    streams = cluster.streams("t")
    for number in range(9):
        cluster.append(*((stream, 4, number) for stream in streams))
    cluster.say(CommitOffsets("g", -1, "", None, [(stream, 5, 0, "note") for stream in streams]))
    assert cluster.say(DeleteTopic(b"t".ljust(16, b"."), again=True)) == 3
    return cluster


def test_a_deleted_long_topic_is_gone_at_once_and_its_name_is_free() -> None:
    cluster = deleted_long_topic()
    assert not cluster.state.topics.by_id and not cluster.state.streams.by_id
    assert cluster.append((1, -1, -1)) == [-Reason.UNKNOWN_STREAM]
    assert cluster.say(CreateTopic("t", b"n" * 16, 3, 1, {})) == 3


def test_what_a_deleted_topic_leaves_goes_piece_by_piece() -> None:
    cluster = deleted_long_topic()
    state, topic = cluster.state, b"t".ljust(16, b".")
    assert state.streams.entries == 27 and state.groups.offsets == 3
    entries = []
    while cluster.say(Dismantle(topic, [4, 99], ["g", "nobody"], last=True)):
        entries.append(state.streams.entries)
    assert len(entries) >= 4 and entries == sorted(entries, reverse=True)
    assert not state.topics.doomed and not state.streams.entries and not state.streams.objects
    assert (state.groups.offsets, state.groups.note_bytes, state.producers.sequences) == (0, 0, 0)
    assert cluster.say(Dismantle(topic, [], [])).reason == Reason.UNKNOWN_TOPIC


@pytest.mark.parametrize("pieces", [0, 1, 5])
def test_an_idempotent_producer_goes_on_in_the_topic_made_again_while_the_old_one_is_dismantled(pieces: int) -> None:
    cluster = deleted_long_topic()
    for _ in range(pieces):
        cluster.say(Dismantle(b"t".ljust(16, b"."), [], []))
    cluster.say(CreateTopic("t", b"n" * 16, 3, 1, {}))
    first, second, _ = cluster.streams("t")
    cluster.state = load(dump(cluster.state))
    assert cluster.append((first, 4, 9)) == [0]
    cluster.say(Dismantle(b"t".ljust(16, b"."), [4], []))
    assert cluster.append((first, 4, 10), (second, 4, 9)) == [1, 0]
    assert cluster.append((first, 4, 20)) == [-Reason.OUT_OF_ORDER]


async def bounded_broker(store: MemoryLogStore, wal: MemoryWal, broker_id: int = 0) -> TestBroker:
    """A broker of a cluster in which a command makes two partitions at most."""
    broker = await start_broker(store, wal, broker_id)
    assert broker.replica.state.level == BOUNDED
    await broker.replica.propose(AlterConfigs(b"", [("lakestream.command.partitions", "2")]))
    return broker


def new_topic(partitions: int) -> CreateTopic:
    return CreateTopic("t", TOPIC, partitions, 1, {})


async def test_a_broker_makes_and_grows_a_topic_in_as_many_commands_as_it_takes() -> None:
    broker = await bounded_broker(MemoryLogStore(), MemoryWal())
    state = broker.replica.state
    before = state.sequence
    assert await create_topic(broker.replica, new_topic(7)) == 7
    assert state.sequence - before == 5 and len(state.topics.by_name["t"].streams) == 7
    assert await grow_topic(broker.replica, CreatePartitions(TOPIC, 12)) == 12
    assert state.sequence - before == 8 and len(state.streams.by_id) == 12
    again = await grow_topic(broker.replica, CreatePartitions(TOPIC, 12))
    assert isinstance(again, No) and again.reason == Reason.INVALID_PARTITIONS
    await broker.replica.propose(AlterConfigs(b"", [("lakestream.max.partitions", "13")]))
    full = await grow_topic(broker.replica, CreatePartitions(TOPIC, 14))
    assert isinstance(full, No) and full.reason == Reason.TOO_MANY_PARTITIONS and len(state.streams.by_id) == 12
    await broker.stop()


async def test_a_topic_whose_maker_died_between_two_pieces_is_finished_by_another_broker() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    maker = await bounded_broker(store, wal, 0)
    other = await start_broker(store, wal, 1)
    making = asyncio.create_task(create_topic(maker.replica, new_topic(9)))
    while TOPIC not in other.replica.state.topics.forming:
        await asyncio.sleep(0)
        await other.replica.catch_up()
    await maker.stop()
    with pytest.raises((Unknown, Fenced)):
        await making
    await other.replica.catch_up()
    member = other.replica.state.members.by_id[0]
    await other.replica.propose(Expire(0, member.epoch, member.heard))
    await LongTopics(other.replica).finish()
    assert len(other.replica.state.topics.by_name["t"].streams) == 9
    await other.stop()


async def test_a_deletion_is_finished_by_whoever_is_the_first_broker_and_by_nobody_else() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    first, second = await bounded_broker(store, wal, 0), await start_broker(store, wal, 1)
    await create_topic(first.replica, new_topic(5))
    state = first.replica.state
    for stream in state.topics.by_name["t"].streams:
        await first.append((state.streams.by_id[stream], batch(b"x", producer=3, epoch=0, sequence=0)))
    await first.replica.propose(DeleteTopic(TOPIC, again=True))
    await second.replica.catch_up()
    assert await LongTopics(second.replica).finish() == 0 and state.topics.doomed
    assert await LongTopics(first.replica).finish() == 1
    assert not state.topics.doomed and not state.streams.entries and not state.producers.sequences
    await first.stop()
    await second.stop()

"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords, through the bytes of several versions."""

from typing import Any

import msgspec
import pytest

from lakestream.model.commands import ENVELOPE, AdvanceLogStart, Leave
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from lakestream.stream.housekeeping import retention
from tests.support.kafka_calls import ColdBroker, brokers, one_broker

CREATE, DELETE, DELETE_RECORDS, GROW = 19, 20, 21, 37


def new(name: str, partitions: int = -1, replication: int = -1, **more: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=replication, **more)


def config(name: str, value: str | None) -> CreatableTopicConfig:
    return CreatableTopicConfig(name=name, value=value)


def assigned(*replicas: list[int], first: int = 0) -> list[CreatableReplicaAssignment]:
    return [CreatableReplicaAssignment(partition_index=i, broker_ids=ids) for i, ids in enumerate(replicas, first)]


async def codes(broker: ColdBroker, *topics: CreatableTopic, version: int = 7) -> list[int]:
    answer = await broker.call(CREATE, CreateTopicsRequest(topics=list(topics)), version)
    assert all(bool(one.error_code) == bool(one.error_message) for one in answer.topics)
    return [one.error_code for one in answer.topics]


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_created_in_every_version(version: int) -> None:
    async with one_broker() as broker:
        topic = new("made", 4, 3, configs=[config("retention.ms", " 5000 "), config("preallocate", "TRUE")])
        (made,) = (await broker.call(CREATE, CreateTopicsRequest(topics=[topic]), version)).topics
        assert (made.name, made.error_code, made.error_message) == ("made", 0, None)
        there = broker.replica.state.topics.by_name["made"]
        assert (len(there.streams), there.replication) == (4, 3)
        assert there.configs == {"retention.ms": "5000", "preallocate": "true"}
        assert made.topic_id == (there.id if version >= 7 else bytes(16))
        if version >= 5:
            assert (made.num_partitions, made.replication_factor) == (4, 3)
            shown = {one.name: (one.value, one.config_source) for one in made.configs}
            assert shown["retention.ms"] == ("5000", 1)
            assert shown["max.message.bytes"] == ("1048588", 5)


async def test_defaults_fill_in_what_was_left_open() -> None:
    async with one_broker(default_replication_factor="2") as broker:
        assert await codes(broker, new("plain")) == [0]
        there = broker.replica.state.topics.by_name["plain"]
        assert (len(there.streams), there.replication) == (3, 2)


async def test_ids_are_random_uuids_and_never_begin_with_a_dash() -> None:
    async with one_broker() as broker:
        assert set(await codes(broker, *(new(f"t{i}", 1) for i in range(300)))) == {0}
        ids = list(broker.replica.state.topics.by_id)
        assert len(ids) == 300
        assert all(one[6] >> 4 == 4 and one[8] >> 6 == 2 and one[0] >> 2 != 62 for one in ids)


async def test_what_cannot_be_a_topic_is_refused_with_kafkas_codes() -> None:
    async with one_broker() as broker:
        await broker.create("there.already")
        refused = [
            (new("there.already"), ErrorCode.TOPIC_ALREADY_EXISTS),
            (new("there_already"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (new("sp ace"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (new("a", 0), ErrorCode.INVALID_PARTITIONS),
            (new("b", -2), ErrorCode.INVALID_PARTITIONS),
            (new("c", 100_001), ErrorCode.INVALID_PARTITIONS),
            (new("d", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
            (new("e", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
            (new("f", configs=[config("no.such", "1")]), ErrorCode.INVALID_CONFIG),
            (new("g", configs=[config("retention.ms", "soon")]), ErrorCode.INVALID_CONFIG),
            (new("h", configs=[config("retention.ms", None)]), ErrorCode.INVALID_CONFIG),
        ]
        assert await codes(broker, *(topic for topic, _ in refused)) == [code for _, code in refused]
        assert list(broker.replica.state.topics.by_name) == ["there.already"]


async def test_a_name_twice_in_a_request_is_refused_once() -> None:
    async with one_broker() as broker:
        answer = await broker.call(CREATE, CreateTopicsRequest(topics=[new("a"), new("b"), new("a")]))
        assert {one.name: one.error_code for one in answer.topics} == {"a": ErrorCode.INVALID_REQUEST, "b": 0}
        assert len(answer.topics) == 2


async def test_one_request_makes_so_many_partitions_and_no_more() -> None:
    async with one_broker() as broker:
        request = CreateTopicsRequest(topics=[new("a", 60_000), new("b", 60_000)], validate_only=True)
        answer = await broker.call(CREATE, request)
        assert [one.error_code for one in answer.topics] == [0, ErrorCode.POLICY_VIOLATION]


async def test_validating_only_creates_nothing() -> None:
    async with one_broker() as broker:
        request = CreateTopicsRequest(topics=[new("a", 2, 1), new("b", 0)], validate_only=True)
        first, second = (await broker.call(CREATE, request)).topics
        assert (first.error_code, first.num_partitions) == (0, 2)
        assert second.error_code == ErrorCode.INVALID_PARTITIONS
        assert broker.replica.state.topics.by_name == {}


async def test_a_manual_assignment_says_how_many_partitions_and_replicas() -> None:
    async with one_broker() as broker:
        assert await codes(broker, new("manual", assignments=assigned([7, 8], [8, 9], [9, 7]))) == [0]
        there = broker.replica.state.topics.by_name["manual"]
        assert (len(there.streams), there.replication) == (3, 2)


async def test_a_manual_assignment_has_to_make_sense() -> None:
    async with one_broker() as broker:
        wrong = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await codes(
            broker,
            new("a", 2, -1, assignments=assigned([0])),
            new("b", -1, 1, assignments=assigned([0])),
            new("c", assignments=assigned([0], first=1)),
            new("d", assignments=assigned([0], [0, 1])),
            new("e", assignments=assigned([])),
            new("f", assignments=assigned([1, 1])),
            new("g", assignments=assigned([-3])),
            new("h", assignments=assigned([0]) * 2),
        ) == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, wrong, wrong, wrong, wrong, wrong, wrong]


async def test_a_name_that_another_broker_freed_can_be_taken_L6() -> None:
    async with brokers(2) as (broker, other):
        await broker.create("gone_soon")
        await other.replica.catch_up()
        await broker.call(DELETE, DeleteTopicsRequest(topics=[DeleteTopicState(name="gone_soon")]))
        assert await codes(other, new("gone.soon")) == [0]


async def test_a_member_without_an_epoch_says_that_nothing_was_done_L17() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        await broker.replica.propose(Leave())
        assert await codes(broker, new("b")) == [ErrorCode.NOT_CONTROLLER]
        answer = await broker.call(DELETE, DeleteTopicsRequest(topics=[DeleteTopicState(name="a")]))
        assert answer.responses[0].error_code == ErrorCode.NOT_CONTROLLER
        assert (await grow(broker, "a", 5))[0] == ErrorCode.NOT_CONTROLLER
        await broker.log.close()
        assert await codes(broker, new("b")) == [ErrorCode.NOT_CONTROLLER]


@pytest.mark.parametrize("version", range(1, 6))
async def test_topics_are_deleted_by_name(version: int) -> None:
    async with one_broker() as broker:
        await broker.create("a")
        answer = await broker.call(DELETE, DeleteTopicsRequest(topic_names=["a", "b"]), version)
        codes = [(one.name, one.error_code) for one in answer.responses]
        assert codes == [("a", 0), ("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert broker.replica.state.topics.by_name == {}


async def test_topics_are_deleted_by_id_and_every_mistake_is_named() -> None:
    async with one_broker() as broker:
        first, second = await broker.create("a"), await broker.create("b")
        asked = [
            DeleteTopicState(topic_id=first),
            DeleteTopicState(topic_id=b"7" * 16),
            DeleteTopicState(name="b", topic_id=second),
            DeleteTopicState(),
            DeleteTopicState(name="x"),
            DeleteTopicState(name="x"),
        ]
        answer = await broker.call(DELETE, DeleteTopicsRequest(topics=asked))
        wrong = ErrorCode.INVALID_REQUEST
        assert [one.error_code for one in answer.responses] == [0, ErrorCode.UNKNOWN_TOPIC_ID, wrong, wrong, wrong]
        assert (answer.responses[0].name, answer.responses[0].topic_id) == ("a", first)
        assert list(broker.replica.state.topics.by_name) == ["b"]


async def test_a_topic_named_by_its_name_and_by_its_id_is_named_twice_and_stays() -> None:
    async with one_broker() as broker:
        first = await broker.create("a")
        asked = [DeleteTopicState(topic_id=first), DeleteTopicState(name="a")]
        (answer,) = (await broker.call(DELETE, DeleteTopicsRequest(topics=asked))).responses
        assert (answer.error_code, answer.name, answer.topic_id) == (ErrorCode.INVALID_REQUEST, "a", first)
        assert list(broker.replica.state.topics.by_name) == ["a"]


async def grow(
    broker: ColdBroker, name: str, count: int, assignments: list[list[int]] | None = None, **more: Any
) -> tuple[int, str | None]:
    version = more.pop("version", 3)
    given = None if assignments is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    topic = CreatePartitionsTopic(name=name, count=count, assignments=given)
    (one,) = (await broker.call(GROW, CreatePartitionsRequest(topics=[topic], **more), version)).results
    return one.error_code, one.error_message


@pytest.mark.parametrize("version", range(4))
async def test_a_topic_grows(version: int) -> None:
    async with one_broker() as broker:
        await broker.create("a", 2)
        assert await grow(broker, "a", 5, validate_only=True, version=version) == (0, None)
        assert len(broker.replica.state.topics.by_name["a"].streams) == 2
        assert await grow(broker, "a", 5, version=version) == (0, None)
        assert await grow(broker, "a", 7, [[0], [9]], version=version) == (0, None)
        assert len(broker.replica.state.topics.by_name["a"].streams) == 7


async def test_a_topic_never_shrinks_and_other_mistakes_are_named() -> None:
    async with one_broker() as broker:
        await broker.create("a", 3)
        assert await grow(broker, "a", 3) == (ErrorCode.INVALID_PARTITIONS, "Topic already has 3 partition(s).")
        code, text = await grow(broker, "a", 2)
        assert code == ErrorCode.INVALID_PARTITIONS and text is not None and "not be an increase" in text
        assert (await grow(broker, "a", 100_001))[0] == ErrorCode.INVALID_PARTITIONS
        assert (await grow(broker, "no", 4))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await grow(broker, "a", 5, [[0]]))[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert (await grow(broker, "a", 4, [[]]))[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        twice = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=9, assignments=None)] * 2)
        assert [one.error_code for one in (await broker.call(GROW, twice)).results] == [ErrorCode.INVALID_REQUEST]


async def delete_records(broker: ColdBroker, *asked: tuple[str, int, int], version: int = 2) -> list[tuple[int, int]]:
    topics = [
        DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(partition_index=index, offset=offset)])
        for name, index, offset in asked
    ]
    answer = await broker.call(DELETE_RECORDS, DeleteRecordsRequest(topics=topics), version)
    return [(part.error_code, part.low_watermark) for topic in answer.topics for part in topic.partitions]


@pytest.mark.parametrize("version", range(3))
async def test_records_are_deleted_up_to_an_offset_or_to_the_end(version: int) -> None:
    async with one_broker() as broker:
        await broker.create("a", 2)
        await broker.append("a", 0, [1, 2, 3, 4])
        await broker.append("a", 1, [1, 2])
        assert await delete_records(broker, ("a", 0, 3), ("a", 1, -1), version=version) == [(0, 3), (0, 2)]
        assert await delete_records(broker, ("a", 0, 1), version=version) == [(0, 3)]


async def test_records_that_are_not_there_cannot_be_deleted() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        await broker.append("a", 0, [1, 2])
        out, unknown = (ErrorCode.OFFSET_OUT_OF_RANGE, -1), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        asked = (("a", 0, 3), ("a", 1, 0), ("a", -1, 0), ("b", 0, 0))
        assert await delete_records(broker, *asked) == [out, unknown, unknown, unknown]
        assert await delete_records(broker, ("a", 0, -2)) == [out]
        assert await delete_records(broker, ("a", 0, 2), ("a", 0, 1)) == [(0, 1)]


async def test_records_of_a_topic_that_is_only_compacted_cannot_be_deleted() -> None:
    async with one_broker() as broker:
        assert await codes(broker, new("keys", 1, configs=[config("cleanup.policy", "compact")])) == [0]
        assert await delete_records(broker, ("keys", 0, 0)) == [(ErrorCode.POLICY_VIOLATION, -1)]


async def test_a_failed_deletion_of_records_is_worth_another_try_L17() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        await broker.replica.propose(Leave())
        assert await delete_records(broker, ("a", 0, 0)) == [(ErrorCode.LEADER_NOT_AVAILABLE, -1)]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "STREAMS_AT_ONCE", 3)
    monkeypatch.setattr(retention, "ENTRIES_AT_ONCE", 4)


def deletions(broker: ColdBroker) -> list[list[tuple[int, int]]]:
    """What each command deletes from now on, as (stream, log start)."""
    seen: list[list[tuple[int, int]]] = []

    def note(sequence: int, command: bytes, outcome: object) -> None:
        if command[1] == AdvanceLogStart.KIND:
            seen.append(msgspec.msgpack.decode(command[ENVELOPE.size :], type=AdvanceLogStart).starts)

    broker.replica.on_command.append(note)
    return seen


async def test_records_of_very_many_partitions_are_deleted_in_pieces(small_pieces: None) -> None:
    async with one_broker() as broker:
        await broker.create("wide", 8)
        for _ in range(10):
            await broker.append("wide", 0, [1])
        await broker.append("wide", 1, [1, 2])
        commands = deletions(broker)
        asked = [("wide", partition, -1) for partition in range(8)]
        assert await delete_records(broker, *asked) == [(0, 10), (0, 2), *[(0, 0)] * 6]
        assert commands == [
            [(1, 4)], [(1, 8)], [(1, 10), (2, 2), (3, 0)], [(4, 0), (5, 0), (6, 0)], [(7, 0), (8, 0)],
        ]  # fmt: skip


async def test_when_a_piece_fails_the_partitions_before_it_are_deleted_and_the_others_worth_another_try_L17(
    small_pieces: None,
) -> None:
    async with one_broker() as broker:
        await broker.create("wide", 5)
        deletions(broker)
        broker.replica.on_command.append(lambda *_: setattr(broker.replica, "epoch", 0))
        again = (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        asked = [("wide", partition, 0) for partition in range(5)]
        assert await delete_records(broker, *asked) == [(0, 0), (0, 0), (0, 0), again, again]

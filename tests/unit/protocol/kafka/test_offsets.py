"""ListOffsets, OffsetForLeaderEpoch and InitProducerId, through the bytes of several versions."""

from typing import Any

import pytest

from lakestream.model.commands import AdvanceLogStart, Leave
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from lakestream.protocol.kafka.messages.produce import InitProducerIdRequest
from tests.support.counted_turns import turns_beside
from tests.support.kafka_calls import ColdBroker, brokers, one_broker

LIST, EPOCH_END, INIT = 2, 23, 22
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
NOWHERE = (0, -1, -1)
SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, PENDING_UPLOAD: 11, -9: 12}
Found = tuple[int, int, int]
"""An error, an offset (or epoch), a timestamp (or offset)."""


async def place(broker: ColdBroker, when: int, version: int = 11, topic: str = "a", **more: Any) -> Found:
    """(error, offset, timestamp) of partition 0."""
    partition = ListOffsetsPartition(partition_index=more.pop("index", 0), timestamp=when, **more)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])])
    (one,) = (await broker.call(LIST, request, version)).topics[0].partitions
    assert one.leader_epoch == (0 if version >= 4 and one.offset >= 0 else -1)
    return one.error_code, one.offset, one.timestamp


@pytest.mark.parametrize("version", range(1, 12))
async def test_earliest_latest_and_a_time_are_found_in_every_version(version: int) -> None:
    async with one_broker() as broker:
        await broker.create("a")
        assert await place(broker, LATEST, version) == await place(broker, EARLIEST, version) == (0, 0, -1)
        assert await place(broker, 0, version) == NOWHERE
        await broker.append("a", 0, [100, 300, 200])
        await broker.append("a", 0, [400])
        assert await place(broker, EARLIEST, version) == (0, 0, -1)
        assert await place(broker, LATEST, version) == (0, 4, -1)
        assert await place(broker, 0, version) == (0, 0, 100)
        assert await place(broker, 101, version) == (0, 1, 300)
        assert await place(broker, 400, version) == (0, 3, 400)
        assert await place(broker, 401, version) == NOWHERE


async def test_the_greatest_timestamp_and_the_log_start_are_found() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        assert await place(broker, MAX_TIMESTAMP) == NOWHERE
        await broker.append("a", 0, [100, 300, 200])
        await broker.append("a", 0, [250])
        assert await place(broker, MAX_TIMESTAMP) == (0, 1, 300)
        stream = broker.replica.state.topics.by_name["a"].streams[0]
        await broker.replica.propose(AdvanceLogStart([(stream, 3)]))
        assert await place(broker, EARLIEST) == await place(broker, EARLIEST_LOCAL) == (0, 3, -1)
        assert await place(broker, MAX_TIMESTAMP) == await place(broker, 0) == (0, 3, 250)


async def test_nothing_is_tiered() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        await broker.append("a", 0, [1])
        assert await place(broker, LATEST_TIERED) == await place(broker, PENDING_UPLOAD) == NOWHERE


async def test_special_offsets_need_the_version_that_knows_them() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        for when, since in SINCE.items():
            assert (await place(broker, when, since - 1))[0] == ErrorCode.UNSUPPORTED_VERSION
            if since <= 11:
                assert (await place(broker, when, since))[0] == 0


async def test_read_committed_ends_where_the_log_ends() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        await broker.append("a", 0, [1, 2])
        topics = [ListOffsetsTopic(name="a", partitions=[ListOffsetsPartition(partition_index=0, timestamp=LATEST)])]
        answer = await broker.call(LIST, ListOffsetsRequest(replica_id=-1, isolation_level=1, topics=topics))
        assert answer.topics[0].partitions[0].offset == 2


async def test_offsets_of_what_is_not_there_are_refused() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
        assert await place(broker, LATEST, topic="b") == unknown
        assert await place(broker, LATEST, index=1) == await place(broker, LATEST, index=-1) == unknown
        assert await place(broker, LATEST, current_leader_epoch=0) == (0, 0, -1)
        assert (await place(broker, LATEST, current_leader_epoch=1))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await place(broker, LATEST, current_leader_epoch=-2))[0] == ErrorCode.FENCED_LEADER_EPOCH
        twice = [ListOffsetsPartition(partition_index=0, timestamp=LATEST)] * 2
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="a", partitions=twice)])
        answer = await broker.call(LIST, request)
        assert [one.error_code for one in answer.topics[0].partitions] == [ErrorCode.INVALID_REQUEST]


async def test_ends_and_noes_are_current_on_every_broker_L6() -> None:
    async with brokers(2) as (broker, other):
        await broker.create("a")
        await broker.append("a", 0, [100])
        assert await place(other, LATEST) == (0, 1, -1)
        await broker.append("a", 0, [200])
        assert await place(other, 150) == (0, 1, 200)
        await broker.append("a", 0, [300])
        assert await end(other, 0) == (0, 0, 3)


async def test_a_broker_that_cannot_be_current_says_try_again_L6() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        await broker.log.close()
        assert await place(broker, LATEST) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, -1)
        assert await end(broker, 0) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, -1)


async def test_a_time_in_lost_bytes_is_an_error_of_the_storage() -> None:
    async with brokers(2) as (broker, other):
        await broker.create("a")
        await broker.append("a", 0, [100])
        await broker.wal.delete([one.key for one in await broker.wal.list("")])
        assert await place(other, 50) == (ErrorCode.KAFKA_STORAGE_ERROR, -1, -1)
        assert await place(other, LATEST) == (0, 1, -1)


async def end(broker: ColdBroker, epoch: int, version: int = 4, index: int = 0, known: int = -1) -> Found:
    partition = OffsetForLeaderPartition(partition=index, current_leader_epoch=known, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="a", partitions=[partition])])
    (one,) = (await broker.call(EPOCH_END, request, version)).topics[0].partitions
    return one.error_code, one.leader_epoch, one.end_offset


@pytest.mark.parametrize("version", range(2, 5))
async def test_epoch_0_ends_where_the_log_ends_and_there_is_no_other_L7(version: int) -> None:
    async with one_broker() as broker:
        await broker.create("a")
        await broker.append("a", 0, [1, 2, 3])
        assert await end(broker, 0, version) == (0, 0, 3)
        assert await end(broker, 1, version) == await end(broker, -1, version) == (0, -1, -1)
        assert await end(broker, 0, version, index=1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
        assert await end(broker, 0, version, known=0) == (0, 0, 3)
        assert await end(broker, 0, version, known=2) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)


@pytest.mark.parametrize("version", range(6))
async def test_every_producer_gets_an_id_of_its_own(version: int) -> None:
    async with brokers(2) as both:
        given = [await broker.call(INIT, InitProducerIdRequest(), version) for broker in both for _ in range(2)]
        assert [(one.error_code, one.producer_epoch) for one in given] == [(0, 0)] * 4
        assert len({one.producer_id for one in given}) == 4


async def test_a_producer_that_has_an_id_gets_another() -> None:
    async with one_broker() as broker:
        request = InitProducerIdRequest(producer_id=0, producer_epoch=3)
        given = [(await broker.call(INIT, request)).producer_id for _ in range(2)]
        assert given == [0, 1]


async def test_transactions_are_refused_for_good_until_they_come() -> None:
    async with one_broker() as broker:
        answer = await broker.call(INIT, InitProducerIdRequest(transactional_id="mine", transaction_timeout_ms=1000))
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (53, -1, -1)


async def test_half_an_identity_and_an_empty_transactional_id_are_invalid() -> None:
    async with one_broker() as broker:
        for request in (
            InitProducerIdRequest(transactional_id=""),
            InitProducerIdRequest(producer_id=5),
            InitProducerIdRequest(producer_epoch=5),
        ):
            assert (await broker.call(INIT, request)).error_code == ErrorCode.INVALID_REQUEST


async def test_without_an_epoch_a_producer_is_asked_to_try_again() -> None:
    async with one_broker() as broker:
        await broker.replica.propose(Leave())
        answer = await broker.call(INIT, InitProducerIdRequest())
        assert (answer.error_code, answer.producer_id) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)


async def test_the_ends_of_very_many_partitions_leave_others_their_turn() -> None:
    async with one_broker() as broker:
        await broker.create("wide", 20_000)
        asked = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in range(20_000)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="wide", partitions=asked)])
        answer, turns = await turns_beside(broker.call(LIST, request))
        assert turns > 20
        assert [one.partition_index for one in answer.topics[0].partitions] == list(range(20_000))

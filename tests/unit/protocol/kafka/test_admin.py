"""What admin tools ask for, through the bytes of several versions: AlterConfigs, ListConfigResources, DescribeLogDirs,
ListPartitionReassignments, DescribeAcls, DescribeProducers and DescribeTopicPartitions."""

import asyncio
import logging
import struct
from pathlib import Path

import pytest

from lakestream.errors import Retry
from lakestream.interfaces import Logged
from lakestream.model.topics import MAX_PARTITIONS
from lakestream.protocol.kafka import producers
from lakestream.protocol.kafka.connections.calls import RequestContext
from lakestream.protocol.kafka.connections.large_answers import large_answer
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.acls import DescribeAclsRequest
from lakestream.protocol.kafka.messages.configs import (
    AlterConfigsRequest,
    ListConfigResourcesRequest,
    ReplacingConfig,
    ReplacingConfigsResource,
)
from lakestream.protocol.kafka.messages.metadata import (
    DescribedTopicName,
    DescribeTopicPartitionsRequest,
    PartitionCursor,
)
from lakestream.protocol.kafka.messages.producers import DescribeProducersRequest, DescribeProducersTopic
from lakestream.protocol.kafka.messages.replicas import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    ListPartitionReassignmentsRequest,
)
from lakestream.protocol.kafka.replicas import ReplicaApis, without_secrets
from lakestream.protocol.kafka.wire import codec
from lakestream.protocol.kafka.wire.apis import APIS, UNSERVED
from lakestream.protocol.kafka.wire.framing import Malformed
from tests.support.kafka_calls import ColdBroker, brokers, context, one_broker
from tests.support.toy_kafka_server import Client, request, toy_server

ACLS, ALTER, LOG_DIRS, REASSIGNMENTS, PRODUCERS, RESOURCES, PARTITIONS = 29, 33, 35, 46, 61, 74, 75
TOPIC, BROKER = 2, 4


def replacing(kind: int, name: str, **configs: str | None) -> ReplacingConfigsResource:
    given = [ReplacingConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    return ReplacingConfigsResource(resource_type=kind, resource_name=name, configs=given)


async def alter(broker: ColdBroker, *resources: ReplacingConfigsResource, check: bool = False) -> list[int]:
    asked = AlterConfigsRequest(resources=list(resources), validate_only=check)
    return [one.error_code for one in (await broker.call(ALTER, asked)).responses]


async def test_alter_configs_unsets_what_is_not_named() -> None:
    async with one_broker() as broker:
        await broker.create("a")

        def configs() -> dict[str, str]:
            return dict(broker.replica.state.topics.by_name["a"].configs)

        assert await alter(broker, replacing(TOPIC, "a", retention_ms="5", segment_ms="60000")) == [0]
        assert configs() == {"retention.ms": "5", "segment.ms": "60000"}
        assert await alter(broker, replacing(TOPIC, "a", retention_ms="x")) == [ErrorCode.INVALID_CONFIG]
        assert await alter(broker, replacing(TOPIC, "a", retention_ms="7"), check=True) == [0]
        assert configs() == {"retention.ms": "5", "segment.ms": "60000"}
        assert await alter(broker, replacing(TOPIC, "a", retention_ms="7")) == [0]
        assert configs() == {"retention.ms": "7"}
        assert await alter(broker, replacing(TOPIC, "a")) == [0]
        assert configs() == {}


async def test_alter_configs_refuses_one_resource_named_twice_and_unknown_ones() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        twice = [replacing(TOPIC, "a", retention_ms="5")] * 2
        assert await alter(broker, *twice) == [ErrorCode.INVALID_REQUEST] * 2
        assert await alter(broker, replacing(TOPIC, "b")) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert broker.replica.state.topics.by_name["a"].configs == {}


async def test_alter_configs_refuses_very_many_resources_in_turns() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with one_broker() as broker:
        counting = asyncio.create_task(count_turns())
        assert set(await alter(broker, *[replacing(BROKER, "")] * 500)) == {ErrorCode.INVALID_REQUEST}
        counting.cancel()
        assert turns >= 500


async def test_alter_configs_replaces_the_configs_of_the_cluster() -> None:
    async with one_broker() as broker:
        assert await alter(broker, replacing(BROKER, "", num_partitions="4", log_retention_ms="9")) == [0]
        assert await alter(broker, replacing(BROKER, "", num_partitions="5")) == [0]
        assert broker.replica.state.topics.configs == {"num.partitions": "5"}


async def test_config_resources_are_listed_by_their_kinds() -> None:
    async with brokers(2) as (broker, _):
        await broker.create("a")

        async def listed(*kinds: int, version: int = 1) -> list[tuple[int, str]]:
            answer = await broker.call(RESOURCES, ListConfigResourcesRequest(resource_types=list(kinds)), version)
            assert answer.error_code == 0
            return [(one.resource_type, one.resource_name) for one in answer.config_resources]

        assert await listed() == [(BROKER, "0"), (BROKER, "1"), (TOPIC, "a")]
        assert await listed(TOPIC) == [(TOPIC, "a")]
        assert await listed(8, 16, 32) == await listed(version=0) == []
        answer = await broker.call(RESOURCES, ListConfigResourcesRequest(resource_types=[99]))
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", range(1, 6))
async def test_the_log_dirs_of_all_brokers_add_up_to_the_bytes_in_the_log(version: int) -> None:
    async with brokers(3) as cluster:
        await cluster[0].create("a", partitions=8, replication=3)
        for partition in range(8):
            await cluster[0].append("a", partition, [1, 2])
        found: dict[int, int] = {}
        for broker in cluster:
            (result,) = (await broker.call(LOG_DIRS, DescribeLogDirsRequest(topics=None), version)).results
            assert (result.error_code, result.log_dir, result.usable_bytes) == (0, "s3://bucket", -1)
            for topic in result.topics:
                assert topic.name == "a"
                found |= {one.partition_index: one.partition_size for one in topic.partitions}
        state = cluster[0].replica.state
        sizes = [state.streams.by_id[stream].size for stream in state.topics.by_name["a"].streams]
        assert [found[partition] for partition in range(8)] == sizes and min(sizes) > 0


async def test_log_dirs_of_some_partitions_and_the_space_of_a_folder(tmp_path: Path) -> None:
    async with one_broker() as broker:
        await broker.create("a", partitions=3)
        asked = [DescribableLogDirTopic(topic="a", partitions=[2, 9]), DescribableLogDirTopic(topic="b")]
        (result,) = (await broker.call(LOG_DIRS, DescribeLogDirsRequest(topics=asked))).results
        (topic,) = result.topics
        assert [one.partition_index for one in topic.partitions] == [2]
        handler = ReplicaApis(broker.replica, "", tmp_path).handlers()[LOG_DIRS]
        (result,) = (await handler(context(LOG_DIRS, 5), DescribeLogDirsRequest(topics=[]))).results
        assert result.log_dir == str(tmp_path) and 0 < result.usable_bytes <= result.total_bytes


async def test_a_log_dir_never_shows_a_password() -> None:
    assert without_secrets("s3://user:word@bucket/lake?secret=x") == "s3://bucket/lake"
    assert without_secrets("memory:") == "memory:"


async def test_nothing_is_ever_reassigned() -> None:
    async with one_broker() as broker:
        answer = await broker.call(REASSIGNMENTS, ListPartitionReassignmentsRequest(topics=None))
        assert (answer.error_code, answer.topics) == (0, [])


@pytest.mark.parametrize("version", range(1, 4))
async def test_acls_are_answered_with_security_disabled(version: int) -> None:
    async with one_broker() as broker:
        answer = await broker.call(ACLS, DescribeAclsRequest(), version)
        assert answer.error_code == ErrorCode.SECURITY_DISABLED
        assert answer.error_message == "No Authorizer is configured."


async def test_producers_are_described_with_their_epochs_and_last_sequences() -> None:
    async with brokers(2) as (broker, other):
        await broker.create("a", partitions=2)
        await broker.append("a", 0, [1, 2], (5, 0, 0))
        await broker.append("a", 0, [3], (5, 0, 2))
        await broker.append("a", 0, [1], (7, 4, 2147483647))
        await broker.append("a", 1, [1], (5, 1, 0))
        topics = [DescribeProducersTopic(name="a", partition_indexes=[0, 1, 2])]
        (topic,) = (await other.call(PRODUCERS, DescribeProducersRequest(topics=topics))).topics
        shown = {
            one.partition_index: [(p.producer_id, p.producer_epoch, p.last_sequence) for p in one.active_producers]
            for one in topic.partitions
        }
        assert shown == {0: [(5, 0, 2), (7, 4, 2147483647)], 1: [(5, 1, 0)], 2: []}
        assert topic.partitions[2].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        state = other.replica.state
        for one in topic.partitions[0].active_producers:
            assert one.last_timestamp == state.producers.by_id[one.producer_id].used_ms
            assert (one.coordinator_epoch, one.current_txn_start_offset) == (-1, -1)


async def test_an_answer_with_very_many_producers_is_whole() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        for id_ in range(1100):
            await broker.append("a", 0, [1], (id_, 0, 0))
        topics = [DescribeProducersTopic(name="a", partition_indexes=[0])]
        (topic,) = (await broker.call(PRODUCERS, DescribeProducersRequest(topics=topics))).topics
        assert [one.producer_id for one in topic.partitions[0].active_producers] == list(range(1100))


async def test_very_many_unknown_partitions_are_refused_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, built = 0, []

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def noted(context: RequestContext, response: object, items: int) -> object:
        built.append((items, turns))
        return await large_answer(context, response, items)

    monkeypatch.setattr(producers, "large_answer", noted)
    async with one_broker() as broker:
        counting = asyncio.create_task(count_turns())
        topics = [DescribeProducersTopic(name="none", partition_indexes=list(range(20_000)))]
        (topic,) = (await broker.call(PRODUCERS, DescribeProducersRequest(topics=topics))).topics
        counting.cancel()
        ((items, turns_before),) = built
        assert items >= 20_000 and turns_before >= 40
        assert [one.partition_index for one in topic.partitions] == list(range(20_000))
        assert {one.error_code for one in topic.partitions} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_list_of_numbers_is_no_longer_than_a_topics_partitions() -> None:
    def sent(partitions: int) -> bytes:
        topics = [DescribeProducersTopic(name="none", partition_indexes=list(range(partitions)))]
        return bytes(codec.encode(DescribeProducersRequest(topics=topics), 0, True))

    (topic,) = codec.decode(DescribeProducersRequest, 0, True, sent(MAX_PARTITIONS)).topics
    assert len(topic.partition_indexes) == MAX_PARTITIONS
    with pytest.raises(Malformed):
        codec.decode(DescribeProducersRequest, 0, True, sent(MAX_PARTITIONS + 1))


async def test_pages_of_partitions_show_every_partition_once() -> None:
    async with brokers(2) as (broker, _):
        for number, partitions in enumerate((3, 1, 7, 2)):
            await broker.create(f"t{number}", partitions=partitions, replication=2)
        for limit in (1, 2, 3, 5, 100):
            seen: list[tuple[str, int]] = []
            cursor: PartitionCursor | None = None
            for _ in range(20):
                asked = DescribeTopicPartitionsRequest(response_partition_limit=limit, cursor=cursor)
                answer = await broker.call(PARTITIONS, asked)
                page = [(topic.name, one) for topic in answer.topics for one in topic.partitions]
                assert len(page) <= limit and all(one.leader_id == one.replica_nodes[0] for _, one in page)
                seen += [(name, one.partition_index) for name, one in page]
                cursor = answer.next_cursor
                if cursor is None:
                    break
            assert seen == [(f"t{n}", p) for n, count in enumerate((3, 1, 7, 2)) for p in range(count)]


async def test_a_broker_that_cannot_read_the_log_gives_no_page_rather_than_an_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An empty list would say that there are no topics (L6)."""

    async def away(*_: object) -> list[Logged]:
        raise Retry("the log is away")

    async with one_broker() as broker:
        await broker.create("a")
        monkeypatch.setattr(broker.log, "read", away)
        asked = DescribeTopicPartitionsRequest(topics=[DescribedTopicName(name="a")])
        (one,) = (await broker.call(PARTITIONS, asked)).topics
        assert one.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        with pytest.raises(Retry):
            await broker.call(PARTITIONS, DescribeTopicPartitionsRequest())


async def test_a_page_names_unknown_topics_and_refuses_a_cursor_elsewhere() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        topics = [DescribedTopicName(name=name) for name in ("nowhere", "a", "a b")]
        answer = await broker.call(PARTITIONS, DescribeTopicPartitionsRequest(topics=topics))
        assert [(one.name, one.error_code) for one in answer.topics] == [
            ("a", 0),
            ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        for cursor in (PartitionCursor(topic_name="b"), PartitionCursor(topic_name="a", partition_index=-1)):
            asked = DescribeTopicPartitionsRequest(topics=topics, cursor=cursor)
            answer = await broker.call(PARTITIONS, asked)
            assert {one.error_code for one in answer.topics} == {ErrorCode.INVALID_REQUEST}


async def test_unknown_topics_push_no_other_topic_off_the_last_page() -> None:
    async with one_broker() as broker:
        await broker.create("z")
        topics = [DescribedTopicName(name=name) for name in ("a", "b", "c", "z")]
        asked = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=1)
        answer = await broker.call(PARTITIONS, asked)
        assert [one.name for one in answer.topics] == ["a", "b", "c", "z"] and answer.next_cursor is None


def test_no_api_is_both_served_and_unserved() -> None:
    assert APIS.keys() & UNSERVED.keys() == set()


async def test_the_log_names_the_api_that_a_client_asked_for_in_vain(caplog: pytest.LogCaptureFixture) -> None:
    server = toy_server()
    address = await server.start()
    try:
        with caplog.at_level(logging.INFO):
            for key, version, client_id in ((43, 2, b"sarama"), (999, 0, b""), (43, 2, b"\xff")):
                client = await Client.connect(address)
                client.writer.write(request(key, version, 1, struct.pack(">i", 0), client_id))
                assert await client.is_closed()
    finally:
        await server.stop()
    assert "the client 'sarama' asked for ElectLeaders (API key 43), version 2" in caplog.text
    assert "the client asked for API key 999, version 0, which is neither advertised nor supported" in caplog.text
    assert "the client asked for ElectLeaders (API key 43), version 2" in caplog.text

"""ApiVersions, Metadata and DescribeCluster, through the bytes of several versions."""

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from lakestream.model.commands import Expire, Leave
from lakestream.model.levels import NEWEST
from lakestream.protocol.kafka.creation import TokenBucket, TopicMaker
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from lakestream.protocol.kafka.messages.metadata import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from lakestream.protocol.kafka.metadata import MetadataApis
from lakestream.protocol.kafka.wire import codec
from lakestream.protocol.kafka.wire.apis import APIS
from tests.support.counted_turns import turns_beside
from tests.support.kafka_calls import brokers, context, one_broker

EVERY_METADATA_VERSION = range(APIS[3].min_version, APIS[3].max_version + 1)


def named(*names: str, create: bool = True) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=create
    )


async def test_api_versions_tells_exactly_what_has_a_handler() -> None:
    async with one_broker() as broker:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
        for version in range(5):
            answer = await broker.call(18, request, version)
            assert answer.error_code == 0
            told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
            assert told == {key: (APIS[key].min_version, APIS[key].max_version) for key in broker.handlers}
            assert not answer.zk_migration_ready


async def test_the_one_feature_is_the_level_of_the_state() -> None:
    async with one_broker() as broker:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
        for version in (3, 4):
            answer = await broker.call(18, request, version)
            ((supported,), (finalized,)) = answer.supported_features, answer.finalized_features
            assert (supported.name, supported.min_version, supported.max_version) == ("lakestream.level", 1, NEWEST)
            level = broker.replica.state.level
            assert (finalized.name, finalized.min_version_level, finalized.max_version_level) == (
                "lakestream.level", level, level,
            )  # fmt: skip
            assert answer.finalized_features_epoch == level
        assert (await broker.call(18, request, 2)).supported_features == []


async def test_api_versions_refuses_a_software_name_that_is_none() -> None:
    async with one_broker() as broker:
        request = ApiVersionsRequest(client_software_name="-bad-", client_software_version="1")
        assert (await broker.call(18, request, 3)).error_code == ErrorCode.INVALID_REQUEST
        assert (await broker.call(18, request, 2)).error_code == 0


async def test_an_unknown_version_of_api_versions_is_told_the_known_ones_in_version_0() -> None:
    async with one_broker() as broker:
        answer = await broker.metadata.unsupported_version(context(18, 0), None)
        answer = codec.decode(APIS[18].response, 0, False, codec.encode(answer, 0, False))
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(one.api_key, one.min_version, one.max_version) for one in answer.api_keys] == [(18, 0, 4)]


@pytest.mark.parametrize("version", EVERY_METADATA_VERSION)
async def test_metadata_shows_brokers_and_partitions_in_every_version(version: int) -> None:
    async with brokers(2) as (broker, other):
        topic_id = await broker.create("made", partitions=4, replication=2)
        await other.replica.catch_up()
        answer = await other.call(3, named("made"), version)
        assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(0, "host0", 9000), (1, "host1", 9001)]
        (topic,) = answer.topics
        assert (topic.error_code, topic.name, topic.is_internal) == (0, "made", False)
        assert [p.partition_index for p in topic.partitions] == [0, 1, 2, 3]
        for partition in topic.partitions:
            assert partition.replica_nodes == partition.isr_nodes and partition.offline_replicas == []
            assert partition.replica_nodes[0] == partition.leader_id
            assert sorted(partition.replica_nodes) == [0, 1]
            assert partition.leader_epoch == (0 if version >= 7 else -1)
        assert topic.topic_id == (topic_id if version >= 10 else bytes(16))
        assert answer.cluster_id == ("kin" if version >= 2 else None)
        assert answer.controller_id == (0 if version >= 1 else -1)
        assert answer.error_code == 0


async def test_null_asks_for_all_topics_and_an_empty_list_for_none_but_in_version_0() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        await broker.create("b")

        async def names(topics: list[Any] | None, version: int) -> list[str]:
            answer = await broker.call(3, MetadataRequest(topics=topics), version)
            return [topic.name for topic in answer.topics]

        assert await names([], 0) == ["a", "b"]
        for version in (1, 9, 13):
            assert await names(None, version) == ["a", "b"]
            assert await names([], version) == []


async def test_all_topics_are_as_current_as_the_log_L6() -> None:
    async with brokers(2) as (broker, other):
        await broker.create("new")
        answer = await other.call(3, MetadataRequest(topics=None))
        assert [topic.name for topic in answer.topics] == ["new"]


async def test_a_topic_made_through_another_broker_is_known_at_once_L6() -> None:
    async with brokers(2, auto_create_topics_enable="false") as (broker, other):
        topic_id = await broker.create("new")
        assert (await other.call(3, named("new"))).topics[0].error_code == 0
        by_id = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)])
        assert (await other.call(3, by_id)).topics[0].name == "new"


async def test_asking_for_a_topic_makes_it_with_the_default_number_of_partitions() -> None:
    async with one_broker() as broker:
        answer = await broker.call(3, named("wanted", "wanted", "also"))
        assert [(t.name, t.error_code, len(t.partitions)) for t in answer.topics] == [("wanted", 0, 3), ("also", 0, 3)]
        assert {topic.topic_id[6] >> 4 for topic in answer.topics} == {4}


async def test_two_brokers_asked_at_once_make_one_topic() -> None:
    async with brokers(2) as both:
        answers = await asyncio.gather(*(broker.call(3, named("wanted")) for broker in both))
        assert {topic.error_code for answer in answers for topic in answer.topics} == {0}
        assert len({topic.topic_id for answer in answers for topic in answer.topics}) == 1


async def test_an_unknown_topic_is_not_made_if_client_or_setting_do_not_want_it() -> None:
    async with one_broker() as broker:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await broker.call(3, named("no", create=False), 4)).topics[0].error_code == unknown
        assert (await broker.call(3, named("__consumer_offsets"))).topics[0].error_code == unknown
        change = AlterableConfig(name="auto.create.topics.enable", config_operation=0, value="FALSE")
        resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[change])
        await broker.call(44, IncrementalAlterConfigsRequest(resources=[resource]))
        assert (await broker.call(3, named("no"))).topics[0].error_code == unknown
        assert broker.replica.state.topics.by_name == {}


async def test_an_invalid_name_is_no_topic() -> None:
    async with one_broker() as broker:
        await broker.create("a.b")
        answer = await broker.call(3, named("", "sp ace", "x" * 250, "a_b", "fine"))
        invalid = ErrorCode.INVALID_TOPIC_EXCEPTION
        assert [topic.error_code for topic in answer.topics] == [invalid, invalid, invalid, invalid, 0]


async def test_an_unknown_topic_id_is_told_so_and_ids_need_version_12() -> None:
    async with one_broker() as broker:
        request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=b"7" * 16, name=None)])
        (topic,) = (await broker.call(3, request, 12)).topics
        assert (topic.error_code, topic.topic_id, topic.name) == (ErrorCode.UNKNOWN_TOPIC_ID, b"7" * 16, None)
        early = await broker.call(3, request, 10)
        assert (early.brokers, early.topics[0].error_code) == ([], ErrorCode.INVALID_REQUEST)


async def test_a_topic_asked_for_by_its_name_and_by_its_id_is_told_of_once() -> None:
    async with one_broker() as broker:
        topic_id = await broker.create("a")
        asked = [MetadataRequestTopic(topic_id=topic_id, name=None), MetadataRequestTopic(name="a")]
        (topic,) = (await broker.call(3, MetadataRequest(topics=asked), 12)).topics
        assert (topic.name, topic.topic_id) == ("a", topic_id)


async def test_authorized_operations_are_told_to_those_who_ask() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        request = named("a")
        answer = await broker.call(3, request, 8)
        assert (answer.cluster_authorized_operations, answer.topics[0].topic_authorized_operations) == (-(1 << 31),) * 2
        request.include_cluster_authorized_operations = request.include_topic_authorized_operations = True
        answer = await broker.call(3, request, 8)
        assert answer.cluster_authorized_operations == 0b1111110100000
        assert answer.topics[0].topic_authorized_operations == 0b110111111000


async def test_a_replication_factor_is_shown_as_asked_however_few_brokers_live() -> None:
    async with brokers(2) as (broker, _):
        await broker.create("five", replication=5)
        (partition,) = (await broker.call(3, named("five"))).topics[0].partitions
        assert sorted(partition.replica_nodes) == [0, 1, 2, 3, 4]
        assert partition.leader_id in (0, 1) and partition.isr_nodes == partition.replica_nodes


async def test_replicas_beyond_reason_are_shown_in_part() -> None:
    async with one_broker() as broker:
        await broker.create("wide", partitions=1000, replication=32767)
        answer = await broker.call(3, named("wide"))
        assert {len(partition.replica_nodes) for partition in answer.topics[0].partitions} == {1000}


async def test_when_a_broker_goes_only_its_partitions_get_another_leader() -> None:
    async with brokers(3) as (broker, other, _):
        await broker.create("spread", partitions=300)

        async def leaders() -> list[int]:
            return [p.leader_id for p in (await broker.call(3, named("spread"))).topics[0].partitions]

        before = await leaders()
        assert min(Counter(before).values()) > 70
        await other.replica.propose(Leave())
        await broker.replica.catch_up()
        after = await leaders()
        assert set(after) == {0, 2}
        assert all(now == then for now, then in zip(after, before, strict=True) if then != 1)
        assert [b.node_id for b in (await broker.call(3, named())).brokers] == [0, 2]


async def test_while_no_broker_lives_partitions_have_no_leader() -> None:
    async with one_broker() as broker:
        await broker.create("lonely")
        await broker.replica.propose(Leave())
        answer = await broker.call(3, named("lonely"))
        assert answer.brokers == [] and answer.controller_id == -1
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


async def test_what_cannot_be_known_or_made_now_is_worth_another_try() -> None:
    async with one_broker() as broker:
        await broker.create("known")
        await broker.replica.propose(Leave())
        answer = await broker.call(3, named("new"))
        assert answer.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
        await broker.log.close()
        by_id = MetadataRequestTopic(topic_id=b"7" * 16, name=None)
        request = MetadataRequest(topics=[by_id, MetadataRequestTopic(name="new"), MetadataRequestTopic(name="known")])
        codes = [topic.error_code for topic in (await broker.call(3, request)).topics]
        assert codes == [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE, 0]


async def test_ten_thousand_partitions_are_described_once_and_then_remembered() -> None:
    async with brokers(3) as (broker, other, _):
        await broker.create("big", partitions=10_000, replication=3)
        cache, big = broker.metadata._partitions, broker.replica.state.topics.by_name["big"]
        assert len((await broker.call(3, named("big"))).topics[0].partitions) == 10_000
        first = await cache.of(big, (0, 1, 2))
        await broker.call(3, named("big"))
        assert await cache.of(big, (0, 1, 2)) is first
        await other.replica.propose(Leave())
        await broker.replica.catch_up()
        moved = await broker.call(3, named("big"))
        assert {partition.leader_id for partition in moved.topics[0].partitions} == {0, 2}


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_describe_cluster_lists_the_live_brokers(version: int) -> None:
    async with brokers(2) as (broker, _):
        answer = await broker.call(60, DescribeClusterRequest(include_cluster_authorized_operations=True), version)
        assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, "kin", 0)
        assert [(b.broker_id, b.host, b.port) for b in answer.brokers] == [(0, "host0", 9000), (1, "host1", 9001)]
        assert answer.cluster_authorized_operations == 0b1111110100000


async def test_describe_cluster_shows_dead_brokers_to_those_who_ask() -> None:
    async with brokers(2) as (broker, other):
        gone = broker.replica.state.members.by_id[other.replica.member_id]
        await broker.replica.propose(Expire(gone.id, gone.epoch, gone.heard))
        answer = await broker.call(60, DescribeClusterRequest(include_fenced_brokers=True))
        assert [(b.broker_id, b.is_fenced) for b in answer.brokers] == [(0, False), (1, True)]
        assert [b.broker_id for b in (await broker.call(60, DescribeClusterRequest())).brokers] == [0]


async def test_describe_cluster_knows_no_controllers() -> None:
    async with one_broker() as broker:
        for endpoint, code in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)):
            answer = await broker.call(60, DescribeClusterRequest(endpoint_type=endpoint))
            assert answer.error_code == code and answer.error_message


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0


def test_a_bucket_gives_so_many_a_minute_and_as_many_at_once() -> None:
    clock = HandClock()
    bucket = TokenBucket(clock, 60)
    assert [bucket.take(50), bucket.take(50)] == [50, 10]
    clock.now += 2.5
    assert [bucket.take(50), bucket.take(1)] == [2, 0]
    clock.now += 3600
    assert bucket.take(1000) == 60


async def test_topics_made_by_asking_are_bounded_in_each_request_and_over_time() -> None:
    async with one_broker() as broker:
        clock = HandClock()
        maker = TopicMaker(broker.replica, {"num.partitions": "1"}, Random(1), TokenBucket(clock, 6), per_request=4)
        broker.handlers.update(MetadataApis(broker.replica, maker, lambda: ()).handlers())

        async def made(*names: str) -> list[int]:
            answer = await broker.call(3, named(*names))
            assert {one.error_code for one in answer.topics} <= {0, ErrorCode.LEADER_NOT_AVAILABLE}
            return [one.error_code == 0 for one in answer.topics]

        asked = [f"t{number}" for number in range(9)]
        assert sum(await made(*asked)) == 4
        assert sum(await made(*asked)) == 6, "those that are there, and what is left for this minute"
        assert sum(await made(*asked)) == 6
        clock.now += 30
        assert sum(await made(*asked)) == 9


async def test_metadata_of_very_many_partitions_leaves_others_their_turn() -> None:
    async with one_broker() as broker:
        await broker.create("wide", partitions=20_000)
        first, turns = await turns_beside(broker.call(3, named("wide")))
        assert turns > 20
        again = await broker.call(3, MetadataRequest(topics=None))
        for answer in (first, again):
            assert [one.partition_index for one in answer.topics[0].partitions] == list(range(20_000))
            assert {one.leader_id for one in answer.topics[0].partitions} == {0}

"""The admin client of librdkafka."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import ConsumerGroupTopicPartitions as GroupPlaces
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.compatibility.clients.face import Client, Member, Record, produce
from tests.compatibility.conftest import Clients, TopicMaker
from tests.support.serve_process import Cluster, eventually

pytestmark = pytest.mark.xdist_group("librdkafka")


@pytest.fixture
def client(clients: Clients) -> Client:
    return clients("librdkafka")


def code(caught: "pytest.ExceptionInfo[KafkaException]") -> int:
    error: KafkaError = caught.value.args[0]
    return error.code()


def topic_configs(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(10)
    return found


def alter(admin: AdminClient, topic: str, name: str, value: str | None, how: AlterConfigOpType) -> None:
    entry = ConfigEntry(name, value, incremental_operation=how)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(10)


def test_topics_come_and_go(admin: AdminClient, name: Callable[[], str]) -> None:
    topic = name()
    admin.create_topics([NewTopic(topic, 5, 3, config={"retention.ms": "1000000"})])[topic].result(10)
    described = admin.list_topics(topic, timeout=10).topics[topic]
    assert sorted(described.partitions) == list(range(5))
    assert all(partition.leader >= 0 and partition.error is None for partition in described.partitions.values())
    with pytest.raises(KafkaException) as caught:
        admin.create_topics([NewTopic(topic, 5, 1)])[topic].result(10)
    assert code(caught) == KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics([topic])[topic].result(10)
    assert topic not in admin.list_topics(timeout=10).topics
    with pytest.raises(KafkaException) as caught:
        admin.delete_topics([topic])[topic].result(10)
    assert code(caught) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_made_again_is_a_new_one(
    admin: AdminClient, client: Client, bootstrap: str, name: Callable[[], str]
) -> None:
    topic = name()
    for _ in range(2):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)
        assert produce(client, bootstrap, topic, [Record(value=b"v")])[0].offset == 0
        admin.delete_topics([topic])[topic].result(10)


@pytest.mark.parametrize(
    ("topic", "partitions", "configs", "wanted"),
    [
        ("bad/name", 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("x" * 250, 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("no-partitions", 0, {}, KafkaError.INVALID_PARTITIONS),
        ("bad-config", 1, {"retention.ms": "soon"}, KafkaError.INVALID_CONFIG),
        ("unknown-config", 1, {"no.such.config": "1"}, KafkaError.INVALID_CONFIG),
    ],
)
def test_what_cannot_be_created_is_refused_with_kafkas_code(
    admin: AdminClient, topic: str, partitions: int, configs: dict[str, str], wanted: int
) -> None:
    with pytest.raises(KafkaException) as caught:
        admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic].result(10)
    assert code(caught) == wanted
    assert topic not in admin.list_topics(timeout=10).topics


def test_a_dry_run_creates_nothing(admin: AdminClient, name: Callable[[], str]) -> None:
    topic = name()
    admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True)[topic].result(10)
    assert topic not in admin.list_topics(timeout=10).topics


def test_configs_are_shown_and_changed(admin: AdminClient, make_topic: TopicMaker) -> None:
    topic = make_topic(configs={"retention.ms": "5000000"})
    found = topic_configs(admin, topic)
    assert (found["retention.ms"].value, found["retention.ms"].is_default) == ("5000000", False)
    assert (found["max.message.bytes"].value, found["max.message.bytes"].is_default) == ("1048588", True)
    assert found["cleanup.policy"].value == "delete"
    alter(admin, topic, "max.message.bytes", "5000", AlterConfigOpType.SET)
    alter(admin, topic, "retention.ms", None, AlterConfigOpType.DELETE)
    alter(admin, topic, "cleanup.policy", "compact", AlterConfigOpType.APPEND)
    found = topic_configs(admin, topic)
    assert found["max.message.bytes"].value == "5000"
    assert found["retention.ms"].is_default
    assert set((found["cleanup.policy"].value or "").split(",")) == {"delete", "compact"}
    for name, value in (("retention.ms", "never"), ("no.such.config", "1")):
        with pytest.raises(KafkaException) as caught:
            alter(admin, topic, name, value, AlterConfigOpType.SET)
        assert code(caught) == KafkaError.INVALID_CONFIG


def test_configs_of_a_missing_topic_are_refused(admin: AdminClient) -> None:
    with pytest.raises(KafkaException) as caught:
        topic_configs(admin, "nobody-made-this")
    assert code(caught) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_broker_shows_its_configs(admin: AdminClient) -> None:
    resource = ConfigResource(ResourceType.BROKER, "0")
    found = admin.describe_configs([resource])[resource].result(10)
    assert found["num.partitions"].value == "1"


def test_partitions_are_added_and_never_taken(admin: AdminClient, make_topic: TopicMaker) -> None:
    topic = make_topic(partitions=2)
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result(10)
    eventually(lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 6, "six partitions")
    with pytest.raises(KafkaException) as caught:
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(10)
    assert code(caught) == KafkaError.INVALID_PARTITIONS


def test_deleted_records_are_gone_and_readers_start_behind_them(
    admin: AdminClient, client: Client, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic = make_topic()
    produce(client, bootstrap, topic, [Record(value=b"%d" % i) for i in range(10)])
    place = TopicPartition(topic, 0, 4)
    assert admin.delete_records([place])[place].result(10).low_watermark == 4
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (4, 10)
    consumer.assign([TopicPartition(topic, 0, 0)])
    first = eventually(lambda: consumer.poll(1.0), "a record comes")
    assert (first.error(), first.offset()) == (None, 4)
    consumer.close()
    beyond = TopicPartition(topic, 0, 11)
    with pytest.raises(KafkaException) as caught:
        admin.delete_records([beyond])[beyond].result(10)
    assert code(caught) == KafkaError.OFFSET_OUT_OF_RANGE
    everything = TopicPartition(topic, 0, -1)
    assert admin.delete_records([everything])[everything].result(10).low_watermark == 10


def test_offsets_are_listed(admin: AdminClient, client: Client, bootstrap: str, make_topic: TopicMaker) -> None:
    topic, base_ms = make_topic(), int(time.time() * 1000) - 1_000_000
    times = [base_ms + 1, base_ms + 9, base_ms + 5]
    produce(client, bootstrap, topic, [Record(value=b"v", timestamp_ms=time_ms) for time_ms in times])
    place = TopicPartition(topic, 0)

    def offset(spec: OffsetSpec) -> int:
        found: int = admin.list_offsets({place: spec})[place].result(10).offset
        return found

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 3
    assert offset(OffsetSpec.max_timestamp()) == 1
    assert offset(OffsetSpec.for_timestamp(base_ms + 2)) == 1


def test_the_cluster_is_described(admin: AdminClient, cluster: Cluster) -> None:
    found = admin.describe_cluster().result(10)
    assert sorted(f"{node.host}:{node.port}" for node in found.nodes) == sorted(cluster.kafka)
    assert found.cluster_id


def test_groups_are_listed_described_and_deleted(
    admin: AdminClient, client: Client, bootstrap: str, make_topic: TopicMaker, name: Callable[[], str]
) -> None:
    topic, group = make_topic(partitions=2), name()
    produce(client, bootstrap, topic, [Record(value=b"v", partition=i) for i in range(2)])
    member = Member(client, bootstrap, group, [topic], {"client.id": "tester"})
    eventually(lambda: len(member.seen) == 2, "both records are read")
    member.commit()
    described = admin.describe_consumer_groups([group])[group].result(10)
    assert (described.state.name, described.partition_assignor) == ("STABLE", "range")
    assert [(one.client_id, len(one.assignment.topic_partitions)) for one in described.members] == [("tester", 2)]
    with pytest.raises(KafkaException) as caught:
        admin.delete_consumer_groups([group])[group].result(10)
    assert code(caught) == KafkaError.NON_EMPTY_GROUP
    member.leave()
    assert group in {one.group_id for one in admin.list_consumer_groups().result(10).valid}
    assert admin.describe_consumer_groups([group])[group].result(10).state.name == "EMPTY"
    stored = admin.list_consumer_group_offsets([GroupPlaces(group)])[group].result(10)
    assert {(place.topic, place.partition, place.offset) for place in stored.topic_partitions} == {
        (topic, 0, 1), (topic, 1, 1),
    }  # fmt: skip
    moved = GroupPlaces(group, [TopicPartition(topic, 0, 0)])
    admin.alter_consumer_group_offsets([moved])[group].result(10)
    stored = admin.list_consumer_group_offsets([GroupPlaces(group)])[group].result(10)
    assert {(place.partition, place.offset) for place in stored.topic_partitions} == {(0, 0), (1, 1)}
    admin.delete_consumer_groups([group])[group].result(10)
    assert group not in {one.group_id for one in admin.list_consumer_groups().result(10).valid}
    with pytest.raises(KafkaException) as caught:
        admin.delete_consumer_groups([group])[group].result(10)
    assert code(caught) == KafkaError.GROUP_ID_NOT_FOUND

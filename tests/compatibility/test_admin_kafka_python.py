"""The admin client of kafka-python."""

import time
from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaAdminClient, OffsetAndMetadata, OffsetSpec, TopicPartition
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTopicError,
    KafkaError,
    OffsetOutOfRangeError,
    SecurityDisabledError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from tests.compatibility.clients.face import Client, Member, Record, produce, read
from tests.compatibility.conftest import Clients, TopicMaker
from tests.support.serve_process import Cluster, eventually

pytestmark = pytest.mark.xdist_group("kafka-python")


@pytest.fixture
def client(clients: Clients) -> Client:
    return clients("kafka-python")


@pytest.fixture(scope="module")
def ask(bootstrap: str) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    yield admin
    admin.close()


def test_topics_come_and_go(ask: KafkaAdminClient, name: Callable[[], str]) -> None:
    topic = name()
    ask.create_topics({topic: {"num_partitions": 5, "replication_factor": 3, "configs": {"retention.ms": "9000000"}}})
    (described,) = ask.describe_topics([topic])
    assert len(described["partitions"]) == 5
    with pytest.raises(TopicAlreadyExistsError):
        ask.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
    assert topic in ask.list_topics()
    ask.delete_topics([topic])
    assert topic not in ask.list_topics()
    with pytest.raises(UnknownTopicOrPartitionError):
        ask.delete_topics([topic])


def test_log_dirs_reassignments_features_and_acls_are_answered(ask: KafkaAdminClient, make_topic: TopicMaker) -> None:
    topic = make_topic(partitions=3)
    found = [
        (topic_dir["name"], one["partition_index"])
        for broker in ask.describe_log_dirs()
        for log_dir in broker["log_dirs"]
        for topic_dir in log_dir["topics"]
        for one in topic_dir["partitions"]
        if topic_dir["name"] == topic
    ]
    assert sorted(found) == [(topic, partition) for partition in range(3)]
    assert ask.list_partition_reassignments() == {}
    assert list(ask.describe_features()) == ["lakestream.level"]
    everything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    with pytest.raises(SecurityDisabledError):
        ask.describe_acls(ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, everything))


@pytest.mark.parametrize(
    ("topic", "options", "wanted"),
    [
        ("bad/name", {}, InvalidTopicError),
        ("python-bad-config", {"configs": {"retention.ms": "soon"}}, InvalidConfigurationError),
        ("python-no-partitions", {"num_partitions": 0}, InvalidPartitionsError),
    ],
)
def test_what_cannot_be_created_raises_the_right_error(
    ask: KafkaAdminClient, topic: str, options: dict[str, object], wanted: type[KafkaError]
) -> None:
    with pytest.raises(wanted):
        ask.create_topics({topic: options})


def test_configs_are_shown_and_changed(ask: KafkaAdminClient, make_topic: TopicMaker) -> None:
    topic = make_topic(configs={"retention.ms": "5000000"})

    def shown() -> dict[str, str]:
        found = ask.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        return {name: entry["value"] for name, entry in found["topic"][topic].items()}

    assert shown()["retention.ms"] == "5000000"
    ask.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "5000"})])
    assert shown()["max.message.bytes"] == "5000"
    ask.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": None})])
    assert shown()["retention.ms"] == "-1"


def test_partitions_are_added_and_never_taken(ask: KafkaAdminClient, make_topic: TopicMaker) -> None:
    topic = make_topic(partitions=2)
    ask.create_partitions({topic: 6})
    eventually(lambda: len(ask.describe_topics([topic])[0]["partitions"]) == 6, "six partitions")
    with pytest.raises(InvalidPartitionsError):
        ask.create_partitions({topic: 3})


def test_records_are_deleted_and_offsets_listed(
    ask: KafkaAdminClient, client: Client, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic, base_ms = make_topic(), int(time.time() * 1000) - 1_000_000
    times = [base_ms + 1, base_ms + 9, base_ms + 5, base_ms + 6]
    produce(client, bootstrap, topic, [Record(value=b"v", timestamp_ms=time_ms) for time_ms in times])
    place = TopicPartition(topic, 0)

    def offset(spec: object) -> int:
        found: int = ask.list_partition_offsets({place: spec})[place].offset
        return found

    specs = (OffsetSpec.EARLIEST, OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP, base_ms + 2)
    assert [offset(spec) for spec in specs] == [0, 4, 1, 1]
    assert ask.delete_records({place: 2})[place]["low_watermark"] == 2
    assert offset(OffsetSpec.EARLIEST) == 2
    assert [stored.offset for stored in read(client, bootstrap, {(topic, 0): 0}, 2)] == [2, 3]
    with pytest.raises(OffsetOutOfRangeError):
        ask.delete_records({place: 100})


def test_the_cluster_is_described(ask: KafkaAdminClient, cluster: Cluster) -> None:
    found = ask.describe_cluster()
    assert sorted(f"{broker['host']}:{broker['port']}" for broker in found["brokers"]) == sorted(cluster.kafka)


def test_groups_are_listed_described_and_deleted(
    ask: KafkaAdminClient, client: Client, bootstrap: str, make_topic: TopicMaker, name: Callable[[], str]
) -> None:
    topic, group = make_topic(partitions=2), name()
    produce(client, bootstrap, topic, [Record(value=b"v", partition=i) for i in range(2)])
    member = Member(client, bootstrap, group, [topic], {"client.id": "tester"})
    eventually(lambda: len(member.seen) == 2, "both records are read")
    member.commit()
    described = ask.describe_groups([group])[group]
    assert (described["group_state"], described["protocol_data"]) == ("Stable", "range")
    assert [one["client_id"] for one in described["members"]] == ["tester"]
    member.leave()
    assert group in {one["group_id"] for one in ask.list_groups()}
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert [ask.list_group_offsets({group: None})[group][place].offset for place in places] == [1, 1]
    ask.alter_group_offsets(group, {places[0]: OffsetAndMetadata(0, "", -1)})
    ask.reset_group_offsets(group, {places[1]: OffsetSpec.EARLIEST})
    assert [ask.list_group_offsets({group: None})[group][place].offset for place in places] == [0, 0]
    ask.delete_group_offsets(group, [places[0]])
    assert set(ask.list_group_offsets({group: None})[group]) == {places[1]}
    ask.delete_groups([group])
    assert group not in {one["group_id"] for one in ask.list_groups()}

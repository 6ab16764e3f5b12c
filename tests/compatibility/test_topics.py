"""What a topic's life is like for clients: automatic creation, deletion, short retention, very many partitions."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from tests.compatibility.clients.face import Ack, Client, Member, Record, Refused, produce, read, take
from tests.compatibility.conftest import TopicMaker
from tests.support.serve_process import Cluster, eventually, serving

GIVE_UP = {
    "librdkafka": {"topic.metadata.propagation.max.ms": 1000, "message.timeout.ms": 4000},
    "java": {"max.block.ms": 2000},
    "kafka-python": {"max.block.ms": 2000},
    "aiokafka": {"request.timeout.ms": 2000},
}
"""How each client is told not to wait long for a topic."""


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster in which only CreateTopics makes topics."""
    with serving(tmp_path_factory.mktemp("strict"), auto_create_topics_enable=False, num_partitions=3) as cluster:
        yield cluster


def test_without_automatic_creation_a_missing_topic_stays_missing(
    strict: Cluster, client: Client, name: Callable[[], str]
) -> None:
    topic = name()
    with pytest.raises((Refused, AssertionError)):
        produce(client, strict.bootstrap, topic, [Record(value=b"v", partition=None)], GIVE_UP[client.name])
    assert topic not in AdminClient({"bootstrap.servers": strict.bootstrap}).list_topics(timeout=10).topics


@pytest.mark.xdist_group("librdkafka")
def test_a_topic_without_a_number_of_partitions_takes_the_brokers(strict: Cluster, name: Callable[[], str]) -> None:
    admin, topic = AdminClient({"bootstrap.servers": strict.bootstrap}), name()
    admin.create_topics([NewTopic(topic)])[topic].result(10)
    assert len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 3


def test_after_records_are_deleted_a_consumer_goes_on_behind_them(
    client: Client, bootstrap: str, make_topic: TopicMaker, admin: AdminClient
) -> None:
    topic = make_topic()
    produce(client, bootstrap, topic, [Record(value=b"%d" % i) for i in range(20)])
    consumer = client.consumer(bootstrap, {"auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        consumer.assign({(topic, 0): 0})
        assert [stored.offset for stored in take(consumer, 20)] == list(range(20))
        place = TopicPartition(topic, 0, 12)
        assert admin.delete_records([place])[place].result(10).low_watermark == 12
        consumer.assign({(topic, 0): 5})
        assert [stored.offset for stored in take(consumer, 8)] == list(range(12, 20))
    finally:
        consumer.close()


def test_new_partitions_are_found_by_a_group(
    client: Client, bootstrap: str, make_topic: TopicMaker, admin: AdminClient, name: Callable[[], str]
) -> None:
    topic = make_topic()
    config = {
        "metadata.max.age.ms": 500, "heartbeat.interval.ms": 300, "session.timeout.ms": 10_000,
        **({"topic.metadata.refresh.interval.ms": 500} if client.name == "librdkafka" else {}),
    }  # fmt: skip
    member = Member(client, bootstrap, name(), [topic], config)
    eventually(lambda: len(member.assigned) == 1, "the member gets its partition")
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(10)
    eventually(lambda: len(member.assigned) == 3, "the member gets the new partitions")
    produce(client, bootstrap, topic, [Record(value=b"v", partition=i) for i in range(3)])
    eventually(lambda: len(member.seen) == 3, "records of the new partitions are read")
    member.leave()


@pytest.mark.xdist_group("librdkafka")
def test_records_go_when_their_retention_ends(
    clients: Callable[[str], Client], bootstrap: str, make_topic: TopicMaker, admin: AdminClient
) -> None:
    topic = make_topic(configs={"retention.ms": "1000"})
    client = clients("librdkafka")
    produce(client, bootstrap, topic, [Record(value=b"old") for _ in range(10)])
    place = TopicPartition(topic, 0)

    def earliest() -> int:
        found: int = admin.list_offsets({place: OffsetSpec.earliest()})[place].result(10).offset
        return found

    eventually(lambda: earliest() == 10, "old records go", 60)
    assert produce(client, bootstrap, topic, [Record(value=b"new")]) == [Ack(0, 10)]
    assert [stored.value for stored in read(client, bootstrap, {(topic, 0): 0}, 1)] == [b"new"]


def test_a_thousand_partitions_are_written_and_read(client: Client, bootstrap: str, make_topic: TopicMaker) -> None:
    """Readers keep fetch sessions: an answer that leaves out idle partitions must not lose one."""
    count = 1000
    topic = make_topic(partitions=count)
    records = [Record(value=b"%d" % i, partition=i % count) for i in range(2 * count)]
    started = time.monotonic()
    acks = produce(client, bootstrap, topic, records, {"enable.idempotence": True, "acks": "all"})
    assert acks == [Ack(i % count, i // count) for i in range(2 * count)]
    found = read(client, bootstrap, {(topic, partition): 0 for partition in range(count)}, 2 * count)
    assert Counter(stored.partition for stored in found) == dict.fromkeys(range(count), 2)
    assert {stored.value for stored in found} == {record.value for record in records}
    assert time.monotonic() - started < 60


def test_a_fetch_session_follows_a_partition_that_wakes_late(
    client: Client, bootstrap: str, make_topic: TopicMaker
) -> None:
    """Fetch sessions name only what changes; a partition silent for many fetches is served when it speaks."""
    topic = make_topic(partitions=20)
    wait = "fetch.wait.max.ms" if client.name == "librdkafka" else "fetch.max.wait.ms"
    consumer = client.consumer(bootstrap, {"auto.offset.reset": "earliest", wait: 100})
    try:
        consumer.assign({(topic, partition): 0 for partition in range(20)})
        for number in range(20):
            produce(client, bootstrap, topic, [Record(value=b"%d" % number, partition=number)])
            assert [(stored.partition, stored.offset) for stored in take(consumer, 1)] == [(number, 0)]
    finally:
        consumer.close()


def test_a_consumer_goes_over_to_a_topic_that_was_made_again(
    client: Client, strict: Cluster, name: Callable[[], str]
) -> None:
    """Where it goes on is the client's choice: Java takes the shorter log for a truncated one and begins at its end."""
    admin, topic = AdminClient({"bootstrap.servers": strict.bootstrap}), name()
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)
    produce(client, strict.bootstrap, topic, [Record(value=b"old") for _ in range(5)])
    consumer = client.consumer(strict.bootstrap, {"auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        consumer.assign({(topic, 0): 0})
        assert len(take(consumer, 5)) == 5
        admin.delete_topics([topic])[topic].result(10)
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)

        def seen() -> list[bytes | None]:
            produce(client, strict.bootstrap, topic, [Record(value=b"new")])
            return [stored.value for stored in consumer.poll(0.5)]

        assert set(eventually(seen, "records of the new topic come")) == {b"new"}
    finally:
        consumer.close()


def test_an_idempotent_producer_lives_on_when_its_topic_is_made_again(
    bootstrap: str, make_topic: TopicMaker, admin: AdminClient
) -> None:
    topic, offsets = make_topic(), list[Any]()
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})

    def sent(count: int) -> list[int]:
        def delivered(error: Any, record: Any) -> None:
            offsets.append(error or record.offset())

        offsets.clear()
        for _ in range(count):
            producer.produce(topic, b"x", partition=0, on_delivery=delivered)
            assert producer.flush(30) == 0
        return offsets

    assert sent(3) == [0, 1, 2]
    admin.delete_topics([topic])[topic].result(30)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    assert sent(3) == [0, 1, 2]

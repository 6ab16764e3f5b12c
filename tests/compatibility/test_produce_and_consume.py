"""Every client writes and reads what Kafka lets it write and read, alone and with the others."""

import time
from collections.abc import Callable

import pytest

from tests.compatibility.clients.face import Ack, Client, Member, Record, Refused, produce, read, take
from tests.compatibility.clients.java import TOOLS
from tests.compatibility.conftest import CLIENTS, Clients, TopicMaker
from tests.compatibility.samples import NOON_MS, as_produced, samples
from tests.support.serve_process import eventually

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 10, 32, 53
UNSUPPORTED_VERSION = 35


@pytest.mark.parametrize("codec", CODECS)
def test_what_a_client_produces_it_reads_back(
    client: Client, codec: str, bootstrap: str, make_topic: TopicMaker
) -> None:
    if codec not in client.codecs:
        pytest.skip(f"{client.name} lacks the package for {codec}")
    topic, records = make_topic(), samples(client)
    acks = produce(client, bootstrap, topic, records, {"compression.type": codec})
    assert acks == [Ack(0, offset) for offset in range(len(records))]
    found = read(client, bootstrap, {(topic, 0): 0}, len(records))
    assert [as_produced(stored) for stored in found] == records
    assert [(stored.offset, stored.timestamp_type) for stored in found] == [(i, 0) for i in range(len(records))]


def test_an_idempotent_producer_writes_each_record_once(client: Client, bootstrap: str, make_topic: TopicMaker) -> None:
    topic = make_topic(partitions=3)
    records = [Record(key=b"k%d" % (i % 7), value=b"%d" % i, partition=i % 3) for i in range(3000)]
    acks = produce(client, bootstrap, topic, records, {"enable.idempotence": True, "acks": "all"})
    assert acks == [Ack(i % 3, i // 3) for i in range(3000)]
    found = read(client, bootstrap, {(topic, p): 0 for p in range(3)}, 3000)
    assert len(found) == 3000
    for partition in range(3):
        own = [stored.value for stored in found if stored.partition == partition]
        assert own == [record.value for record in records if record.partition == partition]


def test_a_producer_that_wants_no_ack_is_heard_too(client: Client, bootstrap: str, make_topic: TopicMaker) -> None:
    topic = make_topic()
    records = [Record(value=b"%d" % i) for i in range(100)]
    acks = produce(client, bootstrap, topic, records, {"acks": 0, "enable.idempotence": False})
    assert len(acks) == 100
    found = read(client, bootstrap, {(topic, 0): 0}, 100)
    assert [stored.value for stored in found] == [record.value for record in records]


def test_reading_starts_where_asked(client: Client, bootstrap: str, make_topic: TopicMaker) -> None:
    topic = make_topic()
    produce(client, bootstrap, topic, [Record(value=b"%d" % i) for i in range(50)])
    assert [stored.offset for stored in read(client, bootstrap, {(topic, 0): 20}, 30)] == list(range(20, 50))
    assert [stored.offset for stored in read(client, bootstrap, {(topic, 0): None}, 50)] == list(range(50))


def test_a_consumer_at_the_end_sees_what_comes(client: Client, bootstrap: str, make_topic: TopicMaker) -> None:
    topic = make_topic()
    produce(client, bootstrap, topic, [Record(value=b"old")])
    consumer = client.consumer(bootstrap, {"auto.offset.reset": "latest"})
    try:
        consumer.assign({(topic, 0): 1})
        assert consumer.poll(0.5) == []
        produce(client, bootstrap, topic, [Record(value=b"new")])
        assert [(stored.offset, stored.value) for stored in take(consumer, 1)] == [(1, b"new")]
    finally:
        consumer.close()


def test_an_offset_out_of_range_falls_back_to_auto_offset_reset(
    client: Client, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic = make_topic()
    produce(client, bootstrap, topic, [Record(value=b"%d" % i) for i in range(5)])
    found = read(client, bootstrap, {(topic, 0): 1000}, 5, {"auto.offset.reset": "earliest"})
    assert [stored.offset for stored in found] == list(range(5))


def test_offsets_are_found_by_timestamp(client: Client, bootstrap: str, make_topic: TopicMaker) -> None:
    topic = make_topic()
    times = [NOON_MS + 1000 * i for i in range(10)]
    produce(client, bootstrap, topic, [Record(value=b"v", timestamp_ms=time_ms) for time_ms in times])
    consumer = client.consumer(bootstrap, {})
    try:
        for asked_ms, offset in [(0, 0), (times[3], 3), (times[3] + 1, 4), (times[9], 9), (times[9] + 1, None)]:
            assert consumer.offset_for_time(topic, 0, asked_ms) == offset
    finally:
        consumer.close()


def test_log_append_time_is_the_brokers_clock(client: Client, bootstrap: str, make_topic: TopicMaker) -> None:
    topic = make_topic(configs={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    produce(client, bootstrap, topic, [Record(value=b"%d" % i, timestamp_ms=NOON_MS) for i in range(3)])
    after_ms = int(time.time() * 1000)
    found = read(client, bootstrap, {(topic, 0): 0}, 3)
    assert {stored.timestamp_type for stored in found} == {1}
    assert all(before_ms <= stored.timestamp_ms <= after_ms for stored in found)


def test_timestamps_are_held_to_the_topics_limits(client: Client, bootstrap: str, make_topic: TopicMaker) -> None:
    configs = {"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "60000"}
    topic = make_topic(configs=configs)
    now_ms = int(time.time() * 1000)
    produce(client, bootstrap, topic, [Record(value=b"now", timestamp_ms=now_ms)])
    for wrong_ms in (now_ms - 120_000, now_ms + 120_000):
        with pytest.raises(Refused) as caught:
            produce(client, bootstrap, topic, [Record(value=b"wrong", timestamp_ms=wrong_ms)])
        assert caught.value.code == INVALID_TIMESTAMP


def test_a_record_too_large_for_its_topic_is_refused_and_the_next_goes_through(
    client: Client, bootstrap: str, make_topic: TopicMaker
) -> None:
    small, large = (make_topic(configs={"max.message.bytes": limit}) for limit in ("2000", "3000000"))
    with pytest.raises(Refused) as caught:
        produce(client, bootstrap, small, [Record(value=b"x" * 2500)])
    assert caught.value.code == MESSAGE_TOO_LARGE
    assert produce(client, bootstrap, small, [Record(value=b"x" * 1500)]) == [Ack(0, 0)]
    limit = {"librdkafka": "message.max.bytes"}.get(client.name, "max.request.size")
    big = Record(value=b"y" * 2_500_000)
    assert produce(client, bootstrap, large, [big], {limit: 2_900_000}) == [Ack(0, 0)]
    assert [as_produced(stored).value for stored in read(client, bootstrap, {(large, 0): 0}, 1)] == [big.value]


def test_a_record_larger_than_the_fetch_size_is_delivered_all_the_same(
    client: Client, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic = make_topic()
    produce(client, bootstrap, topic, [Record(value=b"%d" % i * 100_000) for i in range(5)])
    small = {"fetch.max.bytes": 1000, "max.partition.fetch.bytes": 1000}
    if client.name == "librdkafka":
        # It wants room for the largest message it accepts, and asks for the partition's bytes only.
        small = {"max.partition.fetch.bytes": 1000}
    found = read(client, bootstrap, {(topic, 0): 0}, 5, small)
    assert [stored.value for stored in found] == [b"%d" % i * 100_000 for i in range(5)]


def test_reading_committed_records_only_gives_all_there_are(
    client: Client, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic = make_topic()
    produce(client, bootstrap, topic, [Record(value=b"%d" % i) for i in range(10)])
    found = read(client, bootstrap, {(topic, 0): 0}, 10, {"isolation.level": "read_committed"})
    assert [stored.offset for stored in found] == list(range(10))


@pytest.mark.xdist_group("kafka-python")
@pytest.mark.parametrize("version", [(0, 11), (1, 1), (2, 3), (2, 8), (3, 9)])
def test_a_client_of_an_old_kafka_works(
    version: tuple[int, int], clients: Clients, bootstrap: str, make_topic: TopicMaker, name: Callable[[], str]
) -> None:
    """kafka-python speaks the oldest protocol versions when told that the broker is an old one."""
    client, topic = clients("kafka-python"), make_topic()
    records = samples(client)
    old = {"api.version": version}
    produce(client, bootstrap, topic, records, {**old, "enable.idempotence": version >= (1, 1)})
    member = Member(client, bootstrap, name(), [topic], old)
    eventually(lambda: len(member.seen) == len(records), "everything is read")
    member.commit()
    assert [as_produced(stored) for stored in member.leave()] == records


@pytest.mark.xdist_group("java")
@pytest.mark.needs(*TOOLS)
def test_the_new_group_protocol_is_refused_clearly(clients: Clients, bootstrap: str, name: Callable[[], str]) -> None:
    member = Member(clients("java"), bootstrap, name(), ["anything"], {"group.protocol": "consumer"})
    eventually(lambda: not member.alive, "the client gives up", 20)
    with pytest.raises(Refused) as caught:
        member.leave()
    assert caught.value.code == UNSUPPORTED_VERSION


def test_a_missing_topic_is_made_when_someone_produces_to_it(
    client: Client, bootstrap: str, name: Callable[[], str]
) -> None:
    topic = name()
    acks = produce(client, bootstrap, topic, [Record(value=b"first", partition=None)])
    assert acks == [Ack(0, 0)]


def test_transactions_are_refused_clearly(client: Client, bootstrap: str, name: Callable[[], str]) -> None:
    started = time.monotonic()
    with pytest.raises(Refused) as caught:
        client.init_transactions(bootstrap, name())
    assert caught.value.code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert time.monotonic() - started < 8, "the client waits for something that never comes"


@pytest.mark.xdist_group("java")
@pytest.mark.needs(*TOOLS)
@pytest.mark.parametrize("writer", CLIENTS)
def test_every_client_reads_what_another_wrote(
    writer: str, clients: Clients, bootstrap: str, make_topic: TopicMaker
) -> None:
    sender = clients(writer)
    topic, sent = make_topic(), []
    for codec in sender.codecs:
        records = samples(sender)
        produce(sender, bootstrap, topic, records, {"compression.type": codec, "enable.idempotence": True})
        sent += records
    for name in CLIENTS:
        if set(clients(name).codecs) >= set(sender.codecs):
            found = read(clients(name), bootstrap, {(topic, 0): 0}, len(sent))
            assert [as_produced(stored) for stored in found] == sent, f"{name} reads {writer}"

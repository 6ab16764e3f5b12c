"""librdkafka, by way of confluent-kafka."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from tests.compatibility.clients.face import LIMIT_S, Ack, Config, Record, Refused, Stored

TIMESTAMP_TYPES = {confluent_kafka.TIMESTAMP_CREATE_TIME: 0, confluent_kafka.TIMESTAMP_LOG_APPEND_TIME: 1}


class Librdkafka:
    name = "librdkafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    nulls = True

    def producer(self, bootstrap: str, config: Config) -> "LibrdkafkaProducer":
        return LibrdkafkaProducer({"bootstrap.servers": bootstrap, "linger.ms": 5, **config})

    def consumer(self, bootstrap: str, config: Config) -> "LibrdkafkaConsumer":
        return LibrdkafkaConsumer({"bootstrap.servers": bootstrap, "group.id": "unused", **config})

    def init_transactions(self, bootstrap: str, transactional_id: str) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
        try:
            producer.init_transactions(10)
        except KafkaException as failure:
            raise refusal(failure.args[0]) from failure

    def close(self) -> None:
        pass


class LibrdkafkaProducer:
    def __init__(self, config: Config) -> None:
        self._producer = confluent_kafka.Producer(dict(config))
        self._answers: list[Ack | Refused | None] = []

    def send(self, topic: str, record: Record) -> None:
        number = len(self._answers)
        self._answers.append(None)

        def delivered(error: KafkaError | None, message: Any) -> None:
            self._answers[number] = refusal(error) if error else Ack(message.partition(), message.offset())

        where: dict[str, Any] = {} if record.partition is None else {"partition": record.partition}
        when: dict[str, Any] = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
        try:
            self._producer.produce(
                topic, record.value, record.key, on_delivery=delivered, headers=list(record.headers), **where, **when
            )
        except KafkaException as failure:
            self._answers[number] = refusal(failure.args[0])
        self._producer.poll(0)

    def finish(self) -> list[Ack | Refused]:
        left = self._producer.flush(LIMIT_S)
        assert left == 0, f"{left} records got no answer"
        return [answer for answer in self._answers if answer is not None]


class LibrdkafkaConsumer:
    def __init__(self, config: Config) -> None:
        self._consumer = confluent_kafka.Consumer(dict(config))

    def assign(self, starts: Mapping[tuple[str, int], int | None]) -> None:
        self._consumer.assign(
            [TopicPartition(*place, OFFSET_INVALID if start is None else start) for place, start in starts.items()]
        )

    def subscribe(self, topics: Sequence[str]) -> None:
        self._consumer.subscribe(list(topics))

    def poll(self, wait_s: float) -> list[Stored]:
        return [stored(message) for message in self._consumer.consume(1000, wait_s)]

    def assignment(self) -> set[tuple[str, int]]:
        return {(place.topic, place.partition) for place in self._consumer.assignment()}

    def commit(self) -> None:
        try:
            done = self._consumer.commit(asynchronous=False)
        except KafkaException as failure:
            raise refusal(failure.args[0]) from failure
        for place in done or []:
            if place.error:
                raise refusal(place.error)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        (found,) = self._consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], 10)
        return found.offset if found.offset >= 0 else None

    def close(self) -> None:
        """In a thread, since it may wait for itself forever during a rebalance (librdkafka's issue 4884)."""
        closing = threading.Thread(target=self._consumer.close, daemon=True)
        closing.start()
        closing.join(LIMIT_S)
        assert not closing.is_alive(), "the consumer does not close"


def stored(message: confluent_kafka.Message) -> Stored:
    error = message.error()
    if error is not None:
        raise refusal(error)
    kind, timestamp_ms = message.timestamp()
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and partition is not None and offset is not None
    headers: Any = message.headers() or []
    return Stored(
        topic=topic, partition=partition, offset=offset, key=message.key(), value=message.value(),
        headers=tuple(headers), timestamp_ms=timestamp_ms, timestamp_type=TIMESTAMP_TYPES[kind],
    )  # fmt: skip


def refusal(error: KafkaError) -> Refused:
    """Numbers of the broker are the protocol's, librdkafka's own are below -100."""
    return Refused(error.code(), error.str())

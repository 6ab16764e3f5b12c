"""kafka-python."""

from collections.abc import Mapping, Sequence
from typing import Any

import kafka
from kafka import TopicPartition, codec
from kafka.errors import KafkaError

from tests.compatibility.clients.face import LIMIT_S, Ack, Config, Record, Refused, Stored, underscored

OWN_ERROR = -1000
JOIN_S = 1.5
"""kafka-python 3.0.12 forgets a rebalance that outlasts one poll and never gets its partitions: polls are long."""
EXTRAS = ("gzip", "snappy", "lz4", "zstd")


class KafkaPython:
    name = "kafka-python"
    codecs = ("none", *(name for name in EXTRAS if getattr(codec, f"has_{name}")()))
    nulls = False

    def producer(self, bootstrap: str, config: Config) -> "KafkaPythonProducer":
        return KafkaPythonProducer({"bootstrap_servers": bootstrap.split(","), "linger_ms": 5, **underscored(config)})

    def consumer(self, bootstrap: str, config: Config) -> "KafkaPythonConsumer":
        return KafkaPythonConsumer({"bootstrap_servers": bootstrap.split(","), **underscored(config)})

    def init_transactions(self, bootstrap: str, transactional_id: str) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap.split(","), transactional_id=transactional_id, max_block_ms=10_000
        )
        try:
            producer.init_transactions()
        except KafkaError as failure:
            raise refusal(failure) from failure
        finally:
            producer.close(timeout=1)

    def close(self) -> None:
        pass


class KafkaPythonProducer:
    def __init__(self, config: Config) -> None:
        plain = {name: value for name, value in config.items() if (name, value) != ("compression_type", "none")}
        self._producer = kafka.KafkaProducer(**plain)
        self._futures: list[Any] = []

    def send(self, topic: str, record: Record) -> None:
        try:
            future = self._producer.send(
                topic, record.value, record.key, list(record.headers), record.partition, record.timestamp_ms
            )
        except KafkaError as failure:
            future = failure
        self._futures.append(future)

    def finish(self) -> list[Ack | Refused]:
        answers = [self._answer(future) for future in self._futures]
        self._producer.close(timeout=10)
        return answers

    @staticmethod
    def _answer(future: Any) -> Ack | Refused:
        if isinstance(future, KafkaError):
            return refusal(future)
        try:
            metadata = future.get(LIMIT_S)
        except KafkaError as failure:
            return refusal(failure)
        return Ack(metadata.partition, metadata.offset)


class KafkaPythonConsumer:
    def __init__(self, config: Config) -> None:
        self._consumer = kafka.KafkaConsumer(**config)
        self._poll_at_least_s = 0.0

    def assign(self, starts: Mapping[tuple[str, int], int | None]) -> None:
        self._consumer.assign([TopicPartition(*place) for place in starts])
        for place, start in starts.items():
            if start is not None:
                self._consumer.seek(TopicPartition(*place), start)

    def subscribe(self, topics: Sequence[str]) -> None:
        self._consumer.subscribe(list(topics))
        self._poll_at_least_s = JOIN_S

    def poll(self, wait_s: float) -> list[Stored]:
        polled = self._consumer.poll(timeout_ms=int(max(wait_s, self._poll_at_least_s) * 1000))
        return [stored(record) for records in polled.values() for record in records]

    def assignment(self) -> set[tuple[str, int]]:
        return {(place.topic, place.partition) for place in self._consumer.assignment()}

    def commit(self) -> None:
        try:
            self._consumer.commit()
        except KafkaError as failure:
            raise refusal(failure) from failure

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        place = TopicPartition(topic, partition)
        found = self._consumer.offsets_for_times({place: timestamp_ms})[place]
        return found.offset if found is not None else None

    def close(self) -> None:
        self._consumer.close()


def stored(record: Any) -> Stored:
    return Stored(
        topic=record.topic, partition=record.partition, offset=record.offset, key=record.key, value=record.value,
        headers=tuple(record.headers), timestamp_ms=record.timestamp, timestamp_type=record.timestamp_type,
    )  # fmt: skip


def refusal(failure: KafkaError) -> Refused:
    code = getattr(failure, "errno", None)
    return Refused(OWN_ERROR if code is None else code, repr(failure))

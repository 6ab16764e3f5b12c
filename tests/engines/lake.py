"""Topics on a real `lakestream serve` whose records are known, for tests that let other engines loose on their tables.

    topic = Known(cluster, "orders")
    topic.produce(1000)             # and wait until all are rows
    engine.delete("orders", 0, 10, 19)
    topic.forget(0, range(10, 20))
    topic.check()                   # a replay of the whole topic gives the rest, byte for byte, and verify agrees
"""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.engines.clients.face import Row
from tests.support.acked_workload import create_topic
from tests.support.places import ROOT
from tests.support.serve_process import Cluster, eventually

PARTITIONS = 2
TIME_MS = 1_700_000_000_000
LAND_S = 60.0
SEEN_S = 15.0
"""How long a consumer may see what was deleted (C7), on a busy machine."""
REPLAY_S = 60.0
TOMBSTONE = 1


def record(number: int) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """Key, value and headers, in every mixture of null and empty."""
    key = (None, b"", b"key-%d" % number)[number % 3]
    value = (b"value-%d" % number, None, b"", b"v" * (number % 300))[number % 4]
    headers: list[tuple[str, bytes | None]] = [("n", b"%d" % number), ("empty", b""), ("null", None)]
    return key, value, headers if number % 5 == 0 else []


class Known:
    """A topic, and the rows that it should have."""

    def __init__(self, cluster: Cluster, name: str, **config: str) -> None:
        self.cluster = cluster
        self.name = name
        self.rows: dict[tuple[int, int], Row] = {}
        self.produced = 0
        create_topic(cluster.bootstrap, name, PARTITIONS, **config)
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 5})

    def produce(self, count: int, wait: bool = True) -> None:
        """So many more; returns when all records of the topic are rows, or only acknowledged."""
        failed: list[Any] = []
        for number in range(self.produced, self.produced + count):
            key, value, headers = record(number)
            partition, offset, moment = number % PARTITIONS, number // PARTITIONS, TIME_MS + number
            self._producer.produce(
                self.name, key=key, value=value, headers=headers, partition=partition, timestamp=moment,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )  # fmt: skip
            flags = TOMBSTONE if value is None else 0
            self.rows[partition, offset] = Row(partition, offset, moment, key, headers, flags, value)
        assert self._producer.flush(60) == 0 and not failed
        self.produced += count
        if wait:
            self.await_landed()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A producer goes on producing, and records go on landing."""
        over = threading.Event()

        def go_on() -> None:
            while not over.wait(0.02):
                self.produce(10, wait=False)

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def landed(self) -> int:
        """How many records have landed."""
        return sum(part["landed"] for part in self._partitions())

    def await_landed(self) -> None:
        eventually(lambda: self.landed() == self.produced, f"{self.name} does not land", LAND_S, self.cluster)

    def _partitions(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"http://{self.cluster.http[0]}/metadata", timeout=20) as answer:
            [topic] = [one for one in json.load(answer)["topics"] if one["name"] == self.name]
        return list(topic["partitions"])

    def forget(self, partition: int, offsets: Iterable[int]) -> None:
        for offset in offsets:
            del self.rows[partition, offset]

    def change(self, partition: int, offset: int, value: bytes) -> None:
        """A new value; what it was before (a tombstone, say) is still in the flags."""
        self.rows[partition, offset] = self.rows[partition, offset]._replace(value=value)

    def expected(self) -> list[Row]:
        return [self.rows[place] for place in sorted(self.rows)]

    def check(self, provable: bool = True) -> None:
        """Consumers get exactly these records, and the checker finds nothing."""
        wanted = [row._replace(flags=0) for row in self.expected()]
        deadline = time.monotonic() + SEEN_S
        found = self.replay()
        while found != wanted and time.monotonic() < deadline:
            time.sleep(0.2)
            found = self.replay()
        assert len(found) == len(wanted)
        assert found == wanted
        verified(self.cluster, self.name, provable)

    def replay(self) -> list[Row]:
        """All partitions from offset 0 to the end, by librdkafka; offsets grow, and positions reach the end."""
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": "replay", "check.crcs": True,
                             "enable.partition.eof": True, "enable.auto.commit": False})  # fmt: skip
        try:
            places = [TopicPartition(self.name, one, 0) for one in range(PARTITIONS)]
            ends = [consumer.get_watermark_offsets(place, timeout=20)[1] for place in places]
            consumer.assign(places)
            rows = list(self._until_end(consumer))
            assert [place.offset for place in consumer.position(places)] == ends
        finally:
            consumer.close()
        for one in range(PARTITIONS):
            offsets = [row.offset for row in rows if row.partition == one]
            assert offsets == sorted(set(offsets)), f"offsets of partition {one} do not grow"
        return sorted(rows, key=lambda row: (row.partition, row.offset))

    def _until_end(self, consumer: Consumer) -> Iterator[Row]:
        left = set(range(PARTITIONS))
        deadline = time.monotonic() + REPLAY_S
        while left:
            assert time.monotonic() < deadline, f"partitions {left} do not end\n{self.cluster.log_text()[-3000:]}"
            for message in consumer.consume(500, timeout=0.5):
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                if error := message.error():
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(partition)
                    continue
                headers = [(key, value) for key, value in message.headers() or []]
                yield Row(partition, offset, message.timestamp()[1], message.key(), headers, 0, message.value())


def verified(cluster: Cluster, topic: str, provable: bool = True) -> None:
    """`lakestream verify` finds nothing wrong; where that cannot be proven it may say so, and only so."""
    asked = [sys.executable, "-m", "lakestream.cli.main", "verify", topic, "--bootstrap", cluster.bootstrap]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT, timeout=120)
    findings = [line for line in done.stdout.splitlines()[2:] if provable or not line.startswith("unprovable:")]
    accepted = done.returncode == 0 or (done.returncode == 1 and not findings)
    assert accepted, f"verify found something:\n{done.stdout}\n{done.stderr}"

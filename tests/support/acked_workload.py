"""A load of real clients whose every acknowledgement is written down, and the proof that the log agrees with it.

    ledger = Ledger(topic, partitions)
    with producing(cluster.kafka, ledger): # idempotent librdkafka producers, one that knows each broker
        ...                                # kill, stop, starve
    ledger.check(cluster.bootstrap)        # every acked record exactly once, at its offset; no gaps, no strangers
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.serve_process import eventually

BURST = 20
PAUSE_S = 0.04
FLUSH_S = 60.0
PRODUCER = {
    "enable.idempotence": True,
    "linger.ms": 2,
    "message.timeout.ms": 120_000,
    "socket.timeout.ms": 10_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
    "topic.metadata.refresh.interval.ms": 5_000,
    "log_level": 0,
}


@dataclass(slots=True)
class Ledger:
    """What producers were told."""

    topic: str
    partitions: int = 6
    sent: int = 0
    acked: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Value -> partition and offset."""
    failed: dict[bytes, str] = field(default_factory=dict)
    fatal: list[str] = field(default_factory=list)
    ack_times: list[float] = field(default_factory=list)

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        if error is not None:
            self.failed[value] = str(error)
            return
        assert value not in self.acked, f"{value!r} was acknowledged twice"
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        self.acked[value] = (partition, offset)
        self.ack_times.append(time.monotonic())

    def longest_silence_s(self) -> float:
        """Between two acknowledgements."""
        return max((after - before for before, after in pairwise(self.ack_times)), default=0.0)

    def check(self, bootstrap: str, *, may_fail: bool = False) -> int:
        """Read everything and compare; returns how many records there are."""
        assert self.fatal == []
        if not may_fail:
            assert self.failed == {}
            assert len(self.acked) == self.sent
        stored = read_all(bootstrap, self.topic, self.partitions)
        places: dict[bytes, tuple[int, int]] = {}
        for partition, records in stored.items():
            offsets = [offset for offset, _ in records]
            assert offsets == list(range(len(offsets))), f"partition {partition} has gaps or turns back"
            for offset, value in records:
                assert value not in places, f"{value!r} is stored twice: {places[value]} and {(partition, offset)}"
                places[value] = (partition, offset)
        missing = [value for value in self.acked if value not in places]
        assert missing == [], f"{len(missing)} acknowledged records are lost, such as {missing[:3]}"
        assert {value: place for value, place in self.acked.items() if places[value] != place} == {}
        strangers = set(places) - set(self.acked) - set(self.failed)
        assert strangers == set(), f"{len(strangers)} records that nobody sent"
        self._check_order(stored)
        return len(places)

    def _check_order(self, stored: dict[int, list[tuple[int, bytes]]]) -> None:
        """An idempotent producer's records lie in the order in which it sent them."""
        for records in stored.values():
            last: dict[bytes, int] = {}
            for _, value in records:
                name, _, number = value.partition(b"-")
                assert int(number) > last.get(name, -1), f"{value!r} lies behind number {last[name]}"
                last[name] = int(number)


def create_topic(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    dotted = {name.replace("_", "."): value for name, value in config.items()}
    for future in admin.create_topics([NewTopic(topic, partitions, 1, config=dotted)]).values():
        future.result(30)


@contextmanager
def producing(
    addresses: list[str], ledger: Ledger, *, burst: int = BURST, pause_s: float = PAUSE_S, payload: int = 0,
    settings: dict[str, object] | None = None,
) -> Iterator[None]:  # fmt: skip
    """One idempotent producer for each address, until the end of the block; then all is flushed."""
    stop = threading.Event()
    threads = [
        threading.Thread(
            target=_produce, args=(number, _rotated(addresses, number), ledger, stop, burst, pause_s, payload, settings)
        )
        for number in range(len(addresses))
    ]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: ledger.acked or ledger.fatal, "no record was acknowledged")
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _rotated(addresses: list[str], by: int) -> str:
    return ",".join(addresses[by:] + addresses[:by])


def _produce(
    number: int, bootstrap: str, ledger: Ledger, stop: threading.Event, burst: int, pause_s: float, payload: int,
    settings: dict[str, object] | None,
) -> None:  # fmt: skip
    producer = Producer({**PRODUCER, "bootstrap.servers": bootstrap, **(settings or {})}, error_cb=_note_fatal(ledger))
    count = 0
    filler = b"." * payload
    while not stop.is_set() and not ledger.fatal:
        for _ in range(burst):
            count += 1
            value = b"p%d-%d" % (number, count)
            try:
                producer.produce(
                    ledger.topic, value, key=filler, partition=count % ledger.partitions, on_delivery=ledger.delivered
                )
            except BufferError:
                producer.poll(0.1)
                continue
            except KafkaException as error:
                ledger.fatal.append(str(error))
                return
            ledger.sent += 1
        producer.poll(0)
        stop.wait(pause_s)
    left = producer.flush(FLUSH_S)
    if left:
        ledger.fatal.append(f"{left} records of producer {number} were never answered")


def _note_fatal(ledger: Ledger) -> Callable[[KafkaError], None]:
    def on_error(error: KafkaError) -> None:
        if error.fatal():
            ledger.fatal.append(str(error))

    return on_error


def send(bootstrap: str, topic: str, values: list[bytes], *, partition: int = 0, limit_s: float = 30.0) -> list[int]:
    """Produce a few records and return their offsets; raises KafkaException if one is refused."""
    offsets: list[int] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            offset = message.offset()
            assert offset is not None
            offsets.append(offset)

    producer = Producer({**PRODUCER, "bootstrap.servers": bootstrap, "message.timeout.ms": int(limit_s * 1000)})
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=delivered)
    producer.flush(limit_s + 5)
    if errors:
        raise KafkaException(errors[0])
    assert len(offsets) == len(values)
    return offsets


def ends(bootstrap: str, topic: str, partitions: int = 1) -> list[tuple[int, int]]:
    """The first and the next offset of each partition."""
    consumer = reader(bootstrap)
    try:
        return [_bounds(consumer, TopicPartition(topic, one)) for one in range(partitions)]
    finally:
        consumer.close()


def _bounds(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """The client tries once only; the broker it asks may be one that is known to be dead a moment later."""
    deadline = time.monotonic() + 30
    while True:
        try:
            found: tuple[int, int] = consumer.get_watermark_offsets(partition, timeout=10)
            return found
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def reader(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            "check.crcs": True,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )


def read_all(
    bootstrap: str, topic: str, partitions: int = 1, limit_s: float = 60.0
) -> dict[int, list[tuple[int, bytes]]]:
    """Every record of a topic, from the first to the end as it is now. AssertionError if an offset turns back."""
    consumer = reader(bootstrap)
    records: dict[int, list[tuple[int, bytes]]] = {one: [] for one in range(partitions)}
    try:
        bounds = {one: _bounds(consumer, TopicPartition(topic, one)) for one in range(partitions)}
        consumer.assign([TopicPartition(topic, one, start) for one, (start, _) in bounds.items()])
        open_ones = {one for one, (start, end) in bounds.items() if start < end}
        deadline = time.monotonic() + limit_s
        while open_ones:
            assert time.monotonic() < deadline, f"partitions {open_ones} do not end: {bounds}"
            for message in consumer.consume(2000, timeout=0.2):
                if (error := message.error()) is not None:
                    if error.retriable() or error.code() == KafkaError._ALL_BROKERS_DOWN:
                        continue
                    raise KafkaException(error)
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None and offset is not None and value is not None
                records[partition].append((offset, value))
                if offset + 1 >= bounds[partition][1]:
                    open_ones.discard(partition)
    finally:
        consumer.close()
    return records

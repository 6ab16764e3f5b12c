"""The time from a record's acknowledgement until it is a row that every engine can read, with default settings.

`freshness` asks PyIceberg, through the broker's REST catalog, for the newest records of one topic under a steady load.
`topics` gives 200 topics a few records a second each, and takes the times at which tables moved from the command log.
`burst` gives each of 1,000 new topics its first record at once; `crowd` gives 500, 1,000 and 2,000 topics a record
every few seconds, and says for how many of them the promise holds.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.figures import Figure, at_most
from bench.floors import percentile
from bench.follower import Follower, Place
from bench.ours import Lakestream
from bench.process import Meter, say
from bench.yard import Yard

VISIBLE_BAR_S = 10.0
FRESHNESS_S = 5.0
RATE = 1000
PARTITIONS = 3
TOPICS = 200
TOPIC_RATE = 5
BURST_TOPICS, BURST_BAR_S = 1000, 2 * FRESHNESS_S
CROWDS, QUICK_CROWDS = (500, 1000, 2000), (500,)
CROWD_EVERY_S = 4.0
SETTLE_S, QUICK_SETTLE_S = 20.0, 12.0
"""The time before the steady state: tables are created, code is loaded, the length of rounds is learned."""

Acked = list[tuple[Place, int, float]]
"""Records: their partitions and offsets, and the times of their acknowledgements."""


def measure(yard: Yard) -> list[Figure]:
    seconds, settle = (20.0, QUICK_SETTLE_S) if yard.quick else (60.0, SETTLE_S)
    with yard.fresh(tables=True) as broker:
        broker.start()
        broker.await_pipeline()
        _create(broker, ["visible"], PARTITIONS)
        with _producing(broker, ["visible"], PARTITIONS, RATE) as acked, Follower(broker) as follower:
            time.sleep(settle)
            meter = Meter(broker.pids)
            waits = _watched(broker, acked, seconds)
            usage = meter.read()
            own = _lags(follower, [one for one in list(acked) if one[0][1] == 0], settle)
    note = f"{len(waits)} samples, {RATE} records/s; foreign load {usage.foreign:.2f} cores"
    return [
        Figure(name="ack to a row for PyIceberg, median", unit="s", ours=[percentile(waits, 0.5)], note=note),
        Figure(
            name="ack to a row for PyIceberg, longest", unit="s", ours=[max(waits)], bar=at_most(VISIBLE_BAR_S),
            note=f"{note}; the commit itself after {max(own):.1f} s at most",
        ),
        Figure(
            name="broker, owner and pipeline meanwhile", unit="cores", ours=[usage.broker_s / usage.seconds], note=note
        ),
    ]  # fmt: skip


def measure_many(yard: Yard) -> list[Figure]:
    seconds, settle = (20.0, QUICK_SETTLE_S) if yard.quick else (60.0, SETTLE_S)
    topics = [f"topic-{number:03d}" for number in range(TOPICS)]
    with yard.fresh(tables=True) as broker:
        broker.start()
        broker.await_pipeline()
        _create(broker, topics, 1)
        with Follower(broker) as follower:
            with _producing(broker, topics, 1, TOPICS * TOPIC_RATE) as acked:
                time.sleep(settle)
                meter = Meter(broker.pids)
                time.sleep(seconds)
                usage = meter.read()
                counted = [one for one in list(acked) if one[2] > acked[0][2] + settle]
            time.sleep(3 * FRESHNESS_S)
            lags = [_lag(follower, one) for one in counted]
    worst: dict[Place, float] = {}
    for (place, _, _), lag in zip(counted, lags, strict=True):
        worst[place] = max(lag, worst.get(place, 0.0))
    say(f"# lags of {len(lags)} records: {[round(percentile(lags, share), 2) for share in (0.5, 0.9, 0.99, 1.0)]} s")
    name, note = f"{TOPICS} topics", f"{TOPIC_RATE} records/s each; foreign load {usage.foreign:.2f} cores"
    each = percentile(list(worst.values()), 0.5)
    return [
        Figure(name=f"{name}: lag, median", unit="s", ours=[percentile(lags, 0.5)], note=note),
        Figure(name=f"{name}: longest of each, median", unit="s", ours=[each], note=note),
        Figure(name=f"{name}: longest of all", unit="s", ours=[max(lags)], bar=at_most(FRESHNESS_S), note=note),
        Figure(name=f"{name}: all processes", unit="cores", ours=[usage.broker_s / usage.seconds], note=note),
    ]


def measure_burst(yard: Yard) -> list[Figure]:
    topics = [f"burst-{number:04d}" for number in range(BURST_TOPICS // (5 if yard.quick else 1))]
    with yard.fresh(tables=True) as broker:
        broker.start()
        broker.await_pipeline()
        _create(broker, topics, 1)
        time.sleep(QUICK_SETTLE_S)
        with Follower(broker) as follower:
            meter = Meter(broker.pids)
            with _producing(broker, topics, 1, float("inf"), rounds=1) as acked:
                _await(lambda: len(acked) == len(topics), 30.0)
            _await(lambda: all(follower.landed_at(place, offset) is not None for place, offset, _ in acked), 120.0)
            usage = meter.read()
            lags = [_lag(follower, one) for one in acked]
    spread_s = max(one[2] for one in acked) - min(one[2] for one in acked)
    note = f"acknowledged within {spread_s:.1f} s; foreign load {usage.foreign:.2f} cores"
    name = f"{len(topics)} first records at once"
    return [
        Figure(name=f"{name}: median", unit="s", ours=[percentile(lags, 0.5)], note=note),
        Figure(name=f"{name}: longest", unit="s", ours=[max(lags)], bar=at_most(BURST_BAR_S), note=note),
        Figure(name=f"{name}: CPU", unit="ms/topic", ours=[usage.broker_s / len(topics) * 1000], note=note),
    ]


def measure_crowd(yard: Yard) -> list[Figure]:
    return [figure for count in (QUICK_CROWDS if yard.quick else CROWDS) for figure in _crowd(yard, count)]


def _crowd(yard: Yard, count: int) -> list[Figure]:
    seconds, settle = (20.0, 20.0) if yard.quick else (60.0, 40.0)
    topics = [f"crowd-{number:04d}" for number in range(count)]
    with yard.fresh(tables=True) as broker:
        broker.start()
        broker.await_pipeline()
        _create(broker, topics, 1)
        with Follower(broker) as follower:
            with _producing(broker, topics, 1, count / CROWD_EVERY_S) as acked:
                time.sleep(settle)
                meter = Meter(broker.pids)
                time.sleep(seconds)
                usage = meter.read()
                counted = [one for one in list(acked) if one[2] > acked[0][2] + settle]
            _await(lambda: all(follower.landed_at(one[0], one[1]) is not None for one in counted), 120.0)
            lags = [_lag(follower, one) for one in counted]
    name = f"{count} topics, a record every {CROWD_EVERY_S:g} s"
    note = f"foreign load {usage.foreign:.2f} cores"
    return [
        Figure(name=f"{name}: lag, median", unit="s", ours=[percentile(lags, 0.5)], note=note),
        Figure(name=f"{name}: lag, longest", unit="s", ours=[max(lags)], note=note),
        Figure(name=f"{name}: all processes", unit="cores", ours=[usage.broker_s / usage.seconds], note=note),
    ]


def _await(done: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise RuntimeError(f"not all records are rows after {seconds:g} s")
        time.sleep(0.1)


def _create(broker: Lakestream, topics: list[str], partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    made = admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics], request_timeout=60)
    for future in made.values():
        future.result()


@contextlib.contextmanager
def _producing(
    broker: Lakestream, topics: list[str], partitions: int, rate: float, rounds: int | None = None
) -> Iterator[Acked]:
    """Records of 100 bytes at a steady rate, topic by topic and partition by partition; so many rounds, or all along.
    """
    acked: Acked = []
    failed: list[str] = []
    stopping = threading.Event()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 5})

    def told(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(str(error))
        else:
            acked.append(((str(message.topic()), message.partition() or 0), message.offset() or 0, time.monotonic()))

    def produce() -> None:
        due = time.monotonic()
        for partition in islice(cycle(range(partitions)), rounds):
            for topic in topics:
                producer.produce(topic, b"x" * 100, partition=partition, on_delivery=told)
                producer.poll(max(0.0, due - time.monotonic()))
                due += 1 / rate
                if stopping.is_set():
                    return

        producer.flush(30)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield acked
    finally:
        stopping.set()
        thread.join()
        producer.flush(30)
    if failed:
        raise RuntimeError(f"records were refused: {failed[:3]}")


def _watched(broker: Lakestream, acked: Acked, seconds: float) -> list[float]:
    """How long the newest records of partition 0 take until a scan finds them as rows; scans all the time."""
    from pyiceberg.catalog.rest import RestCatalog

    catalog = RestCatalog("bench", uri=f"http://{broker.http}/iceberg")
    waits: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        (topic, _), offset, at = next(one for one in reversed(list(acked)) if one[0][1] == 0)
        while True:
            table = catalog.load_table(("streams", topic))
            found = table.scan(
                row_filter=f"stream_partition = 0 and stream_offset = {offset}", selected_fields=("stream_offset",)
            ).to_arrow()
            if found.num_rows:
                break
            if time.monotonic() > at + 60:
                raise RuntimeError(f"offset {offset} of {topic} is no row after a minute")
            time.sleep(0.1)
        waits.append(time.monotonic() - at)
    return waits


def _lag(follower: Follower, one: tuple[Place, int, float]) -> float:
    place, offset, at = one
    landed = follower.landed_at(place, offset)
    if landed is None:
        raise RuntimeError(f"{place} has not landed up to {offset}")
    return landed - at


def _lags(follower: Follower, acked: Acked, settle: float) -> list[float]:
    """The waits of landed records that were acknowledged after the settling time."""
    counted = [one for one in acked if one[2] > acked[0][2] + settle]
    known = [one for one in counted if follower.landed_at(one[0], one[1]) is not None]
    return [_lag(follower, one) for one in known]

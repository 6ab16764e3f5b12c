"""Replay out of the table beside Kafka's page cache: MB/s and CPU per GB of one librdkafka consumer, 1 KB records.

A quarter of each record is noise. Ours lie in the table alone when the consumer comes; Kafka's were just produced, and
fit the page cache. While both replay, another consumer waits at the end of another topic: how long do records take to
reach it, with and without the replay? All clients share one core, on both sides.
"""

from bench.figures import Figure, at_least, at_most
from bench.floors import percentile
from bench.yard import PARTITIONS, Broker, Result, Yard, foreign

SIZE = 1000
NOISE = 0.25
RECORDS, QUICK_RECORDS = 2_000_000, 600_000
LAND_LIMIT_S = 600.0
TAIL = {"rate": 100, "warm": 50}
TAIL_S = 8.0


def measure(yard: Yard) -> list[Figure]:
    records = QUICK_RECORDS if yard.quick else RECORDS
    kafka = yard.kafka
    with yard.fresh(tables=True) as ours:
        ours.start()
        ours.await_pipeline()
        topic = _filled(yard, ours, records)
        ours.await_landed(topic, records + PARTITIONS, LAND_LIMIT_S)
        ours.pin_brokers()
        theirs_topic = _filled(yard, kafka, records) if kafka is not None else ""
        _replay(yard, ours, topic, records)  # the first one loads the libraries, and Kafka's compiler likewise
        if kafka is not None:
            _replay(yard, kafka, theirs_topic, records)
        mine, theirs = [], []
        for _ in range(yard.rounds):
            mine.append(_replay(yard, ours, topic, records))
            if kafka is not None:
                theirs.append(_replay(yard, kafka, theirs_topic, records))
        figures = _rates(mine, theirs) + _waits(yard, ours, topic, records, with_bar=True)
    if kafka is not None:
        figures += _waits(yard, kafka, theirs_topic, records, with_bar=False)
    return figures


def _filled(yard: Yard, broker: Broker, records: int) -> str:
    topic = yard.topic(broker)
    asked = {"topic": topic, "partitions": PARTITIONS, "size": SIZE, "records": records, "noise": NOISE}
    yard.client(broker, "produce", idempotent=True, **asked)
    return topic


def _replay(yard: Yard, broker: Broker, topic: str, records: int, passes: int = 1) -> Result:
    return yard.client(broker, "consume", **_asked(topic, records, passes))


def _asked(topic: str, records: int, passes: int) -> dict[str, object]:
    # The producer sends one more record to each partition before its time is taken.
    total = records + PARTITIONS
    return {"topic": topic, "partitions": PARTITIONS, "size": SIZE, "records": total, "passes": passes}


def _rates(mine: list[Result], theirs: list[Result]) -> list[Figure]:
    note = foreign(mine + theirs)
    return [
        Figure(
            name="replay from the table, rate", unit="MB/s", ours=[_rate(one) for one in mine], base_name="Kafka",
            base=[_rate(one) for one in theirs], bar=at_least(0.5) if theirs else None, note=note,
        ),
        Figure(
            name="replay from the table, CPU/GB", unit="s", ours=[_cost(one) for one in mine], base_name="Kafka",
            base=[_cost(one) for one in theirs], note=note,
        ),
    ]  # fmt: skip


def _waits(yard: Yard, broker: Broker, topic: str, records: int, *, with_bar: bool) -> list[Figure]:
    """Milliseconds from `produce` to another consumer, alternately beside a replay and without one."""
    alone: list[Result] = []
    beside: list[Result] = []
    for _ in range(yard.rounds):
        seconds = {**TAIL, "seconds": TAIL_S}
        alone.append(yard.client(broker, "tail", topic=yard.topic(broker, 1), **seconds))
        replay = yard.beside(broker, "consume", **_asked(topic, records, 20), limit_s=TAIL_S + 2)
        beside.append(yard.client(broker, "tail", topic=yard.topic(broker, 1), **seconds))
        replay()
    note = foreign(alone)
    return [
        Figure(
            name=f"tail beside replay, {broker.name}, {label}", unit="ms", ours=_all(beside, share),
            base_name="without", base=_all(alone, share),
            bar=at_most(2) if with_bar and share == 0.5 else None, note=note,
        )
        for share, label in ((0.5, "median"), (0.99, "99th percentile"))
    ]  # fmt: skip


def _all(results: list[Result], share: float) -> list[float]:
    return [percentile(one["times"], share) * 1e3 for one in results]


def _rate(result: Result) -> float:
    return float(result["bytes"] / 1e6 / result["reading_s"])


def _cost(result: Result) -> float:
    return float(result["cpu_s"] / (result["read_bytes"] / 1e9))

"""Consume beside Kafka: MB/s and broker CPU per GB, librdkafka, six partitions of 1 KB records.

Fresh records are the bar: a tenth of a gigabyte, read a few times just after it was produced. A backlog of a gigabyte,
more than our cache holds but still in the page cache on both sides, is shown beside it.
"""

from bench.figures import Figure, at_least, at_most
from bench.yard import PARTITIONS, Broker, Result, Yard, foreign

SIZE = 1000
FRESH, FRESH_PASSES = 100_000, 20
BACKLOG = 1_000_000


def measure(yard: Yard) -> list[Figure]:
    fresh = _read(yard, "consume 1 KB, fresh", FRESH, 8 if yard.quick else FRESH_PASSES, with_bars=True)
    return fresh + _read(yard, "consume 1 KB, backlog of 1 GB", BACKLOG, 1, with_bars=False)


def _read(yard: Yard, name: str, records: int, passes: int, *, with_bars: bool) -> list[Figure]:
    ours: list[Result] = []
    theirs: list[Result] = []
    for _ in range(yard.rounds if with_bars else 1):
        ours.append(_run(yard, yard.ours, records, passes))
        if yard.kafka is not None:
            theirs.append(_run(yard, yard.kafka, records, passes))
    note = foreign(ours + theirs)
    return [
        Figure(
            name=f"{name}, CPU/GB", unit="s", ours=[_cost(one) for one in ours], base_name="Kafka",
            base=[_cost(one) for one in theirs], bar=at_most(0.7) if with_bars and theirs else None, note=note,
        ),
        Figure(
            name=f"{name}, rate", unit="MB/s", ours=[_rate(one) for one in ours], base_name="Kafka",
            base=[_rate(one) for one in theirs], bar=at_least(1) if with_bars and theirs else None, note=note,
        ),
    ]  # fmt: skip


def _run(yard: Yard, broker: Broker, records: int, passes: int) -> Result:
    asked = {"topic": yard.topic(broker), "partitions": PARTITIONS, "size": SIZE, "records": records}
    yard.client(broker, "produce", idempotent=True, **asked)
    asked["records"] = records + PARTITIONS  # the producer's first record to each partition
    return yard.client(broker, "consume", passes=passes, **asked)


def _rate(result: Result) -> float:
    return float(result["bytes"] / 1e6 / result["reading_s"])


def _cost(result: Result) -> float:
    return float(result["cpu_s"] / (result["read_bytes"] / 1e9))

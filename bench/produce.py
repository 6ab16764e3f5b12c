"""Produce beside Kafka: MB/s and broker CPU per GB, librdkafka, idempotent, six partitions.

Ours syncs before each acknowledgement. Kafka is measured both ways: with its default, which never syncs, and with a
sync on each append.
"""

from bench.figures import Figure, at_least, at_most
from bench.yard import PARTITIONS, Result, Yard, foreign


def measure(yard: Yard) -> list[Figure]:
    return [figure for size in (1000, 100) for figure in _sized(yard, size)]


def _sized(yard: Yard, size: int) -> list[Figure]:
    ours: list[Result] = []
    lazy: list[Result] = []
    synced: list[Result] = []
    for _ in range(yard.rounds):
        ours.append(_run(yard, size))
        if yard.kafka is not None:
            lazy.append(_run(yard, size, kafka=True))
            synced.append(_run(yard, size, kafka=True, synced=True))
    name, note = f"produce {size} B", foreign(ours + lazy + synced)
    rate, cost = [_rate(one) for one in ours], [_cost(one) for one in ours]
    if not lazy:
        return [
            Figure(name=f"{name}, CPU/GB", unit="s", ours=cost, note=note),
            Figure(name=f"{name}, rate", unit="MB/s", ours=rate, note=note),
        ]
    beside = {"base_name": "Kafka without sync"}
    return [
        Figure(
            name=f"{name}, CPU/GB", unit="s", ours=cost, base=[_cost(one) for one in lazy], bar=at_most(0.5), note=note,
            **beside,
        ),
        Figure(
            name=f"{name}, rate", unit="MB/s", ours=rate, base=[_rate(one) for one in lazy], bar=at_least(1), note=note,
            **beside,
        ),
        Figure(
            name=f"{name}, rate", unit="MB/s", ours=rate, base_name="Kafka with sync",
            base=[_rate(one) for one in synced], bar=at_least(3), note=note,
        ),
    ]  # fmt: skip


def _run(yard: Yard, size: int, *, kafka: bool = False, synced: bool = False) -> Result:
    broker = yard.kafka if kafka else yard.ours
    assert broker is not None
    asked = {"size": size, "partitions": PARTITIONS, "idempotent": True, "seconds": yard.seconds}
    return yard.client(broker, "produce", topic=yard.topic(broker, synced=synced), **asked)


def _rate(result: Result) -> float:
    return float(result["bytes"] / 1e6 / result["seconds"])


def _cost(result: Result) -> float:
    return float(result["cpu_s"] / (result["bytes"] / 1e9))

"""Produce beside Kafka: MB/s and broker CPU per GB, librdkafka, idempotent, six partitions.

Ours syncs before each acknowledgement. Kafka is measured both ways: with its default, which never syncs, and with a
sync on each append. Beside them the client's own limit: its rate where nothing is stored and all is acknowledged at
once. No broker can be faster than that with this client on one core. So small records are sent once more by a
generator that has its requests ready: what the brokers themselves can take.
"""

from bench.figures import Figure, at_least, at_most
from bench.yard import PARTITIONS, Broker, Result, Yard, foreign

READY = {"size": 100, "records": 1000, "connections": PARTITIONS, "window": 4}
"""Requests of 100 KB, about the size of librdkafka's for such records."""


def measure(yard: Yard) -> list[Figure]:
    return [figure for size in (1000, 100) for figure in _sized(yard, size)] + _ready(yard)


def _sized(yard: Yard, size: int) -> list[Figure]:
    ours: list[Result] = []
    instant: list[Result] = []
    lazy: list[Result] = []
    synced: list[Result] = []
    for _ in range(yard.rounds):
        ours.append(_run(yard, yard.ours, size))
        with yard.fresh(in_memory=True) as memory:  # a new one each time: it keeps all it gets
            memory.start()
            instant.append(_run(yard, memory, size))
        if yard.kafka is not None:
            lazy.append(_run(yard, yard.kafka, size))
            synced.append(_run(yard, yard.kafka, size, synced=True))
    name, note = f"produce {size} B", foreign(ours + lazy + synced)
    rate, cost = [_rate(one) for one in ours], [_cost(one) for one in ours]
    busy = [one["client_s"] / one["seconds"] for one in ours]
    limit = Figure(
        name=f"{name}, rate", unit="MB/s", ours=rate, base_name="the client's limit",
        base=[_rate(one) for one in instant],
        note=f"{note}; with us the client keeps {min(busy):.2f}-{max(busy):.2f} of its core busy",
    )  # fmt: skip
    if not lazy:
        return [Figure(name=f"{name}, CPU/GB", unit="s", ours=cost, note=note), limit]
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
        limit,
    ]  # fmt: skip


def _ready(yard: Yard) -> list[Figure]:
    ours: list[Result] = []
    lazy: list[Result] = []
    synced: list[Result] = []
    for _ in range(yard.rounds):
        ours.append(_run_ready(yard, yard.ours))
        if yard.kafka is not None:
            lazy.append(_run_ready(yard, yard.kafka))
            synced.append(_run_ready(yard, yard.kafka, synced=True))
    name, note = "produce 100 B, ready requests", foreign(ours + lazy + synced)
    rate, cost = [_rate(one) for one in ours], [_cost(one) for one in ours]
    beside = "Kafka without sync"
    return [
        Figure(
            name=f"{name}, CPU/GB", unit="s", ours=cost, base_name=beside, base=[_cost(one) for one in lazy], note=note
        ),
        Figure(
            name=f"{name}, rate", unit="MB/s", ours=rate, base_name=beside, base=[_rate(one) for one in lazy], note=note
        ),
        Figure(
            name=f"{name}, rate", unit="MB/s", ours=rate, base_name="Kafka with sync",
            base=[_rate(one) for one in synced], note=note,
        ),
    ]  # fmt: skip


def _run_ready(yard: Yard, broker: Broker, *, synced: bool = False) -> Result:
    topic = yard.topic(broker, synced=synced)
    result = yard.client(broker, "tiny", topic=topic, partitions=PARTITIONS, seconds=yard.seconds, **READY)
    return {**result, "bytes": result["requests"] * READY["records"] * READY["size"]}


def _run(yard: Yard, broker: Broker, size: int, *, synced: bool = False) -> Result:
    asked = {"size": size, "partitions": PARTITIONS, "idempotent": True, "seconds": yard.seconds}
    return yard.client(broker, "produce", topic=yard.topic(broker, synced=synced), **asked)


def _rate(result: Result) -> float:
    return float(result["bytes"] / 1e6 / result["seconds"])


def _cost(result: Result) -> float:
    return float(result["cpu_s"] / (result["bytes"] / 1e9))

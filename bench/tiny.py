"""One record of 100 bytes a request, pipelined on 16 connections: requests a second and broker CPU per request."""

from bench.figures import Figure, at_least, at_most
from bench.yard import PARTITIONS, Result, Yard, foreign

CONNECTIONS = 16
WINDOW = 256


def measure(yard: Yard) -> list[Figure]:
    ours: list[Result] = []
    lazy: list[Result] = []
    synced: list[Result] = []
    for _ in range(yard.rounds):
        ours.append(_run(yard))
        if yard.kafka is not None:
            lazy.append(_run(yard, kafka=True))
            synced.append(_run(yard, kafka=True, synced=True))
    note = foreign(ours + lazy + synced)
    rate, cost = [_rate(one) for one in ours], [_cost(one) for one in ours]
    if not lazy:
        return [
            Figure(name="tiny requests, CPU each", unit="us", ours=cost, note=note),
            Figure(name="tiny requests, rate", unit="1/s", ours=rate, note=note),
        ]
    return [
        Figure(
            name="tiny requests, CPU each", unit="us", ours=cost, base_name="Kafka without sync",
            base=[_cost(one) for one in lazy], bar=at_most(0.25), note=note,
        ),
        Figure(
            name="tiny requests, rate", unit="1/s", ours=rate, base_name="Kafka without sync",
            base=[_rate(one) for one in lazy], bar=at_least(3), note=note,
        ),
        Figure(
            name="tiny requests, rate", unit="1/s", ours=rate, base_name="Kafka with sync",
            base=[_rate(one) for one in synced], bar=at_least(10), note=note,
        ),
    ]  # fmt: skip


def _run(yard: Yard, *, kafka: bool = False, synced: bool = False) -> Result:
    broker = yard.kafka if kafka else yard.ours
    assert broker is not None
    asked = {"size": 100, "connections": CONNECTIONS, "window": WINDOW, "seconds": yard.seconds}
    return yard.client(broker, "tiny", topic=yard.topic(broker, synced=synced), partitions=PARTITIONS, **asked)


def _rate(result: Result) -> float:
    return float(result["requests"] / result["seconds"])


def _cost(result: Result) -> float:
    return float(result["cpu_s"] / result["requests"] * 1e6)

"""How long a record waits for its acknowledgement, beside one small file created and synced with its directory.

One librdkafka producer, linger 0, 1,000 records a second of 100 bytes, one partition. The floor is taken before and
after each run. Both bars are multiples of the floor's median. Kafka without sync is shown; with a sync on each append
it does not keep up with this rate on most disks.
"""

from bench.figures import Figure, at_most
from bench.floors import percentile, small_files
from bench.yard import Broker, Result, Yard, foreign

RATE = 1000
ROUNDS = 5
"""The number of rounds: a virtual machine's disk stalls at times, and one or two stalls do not move their median."""


def measure(yard: Yard) -> list[Figure]:
    folder = yard.folder / "latency"
    folder.mkdir(exist_ok=True)
    ours: list[Result] = []
    lazy: list[Result] = []
    floors: list[list[float]] = []
    for _ in range(ROUNDS):
        topic = yard.topic(yard.ours, 1)
        with yard.alone(yard.ours):
            before = small_files(folder, 0.7)
            ours.append(_run(yard, yard.ours, topic))
            floors.append(before + small_files(folder, 0.7))
        if yard.kafka is not None:
            lazy.append(_run(yard, yard.kafka, yard.topic(yard.kafka, 1)))
    floor = [percentile(one, 0.5) * 1e3 for one in floors]
    tails = [percentile(one, 0.99) * 1e3 for one in floors]
    note = foreign(ours)
    figures = [
        Figure(
            name="ack latency, median", unit="ms", ours=_all(ours, 0.5), base_name="one small file", base=floor,
            bar=at_most(4), note=note,
        ),
        Figure(
            name="ack latency, 99th percentile", unit="ms", ours=_all(ours, 0.99), base_name="one small file",
            base=floor, bar=at_most(12), note=f"{note}; the files' own: {min(tails):.2f}-{max(tails):.2f} ms",
        ),
    ]  # fmt: skip
    if not lazy:
        return figures
    return figures + [
        Figure(
            name=f"ack latency, {label}", unit="ms", ours=_all(ours, share), base_name="Kafka without sync",
            base=_all(lazy, share),
        )
        for share, label in ((0.5, "median"), (0.99, "99th percentile"))
    ]  # fmt: skip


def _run(yard: Yard, broker: Broker, topic: str) -> Result:
    asked = {"size": 100, "rate": RATE, "warm": 500, "records": int(yard.seconds * RATE)}
    return yard.client(broker, "latency", topic=topic, **asked)


def _all(results: list[Result], share: float) -> list[float]:
    return [percentile(one["times"], share) * 1e3 for one in results]

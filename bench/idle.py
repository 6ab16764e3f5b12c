"""A broker with nothing to do: the time of a second start, memory, CPU; without tables and with them.

With tables the owner of the command log counts as the broker's, where it is a process; Spark does not. Some history
is served in between.
"""

import time

from bench.figures import Figure, at_most
from bench.process import Meter, resident_mb
from bench.yard import PARTITIONS, Yard

SETTLE_S = 3.0
HISTORY_RECORDS = 300_000
REST_S = 20.0
"""How long a broker may take to free the memory of what it read."""


def measure(yard: Yard) -> list[Figure]:
    return _without_tables(yard) + _with_tables(yard)


def _with_tables(yard: Yard) -> list[Figure]:
    seconds = 8.0 if yard.quick else 20.0
    with yard.fresh(tables=True) as broker:
        broker.start()
        broker.await_pipeline()
        time.sleep(SETTLE_S)
        meter = Meter(broker.serving_pids)
        time.sleep(seconds)
        usage = meter.read()
        first = sum(map(resident_mb, broker.serving_pids))
        topic = yard.topic(broker)
        asked = {"topic": topic, "partitions": PARTITIONS, "size": 1000}
        yard.client(broker, "produce", records=HISTORY_RECORDS, idempotent=True, noise=0.25, **asked)
        total = HISTORY_RECORDS + PARTITIONS
        broker.await_landed(topic, total, 120)
        yard.client(broker, "consume", records=total, passes=2, **asked)
        most = resident_mb(broker.broker_pid)
        time.sleep(REST_S)
        later, processes = sum(map(resident_mb, broker.serving_pids)), len(broker.serving_pids)
    return [
        Figure(
            name="idle with tables, memory", unit="MB", ours=[first], bar=at_most(280),
            note=f"{processes} processes beside Spark and the supervisor",
        ),
        Figure(
            name="idle after history, memory", unit="MB", ours=[later], bar=at_most(280),
            note=f"the broker had {most:.0f} MB right after the replay",
        ),
        Figure(
            name="idle with tables, CPU", unit="% of a core", ours=[usage.broker_s / usage.seconds * 100],
            note=f"foreign load {usage.foreign:.2f} cores",
        ),
    ]  # fmt: skip


def _without_tables(yard: Yard) -> list[Figure]:
    seconds = 8.0 if yard.quick else 20.0
    with yard.fresh() as broker:
        first = broker.start()
        broker.stop()
        second = broker.start()
        time.sleep(SETTLE_S)
        meter, supervisor = Meter([broker.broker_pid]), Meter([broker.supervisor_pid])
        time.sleep(seconds)
        usage, beside = meter.read(), supervisor.read()
        memory, its_supervisor = resident_mb(broker.broker_pid), resident_mb(broker.supervisor_pid)
    note = f"foreign load {usage.foreign:.2f} cores"
    return [
        Figure(
            name="second start to the ready line", unit="s", ours=[second], bar=at_most(3), note=f"first {first:.2f} s"
        ),
        Figure(
            name="idle, memory", unit="MB", ours=[memory], bar=at_most(200), note=f"supervisor {its_supervisor:.0f} MB"
        ),
        Figure(
            name="idle, CPU", unit="% of a core", ours=[usage.broker_s / usage.seconds * 100], bar=at_most(2),
            note=f"{note}; supervisor {beside.broker_s / beside.seconds * 100:.2f} %",
        ),
    ]  # fmt: skip

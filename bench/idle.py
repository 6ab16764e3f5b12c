"""A broker with nothing to do: the time of a second start, memory, CPU."""

import time

from bench.figures import Figure, at_most
from bench.process import Meter, resident_mb
from bench.yard import Yard

SETTLE_S = 3.0


def measure(yard: Yard) -> list[Figure]:
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

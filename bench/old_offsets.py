"""A fetch at a random old offset: milliseconds from the request to the last byte of the answer, out of a large table.

One connection, one fetch at a time, up to 1 MB each, 12 partitions of incompressible 1 KB records; nothing of it is in
the WAL any more. The caches of the broker hold a hundredth of the table. A quick run makes do with 1 GB.
"""

import random
import socket
import struct
import time

from bench.figures import Figure, at_most
from bench.floors import percentile
from bench.frames import fetch_frame, fetched_bytes, receive
from bench.process import Meter
from bench.yard import Yard

SIZE = 1000
PARTITIONS = 12
GIGABYTES, QUICK_GIGABYTES = 10, 1
FETCHES, WARM = 300, 20
FETCH_BYTES = 1 << 20
LAND_LIMIT_S = 1200.0
P50_BAR_MS = 30


def measure(yard: Yard) -> list[Figure]:
    gigabytes = QUICK_GIGABYTES if yard.quick else GIGABYTES
    records = gigabytes * 1_000_000
    with yard.fresh(tables=True) as broker:
        broker.start()
        broker.await_pipeline()
        topic = yard.topic(broker, PARTITIONS)
        asked = {"topic": topic, "partitions": PARTITIONS, "size": SIZE, "records": records, "noise": 1.0}
        yard.client(broker, "produce", idempotent=True, **asked)
        broker.await_landed(topic, records + PARTITIONS, LAND_LIMIT_S)
        stored = sum(path.stat().st_size for path in broker.data.rglob("*.parquet"))
        meter = Meter([broker.broker_pid])
        times = _fetches(broker.bootstrap, topic, records // PARTITIONS)
        usage = meter.read()
    note = (
        f"{stored / 1e9:.1f} GB in the table; broker {usage.broker_s / (FETCHES + WARM) * 1000:.1f} ms of CPU each; "
        f"foreign load {usage.foreign:.2f} cores"
    )
    return [
        Figure(
            name="fetch at a random old offset, p50", unit="ms", ours=[percentile(times, 0.5) * 1e3],
            bar=at_most(P50_BAR_MS), note=note,
        ),
        Figure(name="fetch at a random old offset, p99", unit="ms", ours=[percentile(times, 0.99) * 1e3], note=note),
    ]  # fmt: skip


def _fetches(bootstrap: str, topic: str, upto: int) -> list[float]:
    host, _, port = bootstrap.rpartition(":")
    chance, times = random.Random(1), []
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(WARM + FETCHES):
            partition, offset = chance.randrange(PARTITIONS), chance.randrange(upto - 5000)
            begin = time.perf_counter()
            connection.sendall(fetch_frame(topic, partition, offset, FETCH_BYTES, number))
            answer = receive(connection)
            times.append(time.perf_counter() - begin)
            assert struct.unpack_from(">i", answer, 4)[0] == number
            assert fetched_bytes(answer) > FETCH_BYTES // 2, f"offset {offset} of partition {partition}"
    return times[WARM:]

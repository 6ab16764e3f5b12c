"""The lake's first bar: what was produced is in the table, all of it and once, and comes back from there byte for byte.

Records are functions of their place, made a block at a time, and both sides are compared by the sum of a hash of place
and bytes: neither the order of rows nor a loop over records is needed.
"""

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from numpy.typing import NDArray

from tests.support.acked_workload import create_topic
from tests.support.lake_process import await_pipeline, table_of, topic_state
from tests.support.serve_process import Cluster, eventually, serving

TOPIC, PARTITIONS, SIZE = "bars", 12, 200
BLOCK = 1000
WORDS = SIZE // 8
LAND_S = 900.0
QUICK = {
    "collector_interval_ms": 500,
    "collector_grace_ms": 1000,
    "broker_heartbeat_ms": 500,
    "broker_session_ms": 4000,
}
LEFT_BYTES = 1 << 20
"""What may still lie in the WAL: the records of the load are far more."""

Matrix = NDArray[np.uint64]
MULTIPLIERS = np.random.default_rng(1).integers(1, 1 << 63, WORDS, np.uint64) * np.uint64(2) + np.uint64(1)


def block_of(partition: int, block: int) -> Matrix:
    """The values at offsets [block * BLOCK, (block + 1) * BLOCK) of a partition, a row each."""
    return np.random.default_rng((partition, block)).integers(0, 1 << 64, (BLOCK, WORDS), np.uint64)


def digest(partitions: NDArray[np.int64], offsets: NDArray[np.int64], values: Matrix) -> int:
    """A sum over all records, modulo 2^64, in which place and bytes of each are mixed beyond recognition."""
    mixed = values @ MULTIPLIERS
    mixed += partitions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= offsets.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    for _ in range(2):
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return int(mixed.sum(dtype=np.uint64))


def expected(blocks: int) -> int:
    total = 0
    for partition in range(PARTITIONS):
        places = np.full(BLOCK, partition, np.int64)
        for block in range(blocks):
            offsets = np.arange(block * BLOCK, (block + 1) * BLOCK)
            total += digest(places, offsets, block_of(partition, block))
    return total % (1 << 64)


def produce(cluster: Cluster, blocks: int) -> None:
    failed: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 5,
            "batch.size": 500_000, "queue.buffering.max.messages": 200_000, "delivery.report.only.error": True,
        }
    )  # fmt: skip
    for block in range(blocks):
        for partition in range(PARTITIONS):
            data = block_of(partition, block).tobytes()
            messages = [{"value": data[at : at + SIZE]} for at in range(0, len(data), SIZE)]
            while len(producer) > 100_000:
                producer.poll(0.01)
            sent = producer.produce_batch(
                TOPIC, messages, partition=partition, on_delivery=lambda error, _: failed.append(str(error))
            )
            assert sent == BLOCK
    assert producer.flush(120) == 0 and failed == []


def test_the_digest_sees_a_changed_byte_a_swap_and_a_doubled_row() -> None:
    values, places, offsets = block_of(0, 0), np.zeros(BLOCK, np.int64), np.arange(BLOCK)
    right = digest(places, offsets, values)
    assert digest(places[::-1], offsets[::-1], values[::-1]) == right
    changed = values.copy()
    changed[500, 3] ^= np.uint64(1)
    swapped = offsets.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    doubled = np.append(offsets[1:], 500)
    assert len({right, digest(places, offsets, changed), digest(places, swapped, values),
                digest(places, doubled, np.vstack([values[1:], values[500:501]]))}) == 4  # fmt: skip


@pytest.mark.parametrize("blocks", [4, pytest.param(417, marks=pytest.mark.long, id="five-million")])
def test_the_table_holds_exactly_what_was_produced_and_is_the_only_copy(tmp_path: Path, blocks: int) -> None:
    """C4, C5: 48,000 records, or five million; the WAL is collected before a consumer comes for them."""
    count = blocks * BLOCK * PARTITIONS
    with serving(tmp_path, tables=True, **QUICK) as cluster:
        create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
        await_pipeline(cluster)
        produce(cluster, blocks)
        eventually(lambda: landed(cluster) == count, "not everything lands", LAND_S, cluster)
        wanted = expected(blocks)
        assert in_table(cluster) == (count, wanted)
        eventually(lambda: wal_bytes(tmp_path) < LEFT_BYTES, "the WAL keeps what is in the table", 60, cluster)
        reads = metric(cluster, "table_reads_total")
        assert consumed(cluster, count) == (count, wanted)
        assert metric(cluster, "table_reads_total") > reads and metric(cluster, "table_read_errors_total") == 0
        files, table = folder_bytes(tmp_path, "tables", ".parquet"), folder_bytes(tmp_path, "tables", "")
        wal = wal_bytes(tmp_path)
    produced = count * SIZE
    print(f"\n{produced:,} bytes produced; data files {files:,}, all of the table {table:,}, WAL {wal:,}")
    assert files > 0.9 * produced, "noise does not compress: this cannot be all of it"
    assert table < 1.2 * produced, "more than one copy"


def landed(cluster: Cluster) -> int:
    return sum(part["landed"] for part in topic_state(cluster, TOPIC)["partitions"])


def in_table(cluster: Cluster) -> tuple[int, int]:
    """How many rows PyIceberg finds, and their digest."""
    scan = table_of(cluster, TOPIC).scan(selected_fields=("stream_partition", "stream_offset", "value"))
    count = total = 0
    for rows in scan.to_arrow_batch_reader():
        partitions, offsets = (rows.column(name).to_numpy().astype(np.int64) for name in rows.schema.names[:2])
        count += rows.num_rows
        total += digest(partitions, offsets, matrix(rows.column("value")))
    return count, total % (1 << 64)


def matrix(column: pa.Array) -> Matrix:
    values = column.cast(pa.large_binary())
    assert values.null_count == 0
    starts = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
    assert (np.diff(starts) == SIZE).all()
    data = np.frombuffer(values.buffers()[2], np.uint8)[starts[0] : starts[-1]]
    return data.view(np.uint64).reshape(-1, WORDS)


def consumed(cluster: Cluster, count: int) -> tuple[int, int]:
    """How many records a consumer gets from offset 0 on, and their digest. Every offset follows the one before it."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "bars", "enable.auto.commit": False, "check.crcs": True}
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    nexts = np.zeros(PARTITIONS, np.int64)
    got = total = 0
    try:
        for messages in batches(consumer, count):
            partitions = np.array([message.partition() for message in messages], np.int64)
            offsets = np.array([message.offset() for message in messages], np.int64)
            values = np.frombuffer(b"".join(message.value() or b"" for message in messages), np.uint64)
            for partition in np.unique(partitions):
                own = offsets[partitions == partition]
                assert (own == np.arange(nexts[partition], nexts[partition] + len(own))).all()
                nexts[partition] += len(own)
            got += len(messages)
            total += digest(partitions, offsets, values.reshape(-1, WORDS))
    finally:
        consumer.close()
    return got, total % (1 << 64)


def batches(consumer: Consumer, count: int) -> Iterator[list[Message]]:
    while count:
        messages = consumer.consume(min(count, 10_000), 30.0)
        assert messages, f"{count} records are missing"
        assert [message.error() for message in messages if message.error()] == []
        count -= len(messages)
        yield messages


def folder_bytes(folder: Path, part: str, suffix: str) -> int:
    """The bytes below `data`/CLUSTER/`part` of files whose name ends so."""
    total = 0
    for path in (folder / "data").glob(f"*/{part}/**/*"):
        try:
            total += path.stat().st_size if path.is_file() and path.name.endswith(suffix) else 0
        except FileNotFoundError:
            continue
    return total


def wal_bytes(folder: Path) -> int:
    return folder_bytes(folder, "wal", "") + folder_bytes(folder, "merged", "")


def metric(cluster: Cluster, name: str) -> float:
    with urllib.request.urlopen(f"http://{cluster.http[0]}/metrics", timeout=5) as answer:
        return float(re.search(rf"^lakestream_{name} (\S+)$", answer.read().decode(), re.MULTILINE)[1])  # type: ignore[index]

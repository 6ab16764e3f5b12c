"""A real `lakestream serve --tables`: what clients produce, engines find in the table, and consumers get it from there.

One cluster lives through the whole module, since Spark takes long to start; each test has a topic of its own.
"""

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from pyiceberg.table import Table

from tests.support.acked_workload import create_topic
from tests.support.lake_process import (
    PIPELINE_START_S,
    await_landed,
    await_pipeline,
    pipeline_starts,
    table_of,
    topic_state,
)
from tests.support.serve_process import Cluster, eventually, serving

PARTITIONS = 2
COUNT = 3000
TIME_MS = 1_700_000_000_000

Sent = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
Got = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]], int]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serving(tmp_path_factory.mktemp("lake"), tables=True, broker_session_ms=4000, broker_heartbeat_ms=500) as one:
        await_pipeline(one)
        yield one


def record(number: int) -> Sent:
    """Every mixture of null and empty."""
    key = (None, b"", b"key-%d" % number)[number % 3]
    value = (b"value-%d" % number, None, b"", b"v" * (number % 300))[number % 4]
    headers: list[tuple[str, bytes | None]] = [("n", b"%d" % number), ("empty", b""), ("null", None)]
    return key, value, headers if number % 5 == 0 else []


def produce(cluster: Cluster, topic: str, numbers: Sequence[int]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 5})
    failed: list[Any] = []
    for number in numbers:
        key, value, headers = record(number)
        producer.produce(
            topic, key=key, value=value, headers=headers, partition=number % PARTITIONS, timestamp=TIME_MS + number,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(30) == 0 and not failed


def consume(cluster: Cluster, topic: str, start: int = 0) -> dict[int, list[Got]]:
    """Everything of every partition, and no more."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reads", "enable.partition.eof": True,
                         "enable.auto.commit": False, "check.crcs": True})  # fmt: skip
    found: dict[int, list[Got]] = {partition: [] for partition in range(PARTITIONS)}
    left = set(found)
    deadline = time.monotonic() + 20
    try:
        consumer.assign([TopicPartition(topic, partition, start) for partition in found])
        while left:
            assert time.monotonic() < deadline, f"partitions {left} do not end\n{cluster.log_text()[-3000:]}"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if error := message.error():
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
                continue
            one = (message.offset(), message.key(), message.value(), message.headers() or [], message.timestamp()[1])
            found[message.partition()].append(one)
    finally:
        consumer.close()
    return found


def expected(count: int, partition: int, gone: Sequence[int] = ()) -> list[Got]:
    """The first `count` records as a consumer gets them; offsets `gone` were deleted."""
    numbers = range(partition, count, PARTITIONS)
    return [
        (offset, *record(number), TIME_MS + number)
        for offset, number in enumerate(numbers)
        if offset not in gone
    ]


def rows(table: Table, partition: int) -> list[Got]:
    """The same out of the table."""
    found = table.scan(row_filter=f"stream_partition = {partition}").to_arrow().sort_by("stream_offset").to_pylist()
    return [
        (
            row["stream_offset"],
            row["stream_key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["stream_headers"] or []],
            round(row["stream_timestamp"].timestamp() * 1000),
        )
        for row in found
    ]


def metric(cluster: Cluster, name: str) -> float:
    with urllib.request.urlopen(f"http://{cluster.http[0]}/metrics", timeout=5) as answer:
        return float(re.search(rf"^lakestream_{name} (\S+)$", answer.read().decode(), re.MULTILINE)[1])  # type: ignore[index]


def test_records_become_rows_in_time_and_consumers_get_them_back_identical(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "orders", PARTITIONS)
    create_topic(cluster.bootstrap, "plain", PARTITIONS, lakestream_table_enabled="false")
    produce(cluster, "plain", range(10))
    produce(cluster, "orders", range(COUNT))
    await_landed(cluster, "orders", COUNT)
    assert topic_state(cluster, "orders")["entries"] == 0 and topic_state(cluster, "orders")["bytes"] == 0
    table = table_of(cluster, "orders")
    for partition in range(PARTITIONS):
        assert rows(table, partition) == expected(COUNT, partition)
    before = metric(cluster, "table_reads_total")
    assert consume(cluster, "orders") == {partition: expected(COUNT, partition) for partition in range(PARTITIONS)}
    assert metric(cluster, "table_reads_total") > before and metric(cluster, "table_read_errors_total") == 0
    # More, while the first ones are rows: table and tail are one log.
    produce(cluster, "orders", range(COUNT, 2 * COUNT))
    assert consume(cluster, "orders") == {partition: expected(2 * COUNT, partition) for partition in range(PARTITIONS)}
    await_landed(cluster, "orders", 2 * COUNT)
    assert consume(cluster, "orders") == {partition: expected(2 * COUNT, partition) for partition in range(PARTITIONS)}
    plain = topic_state(cluster, "plain")
    assert plain["table"] == "" and [part["landed"] for part in plain["partitions"]] == [0, 0]


def test_an_offset_is_found_by_its_time_in_the_table(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "times", PARTITIONS)
    produce(cluster, "times", range(COUNT))
    await_landed(cluster, "times", COUNT)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "times"})
    [found] = consumer.offsets_for_times([TopicPartition("times", 1, TIME_MS + 1001)], timeout=10)
    consumer.close()
    assert found.offset == 500


def test_deleted_rows_are_skipped_by_consumers_whose_positions_go_on(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "people", PARTITIONS)
    produce(cluster, "people", range(COUNT))
    await_landed(cluster, "people", COUNT)
    end = COUNT // PARTITIONS
    table_of(cluster, "people").delete("stream_offset >= 100 and stream_offset < 700")
    table_of(cluster, "people").delete(f"stream_offset >= {end - 50}")
    gone = [*range(100, 700), *range(end - 50, end)]
    eventually(
        lambda: consume(cluster, "people") == {one: expected(COUNT, one, gone) for one in range(PARTITIONS)},
        "deleted rows are still read", 10.0, cluster,
    )  # fmt: skip
    assert consume(cluster, "people", start=300)[0] == [one for one in expected(COUNT, 0, gone) if one[0] >= 300]
    produce(cluster, "people", range(COUNT, COUNT + 100))
    wanted = {one: expected(COUNT + 100, one, gone) for one in range(PARTITIONS)}
    assert consume(cluster, "people") == wanted
    await_landed(cluster, "people", COUNT + 100)
    assert consume(cluster, "people") == wanted


def test_a_broker_tells_readers_where_table_and_tail_meet(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "meets", PARTITIONS)
    produce(cluster, "meets", range(100))
    with urllib.request.urlopen(f"http://{cluster.http[0]}/tail/meets", timeout=10) as answer:
        told = json.load(answer)
    assert [(partition, start, end) for partition, start, _, end in told["partitions"]] == [(0, 0, 50), (1, 0, 50)]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{cluster.http[0]}/tail/nothing", timeout=10)


def test_a_killed_pipeline_comes_back_and_catches_up(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "kills", PARTITIONS)
    produce(cluster, "kills", range(COUNT))
    before = pipeline_starts(cluster)
    os.kill(before[-1], signal.SIGKILL)
    produce(cluster, "kills", range(COUNT, COUNT + 500))
    eventually(lambda: len(pipeline_starts(cluster)) > len(before), "no pipeline comes back", PIPELINE_START_S, cluster)
    await_landed(cluster, "kills", COUNT + 500)
    table = table_of(cluster, "kills")
    for partition in range(PARTITIONS):
        assert rows(table, partition) == expected(COUNT + 500, partition)
    assert consume(cluster, "kills") == {one: expected(COUNT + 500, one) for one in range(PARTITIONS)}


def test_an_idle_broker_with_tables_stays_small(tmp_path: Path) -> None:
    with serving(tmp_path, tables=True) as small:
        pid = small.pid(0)
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert resident < 280 << 20

"""Whatever a client may send becomes a row, and the same bytes come back after landing (T1, T20).

Records go in as bare batches, since clients refuse to make some of them, and come back by bare fetches; librdkafka
reads them too.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Consumer, Producer, TopicPartition

from lakestream.model.batches.header import Codec
from lakestream.pipeline.spark.datasource import Lakestream
from lakestream.pipeline.spark.session import Spark
from lakestream.protocol.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.acked_workload import create_topic
from tests.support.lake_process import await_landed, await_pipeline, lakestream, table_of, topic_state
from tests.support.live_broker import ask as ask_kafka
from tests.support.live_broker import produced
from tests.support.raw_records import RawRecord, encode, read
from tests.support.serve_process import Cluster, serving
from tests.support.toy_kafka_server import Client

LARGE = 100_000_000
YEAR_10000_MS = 253_402_300_800_000
LAZY = {"lakestream_table_freshness_ms": "3000"}
"""Long enough to look at the tail first."""

TIMESTAMPS = [
    -1, 0, 1, -2, -1000, -62_135_596_800_000, -62_135_596_800_001, YEAR_10000_MS - 1, YEAR_10000_MS, 2**53, 2**62,
    2**63 - 1, -(2**62), 1_700_000_000_123,
]  # fmt: skip
HEADERS: list[tuple[tuple[bytes, bytes | None], ...]] = [
    (),
    ((b"a", b"1"), (b"a", b"2"), (b"b", None), (b"a", b"1")),
    ((b"", b""), (b"", None)),
    ((b"\xff\xfe", b"\xff"), (b"plain", b"x")),
    ((b"nul\0nul", b"\0"),),
    (("Schlüssel".encode(), b"Wert"),),
    tuple((b"h%d" % n, b"%d" % n) for n in range(500)),
    ((b"\xed\xa0\x80", b"a lone surrogate"),),
]
KEYS: list[bytes | None] = [None, b"", b"k", b"\0", b"\xff\xfe\xfd"]
VALUES: list[bytes | None] = [None, b"", b"{}", b"\0" * 100, b"\x80 no text", b"\r\n,\"'"]


def odd_batches() -> list[bytes]:
    """Batches of one record or several, compressed in every way; offsets are counted from 0 in each."""
    alone = [RawRecord(offset=0, timestamp=time, key=b"time", value=b"%d" % time) for time in TIMESTAMPS]
    alone += [RawRecord(offset=0, timestamp=5, headers=headers, value=b"headers") for headers in HEADERS]
    alone += [RawRecord(offset=0, timestamp=7, key=key, value=value) for key in KEYS for value in VALUES]
    batches = [encode([one], producer=(-1, -1, -1)) for one in alone]
    small = [one for one in alone if abs(one.timestamp) < 2**40]
    together = [replace(one, offset=at) for at, one in enumerate(small)]
    return batches + [
        encode(together, codec=codec, producer=(-1, -1, -1))
        for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
    ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serving(tmp_path_factory.mktemp("odd"), tables=True) as one:
        await_pipeline(one)
        yield one


def address(cluster: Cluster) -> tuple[str, int]:
    host, _, port = cluster.kafka[0].rpartition(":")
    return host, int(port)


async def send_batches(cluster: Cluster, topic: str, batches: Sequence[bytes]) -> None:
    client = await Client.connect(address(cluster), buffer_bytes=1 << 20)
    for number, batch in enumerate(batches):
        answer = await produced(client, batch, topic)
        assert answer.error_code == 0, f"batch {number} is refused with {answer.error_code}"
    client.close()


async def fetch_all(cluster: Cluster, topic: str, end: int) -> list[RawRecord]:
    client = await Client.connect(address(cluster), buffer_bytes=1 << 20)
    found: list[RawRecord] = []
    while len(found) < end:
        wanted = FetchPartition(partition=0, fetch_offset=len(found), partition_max_bytes=1 << 20)
        asked = FetchRequest(max_wait_ms=1000, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[wanted])])
        answer = await ask_kafka(client, 1, 12, asked)
        [part] = answer.responses[0].partitions
        assert part.error_code == 0 and part.records
        records, _ = read(split(bytes(part.records)))
        found += [one for one in records if one.offset >= len(found)]
    client.close()
    return found


def split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 12 <= len(data):
        length = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if at + length > len(data):
            return
        yield data[at : at + length]
        at += length


def rows_of(cluster: Cluster, query: str) -> list[dict[str, Any]]:
    done = lakestream(cluster, "sql", "--format", "arrow", query)
    assert done.returncode == 0, done.stderr.decode()
    return list(pa.ipc.open_stream(done.stdout).read_all().to_pylist())


async def test_odd_records_are_rows_and_come_back_byte_for_byte(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "odd", 1, message_timestamp_after_max_ms=str(2**63 - 1), **LAZY)
    batches = odd_batches()
    sent: list[RawRecord] = []
    for batch in batches:
        sent += [replace(one, offset=len(sent) + one.offset) for one in read([batch])[0]]
    await send_batches(cluster, "odd", batches)
    query = "select * from odd order by stream_offset"
    tail = await asyncio.to_thread(rows_of, cluster, query)
    assert await fetch_all(cluster, "odd", len(sent)) == sent
    await asyncio.to_thread(await_landed, cluster, "odd", len(sent))
    landed = await fetch_all(cluster, "odd", len(sent))
    assert landed == sent
    rows = await asyncio.to_thread(rows_of, cluster, query)
    assert rows == tail, "a row of the tail is not the row that it becomes"
    for row, record in zip(rows, sent, strict=True):
        assert (row["stream_offset"], row["stream_key"], row["value"]) == (record.offset, record.key, record.value)
        fits = -62_135_596_800_000 <= record.timestamp < YEAR_10000_MS and record.timestamp != -1
        assert (row["stream_timestamp"] is not None) == fits
        plain = [(key, value) for key, value in record.headers if _is_text(key)]
        shown = [(one["key"].encode(), one["value"]) for one in row["stream_headers"] if one["key"] is not None]
        assert not set(plain) - set(shown) if len(plain) < len(record.headers) else shown == plain
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "odd", "enable.auto.commit": False})
    consumer.assign([TopicPartition("odd", 0, 0)])
    messages = await asyncio.to_thread(consumer.consume, len(sent), 20)
    consumer.close()
    assert [(one.key(), one.value()) for one in messages] == [(one.key, one.value) for one in sent]
    scanned = table_of(cluster, "odd").scan().to_arrow().sort_by("stream_offset")
    assert scanned["value"].to_pylist() == [one.value for one in sent]


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_record_of_100_mb_is_a_row_and_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    create_topic(cluster.bootstrap, "huge", 1, max_message_bytes=str(LARGE + 1000), **LAZY)
    value = bytes(range(256)) * (LARGE // 256) + b"!" * (LARGE % 256)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "message.max.bytes": LARGE + 10_000})
    failed: list[Any] = []
    for one in (b"before", value, b"after"):
        producer.produce("huge", one, key=b"k", on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(120) == 0 and not failed
    query = "select stream_offset, octet_length(value) as size, sha256(value) as hash from huge order by 1"
    tail = rows_of(cluster, query)
    assert [row["size"] for row in tail] == [6, LARGE, 5]
    assert consumed(cluster, "huge", 3) == [b"before", value, b"after"]
    await_landed(cluster, "huge", 3)
    assert consumed(cluster, "huge", 3) == [b"before", value, b"after"]
    assert rows_of(cluster, query) == tail
    assert topic_state(cluster, "huge")["held"] == ""


def consumed(cluster: Cluster, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap, "group.id": "huge", "enable.auto.commit": False, "check.crcs": True,
            "fetch.message.max.bytes": LARGE + 10_000, "receive.message.max.bytes": 2 * LARGE,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found = [consumer.poll(60) for _ in range(count)]
        assert all(one is not None and one.error() is None for one in found)
        return [one.value() for one in found if one is not None]
    finally:
        consumer.close()


def test_the_data_source_reads_odd_and_huge_records(cluster: Cluster) -> None:
    """After the two tests above: their topics, in Spark."""
    running = Spark.start("local[1]", {"spark.driver.memory": "2g"})
    try:
        running.session.dataSource.register(Lakestream)
        load = running.session.read.format("lakestream").option("broker", cluster.http[0]).load
        # As numbers: to Python, PySpark cannot give the first day of the year 1.
        odd = load("odd").selectExpr("*", "unix_micros(stream_timestamp) as micros").drop("stream_timestamp").collect()
        odd.sort(key=lambda row: row.stream_offset)
        wanted = rows_of(cluster, "select *, epoch_us(stream_timestamp) as micros from odd order by stream_offset")
        for name in ("stream_offset", "stream_flags", "micros"):
            assert [row[name] for row in odd] == [row[name] for row in wanted]
        assert [[tuple(one) for one in row.stream_headers] for row in odd] == [
            [(one["key"], one["value"]) for one in row["stream_headers"]] for row in wanted
        ]
        for name in ("stream_key", "value", "stream_original"):
            assert [None if row[name] is None else bytes(row[name]) for row in odd] == [row[name] for row in wanted]
        huge = load("huge").selectExpr("octet_length(value) as size", "sha2(value, 256) as hash").collect()
        told = rows_of(cluster, "select octet_length(value) as size, sha256(value) as hash from huge order by 1, 2")
        assert sorted((row.size, row.hash) for row in huge) == sorted((row["size"], row["hash"]) for row in told)
    finally:
        running.stop()


def test_sql_shows_odd_records_in_every_format(cluster: Cluster) -> None:
    for kind in ("json", "jsonl", "csv", "table"):
        done = lakestream(cluster, "sql", "--format", kind, "select * from odd")
        assert done.returncode == 0, done.stderr.decode()
        assert b"\x1b" not in done.stdout
    lines = lakestream(cluster, "sql", "--format", "jsonl", "select * from odd").stdout.splitlines()
    assert all(json.loads(line)["stream_partition"] == 0 for line in lines)

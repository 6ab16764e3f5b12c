"""`lakestream serve --data s3://...` on a real S3 server: produce, land by Spark, replay, read by others, ask in SQL.

Endpoint and credentials come from the environment, as the cloud's own tools take them.
"""

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Producer
from pyiceberg.catalog.rest import RestCatalog

from tests.engines.clients.duckdb import DuckDb
from tests.engines.clients.face import DELETE, EXPIRE, REWRITE, UPDATE, Engine
from tests.engines.clients.opening import opened
from tests.engines.clients.python import Polars, PyIceberg
from tests.engines.clients.spark import Spark
from tests.engines.clients.trino import Trino
from tests.engines.lake import Known
from tests.support.acked_workload import create_topic, read_all, send
from tests.support.lake_process import await_landed, await_pipeline, lakestream, table_of, topic_state
from tests.support.s3_server import BUCKET, S3Server, s3_server
from tests.support.serve_process import Cluster, eventually, serving

COUNT = 2000


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in variables(server).items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def cluster(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("serve")
    with serving(
        folder, data=f"s3://{BUCKET}/streams", metadata=f"sqlite://{folder}/metadata.sqlite", tables=True,
        collector_interval_ms=500, collector_grace_ms=1000,
    ) as one:  # fmt: skip
        await_pipeline(one)
        yield one


def variables(server: S3Server) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": server.access_key_id,
        "AWS_SECRET_ACCESS_KEY": server.secret_access_key,
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_REGION": "us-east-1",
    }


def ask(cluster: Cluster, s3: S3Server, query: str) -> list[dict[str, object]]:
    done = lakestream(cluster, "sql", "--format", "jsonl", query, environment=variables(s3))
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


LONG = [pytest.param(kind, marks=pytest.mark.long, id=kind.name) for kind in (Spark, Trino)]


@pytest.mark.parametrize("kind", [*(pytest.param(kind, id=kind.name) for kind in (PyIceberg, Polars, DuckDb)), *LONG])
def test_c6_engines_read_and_change_tables_in_a_bucket_and_consumers_see_it(
    kind: type[Engine], cluster: Cluster, s3: S3Server, tmp_path: Path
) -> None:
    """After each step a Kafka client reads the whole topic, and `lakestream verify` is asked."""
    topic = Known(cluster, f"on-s3-{kind.name.lower()}", lakestream_table_freshness_ms="300")
    topic.produce(1000)
    engine = opened(kind, f"http://{cluster.http[0]}/iceberg", tmp_path, s3)
    with closing(engine):
        assert sorted(engine.rows(topic.name)) == topic.expected()
        if DELETE in engine.abilities:
            engine.delete(topic.name, 0, 10, 19)
            topic.forget(0, range(10, 20))
        if UPDATE in engine.abilities:
            engine.update(topic.name, 1, 8, b"redacted")
            topic.change(1, 8, b"redacted")
        topic.check()
        if REWRITE in engine.abilities:
            engine.rewrite(topic.name)
            topic.check()
        if EXPIRE in engine.abilities:
            engine.expire(topic.name)
            # T16: what the expired snapshots took away may not have been noted yet.
            topic.check(provable=False)
        topic.produce(100)
        assert sorted(engine.rows(topic.name)) == topic.expected()
        topic.check(provable=EXPIRE not in engine.abilities)


def objects(s3: S3Server) -> list[str]:
    import obstore
    from obstore.store import S3Store

    store = S3Store(BUCKET, config=s3.options(), client_options={"allow_http": True})
    return [meta["path"] for meta in obstore.list(store).collect()]


def test_a_stream_in_a_bucket_is_a_table_in_the_bucket(cluster: Cluster, s3: S3Server) -> None:
    create_topic(cluster.bootstrap, "orders", 2)
    values = [b'{"n": %d}' % n + b" " * 300 for n in range(COUNT)]
    for partition in range(2):
        send(cluster.bootstrap, "orders", values, partition=partition)
    count = "select count(*) n, sum((json(value)->>'$.n')::int)::bigint total from orders"
    told = [{"n": 2 * COUNT, "total": COUNT * (COUNT - 1)}]
    assert ask(cluster, s3, count) == told
    await_landed(cluster, "orders", 2 * COUNT)
    assert topic_state(cluster, "orders")["table"].startswith(f"s3://{BUCKET}/streams/")
    # The WAL's objects go; what consumers get then can only come from the table.
    eventually(lambda: not [key for key in objects(s3) if "/wal/" in key], "the WAL is not collected", 60.0, cluster)
    assert any(key.endswith(".parquet") for key in objects(s3))
    stored = read_all(cluster.bootstrap, "orders", 2)
    assert [stored[partition] for partition in range(2)] == [list(enumerate(values))] * 2
    assert ask(cluster, s3, count) == told
    # More of it, partly landed.
    send(cluster.bootstrap, "orders", [b'{"n": 0}'])
    assert ask(cluster, s3, "select count(*) n from orders where stream_partition = 0") == [{"n": COUNT + 1}]


def test_the_catalog_tells_engines_where_the_bucket_is_and_keeps_credentials_out(
    cluster: Cluster, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster.bootstrap, "people", 1)
    send(cluster.bootstrap, "people", [b"%d" % n for n in range(100)])
    await_landed(cluster, "people", 100)
    for name in variables(s3):
        monkeypatch.delenv(name)
    catalog = RestCatalog("lake", uri=f"http://{cluster.http[0]}/iceberg")
    assert catalog.properties["s3.endpoint"] == s3.endpoint
    assert not [name for name in catalog.properties if "secret" in name or "access-key" in name]
    # With a table DuckDB would take settings for credentials, and its user's own would not count.
    with urllib.request.urlopen(f"http://{cluster.http[0]}/iceberg/v1/namespaces/streams/tables/people") as answer:
        assert json.load(answer)["config"] == {}
    # With a key of its own a client reads, deletes, and makes tables; consumers see the deletion.
    keys = {"s3.access-key-id": s3.access_key_id, "s3.secret-access-key": s3.secret_access_key}
    table = table_of(cluster, "people", **keys)
    assert table.scan().to_arrow()["stream_offset"].to_pylist() == list(range(100))
    table.delete("stream_offset < 40")
    eventually(
        lambda: read_all(cluster.bootstrap, "people")[0] == [(n, b"%d" % n) for n in range(40, 100)],
        "deleted rows are still read", 20.0, cluster,
    )  # fmt: skip
    own = RestCatalog("lake", uri=f"http://{cluster.http[0]}/iceberg", **keys)
    own.create_namespace("shop")
    rows = table_of(cluster, "people", **keys).scan(selected_fields=("stream_offset",)).to_arrow()
    own.create_table(("shop", "offsets"), rows.schema).append(rows)
    query = "select count(*) n from shop.offsets o join people p using (stream_offset)"
    assert ask(cluster, s3, query) == [{"n": 60}]


def test_a_large_record_passes_through_the_bucket(cluster: Cluster, s3: S3Server) -> None:
    """Larger than a part of a multipart upload, in the WAL and in the table."""
    create_topic(cluster.bootstrap, "large", 1, max_message_bytes="20000000")
    value = os.urandom(12_000_000)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "message.max.bytes": 20_000_000})
    producer.produce("large", value)
    assert producer.flush(60) == 0
    assert read_all(cluster.bootstrap, "large") == {0: [(0, value)]}
    await_landed(cluster, "large", 1)
    assert read_all(cluster.bootstrap, "large") == {0: [(0, value)]}
    assert ask(cluster, s3, "select octet_length(value) n from large") == [{"n": len(value)}]

"""`lakestream sql` against a real `lakestream serve --tables`: records partly landed, partly in the tail.

One cluster lives through the whole module, since Spark takes long to start; each test has a topic of its own.
"""

import csv
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyiceberg.catalog.rest import RestCatalog

from tests.support.acked_workload import create_topic, send
from tests.support.lake_process import await_landed, await_pipeline, lakestream, table_of, topic_state
from tests.support.serve_process import Cluster, serving

SLOW = {"lakestream_table_freshness_ms": "600000"}
"""What is produced to such a topic stays in the tail."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serving(tmp_path_factory.mktemp("sql"), tables=True) as one:
        await_pipeline(one)
        yield one


def ask(cluster: Cluster, query: str) -> list[dict[str, Any]]:
    done = lakestream(cluster, "sql", "--format", "jsonl", "-", data=query.encode())
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_was_acked_is_in_the_answer_landed_or_not_and_deleted_rows_are_not(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "orders", 2, lakestream_table_freshness_ms="500")
    for partition in range(2):
        send(cluster.bootstrap, "orders", [b'{"amount": %d}' % n for n in range(100)], partition=partition)
    # At once, wherever they are; then as rows.
    count = "select count(*) n, sum((json(value)->>'$.amount')::int)::bigint total from orders"
    assert ask(cluster, count) == [{"n": 200, "total": 9900}]
    await_landed(cluster, "orders", 200)
    assert ask(cluster, count) == [{"n": 200, "total": 9900}]
    table_of(cluster, "orders").delete("stream_offset >= 10 and stream_offset < 20")
    assert ask(cluster, "select count(*) n, min(stream_offset) least from orders") == [{"n": 180, "least": 0}]
    send(cluster.bootstrap, "orders", [b'{"amount": 1000}'])
    assert ask(cluster, "select count(*) n, max(stream_offset) most from orders") == [{"n": 181, "most": 100}]


def test_table_and_tail_meet_in_one_answer_and_topics_join(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "half.landed-topic", 1, lakestream_table_freshness_ms="500")
    create_topic(cluster.bootstrap, "names", 1, **SLOW)
    send(cluster.bootstrap, "half.landed-topic", [b"%d" % n for n in range(50)])
    await_landed(cluster, "half.landed-topic", 50)
    lakestream(cluster, "topics", "alter", "half.landed-topic", "--set", "lakestream.table.freshness.ms=600000")
    send(cluster.bootstrap, "half.landed-topic", [b"%d" % n for n in range(50, 80)])
    send(cluster.bootstrap, "names", [b"zero", b"one", b"two"])
    assert topic_state(cluster, "names")["partitions"][0]["landed"] == 0
    query = """
        select text(n.value) as name, count(*) as c
        from "half.landed-topic" h join streams.names n on n.stream_offset = text(h.value)::int % 3
        group by name order by name
    """
    assert ask(cluster, query) == [{"name": "one", "c": 27}, {"name": "two", "c": 26}, {"name": "zero", "c": 27}]


def test_answers_are_whole_while_records_land(cluster: Cluster) -> None:
    """Each offset once, none missing, in every one of many answers, while a producer and Spark are at work."""
    create_topic(cluster.bootstrap, "busy", 2, lakestream_table_freshness_ms="500")
    acked = 0
    stop = threading.Event()

    def produce() -> None:
        nonlocal acked
        while not stop.is_set():
            for partition in range(2):
                send(cluster.bootstrap, "busy", [b"x"] * 50, partition=partition)
            acked += 100

    thread = threading.Thread(target=produce)
    thread.start()
    landed = set()
    try:
        for _ in range(8):
            before = acked
            [found] = ask(
                cluster,
                "select sum(n)::bigint as n, bool_and(n = m and n = d) as whole from (select count(*) n, "
                "count(distinct stream_offset) d, max(stream_offset) + 1 m from busy group by stream_partition)",
            )
            assert before == 0 or (found["whole"] and found["n"] >= before)
            landed.add(sum(part["landed"] for part in topic_state(cluster, "busy")["partitions"]))
    finally:
        stop.set()
        thread.join()
    assert len(landed) > 2, "nothing landed meanwhile"


def test_every_format_of_the_command(cluster: Cluster, tmp_path: Path) -> None:
    create_topic(cluster.bootstrap, "formats", 1, **SLOW)
    send(cluster.bootstrap, "formats", [b"plain", b"\xff\xfe", 'Käse, "bread"'.encode()])
    query = tmp_path / "query.sql"
    query.write_text("select stream_offset, value from formats order by 1")

    def run(kind: str) -> bytes:
        done = lakestream(cluster, "sql", "--format", kind, "--file", str(query))
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    texts = ["plain", "\\xFF\\xFE", 'Käse, "bread"']
    assert [row[1] for row in csv.reader(io.StringIO(run("csv").decode()))] == ["value", *texts]
    assert [row["value"] for row in json.loads(run("json"))] == texts
    assert pa.ipc.open_stream(run("arrow")).read_all()["value"].to_pylist()[1] == b"\xff\xfe"
    assert run("table").decode().splitlines()[1:] == [f"            {n}  {text}" for n, text in enumerate(texts)]
    query.write_text("explain select count(*) from formats")
    assert len(run("table").decode().splitlines()) > 5 and b"\\n" not in run("table")


def test_mistakes_end_with_one_line_that_says_what_to_do(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "customers", 1)
    for query, said in (
        ("select * from custommers", "did you mean customers?"),
        ("select * frm customers", "syntax error"),
        ("select nothing from customers", "nothing"),
    ):
        done = lakestream(cluster, "sql", query)
        assert done.returncode == 1 and said in done.stderr.decode() and "Traceback" not in done.stderr.decode()
    assert lakestream(cluster, "sql").returncode == 2


def test_tables_that_users_made_join_with_topics(cluster: Cluster) -> None:
    catalog = RestCatalog("lake", uri=f"http://{cluster.http[0]}/iceberg")
    catalog.create_namespace("shop")
    rows = pa.table({"id": pa.array([0, 1, 2], pa.int64()), "name": ["a", "b", "c"]})
    catalog.create_table(("shop", "goods"), rows.schema).append(rows)
    create_topic(cluster.bootstrap, "sales", 1, **SLOW)
    send(cluster.bootstrap, "sales", [b"1", b"2", b"2"])
    query = (
        "select g.name, count(*) c from shop.goods g join sales s on g.id = text(s.value)::int group by 1 order by 1"
    )
    assert ask(cluster, query) == [{"name": "b", "c": 1}, {"name": "c", "c": 2}]

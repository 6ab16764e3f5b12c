"""Care of tables on a real cluster with Spark: by command, under load, against others' commits, after kills.

One cluster lives through the whole module, since Spark takes long to start; each test has a topic of its own.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")

import pyarrow.parquet as pq
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import IdentityTransform, TruncateTransform

from tests.engines.test_lake_end_to_end import COUNT, PARTITIONS, consume, expected, produce, rows
from tests.support.acked_workload import create_topic
from tests.support.lake_process import await_landed, await_pipeline, pipeline_starts, table_of, topic_state
from tests.support.places import ROOT
from tests.support.serve_process import Cluster, eventually, serving

CARE_S, RESTART_S = 120.0, 180.0
FRESH = {"lakestream_table_freshness_ms": "200"}
SETTINGS: dict[str, int | bool] = {
    "tables": True, "broker_session_ms": 4000, "broker_heartbeat_ms": 500, "log_retention_check_interval_ms": 500,
    "table_small_files": 10_000,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serving(tmp_path_factory.mktemp("care"), **SETTINGS) as one:
        await_pipeline(one)
        yield one


def lakestream(cluster: Cluster, *argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "lakestream.cli.main", *argv, "--bootstrap", cluster.bootstrap],
        capture_output=True, text=True, timeout=CARE_S, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip


def tables(cluster: Cluster, *argv: str) -> str:
    done = lakestream(cluster, "tables", *argv)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{cluster.log_text()[-3000:]}"
    return done.stdout


def verify(cluster: Cluster, topic: str) -> None:
    done = lakestream(cluster, "verify", topic)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def land_in_rounds(cluster: Cluster, topic: str, rounds: int) -> int:
    """Many small files; how many records."""
    for number in range(rounds):
        produce(cluster, topic, range(number * 100, number * 100 + 100))
        await_landed(cluster, topic, number * 100 + 100)
    return rounds * 100


def files(cluster: Cluster, topic: str) -> int:
    return len(table_of(cluster, topic).inspect.data_files())


def wanted(count: int, gone: range = range(0)) -> dict[int, list[tuple[object, ...]]]:
    return {partition: expected(count, partition, gone) for partition in range(PARTITIONS)}  # type: ignore[misc]


def test_files_are_rewritten_under_a_running_producer_and_consumers_notice_nothing(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "busy", PARTITIONS, **FRESH)
    count = land_in_rounds(cluster, "busy", 8)
    before = files(cluster, "busy")
    assert before >= 8
    more = threading.Thread(target=produce, args=(cluster, "busy", range(count, count + COUNT)))
    more.start()
    said = tables(cluster, "optimize", "busy")
    got = consume(cluster, "busy")
    more.join()
    assert "files before" in said
    assert all(got[one] == wanted(count + COUNT)[one][: len(got[one])] for one in got)
    await_landed(cluster, "busy", count + COUNT)
    tables(cluster, "optimize", "busy")
    assert files(cluster, "busy") == 1
    assert consume(cluster, "busy") == wanted(count + COUNT)
    for partition in range(PARTITIONS):
        assert rows(table_of(cluster, "busy"), partition) == wanted(count + COUNT)[partition]
    tables(cluster, "expire", "busy", "--older-than", "0s")
    assert consume(cluster, "busy") == wanted(count + COUNT)
    verify(cluster, "busy")
    listed = tables(cluster, "list")
    assert any(line.startswith("busy") and line.endswith("ok") for line in listed.splitlines()), listed


def test_t8_rows_that_others_delete_while_files_are_rewritten_stay_deleted(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "raced", PARTITIONS, **FRESH)
    count = land_in_rounds(cluster, "raced", 8)
    gone: set[int] = set()
    over = threading.Event()

    def delete() -> None:
        for offset in range(0, 200, 4):
            if over.is_set():
                return
            try:
                table_of(cluster, "raced").delete(f"stream_offset == {offset}")
                gone.add(offset)
            except (CommitFailedException, ValidationException):
                continue

    others = threading.Thread(target=delete)
    others.start()
    try:
        for _ in range(4):
            lakestream(cluster, "tables", "optimize", "raced", "--all")
    finally:
        over.set()
        others.join()
    assert gone
    tables(cluster, "optimize", "raced")
    eventually(lambda: consume(cluster, "raced") == wanted(count, sorted(gone)), "deleted rows are back", 10, cluster)  # type: ignore[arg-type]
    assert len(table_of(cluster, "raced").scan().to_arrow()) == count - PARTITIONS * len(gone)
    verify(cluster, "raced")


def test_t4_a_users_sort_order_applies_inside_files_and_consumers_notice_nothing(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "ordered", PARTITIONS, **FRESH)
    count = land_in_rounds(cluster, "ordered", 4)
    with table_of(cluster, "ordered").update_sort_order() as update:
        update.desc("value", IdentityTransform(), NullOrder.NULLS_LAST)
    assert "files before" in tables(cluster, "optimize", "ordered")
    table = table_of(cluster, "ordered")
    written = table.inspect.files().to_pylist()
    assert {one["sort_order_id"] for one in written} == {table.sort_order().order_id} != {0}
    for one in written:
        inside = pq.read_table(one["file_path"].removeprefix("file://"))["value"].to_pylist()
        known = [value for value in inside if value is not None]
        assert inside[: len(known)] == sorted(known, reverse=True) and len(inside) == one["record_count"]
    assert consume(cluster, "ordered") == wanted(count)
    verify(cluster, "ordered")
    with table_of(cluster, "ordered").update_sort_order() as update:
        update.asc("value", TruncateTransform(2), NullOrder.NULLS_LAST)
    assert "sort order is not applied" in tables(cluster, "optimize", "ordered", "--all")
    assert consume(cluster, "ordered") == wanted(count)
    verify(cluster, "ordered")


def test_rows_deleted_by_command_are_gone_in_both_views_also_after_their_snapshots_expired(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "people", PARTITIONS, **FRESH)
    count = land_in_rounds(cluster, "people", 4)
    said = tables(cluster, "delete", "people", "--where", "stream_offset >= 50 and stream_offset < 120")
    assert "rows removed 140" in said
    table_of(cluster, "people").delete("stream_offset >= 120 and stream_offset < 130")
    gone = range(50, 130)
    eventually(lambda: consume(cluster, "people") == wanted(count, gone), "deleted rows are read", 10, cluster)
    verify(cluster, "people")
    tables(cluster, "expire", "people", "--older-than", "0s")
    assert len(table_of(cluster, "people").metadata.snapshots) == 1
    verify(cluster, "people")
    assert consume(cluster, "people") == wanted(count, gone)
    wrong = lakestream(cluster, "tables", "delete", "people", "--where", "no such thing")
    assert wrong.returncode == 1 and "no condition" in wrong.stderr


def test_t21_retention_takes_rows_out_of_both_views(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "short", PARTITIONS, **FRESH)
    create_topic(cluster.bootstrap, "kept", PARTITIONS, lakestream_table_retention_ms="-1", **FRESH)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for topic in ("short", "kept"):
        count = land_in_rounds(cluster, topic, 4)
        starts = admin.delete_records([TopicPartition(topic, partition, 100) for partition in range(PARTITIONS)])
        assert all(one.result().low_watermark == 100 for one in starts.values())
    eventually(
        lambda: len(table_of(cluster, "short").scan().to_arrow()) == count - 100 * PARTITIONS,
        "rows do not follow the log start", CARE_S, cluster,
    )  # fmt: skip
    assert len(table_of(cluster, "kept").scan().to_arrow()) == count, "rows outlive their records"
    for topic in ("short", "kept"):
        assert consume(cluster, topic, start=100)[0] == wanted(count)[0][100:]
        verify(cluster, topic)


def test_t21_records_that_are_rows_go_by_their_age(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "aged", PARTITIONS, retention_ms="3000", **FRESH)
    count = land_in_rounds(cluster, "aged", 1)

    def all_gone() -> bool:
        parts = topic_state(cluster, "aged")["partitions"]
        return all(part["start"] == part["end"] == count // PARTITIONS for part in parts)

    eventually(all_gone, "the log start does not move", 30.0, cluster)
    eventually(lambda: not len(table_of(cluster, "aged").scan().to_arrow()), "rows stay", CARE_S, cluster)
    verify(cluster, "aged")


def test_a_topic_that_goes_takes_its_table_along_or_leaves_it_under_another_name(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "goes", 1, **FRESH)
    create_topic(cluster.bootstrap, "stays", 1, lakestream_table_on_delete="keep", **FRESH)
    catalog = RestCatalog("lake", uri=f"http://{cluster.http[0]}/iceberg")
    for topic in ("goes", "stays"):
        eventually(lambda topic=topic: ("streams", topic) in catalog.list_tables("streams"), "no table", 30, cluster)  # type: ignore[misc]
    assert lakestream(cluster, "topics", "delete", "goes", "stays").returncode == 0
    names = {name for _, name in catalog.list_tables("streams")}
    assert "goes" not in names and "stays" not in names
    [kept] = [name for name in names if name.startswith("stays-")]
    assert len(catalog.load_table(("streams", kept)).scan().to_arrow()) == 0


def test_what_a_killed_pipeline_leaves_is_collected(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "killed", PARTITIONS, **FRESH)
    count = land_in_rounds(cluster, "killed", 6)
    tables(cluster, "optimize", "killed")
    tables(cluster, "expire", "killed", "--older-than", "0s")
    starts = pipeline_starts(cluster)
    asked = lakestream(cluster, "tables", "optimize", "killed", "--all", "--no-wait")
    assert asked.returncode == 0
    os.kill(starts[-1], signal.SIGKILL)
    eventually(
        lambda: len(pipeline_starts(cluster)) > len(starts), "no new pipeline", RESTART_S, cluster
    )
    tables(cluster, "orphans", "killed", "--older-than", "0s")
    folder = Path(table_of(cluster, "killed").metadata.location.removeprefix("file://"))
    table = table_of(cluster, "killed")
    known = set(table.inspect.all_files()["file_path"].to_pylist())
    stored = {f"file://{path}" for path in folder.rglob("*.parquet")}
    assert stored == known
    assert consume(cluster, "killed") == wanted(count)
    verify(cluster, "killed")

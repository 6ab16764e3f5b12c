"""A real `lakestream serve --catalog`: with Spark, and with tables in PyIceberg's SQL catalog on SQLite.

One cluster lives through the whole module, since Spark takes long to start; each test has a topic of its own.
"""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("sqlalchemy")

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from tests.engines.test_lake_end_to_end import COUNT, PARTITIONS, consume, expected, produce, rows
from tests.support.acked_workload import create_topic
from tests.support.lake_process import LAND_S, await_landed, await_pipeline, lakestream, pipeline_starts, topic_state
from tests.support.landed_table import rows as made_rows
from tests.support.serve_process import Cluster, eventually, serving

NAMESPACE = "events"
RESTART_S = 180.0
FRESH = {"lakestream_table_freshness_ms": "200"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "lake").mkdir()
    return folder


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    with serving(
        folder, tables=True, broker_session_ms=4000, broker_heartbeat_ms=500,
        catalog=f"sqlite:///{folder}/catalog.db", catalog_namespace=NAMESPACE,
        catalog_properties=f"warehouse=file://{folder}/lake",
    ) as one:  # fmt: skip
        await_pipeline(one)
        yield one


@pytest.fixture(scope="module")
def catalog(folder: Path) -> Catalog:
    return load_catalog("lakestream", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake")


def held(cluster: Cluster, topic: str, reason: str) -> None:
    eventually(lambda: reason in topic_state(cluster, topic)["held"], f"{topic} is not held: {reason}", LAND_S, cluster)


def released(cluster: Cluster, topic: str) -> None:
    eventually(lambda: not topic_state(cluster, topic)["held"], f"{topic} is still held", LAND_S, cluster)


def test_what_is_produced_is_in_the_other_catalog_and_is_read_from_there(cluster: Cluster, catalog: Catalog) -> None:
    create_topic(cluster.bootstrap, "plain", PARTITIONS)
    produce(cluster, "plain", range(COUNT))
    await_landed(cluster, "plain", COUNT)
    table = catalog.load_table((NAMESPACE, "plain"))
    assert all(rows(table, partition) == expected(COUNT, partition) for partition in range(PARTITIONS))
    assert topic_state(cluster, "plain")["entries"] == 0, "the table has the only copy"
    found = consume(cluster, "plain")
    assert all(found[partition] == expected(COUNT, partition) for partition in range(PARTITIONS))


def told(cluster: Cluster, *words: str, code: int = 0) -> str:
    """What a command says."""
    done = lakestream(cluster, *words)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == code, f"{said}\n{cluster.log_text()[-3000:]}"
    return said


def test_the_checker_and_sql_read_it_there(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "asked", PARTITIONS)
    produce(cluster, "asked", range(COUNT))
    await_landed(cluster, "asked", COUNT)
    told(cluster, "verify", "asked")
    query = "select count(*) as n, max(stream_offset) as last from asked"
    answered = told(cluster, "sql", query, "--format", "json")
    assert f'"n":{COUNT}' in answered.replace(" ", ""), answered


def test_c7_rows_deleted_there_are_gone_for_consumers_within_seconds(cluster: Cluster, catalog: Catalog) -> None:
    create_topic(cluster.bootstrap, "redacted", PARTITIONS)
    produce(cluster, "redacted", range(COUNT))
    await_landed(cluster, "redacted", COUNT)
    table = catalog.load_table((NAMESPACE, "redacted"))
    table.delete("stream_partition = 0 and stream_offset in (3, 500, 501)")
    location = catalog.load_table((NAMESPACE, "redacted")).metadata_location
    eventually(lambda: topic_state(cluster, "redacted")["table"] == location, "brokers are not told", LAND_S, cluster)
    found = consume(cluster, "redacted")
    assert found[0] == expected(COUNT, 0, gone=[3, 500, 501]) and found[1] == expected(COUNT, 1)


def test_t13_foreign_rows_hold_this_topic_alone_until_they_are_gone(cluster: Cluster, catalog: Catalog) -> None:
    create_topic(cluster.bootstrap, "spoilt", PARTITIONS)
    produce(cluster, "spoilt", range(100))
    await_landed(cluster, "spoilt", 100)
    catalog.load_table((NAMESPACE, "spoilt")).append(made_rows([5000]))
    held(cluster, "spoilt", "offset 5000) would be new")
    create_topic(cluster.bootstrap, "beside", PARTITIONS)
    produce(cluster, "beside", range(100))
    produce(cluster, "spoilt", range(100, 200))
    await_landed(cluster, "beside", 100)
    found = consume(cluster, "spoilt")
    assert found[0] == expected(200, 0) and found[1] == expected(200, 1), "table as it was, and tail"
    assert "topic spoilt waits" in cluster.log_text()
    catalog.load_table((NAMESPACE, "spoilt")).delete("stream_offset = 5000")
    await_landed(cluster, "spoilt", 200)
    released(cluster, "spoilt")


def test_a_table_dropped_there_holds_the_topic_until_it_is_back(cluster: Cluster, catalog: Catalog) -> None:
    create_topic(cluster.bootstrap, "dropped", PARTITIONS)
    produce(cluster, "dropped", range(100))
    await_landed(cluster, "dropped", 100)
    location = catalog.load_table((NAMESPACE, "dropped")).metadata_location
    catalog.drop_table((NAMESPACE, "dropped"))
    held(cluster, "dropped", "not in the catalog any more")
    produce(cluster, "dropped", range(100, 200))
    catalog.register_table((NAMESPACE, "dropped"), location)
    await_landed(cluster, "dropped", 200)
    released(cluster, "dropped")
    found = consume(cluster, "dropped")
    assert all(found[partition] == expected(200, partition) for partition in range(PARTITIONS))


def test_care_there_leaves_stream_and_table_equal_and_every_missing_row_explained(
    cluster: Cluster, catalog: Catalog
) -> None:
    create_topic(cluster.bootstrap, "cared", PARTITIONS, **FRESH)
    for count in range(100, 700, 100):
        produce(cluster, "cared", range(count - 100, count))
        await_landed(cluster, "cared", count)

    def table() -> Table:
        return catalog.load_table((NAMESPACE, "cared"))

    table().delete("stream_offset == 250")
    where = "stream_offset between 260 and 269"
    assert "rows removed 20" in told(cluster, "tables", "delete", "cared", "--where", where)
    assert "files after 1" in told(cluster, "tables", "optimize", "cared")
    assert len(table().inspect.data_files()) == 1
    told(cluster, "verify", "cared")
    assert "snapshots left 1" in told(cluster, "tables", "expire", "cared", "--older-than", "0s")
    assert len(table().metadata.snapshots) == 1
    told(cluster, "tables", "orphans", "cared")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    ends = [TopicPartition("cared", partition, 200) for partition in range(PARTITIONS)]
    assert all(one.result().low_watermark == 200 for one in admin.delete_records(ends).values())
    wanted = {number: expected(600, number, [*range(200), 250, *range(260, 270)]) for number in range(PARTITIONS)}
    eventually(
        lambda: all(rows(table(), number) == wanted[number] for number in wanted),
        "rows do not follow the log start", LAND_S, cluster,
    )  # fmt: skip
    assert consume(cluster, "cared", start=200) == wanted
    told(cluster, "tables", "expire", "cared", "--older-than", "0s")
    told(cluster, "verify", "cared")
    described = told(cluster, "tables", "describe", "cared")
    assert re.search(r"catalog +another", described) and re.search(r"unproven +false", described), described


def test_t16_rows_that_go_without_an_account_are_found(cluster: Cluster, catalog: Catalog) -> None:
    """Somebody deletes in our name: he says that it is a rewrite, which takes nothing away."""
    create_topic(cluster.bootstrap, "planted", PARTITIONS)
    produce(cluster, "planted", range(100))
    await_landed(cluster, "planted", 100)
    forged = {"lakestream.care": "optimize"}
    catalog.load_table((NAMESPACE, "planted")).delete("stream_offset == 7", snapshot_properties=forged)
    location = catalog.load_table((NAMESPACE, "planted")).metadata_location
    eventually(lambda: topic_state(cluster, "planted")["table"] == location, "brokers are not told", LAND_S, cluster)
    assert "nothing explains why 1 are missing" in told(cluster, "verify", "planted", code=1)


@pytest.mark.long
def test_a_pipeline_killed_under_load_lands_every_record_once(cluster: Cluster, catalog: Catalog) -> None:
    create_topic(cluster.bootstrap, "killed", PARTITIONS)
    count = 0
    for _ in range(2):
        before = pipeline_starts(cluster)
        produce(cluster, "killed", range(count, count + 500))
        count += 500
        await_landed(cluster, "killed", count, RESTART_S)
        produce(cluster, "killed", range(count, count + 500))
        count += 500
        os.kill(before[-1], signal.SIGKILL)
        back = len(before) + 1
        eventually(lambda back=back: len(pipeline_starts(cluster)) >= back, "no pipeline", RESTART_S, cluster)
    await_landed(cluster, "killed", count, RESTART_S)
    table = catalog.load_table((NAMESPACE, "killed"))
    assert all(rows(table, partition) == expected(count, partition) for partition in range(PARTITIONS))
    assert not topic_state(cluster, "killed")["held"]

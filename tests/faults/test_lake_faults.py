"""A real cluster with Spark: damaged, lost and full places hold the topic that is hit, alone, until they are mended.

One cluster lives through the whole module, since Spark takes long to start; each test has topics of its own.
"""

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.faults.test_folder_faults import STORAGE_ERROR, damage, fetch_one, fill, objects
from tests.support.acked_workload import create_topic, read_all, send
from tests.support.lake_process import pipeline_starts, topic_state
from tests.support.serve_process import Cluster, eventually, serving

START_S = 180.0
WAIT_S = 60.0
LATER = {"lakestream_table_freshness_ms": "86400000"}
"""Nothing lands before the test says so."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serving(tmp_path_factory.mktemp("faults"), tables=True, cache_bytes=0) as one:
        eventually(lambda: pipeline_starts(one), "the pipeline does not start", START_S, one)
        yield one


def land(cluster: Cluster, topic: str) -> None:
    """From now on it lands at once."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    entry = ConfigEntry("lakestream.table.freshness.ms", "100", incremental_operation=AlterConfigOpType.SET)
    asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([asked]).values():
        future.result(30)


def is_held(cluster: Cluster, topic: str, reason: str) -> None:
    eventually(lambda: reason in topic_state(cluster, topic)["held"], f"{topic} is not held", WAIT_S, cluster)
    assert f"topic {topic} waits" in cluster.log_text()


def has_landed(cluster: Cluster, topic: str) -> None:
    def landed() -> bool:
        told = topic_state(cluster, topic)
        return not told["held"] and all(part["landed"] == part["end"] > 0 for part in told["partitions"])

    eventually(landed, f"{topic} does not land", WAIT_S, cluster)


def folder_of(cluster: Cluster, topic: str) -> Path:
    """Of its table."""

    def place() -> str:
        return str(topic_state(cluster, topic)["table"])

    return Path(eventually(place, f"{topic} has no table", WAIT_S, cluster).removeprefix("file://")).parent.parent


def make(cluster: Cluster, topic: str, values: list[bytes]) -> Path:
    """A topic that does not land yet, with all its records in one WAL object."""
    create_topic(cluster.bootstrap, topic, **LATER)
    folder_of(cluster, topic)
    before = set(objects(cluster.folder))
    send(cluster.bootstrap, topic, values)
    return max(set(objects(cluster.folder)) - before, key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("fault", ["corrupted", "missing"])
def test_a_damaged_wal_object_holds_its_topic_alone_until_it_is_put_back(cluster: Cluster, fault: str) -> None:
    values = [b"%d" % n * 200 for n in range(50)]
    bad, good = f"bad-{fault}", f"good-{fault}"
    path = make(cluster, bad, values)
    make(cluster, good, values)
    whole = path.read_bytes()
    if fault == "missing":
        path.unlink()
    else:
        damage(path, len(whole) // 2)
    for topic in (bad, good):
        land(cluster, topic)
    is_held(cluster, bad, "CRC" if fault == "corrupted" else "is not there")
    has_landed(cluster, good)
    path.write_bytes(whole)
    has_landed(cluster, bad)
    assert [value for _, value in read_all(cluster.bootstrap, bad)[0]] == values


def test_a_lost_data_file_is_an_error_of_the_store_until_it_is_back(cluster: Cluster) -> None:
    values = [b"%d" % n * 200 for n in range(50)]
    make(cluster, "lost", values)
    land(cluster, "lost")
    has_landed(cluster, "lost")
    files = list(folder_of(cluster, "lost").rglob("*.parquet"))
    for path in files:
        path.rename(path.with_suffix(".aside"))
    code, records = asyncio.run(fetch_one(cluster, "lost", 0))
    assert (code, records) == (STORAGE_ERROR, b"")
    send(cluster.bootstrap, "lost", [b"still written to"])
    has_landed(cluster, "lost")
    for path in files:
        path.with_suffix(".aside").rename(path)
    assert [value for _, value in read_all(cluster.bootstrap, "lost")[0]] == [*values, b"still written to"]


@contextlib.contextmanager
def small_disk_at(folder: Path, megabytes: int) -> Iterator[None]:
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def test_a_full_disk_below_one_table_makes_this_topic_wait_and_catch_up(cluster: Cluster) -> None:
    values = [b"%d" % n * 200 for n in range(50)]
    make(cluster, "full", values)
    make(cluster, "roomy", values)
    data = folder_of(cluster, "full") / "data"
    data.mkdir(exist_ok=True)
    with small_disk_at(data, 1):
        fill(data / "filler")
        for topic in ("full", "roomy"):
            land(cluster, topic)
        is_held(cluster, "full", "No space left on device")
        has_landed(cluster, "roomy")
        (data / "filler").unlink()
        has_landed(cluster, "full")
        assert [value for _, value in read_all(cluster.bootstrap, "full")[0]] == values

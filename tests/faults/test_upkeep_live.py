"""Housekeeping in a live broker: nothing leaks (C10). Intervals are settings, short ones here."""

import json
import time
import urllib.request
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from lakestream.data.ready_files import is_hidden
from lakestream.model.batches.records import Record, encode_batch
from lakestream.model.batches.wal_object import wal_key
from tests.support.acked_workload import Ledger, create_topic, ends, producing, read_all, send
from tests.support.serve_process import Cluster, eventually, serving

QUICK = {
    "collector_interval_ms": 300,
    "collector_grace_ms": 500,
    "log_retention_check_interval_ms": 300,
    "broker_session_ms": 1500,
    "broker_heartbeat_ms": 200,
    "cache_bytes": 0,
}
MB = 1 << 20
LARGE = [bytes(500_000)] * 8


def objects(folder: Path) -> list[Path]:
    """All but checkpoints, and files that are made ahead of time."""
    found = [path for path in (folder / "data").glob("*/*/**/*") if path.is_file() and "checkpoints" not in path.parts]
    return [path for path in found if not (path.exists() and is_hidden(path.stat()))]


def stored_bytes(folder: Path) -> int:
    total = 0
    for path in objects(folder):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def test_the_bytes_of_a_deleted_topic_are_freed_and_its_neighbours_keep_theirs(tmp_path: Path) -> None:
    with serving(tmp_path, brokers=2, **QUICK) as cluster:
        for topic in ("gone", "kept"):
            create_topic(cluster.bootstrap, topic)
        for number in range(5):
            send(cluster.bootstrap, "gone", LARGE)
            send(cluster.bootstrap, "kept", [b"%d" % number])
        assert stored_bytes(tmp_path) > 15 * MB
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.delete_topics(["gone"])["gone"].result(20)
        eventually(lambda: stored_bytes(tmp_path) < MB, "the bytes are not freed", 20, cluster)
        assert [value for _, value in read_all(cluster.bootstrap, "kept")[0]] == [b"%d" % one for one in range(5)]


def test_records_deleted_by_request_or_by_size_or_age_are_freed(tmp_path: Path) -> None:
    """L24: the log start moves first, the bytes follow."""
    with serving(tmp_path, **QUICK) as cluster:
        create_topic(cluster.bootstrap, "asked")
        create_topic(cluster.bootstrap, "size", retention_bytes=str(3 * MB))
        create_topic(cluster.bootstrap, "age", retention_ms="1500")
        for _ in range(4):
            for topic in ("asked", "size", "age"):
                send(cluster.bootstrap, topic, LARGE)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for future in admin.delete_records([TopicPartition("asked", 0, 30)]).values():
            future.result(20)
        eventually(lambda: ends(cluster.bootstrap, "size")[0][0] >= 20, "size is not kept", 20, cluster)
        eventually(lambda: ends(cluster.bootstrap, "age")[0] == (32, 32), "age is not kept", 20, cluster)
        assert ends(cluster.bootstrap, "asked") == [(30, 32)]
        eventually(lambda: stored_bytes(tmp_path) < 9 * MB, "the bytes are not freed", 20, cluster)
        assert send(cluster.bootstrap, "age", [b"more"]) == [32]
        assert [offset for offset, _ in read_all(cluster.bootstrap, "asked")[0]] == [30, 31]


def test_orphans_of_dead_epochs_are_collected_and_foreign_files_are_left_alone(tmp_path: Path) -> None:
    """L22, after a kill -9: what the dead broker wrote and never committed."""
    with serving(tmp_path, **QUICK) as cluster:
        create_topic(cluster.bootstrap, "kept")
        send(cluster.bootstrap, "kept", [b"before"])
        first = objects(tmp_path)[0]
        folder, cluster_id, epoch = tmp_path / "data", first.relative_to(tmp_path / "data").parts[0], first.parent.name
        pid = cluster.kill(0)
        cluster.await_broker(0, not_pid=pid)
        orphan = folder / wal_key(cluster_id, 0, int(epoch), 777)
        orphan.write_bytes(encode_batch([Record(value=b"never acknowledged")]))
        foreign = folder / cluster_id / "wal" / "notes.txt"
        foreign.write_text("not ours to judge")
        eventually(lambda: not orphan.exists(), "the orphan stays", 20, cluster)
        time.sleep(1.0)
        assert foreign.exists()
        assert [value for _, value in read_all(cluster.bootstrap, "kept")[0]] == [b"before"]


def test_collecting_beside_a_load_of_kills_removes_orphans_and_nothing_else(tmp_path: Path) -> None:
    with serving(tmp_path, brokers=2, **QUICK) as cluster:
        create_topic(cluster.bootstrap, "load", 6)
        ledger = Ledger("load")
        with producing(cluster.kafka, ledger, burst=5):
            for broker in (0, 1, 0):
                time.sleep(1.0)
                pid = cluster.kill(broker)
                cluster.await_broker(broker, not_pid=pid)
        ledger.check(cluster.bootstrap)
        eventually(lambda: surplus(cluster, tmp_path) <= 0, "orphans stay", 20, cluster)
        ledger.check(cluster.bootstrap)


def surplus(cluster: Cluster, folder: Path) -> int:
    """How many more objects there are than the state knows."""
    with urllib.request.urlopen(f"http://{cluster.http[0]}/metadata", timeout=5) as answer:
        state = json.load(answer)
    return len(objects(folder)) - int(state["objects"]) - int(state["dead_objects"])

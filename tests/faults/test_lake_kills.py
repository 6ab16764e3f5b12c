"""The pipeline killed with SIGKILL again and again under a load: nothing is lost, doubled or leaked."""

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from tests.support.acked_workload import Ledger, create_topic, producing
from tests.support.lake_process import await_pipeline, lakestream, topic_state
from tests.support.serve_process import Cluster, _alive, _argv, _children, eventually, serving

KILLS = 20
PARTITIONS = 6
LAND_S = 300.0
START_S = 300.0
DEATH_S = 15.0
SETTINGS = {
    "collector_interval_ms": 500,
    "collector_grace_ms": 2000,
    "broker_heartbeat_ms": 300,
    "broker_session_ms": 3000,
}


def starts(cluster: Cluster) -> int:
    """How often a pipeline came to land."""
    return len(re.findall(r"event=serves child=pipeline", cluster.log_text()))


def pipeline_pid(cluster: Cluster) -> int | None:
    return next((pid for pid in _children(cluster.process.pid) if "pipeline" in _argv(pid)), None)


def descendants(pid: int) -> list[int]:
    return [one for child in _children(pid) for one in (child, *descendants(child))]


def kill_pipeline(cluster: Cluster) -> None:
    """kill -9 of its process; Spark's Java and its Python workers must not outlive it."""
    pid = eventually(lambda: pipeline_pid(cluster), "there is no pipeline", START_S, cluster)
    below = descendants(pid)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not _alive(pid), "the pipeline outlives its kill", DEATH_S, cluster)
    eventually(lambda: not any(map(_alive, below)), "Spark outlives the pipeline", DEATH_S, cluster)


def landed(cluster: Cluster, topic: str) -> bool:
    return all(part["landed"] == part["end"] for part in topic_state(cluster, topic)["partitions"])


@pytest.mark.long
def test_twenty_kills_of_the_pipeline_under_load_leave_nothing_for_verify_to_find(tmp_path: Path) -> None:
    """T7, T12: at any moment of a round or of a start, seeded; then `lakestream verify`, and a replay of everything."""
    chance = random.Random(4)
    with serving(tmp_path, tables=True, **SETTINGS) as cluster:
        for topic in ("killed", "beside"):
            create_topic(cluster.bootstrap, topic, PARTITIONS, lakestream_table_freshness_ms="700")
        await_pipeline(cluster)
        ledgers = [Ledger("killed", PARTITIONS), Ledger("beside", PARTITIONS)]
        load = {"burst": 5, "payload": 200}
        with producing(cluster.kafka, ledgers[0], **load), producing(cluster.kafka, ledgers[1], **load):
            for kill in range(KILLS):
                seen = starts(cluster)
                kill_pipeline(cluster)
                if kill % 5 == 4:
                    # Once more, while it starts.
                    time.sleep(chance.uniform(0.2, 3.0))
                    kill_pipeline(cluster)
                eventually(lambda before=seen: starts(cluster) > before, "no pipeline comes back", START_S, cluster)
                time.sleep(chance.uniform(0.0, 2.5))
        for ledger in ledgers:
            eventually(lambda one=ledger.topic: landed(cluster, one), f"{ledger.topic} does not land", LAND_S, cluster)
        for ledger in ledgers:
            assert ledger.check(cluster.bootstrap) > 1000
        assert_verified(cluster)


def assert_verified(cluster: Cluster) -> None:
    """What rounds that were killed wrote is swept within minutes; until then it is no finding."""
    told = lakestream(cluster, "verify")
    assert told.returncode == 0, f"{told.stdout.decode()}\n{told.stderr.decode()}\n{cluster.log_text()[-3000:]}"

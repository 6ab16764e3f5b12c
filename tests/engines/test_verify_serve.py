"""`lakestream verify` as a person runs it, beside a real `lakestream serve` whose pipeline is killed while it lands."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")

from pyiceberg.catalog.rest import RestCatalog

from tests.support.acked_workload import Ledger, create_topic, producing
from tests.support.places import ROOT
from tests.support.serve_process import Cluster, eventually, serving

KILLS = 2
PARTITIONS = 3
START_S = 120.0
LAND_S = 60.0


def pipelines(cluster: Cluster) -> list[int]:
    """The process ids of all pipelines that came to land, the first one first."""
    return [int(pid) for pid in re.findall(r"event=serves child=pipeline pid=(\d+)", cluster.log_text())]


def landed(cluster: Cluster, topic: str) -> int:
    """How many records of a topic have landed; -1 while some have not."""
    with urllib.request.urlopen(f"http://{cluster.http[0]}/metadata", timeout=5) as answer:
        parts = next(one for one in json.load(answer)["topics"] if one["name"] == topic)["partitions"]
    return sum(part["landed"] for part in parts) if all(part["landed"] == part["end"] for part in parts) else -1


def verify(cluster: Cluster, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "lakestream.cli.main", "verify", "--bootstrap", cluster.bootstrap, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, *arguments], capture_output=True, timeout=120, env=environment, cwd=cluster.folder)
    assert done.stdout, done.stderr.decode()
    return done.returncode, json.loads(done.stdout)


def test_nothing_is_found_after_the_pipeline_was_killed_during_a_load(tmp_path: Path) -> None:
    with serving(tmp_path, tables=True, broker_session_ms=4000, broker_heartbeat_ms=500) as cluster:
        create_topic(cluster.bootstrap, "load", PARTITIONS)
        ledger = Ledger("load", PARTITIONS)
        with producing(cluster.kafka, ledger, burst=20):
            for kills in range(KILLS + 1):
                eventually(lambda n=kills: len(pipelines(cluster)) > n, "no pipeline lands", START_S, cluster)  # type: ignore[misc]
                code, report = verify(cluster, "load")
                assert (code, report["findings"], report["topics"][0]["findings"]) == (0, [], []), report
                if kills < KILLS:
                    os.kill(pipelines(cluster)[-1], signal.SIGKILL)
        count = eventually(lambda: max(landed(cluster, "load"), 0), "not all records land", LAND_S, cluster)
        code, report = verify(cluster)
        [topic] = report["topics"]
        assert (code, topic["findings"]) == (0, []) and count >= len(ledger.acked) > 0
        assert topic["table_rows"] == topic["proven_rows"] == topic["compared_rows"] == count
        table = RestCatalog("lake", uri=f"http://{cluster.http[0]}/iceberg").load_table(("streams", "load"))
        table.delete("stream_partition = 1 and stream_offset < 5")
        code, report = verify(cluster, "load")
        assert code == 0 and [one["rows"] for one in report["topics"][0]["explained"]] == [5]

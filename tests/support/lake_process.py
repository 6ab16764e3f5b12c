"""What tests of a running `lakestream serve --tables` share: waiting for Spark, for landings, and the command line."""

import json
import re
import subprocess
import sys
import urllib.request
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from tests.support.places import ROOT
from tests.support.serve_process import Cluster, eventually

LAND_S = 120.0
PIPELINE_START_S = 240.0
COMMAND_S = 120.0


def pipeline_starts(cluster: Cluster) -> list[int]:
    """The process ids of all pipelines that came to land, the first one first."""
    return [int(pid) for pid in re.findall(r"event=serves child=pipeline pid=(\d+)", cluster.log_text())]


def await_pipeline(cluster: Cluster) -> None:
    eventually(lambda: pipeline_starts(cluster), "the pipeline does not start", PIPELINE_START_S, cluster)


def topic_state(cluster: Cluster, name: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{cluster.http[0]}/metadata", timeout=5) as answer:
        return next(topic for topic in json.load(answer)["topics"] if topic["name"] == name)


def await_landed(cluster: Cluster, topic: str, count: int, limit_s: float = LAND_S) -> None:
    """Wait until so many records are rows, and no more wait."""

    def landed() -> bool:
        parts = topic_state(cluster, topic)["partitions"]
        return sum(part["landed"] for part in parts) == count and all(part["landed"] == part["end"] for part in parts)

    eventually(landed, f"{count} records of {topic} are not in the table", limit_s, cluster)


def table_of(cluster: Cluster, topic: str, **properties: str) -> Table:
    catalog = RestCatalog("lake", uri=f"http://{cluster.http[0]}/iceberg", **properties)
    return catalog.load_table(("streams", topic))


def lakestream(
    cluster: Cluster, *arguments: str, data: bytes = b"", environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command of the command line against the cluster."""
    command = [sys.executable, "-m", "lakestream.cli.main", *arguments]
    return subprocess.run(
        command, input=data, capture_output=True, timeout=COMMAND_S, cwd=cluster.folder, check=False,
        env={**(environment or {}), "PATH": "", "PYTHONPATH": str(ROOT), "LAKESTREAM_BOOTSTRAP": cluster.bootstrap},
    )  # fmt: skip

"""The programs in examples/ do what their page says, against a real broker with tables."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.lake_live import await_landed
from tests.serving import ROOT, Cluster, serving

RUN_S = 180.0


def run(program: str, cluster: Cluster, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / program), "--http", cluster.http[0], *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, cwd=cluster.folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_newcomer_runs_the_examples(tmp_path: Path) -> None:
    with serving(tmp_path, tables=True) as cluster:
        said = run("spark_orders.py", cluster, "--bootstrap", cluster.bootstrap, "--out", str(tmp_path / "out"))
        assert "batch: 1000 orders" in said
        assert "stream, run 1: 1000 orders" in said and "stream, run 2: 100 orders" in said
        counts = [int(count) for count in re.findall(r"^(?:Bonn|Graz|Kyiv|Lyon|Oslo) +(\d+)$", said, re.MULTILINE)]
        assert len(counts) == 5 and sum(counts) == 1200
        await_landed(cluster, "example-orders", 1200)
        told = run("table_readers.py", cluster)
        assert "1000 rows" in told and "Oslo" in told

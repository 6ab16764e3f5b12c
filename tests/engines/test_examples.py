"""The programs in examples/ do what their page says, against a real broker with tables."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.support.lake_process import await_landed
from tests.support.places import ROOT
from tests.support.serve_process import Cluster, clean_environment, serving

RUN_S = 180.0


def run(program: str, cluster: Cluster, *arguments: str) -> str:
    done = called(program, cluster.folder, "--http", cluster.http[0], *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def called(program: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "examples" / program), *arguments]
    environment = clean_environment()
    return subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S, cwd=folder, env=environment, check=False
    )


@pytest.mark.parametrize("program", ["spark_orders.py", "table_readers.py"])
def test_without_a_broker_an_example_says_in_a_line_what_to_do(tmp_path: Path, program: str) -> None:
    done = called(program, tmp_path, "--http", "127.0.0.1:1")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "start `lakestream serve`" in done.stderr


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
        unknown = called("table_readers.py", tmp_path, "--http", cluster.http[0], "--topic", "nothing")
        assert unknown.returncode == 1 and unknown.stderr.startswith("there is no table of a topic 'nothing'")
        away = called("spark_orders.py", tmp_path, "--http", cluster.http[0], "--bootstrap", "127.0.0.1:1")
        assert away.returncode == 1 and away.stderr.startswith("error: cannot reach a broker at 127.0.0.1:1")
        assert "Traceback" not in away.stderr

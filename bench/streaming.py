"""The comparison for landing: Spark Structured Streaming from Apache Kafka into an Iceberg table, on local[2].

What a user would run today. It needs another Spark than ours, since Iceberg's runtime for ours does not exist: its
environment and its jars lie in build/bench/streaming, made on first use by venv, pip and Maven. Nothing is shipped.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.process import descendants, say

SPARK = "4.1.4"
ARTIFACTS = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
"""Versions that work together. No repository has the token provider of the same version; an older one works."""
CACHE = Path(__file__).resolve().parent.parent / "build" / "bench" / "streaming"
QUERY = Path(__file__).resolve().parent / "streaming_query.py"


def missing() -> str:
    """The programs that are missing for it; empty if there is none."""
    tools = [tool for tool in ("java",) if shutil.which(tool) is None]
    if not _stamp().exists() and shutil.which("mvn") is None:
        tools.append("mvn")
    return ", ".join(tools)


def resolve() -> Path:
    """The folder with `venv` and `jars`, filled the first time."""
    if not _stamp().exists():
        say(f"# fetching pyspark {SPARK} and Iceberg's runtime into {CACHE.name}/ (a minute or two, once)")
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(CACHE / "venv")], check=True)
        pip = [str(_python()), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", f"pyspark=={SPARK}"]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        for artifact in ARTIFACTS:
            goal = ["dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={CACHE / 'jars'}"]
            subprocess.run(["mvn", "-q", "-B", *goal], cwd=CACHE, check=True, stdout=sys.stderr)
        _stamp().touch()
    return CACHE


class Streaming:
    """One session of Spark, warm after its first query; each query reads a topic to its end into a new table."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        folder.mkdir(parents=True)
        jars = ",".join(str(path) for path in sorted((resolve() / "jars").glob("*.jar")))
        with (folder / "streaming.log").open("a") as output:
            self._process = subprocess.Popen(
                [str(_python()), str(QUERY), str(folder), bootstrap, jars], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=output, text=True,
            )  # fmt: skip
        self._log = folder / "streaming.log"
        self._answer()

    @property
    def pids(self) -> list[int]:
        return [self._process.pid, *descendants(self._process.pid)]

    def run(self, topic: str) -> dict[str, Any]:
        """The rows in the table, and the seconds of reading and committing them, without the start of the query."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{topic}\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("{"):
            raise RuntimeError(f"Structured Streaming printed {line!r}: {self._log.read_text()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _python() -> Path:
    return CACHE / "venv" / "bin" / "python"


def _stamp() -> Path:
    return CACHE / f"resolved-{SPARK}"

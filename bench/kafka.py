"""The comparison: one Apache Kafka node in KRaft mode, with jars from Maven, pinned to the brokers' core.

Nothing of it is shipped; the jars stay in build/bench/kafka. The broker's settings are Kafka's defaults, apart from
addresses, the internal topics' replication (there is one node) and how soon a deleted topic's files go. The tests that
hold our answers against Kafka's start it from here too, with a small heap and settings of their own.
"""

import base64
import fcntl
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.ports import free_ports, wait_for_port
from bench.process import BROKER_CORE, pinned, say, stop

VERSION = "4.3.1"
ARTIFACTS = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.apache.kafka", "kafka-streams", VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
CACHE = Path(__file__).resolve().parent.parent / "build" / "bench" / "kafka"
HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
START_LIMIT_S = 120.0


def missing() -> str:
    """The programs that are missing for running Kafka; empty if there is none."""
    tools = [tool for tool in ("java", "taskset") if shutil.which(tool) is None]
    if not _resolved() and shutil.which("mvn") is None:
        tools.append("mvn")
    return ", ".join(tools)


def resolve() -> Path:
    """The folder with the jars, filled by Maven the first time."""
    libraries = CACHE / "libs"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _resolved():
            _fetch(libraries)
    return libraries


def _fetch(libraries: Path) -> None:
    say(f"# fetching Apache Kafka {VERSION} with Maven into {CACHE.name}/ (half a minute, once)")
    (CACHE / "pom.xml").write_text(_pom())
    goal = ("dependency:copy-dependencies", f"-DoutputDirectory={libraries}", "-DincludeScope=runtime")
    subprocess.run(["mvn", "-q", "-B", *goal], cwd=CACHE, check=True, stdout=sys.stderr)
    (CACHE / "resolved").write_text(VERSION)


class Kafka:
    """A running node. `stop` ends it, `kill` ends it as a crash does, `start` starts it again on the same files.

    `properties` overrule those below, None leaves one out; without a core it runs where it likes.
    """

    name = "Kafka"

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, str | None] | None = None,
        heap: Sequence[str] = HEAP,
        core: int | None = BROKER_CORE,
    ) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._heap = heap
        self._core = core
        self._classpath = f"{resolve()}/*"
        self._port, controller = free_ports(2)
        written = {**_properties(folder, self._port, controller), **(properties or {})}
        lines = [f"{name}={value}\n" for name, value in written.items() if value is not None]
        (folder / "server.properties").write_text("".join(lines))
        self._process: subprocess.Popen[str] | None = None
        self._java("-Xmx256m", "kafka.tools.StorageTool", "format", "--standalone", "-t", _cluster_id())

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pids(self) -> list[int]:
        assert self._process is not None
        return [self._process.pid]

    def start(self) -> None:
        argv = ["java", *self._heap, "-cp", self._classpath, "kafka.Kafka", str(self._folder / "server.properties")]
        if self._core is not None:
            argv = pinned(self._core, argv)
        with (self._folder / "broker.log").open("a") as output:
            self._process = subprocess.Popen(argv, stdout=output, stderr=output, text=True)
        wait_for_port(self._port, START_LIMIT_S)

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _java(self, heap: str, *words: str) -> None:
        argv = ["java", heap, "-cp", self._classpath, *words, "-c", str(self._folder / "server.properties")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Kafka's storage tool failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")


def _resolved() -> bool:
    stamp = CACHE / "resolved"
    return stamp.exists() and stamp.read_text() == VERSION


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "x")


def _pom() -> str:
    entries = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
        for group, artifact, version in ARTIFACTS
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>bench</groupId><artifactId>kafka</artifactId><version>1</version>"
        f"<dependencies>{entries}</dependencies></project>\n"
    )


def _properties(folder: Path, port: int, controller: int) -> dict[str, str | None]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "log.dirs": f"{folder / 'logs'}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "log.segment.delete.delay.ms": "1000",
    }

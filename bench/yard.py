"""The setting of comparisons: both brokers on one core, the client on the other, unique topics, quiet disks."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.kafka import Kafka
from bench.ours import Lakestream
from bench.process import CLIENT_CORE, pinned, say, wait_for_quiet

SYNCED = {"flush.messages": "1"}
"""The topic setting with which Kafka syncs each append."""

WARM_BYTES = 3_000_000_000
PARTITIONS = 6
JOB_LIMIT_S = 600
PAUSABLE = {"broker.session.timeout.ms": "60000"}
"""A time-out that is longer than any pause of a broker."""
SETTLE_S = 0.5
"""The time that a broker gets after a pause, to do the work that it missed."""

Broker = Kafka | Lakestream
Result = dict[str, Any]


class Yard:
    """Starts brokers when they are first needed, and warms Kafka until its compiler has settled."""

    def __init__(self, folder: Path, *, quick: bool, with_kafka: bool, patience_s: float) -> None:
        self.folder = folder
        self.quick = quick
        self._with_kafka = with_kafka
        self._patience_s = patience_s
        self._kafka: Kafka | None = None
        self._ours: Lakestream | None = None
        self._names = itertools.count(1)
        self._in_turn = False

    @property
    def rounds(self) -> int:
        return 2 if self.quick else 3

    @property
    def seconds(self) -> float:
        return 2.0 if self.quick else 4.0

    @property
    def ours(self) -> Lakestream:
        if self._ours is None:
            say("# starting Lakestream")
            self._ours = Lakestream(self.folder / "lakestream")
            self._ours.start()
            self._warm(self._ours, 300_000_000)
        return self._ours

    @property
    def kafka(self) -> Kafka | None:
        if self._kafka is None and self._with_kafka:
            say("# starting Apache Kafka, and warming it with 3 GB")
            self._kafka = Kafka(self.folder / "kafka", PAUSABLE)
            self._kafka.start()
            self._warm(self._kafka, WARM_BYTES)
        return self._kafka

    @contextlib.contextmanager
    def alone(self, broker: Broker) -> Iterator[None]:
        """Pause the other broker on the core: an idle Kafka would take some of its time."""
        others = [one for one in (self._ours, self._kafka) if one is not None and one is not broker]
        pids = [] if self._in_turn else [pid for one in others for pid in one.pids]
        _signal(pids, signal.SIGSTOP)
        before, self._in_turn = self._in_turn, True
        try:
            yield
        finally:
            self._in_turn = before
            _signal(pids, signal.SIGCONT)
            time.sleep(SETTLE_S if pids else 0)

    @contextlib.contextmanager
    def fresh(self, *, tables: bool = False, in_memory: bool = False, **settings: int) -> Iterator[Lakestream]:
        """A Lakestream of its own, not started, for questions that kill or fill it. Its files are deleted with it."""
        folder = self.folder / f"fresh-{next(self._names)}"
        broker = Lakestream(folder, tables=tables, in_memory=in_memory, **settings)
        try:
            yield broker
        finally:
            broker.stop()
            shutil.rmtree(folder, ignore_errors=True)

    def topic(self, broker: Broker, partitions: int = PARTITIONS, *, synced: bool = False) -> str:
        name = f"bench-{next(self._names)}"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        config = SYNCED if synced else {}
        admin.create_topics([NewTopic(name, partitions, 1, config=config)], request_timeout=60)[name].result()
        return name

    def client(self, broker: Broker, job: str, **asked: Any) -> Result:
        """Run a job of bench.client against one broker, after a sync of the disk."""
        os.sync()
        wait_for_quiet(self._patience_s)
        with self.alone(broker):
            return self.beside(broker, job, **asked)()

    def beside(self, broker: Broker, job: str, **asked: Any) -> Callable[[], Result]:
        """Start a job of bench.client at once; the returned function waits for its result."""
        words = json.dumps({"job": job, "bootstrap": broker.bootstrap, "pids": broker.pids, **asked})
        argv = pinned(CLIENT_CORE, [sys.executable, "-m", "bench.client", words])
        running = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return lambda: self._ended(running, broker, job)

    def _ended(self, running: "subprocess.Popen[str]", broker: Broker, job: str) -> Result:
        try:
            said, complaint = running.communicate(timeout=JOB_LIMIT_S)
        except subprocess.TimeoutExpired:
            running.kill()
            raise
        if running.returncode:
            raise RuntimeError(f"{job} against {broker.name} failed: {complaint[-2000:]}")
        result: Result = json.loads(said)
        result["cpu_s"] = result["user_s"] + result["system_s"]
        summary = {key: round(value, 3) for key, value in result.items() if isinstance(value, float)}
        say(f"#   {job} {broker.name}: {summary}")
        return result

    def close(self) -> None:
        """Kill the brokers: their data are deleted, so an orderly end is not needed."""
        for broker in (self._ours, self._kafka):
            if broker is not None:
                with contextlib.suppress(ProcessLookupError):
                    broker.kill()

    def _warm(self, broker: Broker, total: int) -> None:
        """Use every path that will be measured, until `total` bytes went through the first."""
        topic, done = self.topic(broker), 0
        while done < total:
            asked = {"topic": topic, "partitions": PARTITIONS, "size": 1000, "idempotent": True}
            done += self.client(broker, "produce", records=600_000, **asked)["bytes"]
        asked = {"topic": topic, "partitions": PARTITIONS, "size": 1000, "records": 200_000, "passes": 2}
        self.client(broker, "consume", **asked)
        pipeline = {"size": 100, "connections": 16, "window": 256, "seconds": self.seconds}
        self.client(broker, "tiny", topic=self.topic(broker), partitions=PARTITIONS, **pipeline)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def foreign(results: list[Result]) -> str:
    """The load of other programs meanwhile, in cores."""
    loads = [result["foreign"] for result in results]
    return f"foreign load {min(loads):.2f}-{max(loads):.2f} cores"

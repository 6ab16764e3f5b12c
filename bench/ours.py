"""One Lakestream broker, started as a user starts it, and pinned to the brokers' core unless it runs with tables."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.process import BROKER_CORE, command_line, descendants, pin, pinned, stop

START_LIMIT_S = 60.0
PIPELINE_LIMIT_S = 120.0


class Lakestream:
    """`lakestream serve` with the embedded default, without tables unless asked for.

    `start` measures the time to the ready line.
    """

    name = "Lakestream"

    def __init__(self, folder: Path, *, tables: bool = False, in_memory: bool = False, **settings: int) -> None:
        """`in_memory`: the broker stores nothing and acknowledges at once, which shows the client's limit."""
        folder.mkdir(parents=True)
        self._folder = folder
        self._tables = tables
        self._in_memory = in_memory
        self._settings = settings
        self._bootstrap = ""
        self.http = ""
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return self._bootstrap

    @property
    def supervisor_pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def _log(self) -> Path:
        return self._folder / "broker.log"

    @property
    def data(self) -> Path:
        return self._folder / "data"

    @property
    def broker_pid(self) -> int:
        """The broker's process: the supervisor's child with this command."""
        return self._child("broker")

    @property
    def pipeline_pid(self) -> int:
        return self._child("pipeline")

    @property
    def serving_pids(self) -> list[int]:
        """The broker, and the owner of the command log if that is another process."""
        with contextlib.suppress(ProcessLookupError):
            return [self.broker_pid, self._child("lakestream.metadata.stores.owner")]
        return [self.broker_pid]

    def _child(self, word: str) -> int:
        for pid in descendants(self.supervisor_pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if word in command_line(pid):
                    return pid
        raise ProcessLookupError(f"the supervisor has no {word}")

    @property
    def pids(self) -> list[int]:
        """All processes: the broker and its children, and the supervisor; with tables the pipeline, too."""
        return [self.supervisor_pid, *descendants(self.supervisor_pid)]

    def start(self) -> float:
        """Seconds to the ready line. The second start of the same object takes the first one's port."""
        data = "memory:" if self._in_memory else str(self.data)
        argv = [sys.executable, "-m", "lakestream.cli.main", "serve", "--data", data]
        argv += ["--brokers", "1", "--kafka-port", str(self._port), "--http-port", "0"]
        argv += ["--tables" if self._tables else "--no-tables"]
        for name, value in self._settings.items():
            argv += [f"--{name.replace('_', '-')}", str(value)]
        begin = time.perf_counter()
        with self._log.open("a") as output:
            self._process = subprocess.Popen(
                argv if self._tables else pinned(BROKER_CORE, argv), stdout=subprocess.PIPE, stderr=output, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("ready "):
            raise RuntimeError(f"lakestream printed {line!r}, not the ready line; see {self._folder}/broker.log")
        self._bootstrap = line.split("kafka=", 1)[1].split()[0]
        self.http = line.split("http=", 1)[1].split()[0]
        self._port = int(self._bootstrap.rpartition(":")[2])
        return time.perf_counter() - begin

    def await_pipeline(self) -> None:
        """Wait until Spark runs and lands records."""
        end = time.monotonic() + PIPELINE_LIMIT_S
        while "event=serves child=pipeline" not in self._log.read_text():
            if time.monotonic() > end:
                raise RuntimeError(f"no pipeline in {PIPELINE_LIMIT_S:.0f} s: {self._log.read_text()[-2000:]}")
            time.sleep(0.1)

    def await_landed(self, topic: str, records: int, limit_s: float) -> None:
        """Wait until all records of a topic are in its table."""
        end = time.monotonic() + limit_s
        while (landed := self.landed(topic)) < records:
            if time.monotonic() > end:
                raise RuntimeError(f"{landed} of {records} records of {topic} landed in {limit_s:.0f} s")
            time.sleep(0.5)

    def landed(self, topic: str) -> int:
        """The number of records of a topic in its table."""
        with urllib.request.urlopen(f"http://{self.http}/metadata", timeout=30) as answer:
            told: dict[str, Any] = json.load(answer)
        parts = next(one["partitions"] for one in told["topics"] if one["name"] == topic)
        return sum(part["landed"] for part in parts)

    def pin_brokers(self) -> None:
        """Pin the broker and the owner of its log to the brokers' core."""
        for pid in self.serving_pids:
            pin(pid, BROKER_CORE)

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)

    def kill(self) -> None:
        """Kill all processes at once, as a power cut does."""
        assert self._process is not None
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def kill_broker(self) -> None:
        """Kill the broker alone; its supervisor starts it again."""
        os.kill(self.broker_pid, signal.SIGKILL)

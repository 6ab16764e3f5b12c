"""One Lakestream broker, started as a user starts it, pinned to the brokers' core."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.process import BROKER_CORE, command_line, descendants, pinned, stop

START_LIMIT_S = 60.0


class Lakestream:
    """`lakestream serve` with the embedded default. `start` measures the time to the ready line."""

    name = "Lakestream"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._bootstrap = ""
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
    def broker_pid(self) -> int:
        """The broker's process: the supervisor's child whose command says so."""
        for pid in descendants(self.supervisor_pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if "broker" in command_line(pid):
                    return pid
        raise ProcessLookupError("the supervisor has no broker")

    @property
    def pids(self) -> list[int]:
        """All that serves: the broker and its children, and the supervisor."""
        return [self.supervisor_pid, *descendants(self.supervisor_pid)]

    def start(self) -> float:
        """Seconds to the ready line. The second start of the same object takes the first one's port."""
        argv = [sys.executable, "-m", "lakestream.cli.main", "serve", "--data", str(self._folder / "data")]
        argv += ["--brokers", "1", "--kafka-port", str(self._port), "--http-port", "0", "--no-tables"]
        begin = time.perf_counter()
        with (self._folder / "broker.log").open("a") as output:
            self._process = subprocess.Popen(
                pinned(BROKER_CORE, argv), stdout=subprocess.PIPE, stderr=output, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("ready "):
            raise RuntimeError(f"lakestream said {line!r} in place of the ready line; see {self._folder}/broker.log")
        self._bootstrap = line.split("kafka=", 1)[1].split()[0]
        self._port = int(self._bootstrap.rpartition(":")[2])
        return time.perf_counter() - begin

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)

    def kill(self) -> None:
        """Everything at once, as a power cut would end it."""
        assert self._process is not None
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def kill_broker(self) -> None:
        """The broker alone; its supervisor brings it back."""
        os.kill(self.broker_pid, signal.SIGKILL)

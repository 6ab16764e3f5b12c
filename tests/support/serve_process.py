"""A real `lakestream serve` in a folder of its own, for tests that need processes they can kill, stop and restart.

    with serving(tmp_path, brokers=3, broker_session_ms=2000) as cluster:
        client(cluster.bootstrap)
        cluster.kill(1)             # kill -9; the supervisor brings it back
        cluster.await_broker(1)     # its new process serves

Whatever a test does, nothing is left running behind it: the brokers die with their supervisor, and the supervisor is
killed if it does not stop by itself.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar

from tests.support.places import ROOT

START_S = 60.0
STOP_S = 20.0

T = TypeVar("T")


class Cluster:
    """A running supervisor with its brokers. Made by `serving`."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path, log: Path) -> None:
        self.process = process
        self.folder = folder
        self.log = log
        self.kafka: list[str] = []
        """The Kafka address of each broker, by its id."""
        self.http: list[str] = []
        self._stopped: set[int] = set()

    @property
    def bootstrap(self) -> str:
        return ",".join(self.kafka)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def pid(self, broker: int) -> int | None:
        """The process of a broker at this moment; None while it is away."""
        return self._child(lambda argv: "broker" in argv and argv[argv.index("--id") + 1] == str(broker))

    def owner_pid(self) -> int | None:
        """The process that owns the shared command log; None if there is none."""
        return self._child(lambda argv: "lakestream.metadata.stores.owner" in argv)

    def kill(self, broker: int, number: int = signal.SIGKILL) -> int:
        """Send a signal to a broker (kill -9 by default); returns the process id that got it."""
        pid = self.pid(broker)
        assert pid is not None, f"broker {broker} is not running"
        os.kill(pid, number)
        return pid

    def stop(self, broker: int) -> int:
        """Freeze a broker (SIGSTOP) until `resume`; returns its process id."""
        pid = self.kill(broker, signal.SIGSTOP)
        self._stopped.add(pid)
        return pid

    def resume(self, pid: int) -> None:
        """Let a frozen process go on."""
        self._stopped.discard(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def await_broker(self, broker: int, *, not_pid: int | None = None, limit_s: float = START_S) -> int:
        """Wait until the broker is ready, in a process other than `not_pid`; returns its process id."""

        def ready() -> int | None:
            pid = self.pid(broker)
            return pid if pid is not None and pid != not_pid and self.is_ready(broker) else None

        return eventually(ready, f"broker {broker} does not serve", limit_s, self)

    def is_ready(self, broker: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.http[broker]}/readyz", timeout=1.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def shut_down(self, limit_s: float = STOP_S) -> int:
        """Stop everything as a person would, with SIGTERM; returns the exit code. Kills what does not obey."""
        for pid in list(self._stopped):
            self.resume(pid)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def crash(self) -> None:
        """End every process at once with SIGKILL: the brokers are told by the kernel that their supervisor died."""
        pids = _children(self.process.pid)
        self.process.kill()
        self.process.wait()
        eventually(lambda: not any(_alive(pid) for pid in pids), "brokers outlive their supervisor", 10.0, self)

    def _child(self, matches: Callable[[list[str]], bool]) -> int | None:
        for pid in _children(self.process.pid):
            argv = _argv(pid)
            if argv and matches(argv):
                return pid
        return None


@contextmanager
def serving(
    folder: Path, brokers: int = 1, *, code: Path = ROOT, **settings: str | int | bool
) -> Iterator[Cluster]:
    """Start `lakestream serve` on `folder`/data. Settings are those of settings.py, by their names.

    `code` is the folder that the package is imported from.

    There are no tables unless asked for. Serving the same folder again, after this context has ended, finds its
    records again (on other ports).
    """
    folder.mkdir(parents=True, exist_ok=True)
    given = {"kafka_port": 0, "http_port": 0, "tables": False, **settings}
    flags = _flags({"data": str(folder / "data"), "brokers": brokers, **given})
    log = folder / "serve.log"
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "lakestream.cli.main", "serve", *flags], cwd=folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=errors, text=True, env=clean_environment(code),
        )  # fmt: skip
    cluster = Cluster(process, folder, log)
    try:
        cluster.kafka, cluster.http = _await_ready(process, cluster)
        yield cluster
    finally:
        cluster.shut_down()
        if process.stdout is not None:
            process.stdout.close()


def clean_environment(code: Path = ROOT) -> dict[str, str]:
    """For a command of this source tree that nobody's settings reach."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("LAKESTREAM_")}
    return {**own, "PYTHONPATH": str(code)}


def eventually(
    check: Callable[[], T | None], complaint: str, limit_s: float = 30.0, cluster: Cluster | None = None
) -> T:
    """The first true value of `check`, asked every 50 ms. AssertionError after the limit, with the end of the log."""
    deadline = time.monotonic() + limit_s
    while True:
        if value := check():
            return value
        if time.monotonic() > deadline:
            tail = f"\n{cluster.log_text()[-5000:]}" if cluster else ""
            raise AssertionError(f"{complaint} after {limit_s} s{tail}")
        time.sleep(0.05)


def _flags(settings: dict[str, str | int | bool]) -> list[str]:
    flags: list[str] = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def _await_ready(process: "subprocess.Popen[str]", cluster: Cluster) -> tuple[list[str], list[str]]:
    assert process.stdout is not None
    line = _read_line(process.stdout, START_S)
    if not line.startswith("ready "):
        raise AssertionError(f"serve said {line!r} instead of ready:\n{cluster.log_text()[-5000:]}")
    said = dict(word.split("=", 1) for word in line.split()[1:])
    return said["kafka"].split(","), said["http"].split(",")


def _read_line(stream: IO[str], limit_s: float) -> str:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline() if selector.select(limit_s) else ""


def _children(parent: int) -> list[int]:
    """The children of a process, in order of their age."""
    try:
        text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in text.split()]


def _argv(pid: int) -> list[str]:
    """The command line of a process; nothing if it is gone, or not yet more than a copy of its parent."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"

"""Processes as the kernel reports them: CPU time, memory, children, and the load of other programs.

Linux only: everything is read from /proc.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
BROKER_CORE, CLIENT_CORE = 0, 1
QUIET_CORES = 0.15
IDLE_FIELDS = (3, 4)
"""The idle and disk-wait columns in the first line of /proc/stat. The others are work, also of other machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The CPU time between two moments. `foreign` is the work of other programs, in cores."""

    seconds: float
    user_s: float
    system_s: float
    client_s: float
    foreign: float

    @property
    def broker_s(self) -> float:
        return self.user_s + self.system_s


class Meter:
    """CPU time of some processes, of this one, and of the other programs, from its creation to `read`."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._spent = {pid: (0.0, 0.0) for pid in pids}
        self._then = self._now()

    def read(self) -> Usage:
        seconds, user, system, client, busy = (new - old for new, old in zip(self._now(), self._then, strict=True))
        foreign = max(0.0, busy - user - system - client) / seconds
        return Usage(seconds=seconds, user_s=user, system_s=system, client_s=client, foreign=foreign)

    def _now(self) -> tuple[float, float, float, float, float]:
        for pid in self._spent:
            # A process that ended meanwhile counts with its last reading: Spark's workers come and go.
            with suppress(FileNotFoundError, ProcessLookupError):
                self._spent[pid] = cpu_seconds(pid)
        user, system = (sum(one[place] for one in self._spent.values()) for place in range(2))
        return time.perf_counter(), user, system, time.process_time(), busy_seconds()


def cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system time of a process with all its threads, those that ended included."""
    fields = _stat(pid)
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS


def busy_seconds() -> float:
    """All work of all cores since the machine started."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(number for place, number in enumerate(numbers) if place not in IDLE_FIELDS) / TICKS


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int(_stat(int(entry.name))[1]) == pid:
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def descendants(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *descendants(child))]


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")


def pinned(core: int, argv: Sequence[str]) -> list[str]:
    """The command, pinned to one core if there are several."""
    return ["taskset", "-c", str(core), *argv] if (os.cpu_count() or 1) > 1 else list(argv)


def pin(pid: int, core: int) -> None:
    """Pin every thread of a running process to one core."""
    if (os.cpu_count() or 1) > 1:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})


def wait_for_quiet(limit_s: float) -> None:
    """Wait until other programs are idle, for `limit_s` at most. Idle brokers need a few percent."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        meter = Meter([])
        time.sleep(0.25)
        if meter.read().foreign < QUIET_CORES:
            return


def stop(process: "subprocess.Popen[str]", limit_s: float = 20.0) -> None:
    """End a process with SIGTERM, then with SIGKILL."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold anything: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()

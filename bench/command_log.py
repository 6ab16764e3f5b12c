"""The cost of an append to the SQLite command log, as a multiple of one small synced write.

In-process, and by three processes through the owner. `python bench/command_log.py [FOLDER]`; put FOLDER on the disk
that you want to know about.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from lakestream.interfaces import CommandLog
from lakestream.metadata.stores.socket_client import SocketLog
from lakestream.metadata.stores.sqlite import SqliteLog

SIZES = (1_000, 40_000)
SECONDS = 2.0
FLOOR_SECONDS = 0.5
CLIENTS = 3


@dataclass(frozen=True, slots=True)
class Figures:
    per_second: float
    p50_ms: float
    p99_ms: float


def figures(durations_s: list[float], elapsed_s: float) -> Figures:
    ordered = sorted(durations_s)
    return Figures(
        len(ordered) / elapsed_s,
        ordered[len(ordered) // 2] * 1e3,
        ordered[len(ordered) * 99 // 100] * 1e3,
    )


def floor(folder: Path) -> Figures:
    """Append 4 KiB and fdatasync, repeatedly."""
    block = os.urandom(4096)
    descriptor = os.open(folder / "floor", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    durations = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < FLOOR_SECONDS:
        start = time.perf_counter()
        os.write(descriptor, block)
        os.fdatasync(descriptor)
        durations.append(time.perf_counter() - start)
    os.close(descriptor)
    return figures(durations, time.perf_counter() - begin)


async def append_for_a_while(log: CommandLog, size: int, rate: float | None = None) -> tuple[list[float], float]:
    """Append one command after the other, and read each tail as a replica does; at most `rate` a second."""
    command = os.urandom(size)
    after = (await log.append([command], 0)).first
    durations = []
    begin = time.perf_counter()
    while (start := time.perf_counter()) - begin < SECONDS:
        after = (await log.append([command], after)).tail[-1][0]
        durations.append(time.perf_counter() - start)
        if rate is not None:
            await asyncio.sleep(max(0.0, len(durations) / rate - (time.perf_counter() - begin)))
    return durations, time.perf_counter() - begin


async def in_process(folder: Path, size: int) -> Figures:
    log = await SqliteLog.open(folder / f"in-process-{size}.db")
    result = figures(*await append_for_a_while(log, size))
    await log.close()
    return result


async def start_owner(database: Path, socket_path: Path) -> asyncio.subprocess.Process:
    """An owner that serves."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lakestream.metadata.stores.owner", str(database), str(socket_path)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None and await process.stdout.readline() == b"ready\n"
    return process


async def through_owner(folder: Path, size: int, clients: int, rate: float | None) -> list[Figures]:
    database, socket = folder / f"owned-{size}-{clients}-{rate}.db", folder / "socket"
    owner = await start_owner(database, socket)
    children = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "--client", str(socket), str(size), str(rate or 0)),
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(clients)
    ]
    answers = [await child.communicate() for child in children]
    owner.terminate()
    await owner.wait()
    return [figures(*json.loads(out)) for out, _ in answers]


async def client(socket: str, size: int, rate: float) -> None:
    log = await SocketLog.open(socket)
    print(json.dumps(await append_for_a_while(log, size, rate or None)))
    await log.close()


def show(what: str, got: Figures, base: Figures) -> None:
    print(
        f"{what:<44} {got.per_second:>6.0f}/s  p50 {got.p50_ms:6.3f} ms  p99 {got.p99_ms:7.3f} ms"
        f"   p50 x{got.p50_ms / base.p50_ms:.2f}  p99 x{got.p99_ms / base.p99_ms:.2f}",
        flush=True,
    )


async def compare(folder: Path, size: int) -> None:
    """Print each figure beside a floor of the same moment: other programs may use the disk."""
    base = floor(folder)
    show("floor: append 4 KiB + fdatasync", base, base)
    show(f"in-process, {size} bytes", await in_process(folder, size), base)
    for clients, rate in ((1, None), (CLIENTS, 100.0), (CLIENTS, None)):
        base = floor(folder)
        show("floor: append 4 KiB + fdatasync", base, base)
        pace = "without pause" if rate is None else f"at {rate:.0f}/s"
        results = await through_owner(folder, size, clients, rate)
        for number, got in enumerate(results):
            show(f"owner, {number + 1} of {clients} {pace}, {size} bytes", got, base)
        rates = [got.per_second for got in results]
        print(f"  together {sum(rates):.0f}/s, slowest client to fastest {min(rates) / max(rates):.2f}", flush=True)


async def main(parent: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=parent) as name:
        for size in SIZES:
            await compare(Path(name), size)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        uvloop.run(client(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
    else:
        uvloop.run(main(sys.argv[1] if len(sys.argv) > 1 else None))

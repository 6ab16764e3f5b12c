"""The limits of the machine itself: loopback, a large synced write, a small file synced with its directory."""

import os
import socket
import statistics
import threading
import time
from pathlib import Path

from bench.figures import Figure
from bench.yard import Yard

SMALL = b"x" * 512


def measure(yard: Yard) -> list[Figure]:
    folder = yard.folder / "floors"
    folder.mkdir(exist_ok=True)
    rounds = range(yard.rounds)
    small = [small_files(folder, 1.0) for _ in rounds]
    return [
        Figure(name="loopback TCP, 1 MB sends", unit="MB/s", ours=[loopback() for _ in rounds]),
        *(
            Figure(name=f"write {size >> 20} MB and sync", unit="MB/s", ours=[written(folder, size) for _ in rounds])
            for size in (1 << 20, 8 << 20)
        ),
        Figure(name="small file, median", unit="ms", ours=[percentile(one, 0.5) * 1e3 for one in small]),
        Figure(name="small file, 99th percentile", unit="ms", ours=[percentile(one, 0.99) * 1e3 for one in small]),
    ]


def small_files(folder: Path, seconds: float) -> list[float]:
    """Create a small file, sync it and its directory; the time of each. This is the floor of an acknowledgement.

    The files stay: ext4 without a journal searches longer for a free inode after many were deleted.
    """
    first = sum(1 for _ in folder.iterdir())
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        name = folder / f"small-{first + len(times)}"
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(file, SMALL)
        os.fsync(file)
        os.close(file)
        os.fsync(directory)
        times.append(time.perf_counter() - begin)
    os.close(directory)
    return times


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def written(folder: Path, size: int, seconds: float = 0.7) -> float:
    block, name, rates = os.urandom(size), folder / "large", []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(file, block)
        os.fsync(file)
        os.close(file)
        rates.append(size / 1e6 / (time.perf_counter() - begin))
        name.unlink()
    return statistics.median(rates)


def loopback(total: int = 1 << 30) -> float:
    listener = socket.create_server(("127.0.0.1", 0))
    block = b"x" * (1 << 20)

    def send() -> None:
        with socket.create_connection(listener.getsockname()) as sender:
            for _ in range(total // len(block)):
                sender.sendall(block)

    thread = threading.Thread(target=send)
    thread.start()
    receiver, _ = listener.accept()
    buffer, got, begin = bytearray(1 << 20), 0, time.perf_counter()
    while got < total:
        got += receiver.recv_into(buffer)
    seconds = time.perf_counter() - begin
    thread.join()
    receiver.close()
    listener.close()
    return total / 1e6 / seconds

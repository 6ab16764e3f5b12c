"""The times at which records land, from a copy of the state that is folded from the broker's command log.

A record is visible to everybody when the command that commits its table is folded. The follower looks often which
tables' progress has moved, so that nobody has to ask a broker that is being measured.
"""

import asyncio
import bisect
import json
import threading
import time
from pathlib import Path

from bench.ours import Lakestream
from lakestream.data.folder import FolderWal
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.socket_client import SocketLog
from lakestream.process.clock import SystemClock
from lakestream.settings import CHILD_VARIABLE

Place = tuple[str, int]
"""A topic and a partition."""
FOLLOWER = 2_000_000
LOOK_S = 0.05
"""Checking thousands of topics at each fold would take processor time from the measured programs."""


class Follower(threading.Thread):
    """Folds until it is closed. `seen` has the progress of each partition with its times."""

    def __init__(self, broker: Lakestream) -> None:
        super().__init__(daemon=True)
        self.seen: dict[Place, tuple[list[int], list[float]]] = {}
        self._broker = broker
        self._ends: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()

    def __enter__(self) -> "Follower":
        self.start()
        if not self._started.wait(30):
            raise RuntimeError("the follower cannot read the command log")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None and self._ends is not None
        self._loop.call_soon_threadsafe(self._ends.set)
        self.join(30)

    def run(self) -> None:
        asyncio.run(self._follow())

    def landed_at(self, place: Place, offset: int) -> float | None:
        """The time at which the record at an offset became visible in the table; None if it is not."""
        uptos, times = self.seen.get(place, ([], []))
        at = bisect.bisect_right(uptos, offset)
        return times[at] if at < len(times) else None

    async def _follow(self) -> None:
        self._loop, self._ends = asyncio.get_running_loop(), asyncio.Event()
        log = await SocketLog.open(_socket_of(self._broker.pipeline_pid))
        replica = Replica(log, FolderWal(self._broker.data), SystemClock(), FOLLOWER)
        await replica.start()
        self._started.set()
        while not self._ends.is_set():
            self._look(replica)
            await asyncio.sleep(LOOK_S)
        await replica.stop()
        await log.close()

    def _look(self, replica: Replica) -> None:
        now = time.monotonic()
        for topic in replica.state.topics.by_id.values():
            for partition, stream_id in enumerate(topic.streams):
                landed = replica.state.streams.by_id[stream_id].landed
                uptos, times = self.seen.setdefault((topic.name, partition), ([], []))
                if landed > (uptos[-1] if uptos else 0):
                    uptos.append(landed)
                    times.append(now)


def _socket_of(pid: int) -> str:
    """The socket of the command log's owner, which the pipeline uses, too."""
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    told = next(word for word in words if word.startswith(f"{CHILD_VARIABLE}="))
    metadata: str = json.loads(told.partition("=")[2])["metadata"]
    return metadata.removeprefix("owner:")

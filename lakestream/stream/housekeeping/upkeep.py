"""The housekeeping of a broker, on a schedule: collecting, retention, moving, finishing long topics.

A round that fails is logged and tried again at its next turn; nothing here can end a broker. Nothing is judged while
our own heartbeats do not fold, since then the state at hand may be an old one (L13).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from lakestream.errors import LakestreamError
from lakestream.metadata.membership import Membership
from lakestream.stream.groups.lags import GroupLags
from lakestream.stream.housekeeping.collector import Collector
from lakestream.stream.housekeeping.long_topics import LongTopics
from lakestream.stream.housekeeping.mover import Mover
from lakestream.stream.housekeeping.retention import Retention

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How often."""

    finish_s: float = 1.0
    collect_s: float = 60.0
    retention_s: float = 30.0
    move_s: float = 5.0
    measure_s: float = 15.0
    move_bytes_s: int = 16 * 1024 * 1024
    """About how fast the mover goes when nothing presses."""


class Upkeep:
    """Runs the collector, retention, the mover and, where there are tables, the purger side by side.

    Topics that are being made or deleted in pieces are finished, and the lags of groups measured, beside them.
    """

    def __init__(
        self, membership: Membership, collector: Collector, retention: Retention, mover: Mover, schedule: Schedule,
        long_topics: LongTopics, purge: Callable[[], Awaitable[int]] | None = None, lags: GroupLags | None = None,
    ) -> None:  # fmt: skip
        self._membership = membership
        self._collector = collector
        self._retention = retention
        self._mover = mover
        self._schedule = schedule
        self._long_topics = long_topics
        self._purge = purge
        self._lags = lags

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(self._schedule.finish_s, self._long_topics.finish), name="long topics")
            group.create_task(self._every(self._schedule.collect_s, self._collector.collect), name="collector")
            group.create_task(self._every(self._schedule.move_s, self._collector.let_go), name="cache")
            group.create_task(self._every(self._schedule.retention_s, self._retention.apply), name="retention")
            group.create_task(self._every(self._schedule.move_s, self._move), name="mover")
            if self._lags is not None:
                group.create_task(self._every(self._schedule.measure_s, self._lags.measure), name="lags of groups")
            if self._purge is not None:
                group.create_task(self._every(self._schedule.collect_s, self._purge), name="purger")

    async def _every(self, seconds: float, work: Callable[[], Awaitable[int]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            if not self._membership.current:
                continue
            try:
                await work()
            except LakestreamError as error:
                log.warning("%s is put off: %s", work.__qualname__, error)
            except Exception:
                # A fault in housekeeping must not take the broker down: it serves well without, for a while.
                log.exception("%s failed", work.__qualname__)

    async def _move(self) -> int:
        """Merge until nothing is left to merge, with pauses that leave room for clients unless the state is full."""
        total = 0
        while self._membership.current:
            moved = await self._mover.step()
            if not moved:
                break
            total += moved
            await asyncio.sleep(0 if self._mover.pressed else moved / self._schedule.move_bytes_s)
        return total

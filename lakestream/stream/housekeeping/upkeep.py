"""The housekeeping of a broker, on a schedule: collector, retention, mover, long topics, purger, lags of groups.

A round that fails is logged and runs again at its next time; it never ends the broker. No round runs while this
broker's heartbeats do not fold, since its state may be old then (L13).
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
class UpkeepSchedule:
    """The seconds between two rounds of each task."""

    finish_s: float = 1.0
    collect_s: float = 60.0
    retention_s: float = 30.0
    move_s: float = 5.0
    measure_s: float = 15.0
    move_bytes_s: int = 16 * 1024 * 1024
    """The mover's rate of writing while the state is not filling."""


class Upkeep:
    """Runs the housekeeping tasks side by side; the purger and the lags of groups only if they are given."""

    def __init__(
        self, membership: Membership, collector: Collector, retention: Retention, mover: Mover,
        schedule: UpkeepSchedule, long_topics: LongTopics, purge: Callable[[], Awaitable[int]] | None = None,
        lags: GroupLags | None = None,
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
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(self._schedule.finish_s, self._long_topics.finish), name="long topics")
            group.create_task(self._every(self._schedule.collect_s, self._collector.collect), name="collector")
            group.create_task(self._every(self._schedule.move_s, self._collector.drop_dead_from_cache), name="cache")
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
                log.warning("%s failed and runs again in %g s: %s", work.__qualname__, seconds, error)
            except Exception:
                # A fault in housekeeping must not stop the broker, which can serve without it for a while.
                log.exception("a fault in %s", work.__qualname__)

    async def _move(self) -> int:
        """Merge until no merge is worth it, with pauses for the clients' work unless the state is filling."""
        total = 0
        while self._membership.current:
            moved = await self._mover.step()
            if not moved:
                break
            total += moved
            await asyncio.sleep(0 if self._mover.state_is_filling else moved / self._schedule.move_bytes_s)
        return total

"""Whether a store has room for new data: one log line when its disk is full, and one when it has room again.

    room --a write is refused for want of room--> full --writes or probes succeed, and none was refused lately--> room
"""

import logging
from typing import Final

from lakestream.errors import NoRoom
from lakestream.interfaces import Clock

log = logging.getLogger(__name__)

QUIET_S: Final = 1.0
"""On an almost full disk small writes succeed between large ones that fail: the disk still counts as full."""


class StoreRoom:
    """The room in one store; `why` is empty while there is some."""

    __slots__ = ("_clock", "_refused_at", "_since", "store", "why")

    def __init__(self, store: str, clock: Clock) -> None:
        self.store = store
        self.why = ""
        self._clock = clock
        self._since = self._refused_at = 0.0

    def refused(self, error: NoRoom) -> None:
        """A write failed for want of room."""
        self._refused_at = self._clock.monotonic()
        if not self.why:
            self._since = self._refused_at
            log.error("%s has no room, so writes to it are refused until there is some: %s", self.store, error)
        self.why = str(error)

    def taken(self) -> None:
        """A write, or a probe, succeeded."""
        now = self._clock.monotonic()
        if self.why and now - self._refused_at >= QUIET_S:
            self.why = ""
            log.warning("%s has room again, after %.0f s", self.store, now - self._since)

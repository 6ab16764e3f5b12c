"""Whether a store has room for what is written to it: one log line says that its disk is full, and one that it is not.

    room --a write is refused for want of room--> full --writes or probes succeed, and none was refused lately--> room
"""

import logging
from typing import Final

from lakestream.errors import NoRoom
from lakestream.interfaces import Clock

log = logging.getLogger(__name__)

QUIET_S: Final = 1.0
"""On a disk with a few bytes left small writes succeed between large ones that do not: that is still a full disk."""


class StoreRoom:
    """One store's. `why` is empty while there is room."""

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
        """A write, or a probe, was successful."""
        now = self._clock.monotonic()
        if self.why and now - self._refused_at >= QUIET_S:
            self.why = ""
            log.warning("%s has room again, after %.0f s", self.store, now - self._since)

"""Log lines about clients, a few of each kind per period: a hostile client must not fill the disk with log lines."""

import logging
from typing import Final

from lakestream.interfaces import Clock

PERIOD_S: Final = 10.0
LINES_A_PERIOD: Final = 5


class ClientWarnings:
    """Counts closed connections by kind of cause, and logs the first few of each period."""

    __slots__ = ("_clock", "_left", "_log", "_silent", "_since", "counts")

    def __init__(self, clock: Clock, log: logging.Logger) -> None:
        self._clock = clock
        self._log = log
        self._since: dict[str, float] = {}
        self._left: dict[str, int] = {}
        self._silent: dict[str, int] = {}
        self.counts: dict[str, int] = {}

    def warn(self, kind: str, peer: str, reason: str, *, error: BaseException | None = None) -> None:
        """Log why the connection of `peer` is closed, with the traceback of an error of the broker."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        now = self._clock.monotonic()
        if now - self._since.get(kind, -PERIOD_S) >= PERIOD_S:
            self._since[kind] = now
            self._left[kind] = LINES_A_PERIOD
        if not self._left[kind]:
            self._silent[kind] = self._silent.get(kind, 0) + 1
            return
        self._left[kind] -= 1
        silent = self._silent.pop(kind, 0)
        note = f" ({silent} more of this kind were not logged)" if silent else ""
        level = logging.INFO if error is None else logging.ERROR
        self._log.log(level, "closing the connection of %s: %s%s", peer, reason, note, exc_info=error)

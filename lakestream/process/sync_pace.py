"""How long recent small synced writes took: quick ones run on the event loop, slow ones in a thread.

The way to another thread and back costs 75 of 265 us of processor time a tick, and a tenth of the time to the answer
(decision 7). So while writes are quick they run on the event loop; on a disk that gets slower they run in a thread
again.
"""

from lakestream.interfaces import Clock

QUICK_S = 0.001
WEIGHT = 1 / 8
"""Weight of the newest write in the mean."""


class SyncPace:
    """The mean time of the last few writes. Without a clock every disk counts as slow."""

    __slots__ = ("_clock", "_mean_s")

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._mean_s = 1.0

    @property
    def quick(self) -> bool:
        return self._mean_s < QUICK_S

    def begin(self) -> float:
        return 0.0 if self._clock is None else self._clock.monotonic()

    def end(self, began: float) -> None:
        """A small write that began at `began` is durable now."""
        if self._clock is not None:
            self._mean_s += (self._clock.monotonic() - began - self._mean_s) * WEIGHT

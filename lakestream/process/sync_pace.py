"""How long small synced writes took lately: quick ones are waited for on the event loop, slow ones in a thread.

While a write and its sync take less than the way to another thread and back would cost, whoever waits gets the answer
sooner on the event loop itself, and the machine does less. A disk that gets slower is waited for in a thread again.
"""

from lakestream.interfaces import Clock

QUICK_S = 0.001
WEIGHT = 1 / 8
"""Of the newest write, in the mean that decides."""


class SyncPace:
    """The mean of the last few writes. Without a clock, every disk is slow."""

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
        """A small write that began then is durable now."""
        if self._clock is not None:
            self._mean_s += (self._clock.monotonic() - began - self._mean_s) * WEIGHT

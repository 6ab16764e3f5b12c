"""Whether a tick waits a little for more batches although its store has no price per object: decided here.

A tick costs the same processor time for one request as for many. Where bulk data comes in a steady stream, a few
milliseconds of patience make several ticks one, and the senders, who gather themselves, hardly notice. Senders who wait
for our answers before they go on would notice. They fall silent once each has sent what it may send unanswered: after
how many requests that is, is learned, and so many are enough. Now and then we wait for twice as many, to learn anew.
"""

from lakestream.stream.limits import AppendLimits

TRUSTED_TICKS = (4, 64)
"""How often what was learned is taken for granted: at first, and after it was confirmed again and again."""


class Gathering:
    """Asked before each tick; told what the last tick was, and what came of waiting."""

    __slots__ = (
        "_bytes", "_expected", "_learned", "_left", "_limits", "_since", "_trust", "last_arrival", "oldest_arrival",
    )  # fmt: skip

    def __init__(self, limits: AppendLimits) -> None:
        self._limits = limits
        self.oldest_arrival = self.last_arrival = 0.0
        """When the oldest and the newest of the gathered requests came."""
        self._since, self._bytes = 0.0, 0
        self._learned = self._expected = 1
        self._trust = self._left = TRUSTED_TICKS[0]

    def ticked(self, now: float, size: int) -> None:
        self._since, self._bytes = now, size

    def asks(self, now: float, size: int, requests: int) -> bool:
        """Whether what was gathered should wait: the last tick was large and not long ago, and this is not enough."""
        bulk = self._bytes >= self._limits.bulk_bytes and now - self._since <= 2 * self._limits.gather_s
        return bulk and not self.has_enough(size, requests)

    def has_enough(self, size: int, requests: int) -> bool:
        """Asked once more at each arrival while it waits."""
        if requests < self._expected:
            return size >= self._limits.enough_bytes
        self._left -= 1
        if self._left <= 0:
            self._expected *= 2
        return True

    def wasted(self, requests: int) -> None:
        """The senders fell silent after so many: they wait for us."""
        first, most = TRUSTED_TICKS
        self._trust = min(2 * self._trust, most) if requests == self._learned else first
        self._learned = self._expected = requests
        self._left = self._trust

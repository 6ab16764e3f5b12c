"""Decides whether a tick waits for more batches although its store has no price per object.

A tick costs the same processor time for one request as for many. While bulk data arrives steadily, a wait of a few
milliseconds turns several ticks into one, and senders that gather batches themselves hardly notice. Senders that wait
for answers before they go on would notice: they fall silent once each has sent all that it may send unanswered. The
number of requests after which they fall silent is learned, and a tick waits for no more. Sometimes a tick waits for
twice as many, to learn the number again.
"""

from lakestream.stream.limits import AppendLimits

TRUSTED_TICKS = (4, 64)
"""For how many ticks a learned number is used: at first, and after many confirmations."""


class Gathering:
    """Decides before each tick, from the size of the last tick and the results of earlier waits."""

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
        """Whether the gathered batches should wait: the last tick was large and recent, and they are too few."""
        bulk = self._bytes >= self._limits.bulk_bytes and now - self._since <= 2 * self._limits.gather_s
        return bulk and not self.has_enough(size, requests)

    def has_enough(self, size: int, requests: int) -> bool:
        """Whether the wait may end. Called at each arrival during a wait."""
        if requests < self._expected:
            return size >= self._limits.enough_bytes
        self._left -= 1
        if self._left <= 0:
            self._expected *= 2
        return True

    def wasted(self, requests: int) -> None:
        """The senders fell silent after so many requests: they wait for answers."""
        first, most = TRUSTED_TICKS
        self._trust = min(2 * self._trust, most) if requests == self._learned else first
        self._learned = self._expected = requests
        self._left = self._trust

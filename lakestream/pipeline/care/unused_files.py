"""Since when files of ours are known to lie about: nothing leads to them, but a reader may still have them in hand.

Who let a file go has it in its list of what is obsolete, and deletes it after a grace (T11). That list dies with its
pipeline, and another pipeline does not know it. So what is found lying about is deleted when the finder has seen it so
for the same grace.
"""

from collections.abc import Collection, Sequence

from lakestream.interfaces import Clock

SWEEP, ORPHANS = "sweep", "orphans"
"""The searches."""


class UnusedFiles:
    """What this pipeline has seen, by topic and by the search that found it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[tuple[bytes, str], dict[str, float]] = {}

    def wait(self, topic_ids: Collection[bytes], search: str) -> bool:
        """Whether a search has found something that was not due, of these topics; others are forgotten."""
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] in topic_ids and seen}
        return any(by == search for _, by in self._seen)

    def due(self, topic_id: bytes, search: str, found: Sequence[str], grace_s: float) -> list[str]:
        """Which of all that a search has found now may go; the others are remembered."""
        now, before = self._clock.monotonic(), self._seen.get((topic_id, search), {})
        since = {uri: before.get(uri, now) for uri in found}
        self._seen[topic_id, search] = since
        return [uri for uri in found if since[uri] <= now - grace_s]

"""Unused files of ours, and since when this pipeline has seen them: nothing leads to them, but readers may use them.

The pipeline whose commit made a file obsolete deletes it after a grace (T11), but its list of these files is lost when
it dies, and other pipelines do not have it. So an unused file that a search finds is deleted once this pipeline has
seen it unused for the same grace.
"""

from collections.abc import Collection, Sequence

from lakestream.interfaces import Clock

SWEEP, ORPHANS = "sweep", "orphans"
"""The searches that find unused files."""


class UnusedFiles:
    """The unused files that this pipeline has seen, by topic and by the search that found them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[tuple[bytes, str], dict[str, float]] = {}

    def wait(self, topic_ids: Collection[bytes], search: str) -> bool:
        """Whether a search has found files of these topics that were not due; other topics are forgotten."""
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] in topic_ids and seen}
        return any(by == search for _, by in self._seen)

    def due(self, topic_id: bytes, search: str, found: Sequence[str], grace_s: float) -> list[str]:
        """Of the files that a search has found now, those that may be deleted; the rest is remembered."""
        now, before = self._clock.monotonic(), self._seen.get((topic_id, search), {})
        since = {uri: before.get(uri, now) for uri in found}
        self._seen[topic_id, search] = since
        return [uri for uri in found if since[uri] <= now - grace_s]

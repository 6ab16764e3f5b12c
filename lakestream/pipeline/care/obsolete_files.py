"""Files that our commits made unreachable: deleted when those who may still read them had their time (T11).

A metadata file needs no grace of its own. It leaves when newer ones have pushed it out of the table's log, and as long
as it was in there everybody could read it: so a table has as many of them as its property says, and no more.
"""

from collections import deque
from collections.abc import Iterable

from lakestream.data.tables.iceberg.metadata.names import is_metadata_file
from lakestream.interfaces import Clock
from lakestream.model.catalog.names import canonical


class ObsoleteFiles:
    """What waits to be deleted, of all tables."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._later: deque[tuple[float, list[str]]] = deque()
        self._now: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._later or self._now)

    def add(self, uris: Iterable[str]) -> None:
        """A commit has won, and nobody can reach these any more."""
        later: list[str] = []
        for uri in uris:
            (self._now if is_metadata_file(uri) else later).append(uri)
        if later:
            self._later.append((self._clock.monotonic(), later))

    def take(self, grace_s: float) -> list[str]:
        """What may be deleted, once."""
        going, self._now = self._now, []
        due = self._clock.monotonic() - grace_s
        while self._later and self._later[0][0] <= due:
            going += self._later.popleft()[1]
        return going

    def waiting(self) -> set[str]:
        """What is not to be taken for an orphan, as stores spell it."""
        return {canonical(uri) for _, uris in self._later for uri in uris} | {canonical(uri) for uri in self._now}

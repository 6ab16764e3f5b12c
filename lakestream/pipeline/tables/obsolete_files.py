"""Files that our commits made obsolete: deleted once readers of older snapshots had their time (T11).

A metadata file needs no grace. It leaves the table's metadata log when newer ones have pushed it out, and readers had
all that time; so a table has exactly as many metadata files as its property says.
"""

from collections import deque
from collections.abc import Iterable

from lakestream.data.tables.iceberg.metadata.names import is_metadata_file
from lakestream.interfaces import Clock
from lakestream.model.catalog.names import canonical


class ObsoleteFiles:
    """The obsolete files of all tables, and since when they are so."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._later: deque[tuple[float, list[str]]] = deque()
        self._now: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._later or self._now)

    def add(self, uris: Iterable[str]) -> None:
        """A commit has won, and nothing leads to these files any more."""
        later: list[str] = []
        for uri in uris:
            (self._now if is_metadata_file(uri) else later).append(uri)
        if later:
            self._later.append((self._clock.monotonic(), later))

    def take(self, grace_s: float) -> list[str]:
        """The files whose grace is over; each is returned once."""
        going, self._now = self._now, []
        due = self._clock.monotonic() - grace_s
        while self._later and self._later[0][0] <= due:
            going += self._later.popleft()[1]
        return going

    def waiting(self) -> set[str]:
        """The files that wait, as stores spell them. They are no orphans."""
        return {canonical(uri) for _, uris in self._later for uri in uris} | {canonical(uri) for uri in self._now}

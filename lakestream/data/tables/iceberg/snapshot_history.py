"""Which of a table's snapshots are its history: all of the last minutes, then fewer and fewer with age (T11).

Of an older minute, hour or day the last snapshot stays. Minutes nest in hours and hours in days, so the table as of the
end of one of these is just what the table was then; as of a time between two that stay it is the older one. A snapshot
that took rows away ends the long history: those before it would keep rows on the disk that should be gone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lakestream.data.tables.iceberg.metadata.table_metadata import SnapshotHead
from lakestream.data.tables.iceberg.summaries import OPTIMIZE

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHistory:
    """How far back snapshots stay. A table's own `history.expire.max-snapshot-age-ms` ends all of it."""

    all_ms: int = 10 * MINUTE_MS
    """Every snapshot: streaming readers of other engines, and their long DELETEs, need one after the other."""
    tiers: tuple[tuple[int, int], ...] = ((HOUR_MS, MINUTE_MS), (DAY_MS, HOUR_MS), (7 * DAY_MS, DAY_MS))
    """Up to an age the last one of so many milliseconds; and up to the first of these ages all snapshots of others."""
    removed_ms: int = HOUR_MS
    """So long after rows were taken away the snapshots stay that still have them."""

    @property
    def age_ms(self) -> int:
        """How old a snapshot gets at most."""
        return max(self.all_ms, *(upto_ms for upto_ms, _ in self.tiers))

    def to_thin(self, line: Sequence[SnapshotHead], now_ms: int) -> Iterator[tuple[SnapshotHead, int]]:
        """Snapshots that are not worth their place any more, and the age from which on that is so.

        `line` is what `main` was at, oldest first; the newest always stays.
        """
        for head, newer in pairwise(line):
            age_ms = now_ms - head.timestamp_ms
            if age_ms <= self.all_ms:
                return
            if age_ms <= self.tiers[0][0] and not is_ours(head):
                continue
            # It stays until those before it have gone for its sake.
            if age_ms <= 2 * self.removed_ms and takes_rows(head):
                continue
            since_ms, width_ms = self._tier(age_ms)
            if not width_ms or head.timestamp_ms // width_ms == newer.timestamp_ms // width_ms:
                yield head, since_ms

    def _tier(self, age_ms: int) -> tuple[int, int]:
        """From which age on one of how many milliseconds stays; of 0: none."""
        since_ms = self.all_ms
        for upto_ms, width_ms in self.tiers:
            if age_ms <= upto_ms:
                return since_ms, width_ms
            since_ms = max(since_ms, upto_ms)
        return since_ms, 0

    def before_removal(self, line: Sequence[SnapshotHead], now_ms: int) -> Sequence[SnapshotHead]:
        """Snapshots that have rows which were taken away long enough ago."""
        for place in reversed(range(len(line))):
            if now_ms - line[place].timestamp_ms > self.removed_ms and takes_rows(line[place]):
                return line[:place]
        return ()


def is_ours(head: SnapshotHead) -> bool:
    return head.told.ranges is not None or head.told.care is not None


def takes_rows(head: SnapshotHead) -> bool:
    """Whether rows may have gone by this snapshot. A rewrite of others is taken at its word: it was judged before."""
    if head.told.care is not None:
        return head.told.care != OPTIMIZE
    return head.told.operation not in ("append", "replace")

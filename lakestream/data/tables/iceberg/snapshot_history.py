"""The snapshots that a table keeps as its history: all of the last minutes, then fewer with age (T11).

Of an older minute, hour or day the last snapshot stays. Minutes nest in hours and hours in days, so the table as of the
end of one of these is exact; as of a time between two snapshots it is the older one. A snapshot that removed rows ends
the long history: the snapshots before it would keep rows on the disk that should be gone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lakestream.data.tables.iceberg.metadata.table_metadata import SnapshotHead
from lakestream.data.tables.iceberg.summaries import OPTIMIZE

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHistory:
    """How long snapshots stay. A table's own `history.expire.max-snapshot-age-ms` is the limit of all of it."""

    all_ms: int = 10 * MINUTE_MS
    """Every snapshot stays so long: streaming readers of other engines, and long DELETEs, need each of them."""
    tiers: tuple[tuple[int, int], ...] = ((HOUR_MS, MINUTE_MS), (DAY_MS, HOUR_MS), (7 * DAY_MS, DAY_MS))
    """(age, width): up to the age the last snapshot of each width stays; up to the first age all of other engines."""
    removed_ms: int = HOUR_MS
    """Snapshots that still have removed rows stay so long after the removal."""

    @property
    def age_ms(self) -> int:
        """The greatest age of a snapshot."""
        return max(self.all_ms, *(upto_ms for upto_ms, _ in self.tiers))

    def to_thin(self, line: Sequence[SnapshotHead], now_ms: int) -> Iterator[tuple[SnapshotHead, int]]:
        """Snapshots that the history does not keep, and the age from which on it does not.

        `line`: the snapshots that `main` was at, oldest first. The newest always stays.
        """
        for head, newer in pairwise(line):
            age_ms = now_ms - head.timestamp_ms
            if age_ms <= self.all_ms:
                return
            if age_ms <= self.tiers[0][0] and not is_ours(head):
                continue
            # A snapshot that removed rows stays until the snapshots before it have expired.
            if age_ms <= 2 * self.removed_ms and takes_rows(head):
                continue
            since_ms, width_ms = self._tier(age_ms)
            if not width_ms or head.timestamp_ms // width_ms == newer.timestamp_ms // width_ms:
                yield head, since_ms

    def _tier(self, age_ms: int) -> tuple[int, int]:
        """(age, width) of the tier that an age falls into; width 0: no snapshot stays."""
        since_ms = self.all_ms
        for upto_ms, width_ms in self.tiers:
            if age_ms <= upto_ms:
                return since_ms, width_ms
            since_ms = max(since_ms, upto_ms)
        return since_ms, 0

    def before_removal(self, line: Sequence[SnapshotHead], now_ms: int) -> Sequence[SnapshotHead]:
        """Snapshots that still have rows which were removed more than `removed_ms` ago."""
        for place in reversed(range(len(line))):
            if now_ms - line[place].timestamp_ms > self.removed_ms and takes_rows(line[place]):
                return line[:place]
        return ()


def is_ours(head: SnapshotHead) -> bool:
    return head.told.ranges is not None or head.told.care is not None


def takes_rows(head: SnapshotHead) -> bool:
    """Whether this snapshot may have removed rows. A rewrite by another engine did not: it was judged before."""
    if head.told.care is not None:
        return head.told.care != OPTIMIZE
    return head.told.operation not in ("append", "replace")

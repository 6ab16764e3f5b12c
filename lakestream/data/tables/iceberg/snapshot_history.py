"""The snapshots that a table keeps as its history: all of the last minutes, then fewer with age (T11).

Of an older minute, hour or day the last snapshot stays. Minutes nest in hours and hours in days, so the table as of the
end of one of these is exact; as of a time between two snapshots it is the older one. A snapshot that removed rows ends
the long history: the snapshots before it would keep rows on the disk that should be gone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lakestream.data.tables.iceberg.metadata.table_metadata import SnapshotHead, TableMetadata
from lakestream.data.tables.iceberg.summaries import OPTIMIZE

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
THINNED_TAG = "lakestream-thinned"
"""A tag on our newest snapshot while the history has gaps; it keeps no snapshot.

If `main` is the only reference, Iceberg's Java library (up to 1.9 at least) takes snapshots before a gap for commits
that were rolled back: when it expires them, it deletes the files that they added, though the table still needs these.
With a second reference it checks which files are needed.
"""
_FOREVER_MS = 2**63 - 1


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

    def beside(self, metadata: TableMetadata, now_ms: int) -> list[SnapshotHead]:
        """Snapshots that `main` was never at, such as staged ones: no history, and may hold removed rows."""
        on_line = {head.snapshot_id for head in metadata.line}
        since_ms = now_ms - max(self.removed_ms, self.all_ms)
        aside = (head for head in metadata.snapshots if on_line and head.snapshot_id not in on_line)
        return [head for head in aside if head.timestamp_ms < since_ms]

    def before_removal(self, line: Sequence[SnapshotHead], now_ms: int) -> Sequence[SnapshotHead]:
        """Snapshots that still have rows which were removed more than `removed_ms` ago."""
        for place in reversed(range(len(line))):
            if now_ms - line[place].timestamp_ms > self.removed_ms and takes_rows(line[place]):
                return line[:place]
        return ()


def with_tag(metadata: TableMetadata, thinned: bool) -> TableMetadata:
    """With the tag on the newest snapshot, or without the tag."""
    refs: dict[str, Any] = {name: ref for name, ref in metadata.refs.items() if name != THINNED_TAG}
    if thinned:
        at = metadata.current_snapshot_id
        refs[THINNED_TAG] = {"snapshot-id": at, "type": "tag", "max-ref-age-ms": _FOREVER_MS}
    return metadata if refs == metadata.refs else metadata.with_refs(refs)


def has_gaps(metadata: TableMetadata) -> bool:
    """Whether snapshots are kept that `main` does not lead back to."""
    return len(metadata.ancestors(metadata.current_snapshot_id)) < len(metadata.snapshots)


def is_ours(head: SnapshotHead) -> bool:
    return head.told.ranges is not None or head.told.care is not None


def takes_rows(head: SnapshotHead) -> bool:
    """Whether this snapshot may have removed rows. A rewrite by another engine was judged before.

    Rows that were deleted by position are removed by the rewrite that leaves them out: the snapshots before it still
    lead to the files that have them.
    """
    if _count(head.told.deleted_records) > _count(head.told.added_records):
        return True
    if head.told.care is not None:
        return head.told.care != OPTIMIZE
    return head.told.operation not in ("append", "replace")


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0

"""Snapshot summaries: the changes of a commit and the totals of the table, in Iceberg's keys and our own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lakestream.data.tables.iceberg.manifests.files import DATA, EQUALITY_DELETES, POSITION_DELETES
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata

RANGES_KEY = "lakestream.ranges"
"""Key of the offsets that a commit landed (T6). Only landings have it."""
DIGESTS_KEY = "lakestream.digests"
"""Key of their numbers and hashes (T16), for a state that was not told. Only in external catalogs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes of a commit. A file is (content, rows, bytes)."""

    operation: str
    added: Sequence[tuple[int, int, int]] = ()
    removed: Sequence[tuple[int, int, int]] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


RECENT_MAX = 64
"""How many snapshots back a commit looks for those of other engines; care looks at all."""
CARE_KEY = "lakestream.care"
"""Key of the job of care that made a commit. Only commits of care have it."""
OPTIMIZE = "optimize"
"""The job of care that removes no row."""


def is_ours(summary: Mapping[str, str]) -> bool:
    return RANGES_KEY in summary or CARE_KEY in summary


def accounted_after(before: TableMetadata, accounted: int, after: TableMetadata) -> int:
    """Up to which sequence number all is accounted for once our commit has won; 0 if other engines' snapshots wait.

    Only `main` counts: later snapshots of a branch become `main`'s when `main` is moved to them.
    """
    heads = {head.snapshot_id: head for head in before.snapshots[-RECENT_MAX:]}
    at = before.current_snapshot_id
    while at is not None and at in heads and heads[at].sequence_number > accounted:
        if not is_ours(before.summary(at)):
            return 0
        at = heads[at].parent_snapshot_id
    known = at is None or (at in heads and heads[at].sequence_number <= accounted)
    return after.current.sequence_number if known and after.current is not None else 0


def is_our_append(summary: Mapping[str, str]) -> bool:
    return summary.get("operation") == "append" and RANGES_KEY in summary


def summary_after(before: Mapping[str, str], changes: Changes) -> dict[str, str]:
    """The summary of the new snapshot; totals continue those of the one before, where it has them."""
    counts = {
        "added-data-files": _files(changes.added, DATA),
        "added-records": _rows(changes.added, DATA),
        "added-files-size": _bytes(changes.added),
        "deleted-data-files": _files(changes.removed, DATA),
        "deleted-records": _rows(changes.removed, DATA),
        "removed-files-size": _bytes(changes.removed),
        "removed-delete-files": len(changes.removed) - _files(changes.removed, DATA),
        "removed-position-deletes": _rows(changes.removed, POSITION_DELETES),
        "removed-equality-deletes": _rows(changes.removed, EQUALITY_DELETES),
    }
    moved = {
        "total-records": counts["added-records"] - counts["deleted-records"],
        "total-data-files": counts["added-data-files"] - counts["deleted-data-files"],
        "total-files-size": counts["added-files-size"] - counts["removed-files-size"],
        "total-delete-files": -counts["removed-delete-files"],
        "total-position-deletes": -counts["removed-position-deletes"],
        "total-equality-deletes": -counts["removed-equality-deletes"],
    }
    totals = {
        name: max(int(before.get(name, "0")) + difference, 0)
        for name, difference in moved.items()
        if not before or before.get(name, "").isdecimal()
    }
    values = {name: str(count) for name, count in counts.items() if count} | {
        name: str(total) for name, total in totals.items()
    }
    return {"operation": changes.operation, **values, **changes.notes}


def _files(files: Sequence[tuple[int, int, int]], content: int) -> int:
    return sum(1 for each in files if each[0] == content)


def _rows(files: Sequence[tuple[int, int, int]], content: int) -> int:
    return sum(each[1] for each in files if each[0] == content)


def _bytes(files: Sequence[tuple[int, int, int]]) -> int:
    return sum(each[2] for each in files)

"""Snapshot summaries: what a commit changed and what the table holds since, in Iceberg's words and ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lakestream.data.tables.manifests import DATA, EQUALITY_DELETES, POSITION_DELETES

RANGES_KEY = "lakestream.ranges"
"""The offsets that a commit landed (T6). No other commit has it."""
DIGESTS_KEY = "lakestream.digests"
"""How many records these were, with which hashes (T16): for the state, if it was not told. In other catalogs only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a commit does. A file is (content, rows, bytes)."""

    operation: str
    added: Sequence[tuple[int, int, int]] = ()
    removed: Sequence[tuple[int, int, int]] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


def is_our_append(summary: Mapping[str, str]) -> bool:
    return summary.get("operation") == "append" and RANGES_KEY in summary


def summary_after(before: Mapping[str, str], changes: Changes) -> dict[str, str]:
    """The summary of the new snapshot; totals count on from the one before, where it has them."""
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
    told = {name: str(count) for name, count in counts.items() if count} | {
        name: str(total) for name, total in totals.items()
    }
    return {"operation": changes.operation, **told, **changes.notes}


def _files(files: Sequence[tuple[int, int, int]], content: int) -> int:
    return sum(1 for each in files if each[0] == content)


def _rows(files: Sequence[tuple[int, int, int]], content: int) -> int:
    return sum(each[1] for each in files if each[0] == content)


def _bytes(files: Sequence[tuple[int, int, int]]) -> int:
    return sum(each[2] for each in files)

"""The snapshots of a table's main branch since the state last accounted for them (T16).

`accounted` is a sequence number: the state knows what all snapshots up to it removed. Of the snapshots after it some
remove nothing, or the state was told what they removed; for the others the rows have to be compared with those of the
snapshot before. Our own catalog tells the state by the very command that commits. To an external catalog the commit
comes first and the state is told afterwards, so there our own snapshots that remove rows wait as well until the state
was told: a crash between the two loses nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakestream.data.tables.iceberg.metadata.table_metadata import SnapshotHead, TableMetadata
from lakestream.data.tables.iceberg.summaries import CARE_KEY, OPTIMIZE, RANGES_KEY


@dataclass(frozen=True, slots=True)
class SnapshotRun:
    """Snapshots to compare that follow one another: the one before them (None: they begin the table), and the last.

    `known`: the snapshot before them still exists, so that there is something to compare with.
    """

    base: int | None
    last: SnapshotHead
    known: bool


@dataclass(frozen=True, slots=True)
class UnaccountedSnapshots:
    """Snapshots that are not accounted for, the oldest first; `complete`: none of them is missing."""

    heads: Sequence[SnapshotHead]
    complete: bool


def needs_comparison(summary: Mapping[str, str], *, external: bool) -> bool:
    """Whether only a comparison shows what a snapshot removed, if the state was not told. `external`: the catalog."""
    if RANGES_KEY in summary:
        return False
    return CARE_KEY not in summary or (external and summary[CARE_KEY] != OPTIMIZE)


def unaccounted_snapshots(metadata: TableMetadata, accounted: int) -> UnaccountedSnapshots:
    """The snapshots after `accounted`. Sequence numbers have no gaps, so a gap is a snapshot that was expired.

    Some engines that expire snapshots also remove the parent's id from the next one. A snapshot without a parent begins
    the table only if nothing was accounted for before it.
    """
    current = metadata.current
    if current is None or current.sequence_number <= accounted:
        return UnaccountedSnapshots((), True)
    heads: list[SnapshotHead] = []
    for head in metadata.ancestors(current.snapshot_id):
        if head.sequence_number <= accounted:
            return UnaccountedSnapshots(heads[::-1], True)
        heads.append(head)
    first = heads[-1]
    begins = first.parent_snapshot_id is None and not accounted
    return UnaccountedSnapshots(heads[::-1], begins or first.sequence_number == accounted + 1)


def runs_to_compare(
    unaccounted: UnaccountedSnapshots, metadata: TableMetadata, accounted: int, *, external: bool
) -> list[SnapshotRun]:
    """The snapshots that need a comparison, neighbours as one run: one commit may be several snapshots."""
    found: list[SnapshotRun] = []
    for head in unaccounted.heads:
        if not needs_comparison(metadata.summary(head.snapshot_id), external=external):
            continue
        base = head.parent_snapshot_id
        if found and found[-1].last.snapshot_id == base:
            found[-1] = SnapshotRun(found[-1].base, head, found[-1].known)
        else:
            known = not accounted if base is None else metadata.snapshot(base) is not None
            found.append(SnapshotRun(base, head, known))
    return found


def protected_snapshots(metadata: TableMetadata, accounted: int, *, external: bool) -> frozenset[int]:
    """Snapshots that must not expire: if some need a comparison, all since the last account, and their parents.

    Our own among them stay as well: a gap would look as if a snapshot of another engine had been expired. In an
    external catalog the state was not told of ours either, and without one of them the way back would be lost.
    """
    heads = unaccounted_snapshots(metadata, accounted).heads
    if not external and not any(needs_comparison(metadata.summary(one.snapshot_id), external=False) for one in heads):
        return frozenset()
    pairs = ((head.snapshot_id, head.parent_snapshot_id) for head in heads)
    return frozenset(one for pair in pairs for one in pair if one is not None)

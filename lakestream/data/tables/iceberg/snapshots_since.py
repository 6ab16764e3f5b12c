"""The snapshots of a table's main branch since the state last accounted for them (T16).

`accounted` is a sequence number: all up to it is in the state. Of the snapshots after it some take nothing away, or the
state was told what they took; the others wait: their rows have to be compared with those of the snapshot before. Our
own catalog tells the state by the very command that commits. In another one the commit comes first and the telling
after, so there also our own snapshots that take rows away wait until the state was told: a crash between loses nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakestream.data.tables.iceberg.metadata.table_metadata import SnapshotHead, TableMetadata
from lakestream.data.tables.iceberg.summaries import CARE_KEY, OPTIMIZE, RANGES_KEY


@dataclass(frozen=True, slots=True)
class Run:
    """Snapshots that follow one another and wait: the one before them (None: they begin the table), and the last.

    `known`: the one before is there, so that there is something to compare with.
    """

    base: int | None
    last: SnapshotHead
    known: bool


@dataclass(frozen=True, slots=True)
class Since:
    """Snapshots that are not accounted for, the oldest first; `complete`: none of them is missing."""

    heads: Sequence[SnapshotHead]
    complete: bool


def waits(summary: Mapping[str, str], *, external: bool) -> bool:
    """Whether only a comparison tells what a snapshot did, if nobody has told the state."""
    if RANGES_KEY in summary:
        return False
    return CARE_KEY not in summary or (external and summary[CARE_KEY] != OPTIMIZE)


def since(metadata: TableMetadata, accounted: int) -> Since:
    """Sequence numbers follow one another, so a hole in them is a snapshot that somebody expired.

    Some who expire take the name of the parent along. A snapshot without one begins the table only if nothing was
    accounted for before it.
    """
    current = metadata.current
    if current is None or current.sequence_number <= accounted:
        return Since((), True)
    heads: list[SnapshotHead] = []
    for head in metadata.ancestors(current.snapshot_id):
        if head.sequence_number <= accounted:
            return Since(heads[::-1], True)
        heads.append(head)
    first = heads[-1]
    begins = first.parent_snapshot_id is None and not accounted
    return Since(heads[::-1], begins or first.sequence_number == accounted + 1)


def runs(past: Since, metadata: TableMetadata, accounted: int, *, external: bool) -> list[Run]:
    """Those that wait, as many as follow one another at once: one commit may be several snapshots."""
    found: list[Run] = []
    for head in past.heads:
        if not waits(metadata.summary(head.snapshot_id), external=external):
            continue
        base = head.parent_snapshot_id
        if found and found[-1].last.snapshot_id == base:
            found[-1] = Run(found[-1].base, head, found[-1].known)
        else:
            found.append(Run(base, head, not accounted if base is None else metadata.snapshot(base) is not None))
    return found


def unaccounted(metadata: TableMetadata, accounted: int, *, external: bool) -> frozenset[int]:
    """Snapshots that must not expire: if some wait, all since the last account, and the ones before them.

    Our own among them stay as well: a hole would look as if somebody had expired theirs. In another catalog the state
    has not been told of ours either: with one of them the way back would be lost.
    """
    past = since(metadata, accounted)
    if not external and not any(waits(metadata.summary(head.snapshot_id), external=False) for head in past.heads):
        return frozenset()
    pairs = ((head.snapshot_id, head.parent_snapshot_id) for head in past.heads)
    return frozenset(one for pair in pairs for one in pair if one is not None)

"""The changes that a table's snapshots made to rows since the state last accounted for them (T16).

What our own snapshots add and take is in the state: it was noted by the very command that committed them; in another
catalog right after, and one of which that is not known yet is looked at like others'. Every other snapshot is compared
with its parent: the files that differ are read on both sides. Rows that are gone, or are other ones, are what that
snapshot did; files that only moved their rows cancel out. This works while both snapshots are kept. If one that could
matter is not, the effects are incomplete.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from lakestream.data.tables.foreign.allowed_changes import Refused
from lakestream.data.tables.foreign.rows import Contents, File, contents
from lakestream.data.tables.iceberg.metadata.table_metadata import SnapshotHead, TableMetadata
from lakestream.data.tables.iceberg.snapshots_since import needs_comparison, unaccounted_snapshots
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, Missing
from lakestream.lake.verify.facts import CAME_BACK, CHANGED, REMOVED, SnapshotEffects, SnapshotNote, tag_of
from lakestream.lake.verify.ledger import HASH, OFFSET, Ledger, Numbers
from lakestream.lake.verify.rows import RowReader, into


def snapshot_effects(
    store: TableStore, metadata: TableMetadata, accounted: int, *, external: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> SnapshotEffects:  # fmt: skip
    """The rows that all snapshots since then removed and changed. Raises Retry."""
    chain = unaccounted_snapshots(metadata, accounted)
    by_id = {head.snapshot_id: head for head in metadata.snapshots}
    removals, notes, complete = Ledger(), list[SnapshotNote](), chain.complete
    for head in chain.heads:
        summary = metadata.summary(head.snapshot_id)
        if not needs_comparison(summary, external=external):
            continue
        parent = by_id.get(head.parent_snapshot_id) if head.parent_snapshot_id is not None else None
        if parent is None and (head.parent_snapshot_id is not None or accounted):
            complete = False
            continue
        try:
            _compare(store, metadata, parent, head, removals, len(notes), progress)
        except (Missing, Corrupt, Refused):
            complete = False
            continue
        notes.append(
            SnapshotNote(
                snapshot_id=head.snapshot_id, time_ms=head.timestamp_ms, operation=summary.get("operation", "")
            )
        )
    return SnapshotEffects(removals=removals, notes=notes, complete=complete)


def _compare(
    store: TableStore,
    metadata: TableMetadata,
    parent: SnapshotHead | None,
    head: SnapshotHead,
    removals: Ledger,
    place: int,
    progress: Callable[[int], None],
) -> None:
    known: dict[str, list[File]] = {}
    before = contents(store, _snapshot(metadata, parent), known) if parent is not None else Contents({}, {})
    after = contents(store, _snapshot(metadata, head), known)
    touched = _affected(before, after)
    had, has = Ledger(), Ledger()
    try:
        for side, ledger in ((before, had), (after, has)):
            reader = RowReader(store)
            for path in sorted(touched & side.data.keys()):
                file = side.data[path]
                reader.read(path, file.size, _deletes_of(side, file), into(ledger, 0))
                progress(file.size)
        for partition in sorted({*had.partitions(), *has.partitions()}):
            for number in sorted({*had.buckets(partition), *has.buckets(partition)}):
                _note(removals, place, partition, had.bucket(partition, number), has.bucket(partition, number))
    finally:
        had.close()
        has.close()


def _affected(before: Contents, after: Contents) -> set[str]:
    """Data files that are in one snapshot only, or that delete files of one snapshot only may name."""
    differ = set(before.data.keys() ^ after.data.keys())
    changed = before.deletes.keys() ^ after.deletes.keys()
    for path in changed:
        delete = before.deletes.get(path) or after.deletes[path]
        for side in (before, after):
            differ.update(file.path for file in side.data.values() if _may_touch(delete, file))
    return differ


def _deletes_of(side: Contents, file: File) -> list[str]:
    return sorted(delete.path for delete in side.deletes.values() if _may_touch(delete, file))


def _may_touch(delete: File, file: File) -> bool:
    path = file.path.encode()
    return delete.sequence >= file.sequence and (not delete.upper or delete.lower <= path <= delete.upper)


def _note(removals: Ledger, place: int, partition: int, had: Numbers, has: Numbers) -> None:
    """What was there and is not, what is there with another hash, and what is there and was not."""
    _, left, right = np.intersect1d(had[:, OFFSET], has[:, OFFSET], return_indices=True)
    old, new = had[left], has[right]
    gone, come = np.delete(had, left, axis=0), np.delete(has, right, axis=0)
    other = old[:, HASH] != new[:, HASH]
    with np.errstate(over="ignore"):
        difference = old[other, HASH] - new[other, HASH]
        _add(removals, partition, gone[:, OFFSET], gone[:, HASH], tag_of(place, REMOVED))
        _add(removals, partition, old[other, OFFSET], difference, tag_of(place, CHANGED))
        _add(removals, partition, come[:, OFFSET], -come[:, HASH], tag_of(place, CAME_BACK))


def _add(removals: Ledger, partition: int, offsets: Numbers, hashes: Numbers, tag: int) -> None:
    if len(offsets):
        removals.add(np.full(len(offsets), partition, dtype=np.int64), offsets, hashes, tag)


def _snapshot(metadata: TableMetadata, head: SnapshotHead) -> dict[str, Any]:
    for known, raw in zip(metadata.snapshots, metadata.raw_snapshots, strict=True):
        if known.snapshot_id == head.snapshot_id:
            return dict(msgspec.json.decode(raw))
    raise Missing(f"snapshot {head.snapshot_id} is not in the metadata")

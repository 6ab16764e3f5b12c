"""Which snapshots a commit expires, and which files nobody can reach afterwards (T11)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from lakestream.data.tables.manifests import Manifest, ManifestFile
from lakestream.data.tables.table_metadata import MAIN, SnapshotHead, TableMetadata
from lakestream.errors import Missing

EXPIRED_AT_ONCE = 16
"""Expiry reads the lists of what goes; a few at a time keep that off most commits."""
PATIENCE = 1.25
"""A table that commits rarely expires when the oldest snapshot is so many times as old as it should get."""
DEFAULT_AGE_MS = 3_600_000
AGE_PROPERTY = "history.expire.max-snapshot-age-ms"


def to_expire(
    metadata: TableMetadata, now_ms: int, protected: frozenset[int] = frozenset(), older_than_ms: int | None = None
) -> frozenset[int]:
    """Ids of snapshots to drop now. What a branch or tag names stays, and so does what the caller protects (T16).

    `older_than_ms`: somebody asked, so that the table's own age does not count, nor whether it is worth while.
    """
    # Snapshots are in the order of their making: most commits find the first one young enough, and look no further.
    asked = older_than_ms is not None
    age_ms = older_than_ms if older_than_ms is not None else _number(metadata, AGE_PROPERTY, DEFAULT_AGE_MS)
    if not metadata.snapshots or metadata.snapshots[0].timestamp_ms >= now_ms - age_ms:
        return frozenset()
    least = _number(metadata, "history.expire.min-snapshots-to-keep", 1)
    stay = {ref["snapshot-id"] for ref in metadata.refs.values()} | protected
    for ref in metadata.refs.values():
        if ref.get("type") == "branch":
            keep = int(ref.get("min-snapshots-to-keep") or least)
            since_ms = now_ms - int(ref.get("max-snapshot-age-ms") or age_ms)
            stay.update(_newest(metadata, ref["snapshot-id"], keep, since_ms))
    old = [head for head in metadata.snapshots if head.timestamp_ms < now_ms - age_ms and head.snapshot_id not in stay]
    overdue = asked or any(head.timestamp_ms < now_ms - age_ms * PATIENCE for head in old)
    return frozenset(head.snapshot_id for head in old) if overdue or len(old) >= EXPIRED_AT_ONCE else frozenset()


def _newest(metadata: TableMetadata, head: int, least: int, since_ms: int) -> Iterable[int]:
    if least <= 1 and head == metadata.current_snapshot_id:
        return [snapshot.snapshot_id for snapshot in metadata.snapshots if snapshot.timestamp_ms >= since_ms]
    ancestors = metadata.ancestors(head)
    return [
        snapshot.snapshot_id
        for place, snapshot in enumerate(ancestors)
        if place < least or snapshot.timestamp_ms >= since_ms
    ]


def _number(metadata: TableMetadata, name: str, default: int) -> int:
    text = metadata.properties.get(name, "")
    return int(text) if text.isdecimal() else default


@dataclass(frozen=True, slots=True)
class Reading:
    """How expiry looks into a table's files."""

    manifests: Callable[[str], list[ManifestFile]]
    manifest: Callable[[ManifestFile], Manifest]
    is_our_append: Callable[[int], bool]


def unreachable(
    metadata: TableMetadata, expired: frozenset[int], committed: Sequence[ManifestFile], reading: Reading
) -> list[str]:
    """Files that only the expired snapshots reached: manifest lists, manifests, data and delete files.

    `committed` is the list of the snapshot that is being committed, which is not in `metadata` yet. Raises Missing if
    a file of a snapshot that stays cannot be read: then nothing may be judged.
    """
    if not expired:
        return []
    gone = [head for head in metadata.snapshots if head.snapshot_id in expired]
    kept = [head for head in metadata.snapshots if head.snapshot_id not in expired]
    # What is protected may leave a gap: then what came after it lives on in snapshots that the oldest does not know.
    line = _is_line(metadata) and gone == metadata.snapshots[: len(gone)]
    # On a line a manifest that left never comes back, so the oldest snapshot that stays speaks for all.
    remaining = {} if line and kept else {listed.path: listed for listed in committed}
    for head in kept[:1] if line else kept:
        remaining.update((listed.path, listed) for listed in reading.manifests(head.manifest_list))
    lists = [_known(head, reading) for head in gone]
    left = {listed.path: listed for manifests in lists for listed in manifests if listed.path not in remaining}
    found = [head.manifest_list for head in gone if head.manifest_list] + sorted(left)
    if line and all(reading.is_our_append(head.snapshot_id) for head in [*gone[1:], *kept[:1]]):
        return found
    # A file lies in one manifest of a snapshot, so one that was there before the first expired one names none of these.
    first = {listed.path for listed in lists[0]} if line else set()
    still = _files([reading.manifest(listed) for path, listed in remaining.items() if path not in first])
    return found + sorted(_files(_readable(left.values(), reading)) - still)


def _is_line(metadata: TableMetadata) -> bool:
    """Whether the table has no branch or tag but main, and all its snapshots follow one another."""
    heads = metadata.snapshots
    follow = all(later.parent_snapshot_id == earlier.snapshot_id for earlier, later in pairwise(heads))
    return follow and set(metadata.refs) <= {MAIN} and (not heads or heads[-1] == metadata.current)


def _known(head: SnapshotHead, reading: Reading) -> list[ManifestFile]:
    """Somebody may have removed it already, and with it our knowledge of what it named: orphans are swept elsewhere."""
    try:
        return reading.manifests(head.manifest_list) if head.manifest_list else []
    except Missing:
        return []


def _readable(manifests: Iterable[ManifestFile], reading: Reading) -> Iterator[Manifest]:
    for listed in manifests:
        with suppress(Missing):
            yield reading.manifest(listed)


def _files(manifests: Iterable[Manifest]) -> set[str]:
    return {manifest.entries[index]["data_file"]["file_path"] for manifest in manifests for index in manifest.live()}

"""Which snapshots a commit expires, and which files nobody can reach afterwards (T11)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lakestream.data.tables.iceberg.manifests.files import Manifest, ManifestFile
from lakestream.data.tables.iceberg.metadata.table_metadata import MAIN, SnapshotHead, TableMetadata
from lakestream.data.tables.iceberg.snapshot_history import SnapshotHistory
from lakestream.errors import Missing
from lakestream.model.catalog.names import METADATA_SUFFIX, is_own_version, within

EXPIRED_AT_ONCE = 16
"""Expiry reads the lists of what goes; a few at a time keep that off most commits."""
PATIENCE = 1.25
"""A table that commits rarely expires when the oldest snapshot is so many times as old as it should get."""
DEFAULT_AGE_MS = 3_600_000
AGE_PROPERTY = "history.expire.max-snapshot-age-ms"


def to_expire(
    metadata: TableMetadata, now_ms: int, protected: frozenset[int] = frozenset(), older_than_ms: int | None = None,
    history: SnapshotHistory | None = None,
) -> frozenset[int]:  # fmt: skip
    """Ids of snapshots to drop now. What a branch or tag names stays, and so does what the caller protects (T16).

    `older_than_ms`: somebody asked, so that the table's own age does not count, nor whether it is worth while.
    `history`: what stays of the snapshots that are not too old; all of them without it.
    """
    # Snapshots are in the order of their making: a young table finds the first one young enough, and looks no further.
    asked = older_than_ms is not None
    age_ms = older_than_ms if older_than_ms is not None else _number(metadata, AGE_PROPERTY, DEFAULT_AGE_MS)
    history = None if asked else history
    whole_ms = age_ms if history is None else min(age_ms, history.all_ms)
    if not metadata.snapshots or metadata.snapshots[0].timestamp_ms >= now_ms - whole_ms:
        return frozenset()
    stay = _staying(metadata, now_ms, age_ms, whole_ms) | protected
    # What comes after a protected one stays too: the way back to it must not be broken.
    first = next((at for at, head in enumerate(metadata.snapshots) if head.snapshot_id in protected), None)
    early = metadata.snapshots[:first]
    old = [(head, age_ms) for head in early if head.timestamp_ms < now_ms - age_ms]
    if history is not None:
        judged = {head.snapshot_id for head in early}
        old += [pair for pair in history.to_thin(metadata.line, now_ms) if pair[0].snapshot_id in judged]
        removed = history.before_removal(metadata.line, now_ms)
        old += [(head, history.removed_ms) for head in removed if head.snapshot_id in judged]
    # What goes for one reason goes together: of neighbours the same lists and manifests have to be read.
    going: dict[int, list[SnapshotHead]] = {}
    for head, since_ms in old:
        if head.snapshot_id not in stay:
            going.setdefault(since_ms, []).append(head)
    return frozenset(
        head.snapshot_id
        for since_ms, heads in going.items()
        if asked or len(heads) >= EXPIRED_AT_ONCE
        or any(now_ms - head.timestamp_ms > since_ms * PATIENCE for head in heads)
        for head in heads
    )  # fmt: skip


def _staying(metadata: TableMetadata, now_ms: int, age_ms: int, whole_ms: int) -> set[int]:
    """What branches and tags keep; of `main` only the youngest, unless it says more itself."""
    least = _number(metadata, "history.expire.min-snapshots-to-keep", 1)
    stay = {ref["snapshot-id"] for ref in metadata.refs.values()}
    for name, ref in metadata.refs.items():
        if ref.get("type") == "branch":
            keep = int(ref.get("min-snapshots-to-keep") or least)
            since_ms = now_ms - int(ref.get("max-snapshot-age-ms") or (whole_ms if name == MAIN else age_ms))
            stay.update(_newest(metadata, ref["snapshot-id"], keep, since_ms))
    return stay


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


@dataclass(frozen=True, slots=True)
class _Run:
    """Expired snapshots that follow one another, and the lists that speak for all snapshots that stay."""

    gone: Sequence[SnapshotHead]
    beside: Sequence[SnapshotHead]
    appended: bool
    """Nothing but our own appends lies between the first of them and what stays after them: no file went."""
    on_line: bool


def unreachable(
    metadata: TableMetadata, expired: frozenset[int], committed: Sequence[ManifestFile], reading: Reading
) -> list[str]:
    """Files that only the expired snapshots reached: manifest lists, manifests, data and delete files.

    Another engine has written some of these snapshots, so a path may name anything: see `own_files`.

    `committed` is the list of the snapshot that is being committed, which is not in `metadata` yet. Raises Missing if
    a file of a snapshot that stays cannot be read: then nothing may be judged.
    """
    found: list[str] = []
    known: dict[str, list[ManifestFile]] = {}
    for run in _runs(metadata, expired, reading):
        for head in run.beside:
            if head.manifest_list not in known:
                known[head.manifest_list] = reading.manifests(head.manifest_list)
        remaining = {listed.path: listed for head in run.beside for listed in known[head.manifest_list]}
        if not run.on_line:
            remaining.update((listed.path, listed) for listed in committed)
        found += _left(run, remaining, reading)
    # Whatever a snapshot that goes may say, what one that stays is known to need is not deleted.
    needed = {head.manifest_list for head in metadata.snapshots if head.snapshot_id not in expired}
    needed |= {listed.path for manifests in [*known.values(), committed] for listed in manifests}
    return [path for path in found if path not in needed]


def _runs(metadata: TableMetadata, expired: frozenset[int], reading: Reading) -> Iterator[_Run]:
    """On the line of `main` what left never comes back, so the snapshots before and after a run speak for all of it.

    Those that are not on the line, of branches above all, are asked each time; and if one of these goes, all are.
    """
    line = metadata.line
    on_line = {head.snapshot_id for head in line}
    if not expired <= on_line:
        gone = [head for head in metadata.snapshots if head.snapshot_id in expired]
        yield _Run(gone, [head for head in metadata.snapshots if head.snapshot_id not in expired], False, False)
        return
    aside = [head for head in metadata.snapshots if head.snapshot_id not in on_line]
    before: list[SnapshotHead] = []
    run: list[SnapshotHead] = []
    for head in line:
        if head.snapshot_id in expired:
            run.append(head)
            continue
        if run:
            # What lay between two of them and went before may have been the snapshot that took a file away.
            later = zip(run, [*run[1:], head], strict=True)
            appended = all(
                two.parent_snapshot_id == one.snapshot_id and reading.is_our_append(two.snapshot_id)
                for one, two in later
            )
            yield _Run(run, [*before, head, *aside], appended, True)
        before, run = [head], []
    assert not run, "what main is at does not expire"


def _left(run: _Run, remaining: Mapping[str, ManifestFile], reading: Reading) -> list[str]:
    lists = [_known(head, reading) for head in run.gone]
    left = {listed.path: listed for manifests in lists for listed in manifests if listed.path not in remaining}
    found = [head.manifest_list for head in run.gone if head.manifest_list] + sorted(left)
    if run.appended or not left:
        return found
    # A file lies in one manifest of a snapshot, so one that all of these had names none of the files that are left.
    common = set.intersection(*({listed.path for listed in manifests} for manifests in lists if manifests))
    still = _files([reading.manifest(listed) for path, listed in remaining.items() if path not in common])
    return found + sorted(_files(_readable(left.values(), reading)) - still)


def own_files(location: str, paths: Iterable[str]) -> list[str]:
    """Those that a table may delete when it lets snapshots go: in its folder, and not one of its metadata files."""
    return [
        path
        for path in paths
        if within(location, path) and ".." not in path.split("/") and not path.endswith(METADATA_SUFFIX)
    ]


def own_versions(location: str, versions: Iterable[str]) -> list[str]:
    """Metadata files that a table may delete: its metadata-log may name anything, its metadata folder is its own."""
    return [version for version in versions if is_own_version(location, version)]


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

"""Which snapshots a commit expires, and which files nothing leads to afterwards (T11)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lakestream.data.tables.iceberg.manifests.files import Manifest, ManifestFile
from lakestream.data.tables.iceberg.metadata.table_metadata import MAIN, SnapshotHead, TableMetadata
from lakestream.data.tables.iceberg.snapshot_history import THINNED_TAG, SnapshotHistory
from lakestream.errors import Missing
from lakestream.model.catalog.names import METADATA_SUFFIX, canonical, is_own_version, within

EXPIRED_AT_ONCE = 16
"""Snapshots that expire together: expiry reads their manifest lists, which most commits should not have to do."""
PATIENCE = 1.25
"""A table with few commits expires snapshots when the oldest is so many times as old as it should get."""
DEFAULT_AGE_MS = 3_600_000
AGE_PROPERTY = "history.expire.max-snapshot-age-ms"


def to_expire(
    metadata: TableMetadata, now_ms: int, protected: frozenset[int] = frozenset(), older_than_ms: int | None = None,
    history: SnapshotHistory | None = None,
) -> frozenset[int]:  # fmt: skip
    """Ids of snapshots to expire now. Snapshots that a branch or tag names stay, and those in `protected` (T16).

    `older_than_ms`: the age of a request; then neither the table's own age counts, nor whether it is worth while.
    `history`: which of the snapshots that are not too old stay; all of them without it.
    """
    # Snapshots are in the order of their making: if the first is young enough, all are.
    asked = older_than_ms is not None
    age_ms = older_than_ms if older_than_ms is not None else _number(metadata, AGE_PROPERTY, DEFAULT_AGE_MS)
    history = None if asked else history
    whole_ms = age_ms if history is None else min(age_ms, history.all_ms)
    if not metadata.snapshots or metadata.snapshots[0].timestamp_ms >= now_ms - whole_ms:
        return frozenset()
    stay = _staying(metadata, now_ms, age_ms, whole_ms) | protected
    # Snapshots after a protected one stay too: the line of parents back to it must not be broken.
    first = next((at for at, head in enumerate(metadata.snapshots) if head.snapshot_id in protected), None)
    early = metadata.snapshots[:first]
    old = [(head, age_ms) for head in early if head.timestamp_ms < now_ms - age_ms]
    if history is not None:
        judged = {head.snapshot_id for head in early}
        old += [pair for pair in history.to_thin(metadata.line, now_ms) if pair[0].snapshot_id in judged]
        removed = history.before_removal(metadata.line, now_ms)
        old += [(head, history.removed_ms) for head in removed if head.snapshot_id in judged]
        beside = history.beside(metadata, now_ms)
        old += [(head, history.removed_ms) for head in beside if head.snapshot_id in judged]
    # Neighbours that go for one reason go together: the same lists and manifests are read for them.
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
    """Snapshots that branches and tags keep; of `main` only the newest, unless `main` itself keeps more."""
    least = _number(metadata, "history.expire.min-snapshots-to-keep", 1)
    stay = {ref["snapshot-id"] for name, ref in metadata.refs.items() if name != THINNED_TAG}
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
    """The reads that expiry makes of a table's files."""

    manifests: Callable[[str], list[ManifestFile]]
    manifest: Callable[[ManifestFile], Manifest]
    is_our_append: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class _Run:
    """Expired neighbours, and the snapshots whose manifests stand for all snapshots that stay."""

    gone: Sequence[SnapshotHead]
    beside: Sequence[SnapshotHead]
    appended: bool
    """Only our own appends lie between the first of them and the next that stays: no file was removed."""
    on_line: bool


def unreachable(
    metadata: TableMetadata, expired: frozenset[int], committed: Sequence[ManifestFile], reading: Reading
) -> list[str]:
    """Files that only the expired snapshots reached: manifest lists, manifests, data and delete files.

    Other engines write snapshots too: a path in them may name any file (see `own_files`), and one file may have several
    spellings, which count as one.

    `committed`: the manifests of the snapshot that is being committed, which is not in `metadata` yet. Raises Missing
    if a file of a snapshot that stays cannot be read: then no file may be deleted.
    """
    found: list[str] = []
    known: dict[str, list[ManifestFile]] = {}
    for run in _runs(metadata, expired, reading):
        for head in run.beside:
            if head.manifest_list not in known:
                known[head.manifest_list] = reading.manifests(head.manifest_list)
        remaining = {canonical(listed.path): listed for head in run.beside for listed in known[head.manifest_list]}
        if not run.on_line:
            remaining.update((canonical(listed.path), listed) for listed in committed)
        found += _left(run, remaining, reading)
    # A file that a snapshot is known to need stays, whatever the expired snapshots say.
    needed = {canonical(head.manifest_list) for head in metadata.snapshots if head.snapshot_id not in expired}
    needed |= {canonical(listed.path) for manifests in [*known.values(), committed] for listed in manifests}
    return [path for path in found if canonical(path) not in needed]


def _runs(metadata: TableMetadata, expired: frozenset[int], reading: Reading) -> Iterator[_Run]:
    """On the line of `main` a removed file never comes back, so the snapshots before and after a run stand for all.

    Snapshots off the line, such as those of branches, are read each time; if one of them expires, all are read.
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
            # A snapshot between two of them that expired earlier may have removed a file.
            later = zip(run, [*run[1:], head], strict=True)
            appended = all(
                two.parent_snapshot_id == one.snapshot_id and reading.is_our_append(two.snapshot_id)
                for one, two in later
            )
            yield _Run(run, [*before, head, *aside], appended, True)
        before, run = [head], []
    assert not run, "the current snapshot of main does not expire"


def _left(run: _Run, remaining: Mapping[str, ManifestFile], reading: Reading) -> list[str]:
    lists = [_known(head, reading) for head in run.gone]
    named = {canonical(listed.path): listed for manifests in lists for listed in manifests}
    left = {path: listed for path, listed in named.items() if path not in remaining}
    found = [head.manifest_list for head in run.gone if head.manifest_list] + sorted(left)
    if run.appended or not left:
        return found
    # A file is in one manifest of a snapshot, so a manifest that all of these had names none of the files left.
    # Snapshots off the line of `main` may never have been judged for that.
    each = [{canonical(listed.path) for listed in manifests} for manifests in lists if manifests]
    common = set.intersection(*each) if run.on_line else set()
    still = _files([reading.manifest(listed) for path, listed in remaining.items() if path not in common])
    return found + sorted(_files(_readable(left.values(), reading)) - still)


def own_files(location: str, paths: Iterable[str]) -> list[str]:
    """The paths that expiry of a table may delete: in the table's folder, and no metadata files."""
    return [
        path
        for path in paths
        if within(location, path) and ".." not in path.split("/") and not path.endswith(METADATA_SUFFIX)
    ]


def own_versions(location: str, versions: Iterable[str]) -> list[str]:
    """The metadata files that a table may delete: its metadata log may name any file, so only those in its folder."""
    return [version for version in versions if is_own_version(location, version)]


def _known(head: SnapshotHead, reading: Reading) -> list[ManifestFile]:
    """The manifests of a snapshot; none if an engine has deleted its list. The search for orphans finds their files."""
    try:
        return reading.manifests(head.manifest_list) if head.manifest_list else []
    except Missing:
        return []


def _readable(manifests: Iterable[ManifestFile], reading: Reading) -> Iterator[Manifest]:
    for listed in manifests:
        with suppress(Missing):
            yield reading.manifest(listed)


def _files(manifests: Iterable[Manifest]) -> set[str]:
    """In one spelling, however an engine has written them."""
    return {
        canonical(manifest.entries[index]["data_file"]["file_path"])
        for manifest in manifests
        for index in manifest.live()
    }

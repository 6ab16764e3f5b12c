"""The committer: new data files, rewrites and removals become snapshots of an Iceberg table.

    decide (what to write: pure functions of manifests, metadata, expiry) -> write manifests, list and metadata file
    -> give the caller a Commit: the new metadata file, to be made current only if the old one still is (T7)

Nothing is visible before the caller swaps the catalog's pointer. A lost race leaves the files in `Commit.written`, then
they are nobody's; a commit whose answer was lost is looked up first, and nothing is deleted before.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import UUID

from lakestream.data.tables.files.runs import runs_of_groups
from lakestream.data.tables.iceberg.expiry import Reading, own_files, own_versions, to_expire, unreachable
from lakestream.data.tables.iceberg.live_files import LiveFiles, live_files
from lakestream.data.tables.iceberg.manifests.files import (
    DATA,
    DELETED,
    EXISTING,
    Layout,
    Manifest,
    ManifestFile,
    NewFile,
    added_entry,
    layout,
    layout_of,
    read_manifest,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from lakestream.data.tables.iceberg.manifests.merge import to_merge
from lakestream.data.tables.iceberg.metadata.names import metadata_ending, packed, unpacked
from lakestream.data.tables.iceberg.metadata.table_metadata import (
    MAIN,
    SnapshotChange,
    Table,
    TableMetadata,
    with_snapshot,
    without_snapshots,
)
from lakestream.data.tables.iceberg.progress import (
    PROGRESS_PROPERTY,
    Range,
    advance,
    pack_progress,
    pack_ranges,
    unpack_progress,
)
from lakestream.data.tables.iceberg.snapshot_history import THINNED_TAG, History, has_gaps, with_tag
from lakestream.data.tables.iceberg.summaries import RANGES_KEY, Changes, is_our_append, summary_after
from lakestream.data.tables.iceberg.topic_table import CLEAN_UP, versions_max
from lakestream.data.tables.stores.lru import Lru
from lakestream.data.tables.stores.small_files import RecentFiles
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Missing, Retry

ID_CHANCE = 1_000_000
ID_TIME_MAX = (2**63 - 1) // ID_CHANCE - 1
LISTED_MANIFESTS_MAX = 20_000
TABLE_BYTES_MAX = 64 * 1024 * 1024
"""Metadata files, parsed, of tables that were committed to last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A snapshot that is written and waits to become current."""

    base: str
    """The metadata file that must still be the current one."""
    table: Table
    """The table if the commit wins; without a location if another catalog writes its metadata file."""
    snapshot_id: int
    written: tuple[str, ...]
    """Files that nobody needs if the commit is lost for certain."""
    obsolete: tuple[str, ...]
    """Files that nobody can reach once the commit has won; to be deleted after a grace (T11)."""
    manifests: tuple[ManifestFile, ...]
    metadata_bytes: int
    """Of the metadata, unpacked."""
    requirements: tuple[dict[str, Any], ...]
    updates: tuple[dict[str, Any], ...]
    """The same in the words of Iceberg's REST protocol, for other catalogs."""


class Stale(Retry):
    """Somebody else's snapshot came between: what was prepared is thrown away and done again (T7, T8)."""


class Committer:
    """Prepares commits on tables below one store. Blocking; for threads. Safe to use for several tables at once."""

    def __init__(
        self, store: TableStore, chance: random.Random, owner: Callable[[], str] = lambda: "",
        history: History | None = None,
    ) -> None:  # fmt: skip
        """`owner` goes into the names of manifests and lists, so that what it left behind can be told later (T12).

        `history`: which snapshots stay; without it all do that are not too old. In another catalog that is so always:
        it forgets the log of snapshots before one that goes, and with it what there was at a time.
        """
        self.history = history
        self._files = RecentFiles(store)
        self._chance = chance
        self._owner = owner
        self._tables: Lru[str, Table] = Lru(TABLE_BYTES_MAX)
        self._lists: Lru[str, list[ManifestFile]] = Lru(LISTED_MANIFESTS_MAX)

    def __repr__(self) -> str:
        return f"Committer({self._files!r})"

    def close(self) -> None:
        self._files.close()

    def forget(self) -> None:
        """Read anew from now on: a damaged file that is put back must be seen."""
        self._tables.clear()
        self._lists.clear()
        self._files.forget()

    def load(self, metadata_location: str) -> Table:
        """Raises Missing or Corrupt."""
        found = self._tables.get(metadata_location)
        if found is None:
            data = unpacked(self._files.get(metadata_location))
            found = Table(metadata_location, TableMetadata.parse(data))
            self._tables.put(metadata_location, found, len(data))
        return found

    def create(self, metadata: TableMetadata) -> Table:
        """Write the first metadata file of a table (topic_table.py makes one)."""
        table = Table(metadata_uri(self._chance, metadata, 0), metadata)
        self._files.put_all({table.metadata_location: packed(metadata.encode(), metadata.properties)})
        return table

    def append(
        self,
        table: Table,
        files: Sequence[NewFile],
        ranges: Sequence[Range],
        *,
        now_ms: int,
        notes: Mapping[str, str] | None = None,
        protected: frozenset[int] = frozenset(),
        write_metadata: bool = True,
    ) -> Commit:
        """Land files: one snapshot, even if nothing is in it (T7), with the progress moved over `ranges` (T6).

        `notes` go into the snapshot's summary. Snapshots in `protected` are not expired yet (T16). Raises ValueError if
        a range does not follow the table's progress: then it was landed before.
        """
        metadata = table.metadata
        progress = unpack_progress(metadata.properties[PROGRESS_PROPERTY])
        properties = {PROGRESS_PROPERTY: pack_progress(advance(progress, ranges))}
        work = self._work(table, now_ms)
        manifests = self._manifests(metadata)
        home, added_spec = work.unpartitioned()
        joined = to_merge(manifests, home.spec_id)
        if joined:
            manifests = [each for each in manifests if each not in joined] + work.merge(joined, home)
        if files:
            manifests.append(work.add(files, home))
        changes = Changes(
            operation="append",
            added=[(DATA, file.stats.rows, file.stats.bytes) for file in files],
            notes={**(notes or {}), RANGES_KEY: pack_ranges(ranges)},
        )
        return self._kept(work.finish(manifests, changes, properties, protected, added_spec, write_metadata))

    def rewrite(
        self,
        table: Table,
        base_snapshot_id: int,
        removed: frozenset[str],
        files: Sequence[NewFile],
        *,
        now_ms: int,
        operation: str = "replace",
        notes: Mapping[str, str] | None = None,
        protected: frozenset[int] = frozenset(),
        write_metadata: bool = True,
    ) -> Commit:
        """Put files in the place of others (data or delete files, by URI), as they were at a base snapshot.

        Raises Stale if anything but our own appends came after the base (T8), or if a file to remove is not there. With
        `operation` "delete" and no files rows go for good (retention, T21).
        """
        check_base(table.metadata, base_snapshot_id)
        work = self._work(table, now_ms)
        manifests, gone = work.remove(self._manifests(table.metadata), removed)
        if len(gone) != len(removed):
            raise Stale(f"{len(removed) - len(gone)} files to be replaced are not in the table any more")
        added_spec = None
        if files:
            home, added_spec = work.home_of(files)
            manifests.append(work.add(files, home))
        changes = Changes(
            operation=operation,
            added=[(DATA, file.stats.rows, file.stats.bytes) for file in files],
            removed=gone,
            notes=dict(notes or {}),
        )
        return self._kept(work.finish(manifests, changes, {}, protected, added_spec, write_metadata))

    def expire(
        self, table: Table, *, now_ms: int, older_than_ms: int | None = None, protected: frozenset[int] = frozenset(),
        write_metadata: bool = True,
    ) -> Commit | None:  # fmt: skip
        """Forget old snapshots, without a new one; None if there are none. `older_than_ms`: else as the table says."""
        history = self.history if write_metadata else None
        expired = to_expire(table.metadata, now_ms, protected, older_than_ms, history)
        if not expired:
            return None
        work = self._work(table, now_ms)
        return work.forget(expired, self._manifests(table.metadata), write_metadata)

    def live_files(self, table: Table, snapshot_id: int | None = None) -> LiveFiles:
        """The files of a snapshot, the current one if none is named. Raises Missing or Corrupt."""
        metadata = table.metadata
        head = metadata.current if snapshot_id is None else metadata.snapshot(snapshot_id)
        return live_files(head, self._files.get_all)

    def _work(self, table: Table, now_ms: int) -> "_Work":
        return _Work(self._files, self._chance, table, now_ms, self._owner(), self.history)

    def _kept(self, commit: Commit) -> Commit:
        """What we just wrote need not be read and parsed for the next commit."""
        if commit.table.metadata_location:
            self._tables.put(commit.table.metadata_location, commit.table, commit.metadata_bytes)
            self._tables.drop(commit.base)
        head = commit.table.metadata.current
        assert head is not None
        self._lists.put(head.manifest_list, list(commit.manifests), len(commit.manifests))
        return commit

    def _manifests(self, metadata: TableMetadata) -> list[ManifestFile]:
        current = metadata.current
        if current is None:
            return []
        found = self._lists.get(current.manifest_list)
        if found is None:
            found = read_manifest_list(self._files.get(current.manifest_list))
        return [each for each in found if each.live_files]


def check_base(metadata: TableMetadata, base_snapshot_id: int) -> None:
    """T8: raises Stale unless only our own appends lie between the base and the current snapshot."""
    for head in metadata.ancestors(metadata.current_snapshot_id):
        if head.snapshot_id == base_snapshot_id:
            return
        if not is_our_append(metadata.summary(head.snapshot_id)):
            raise Stale(f"snapshot {head.snapshot_id} is not ours, and came after {base_snapshot_id}")
    raise Stale(f"snapshot {base_snapshot_id} is not in the table's past any more")


class _Work:
    """One commit in the making: its numbers, and the files that it will write."""

    def __init__(
        self, files: RecentFiles, chance: random.Random, table: Table, now_ms: int, owner: str,
        history: History | None,
    ) -> None:  # fmt: skip
        self._history = history
        self._store = files
        self._chance = chance
        self._table = table
        self._metadata = table.metadata
        self._sequence = self._metadata.last_sequence_number + 1
        # Engines refuse a snapshot that is older than the one before it; a machine's clock may be.
        before = max((head.timestamp_ms for head in self._metadata.snapshots[-1:]), default=0)
        self._clock_ms = now_ms
        self._now_ms = max(now_ms, before, int(self._metadata.value("last-updated-ms", 0)))
        # Ids that begin with the time are as good as any, and a metadata file full of them is smaller when packed.
        first = min(self._now_ms, ID_TIME_MAX) * ID_CHANCE
        numbers = (first + chance.randrange(ID_CHANCE) for _ in count())
        self.snapshot_id = next(number for number in numbers if number and self._metadata.snapshot(number) is None)
        self._name = f"{owner}-{_uuid(chance)}" if owner else _uuid(chance)
        self._owner = owner
        self._files: dict[str, bytes] = {}

    def unpartitioned(self) -> tuple[Layout, dict[str, Any] | None]:
        """The layout for files of no one partition of a user's spec (T19), and the spec if it has to be added."""
        specs = self._metadata.specs
        found = next((spec for _, spec in sorted(specs.items()) if not spec["fields"]), None)
        spec = found or {"spec-id": max(specs) + 1, "fields": []}
        return layout(self._metadata.schema, spec), None if found else spec

    def home_of(self, files: Sequence[NewFile]) -> tuple[Layout, dict[str, Any] | None]:
        if not files[0].partition:
            return self.unpartitioned()
        return layout(self._metadata.schema, self._metadata.specs[self._metadata.value("default-spec-id")]), None

    def add(self, files: Sequence[NewFile], home: Layout) -> ManifestFile:
        entries = [(added_entry(file, self.snapshot_id), runs_of_groups(file.stats.runs)) for file in files]
        return self._write(home, DATA, entries, None)

    def merge(self, joined: Sequence[ManifestFile], home: Layout) -> list[ManifestFile]:
        entries: list[tuple[dict[str, Any], Any]] = []
        for manifest in self._read_all(joined):
            entries += [({**manifest.entries[at], "status": EXISTING}, manifest.runs[at]) for at in manifest.live()]
        return [self._write(home, DATA, entries, None)] if entries else []

    def remove(
        self, manifests: Sequence[ManifestFile], removed: frozenset[str]
    ) -> tuple[list[ManifestFile], list[tuple[int, int, int]]]:
        """The manifests without the removed files, and (content, rows, bytes) of each that was found."""
        kept: list[ManifestFile] = []
        gone: list[tuple[int, int, int]] = []
        for listed, manifest in zip(manifests, self._read_all(manifests), strict=True):
            live = manifest.live()
            chosen = {at for at in live if manifest.entries[at]["data_file"]["file_path"] in removed}
            if not chosen:
                kept.append(listed)
                continue
            entries = []
            for at in live:
                entry = {**manifest.entries[at], "status": DELETED if at in chosen else EXISTING}
                if at in chosen:
                    entry["snapshot_id"] = self.snapshot_id
                    file = entry["data_file"]
                    gone.append((file.get("content", DATA), file["record_count"], file["file_size_in_bytes"]))
                entries.append((entry, manifest.runs[at]))
            kept.append(self._write(layout_of(manifest, listed), listed.content, entries, listed.partitions))
        return kept, gone

    def _write(
        self, how: Layout, content: int, entries: list[tuple[dict[str, Any], Any]], partitions: list[Any] | None
    ) -> ManifestFile:
        path = f"{self._metadata.location}/metadata/{self._name}-m{len(self._files)}.avro"
        listed, data = write_manifest(
            path, how, content, entries, self.snapshot_id, self._sequence, self._sync(), partitions
        )
        self._files[path] = data
        return listed

    def finish(
        self,
        manifests: list[ManifestFile],
        changes: Changes,
        properties: Mapping[str, str],
        protected: frozenset[int],
        added_spec: dict[str, Any] | None,
        write_metadata: bool,
    ) -> Commit:
        metadata = self._metadata
        parent = metadata.current_snapshot_id
        ending = f"1-{self._owner}" if self._owner else "1"
        list_path = f"{metadata.location}/metadata/snap-{self.snapshot_id}-{ending}.avro"
        self._files[list_path] = write_manifest_list(manifests, self.snapshot_id, parent, self._sequence, self._sync())
        expired = to_expire(metadata, self._clock_ms, protected, history=self._history if write_metadata else None)
        obsolete = self._unreachable(expired, manifests)
        snapshot: dict[str, Any] = {
            "snapshot-id": self.snapshot_id,
            "sequence-number": self._sequence,
            "timestamp-ms": self._now_ms,
            "manifest-list": list_path,
            "summary": summary_after(metadata.summary(parent) if parent is not None else {}, changes),
            "schema-id": metadata.value("current-schema-id"),
        }
        if parent is not None:
            snapshot["parent-snapshot-id"] = parent
        change = SnapshotChange(snapshot, properties, expired)
        base = metadata if added_spec is None else _with_spec(metadata, added_spec)
        after, old_versions = with_snapshot(
            Table(self._table.metadata_location, base), change, self._now_ms, versions_max(metadata.properties)
        )
        after = self._tagged(after, expired)
        location, data = "", after.encode()
        if write_metadata:
            location = self._next_place(after)
            self._files[location] = packed(data, after.properties)
            obsolete += self._own(old_versions)
        self._store.put_all(self._files)
        return Commit(
            base=self._table.metadata_location,
            table=Table(location, after),
            snapshot_id=self.snapshot_id,
            written=tuple(self._files),
            obsolete=tuple(obsolete),
            manifests=tuple(manifests),
            metadata_bytes=len(data),
            requirements=_requirements(metadata),
            updates=_updates(change, added_spec),
        )

    def forget(self, expired: frozenset[int], manifests: list[ManifestFile], write_metadata: bool) -> Commit:
        """The table without some old snapshots."""
        metadata = self._metadata
        obsolete = self._unreachable(expired, manifests)
        limit = versions_max(metadata.properties)
        after, old_versions = without_snapshots(self._table, expired, self._now_ms, limit)
        after = self._tagged(after, expired)
        location, data = "", after.encode()
        if write_metadata:
            location = self._next_place(after)
            self._store.put_all({location: packed(data, after.properties)})
            obsolete += self._own(old_versions)
        return Commit(
            base=self._table.metadata_location,
            table=Table(location, after),
            snapshot_id=metadata.current_snapshot_id or 0,
            written=(location,) if location else (),
            obsolete=tuple(obsolete),
            manifests=tuple(manifests),
            metadata_bytes=len(data),
            requirements=_requirements(metadata),
            updates=({"action": "remove-snapshots", "snapshot-ids": sorted(expired)},),
        )

    def _tagged(self, after: TableMetadata, expired: frozenset[int]) -> TableMetadata:
        """With the tag that tells of gaps in the history; gaps come and go with snapshots that expire."""
        if self._history is None:
            return after
        return with_tag(after, has_gaps(after) if expired else THINNED_TAG in after.refs)

    def _next_place(self, after: TableMetadata) -> str:
        return metadata_uri(self._chance, after, _version_of(self._table.metadata_location) + 1)

    def _own(self, versions: Sequence[str]) -> list[str]:
        """Of metadata files that nobody mentions any more, those that are this table's and may go."""
        if self._metadata.properties.get(CLEAN_UP, "").lower() != "true":
            return []
        return own_versions(self._metadata.location, versions)

    def _unreachable(self, expired: frozenset[int], manifests: list[ManifestFile]) -> list[str]:
        metadata = self._metadata
        reading = Reading(
            lambda uri: read_manifest_list(self._store.get(uri)),
            lambda listed: read_manifest(self._files.get(listed.path) or self._store.get(listed.path), listed),
            lambda snapshot_id: is_our_append(metadata.summary(snapshot_id)),
        )
        try:
            return own_files(metadata.location, unreachable(metadata, expired, manifests, reading))
        except Missing:
            # A file of a snapshot that stays is gone. That is for others to tell; here it only means: delete nothing.
            return []

    def _sync(self) -> bytes:
        return self._chance.randbytes(16)

    def _read_all(self, manifests: Sequence[ManifestFile]) -> list[Manifest]:
        found = self._store.get_all([listed.path for listed in manifests])
        return [read_manifest(data, listed) for data, listed in zip(found, manifests, strict=True)]


def metadata_uri(chance: random.Random, metadata: TableMetadata, version: int) -> str:
    """A name for a new metadata file; engines read the version and the packing out of it."""
    ending = metadata_ending(metadata.properties)
    return f"{metadata.location}/metadata/{version:05d}-{_uuid(chance)}{ending}"


def _uuid(chance: random.Random) -> str:
    return str(UUID(int=chance.getrandbits(128), version=4))


def _with_spec(metadata: TableMetadata, spec: Mapping[str, Any]) -> TableMetadata:
    return metadata.replaced({"partition-specs": [*metadata.value("partition-specs"), spec]})


def _version_of(metadata_location: str) -> int:
    number = metadata_location.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdecimal() else 0


def _requirements(metadata: TableMetadata) -> tuple[dict[str, Any], ...]:
    return (
        {"type": "assert-table-uuid", "uuid": metadata.uuid},
        {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": metadata.current_snapshot_id},
    )


def _updates(change: SnapshotChange, added_spec: Mapping[str, Any] | None) -> tuple[dict[str, Any], ...]:
    updates: list[dict[str, Any]] = []
    if added_spec is not None:
        updates.append({"action": "add-spec", "spec": dict(added_spec)})
    updates.append({"action": "add-snapshot", "snapshot": dict(change.snapshot)})
    updates.append(
        {
            "action": "set-snapshot-ref",
            "ref-name": MAIN,
            "type": "branch",
            "snapshot-id": change.snapshot["snapshot-id"],
        }
    )
    if change.properties:
        updates.append({"action": "set-properties", "updates": dict(change.properties)})
    if change.expired:
        updates.append({"action": "remove-snapshots", "snapshot-ids": sorted(change.expired)})
    return tuple(updates)

"""The committer plans commits: new data files, rewrites and removals become snapshots of an Iceberg table.

    decide (pure functions of manifests, metadata, expiry) -> CommitDraft writes manifests, list and
    metadata file -> a Commit: the new metadata file, to be made current only if the old one still is (T7)

Nothing is visible before the caller makes the commit current. After a lost race the caller deletes the files in
`Commit.written`; a commit whose answer was lost is looked up first, and nothing is deleted before.
"""

import random
from collections.abc import Callable, Mapping, Sequence

from lakestream.data.tables.iceberg.commit import Commit, Stale
from lakestream.data.tables.iceberg.commit_draft import CommitDraft, metadata_uri
from lakestream.data.tables.iceberg.expiry import to_expire
from lakestream.data.tables.iceberg.live_files import LiveFiles, live_files
from lakestream.data.tables.iceberg.manifests.files import (
    DATA,
    ManifestFile,
    NewFile,
    read_manifest_list,
)
from lakestream.data.tables.iceberg.manifests.merge import to_merge
from lakestream.data.tables.iceberg.metadata.names import packed, unpacked
from lakestream.data.tables.iceberg.metadata.table_metadata import (
    Table,
    TableMetadata,
)
from lakestream.data.tables.iceberg.progress import (
    PROGRESS_PROPERTY,
    OffsetRange,
    advance,
    pack_progress,
    pack_ranges,
    unpack_progress,
)
from lakestream.data.tables.iceberg.snapshot_history import SnapshotHistory
from lakestream.data.tables.iceberg.summaries import RANGES_KEY, Changes, is_our_append
from lakestream.data.tables.stores.lru import Lru
from lakestream.data.tables.stores.small_files import SmallFiles
from lakestream.data.tables.stores.table_store import TableStore

LISTED_MANIFESTS_MAX = 20_000
TABLE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of metadata files that are kept parsed, of the tables that were committed to last."""


class Committer:
    """Plans commits on tables in one store. Blocks; several threads may use it for different tables."""

    def __init__(
        self, store: TableStore, chance: random.Random, owner: Callable[[], str] = lambda: "",
        history: SnapshotHistory | None = None,
    ) -> None:  # fmt: skip
        """`owner` goes into the names of manifests and lists: a later sweep knows by it which member wrote them (T12).

        `history`: which snapshots stay; without it all that are not too old. External catalogs always do without: they
        forget the snapshot log before a snapshot that goes, and with it the table as of a time.
        """
        self.history = history
        self._files = SmallFiles(store)
        self._chance = chance
        self._owner = owner
        self._tables: Lru[str, Table] = Lru(TABLE_BYTES_MAX)
        self._lists: Lru[str, list[ManifestFile]] = Lru(LISTED_MANIFESTS_MAX)

    def __repr__(self) -> str:
        return f"Committer({self._files!r})"

    def close(self) -> None:
        self._files.close()

    def forget(self) -> None:
        """Empty the caches, so that a damaged file that was put back is read anew."""
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
        ranges: Sequence[OffsetRange],
        *,
        now_ms: int,
        notes: Mapping[str, str] | None = None,
        protected: frozenset[int] = frozenset(),
        write_metadata: bool = True,
    ) -> Commit:
        """Land files: one snapshot, even without files (T7), with the progress moved over `ranges` (T6).

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
        """Replace data and delete files, named by URI, as they were at a base snapshot.

        Raises Stale if a snapshot other than our own appends came after the base (T8), or if a file to remove is gone.
        Without files and with `operation` "delete" rows go for good (retention, T21).
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
        """Forget old snapshots, without a new one; None if none is old. `older_than_ms`: else as the table says."""
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

    def _work(self, table: Table, now_ms: int) -> CommitDraft:
        return CommitDraft(self._files, self._chance, table, now_ms, self._owner(), self.history)

    def _kept(self, commit: Commit) -> Commit:
        """Keep what was just written in the caches, for the next commit."""
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
    raise Stale(f"snapshot {base_snapshot_id} is not among the table's snapshots any more")

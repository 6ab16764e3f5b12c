"""One commit in the making: its numbers, and the manifests, the list and the metadata file that it writes."""

import random
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any
from uuid import UUID

from lakestream.data.tables.files.runs import runs_of_groups
from lakestream.data.tables.iceberg.commit import Commit, requirements, updates_of
from lakestream.data.tables.iceberg.expiry import Reading, own_files, own_versions, to_expire, unreachable
from lakestream.data.tables.iceberg.manifests.files import (
    DATA,
    DELETED,
    EXISTING,
    Manifest,
    ManifestFile,
    ManifestLayout,
    NewFile,
    added_entry,
    layout,
    layout_of,
    read_manifest,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from lakestream.data.tables.iceberg.metadata.names import metadata_ending, packed
from lakestream.data.tables.iceberg.metadata.table_metadata import (
    SnapshotChange,
    Table,
    TableMetadata,
    with_snapshot,
    without_snapshots,
)
from lakestream.data.tables.iceberg.snapshot_history import THINNED_TAG, SnapshotHistory, has_gaps, with_tag
from lakestream.data.tables.iceberg.summaries import Changes, is_our_append, summary_after
from lakestream.data.tables.iceberg.topic_table import CLEAN_UP, versions_max
from lakestream.data.tables.stores.small_files import SmallFiles
from lakestream.errors import Missing

ID_CHANCE = 1_000_000
ID_TIME_MAX = (2**63 - 1) // ID_CHANCE - 1


class CommitDraft:
    """The files of one commit; `finish` or `forget` writes them."""

    def __init__(
        self, files: SmallFiles, chance: random.Random, table: Table, now_ms: int, owner: str,
        history: SnapshotHistory | None,
    ) -> None:  # fmt: skip
        self._history = history
        self._store = files
        self._chance = chance
        self._table = table
        self._metadata = table.metadata
        self._sequence = self._metadata.last_sequence_number + 1
        # Engines refuse a snapshot that is older than the one before it, and a machine's clock may go back.
        before = max((head.timestamp_ms for head in self._metadata.snapshots[-1:]), default=0)
        self._clock_ms = now_ms
        self._now_ms = max(now_ms, before, int(self._metadata.value("last-updated-ms", 0)))
        # Ids that begin with the time pack better, and a metadata file holds many of them.
        first = min(self._now_ms, ID_TIME_MAX) * ID_CHANCE
        numbers = (first + chance.randrange(ID_CHANCE) for _ in count())
        self.snapshot_id = next(number for number in numbers if number and self._metadata.snapshot(number) is None)
        self._name = f"{owner}-{_uuid(chance)}" if owner else _uuid(chance)
        self._owner = owner
        self._files: dict[str, bytes] = {}

    def unpartitioned(self) -> tuple[ManifestLayout, dict[str, Any] | None]:
        """The layout for files without a partition (T19), and its spec if the table has to get it."""
        specs = self._metadata.specs
        found = next((spec for _, spec in sorted(specs.items()) if not spec["fields"]), None)
        spec = found or {"spec-id": max(specs) + 1, "fields": []}
        return layout(self._metadata.schema, spec), None if found else spec

    def home_of(self, files: Sequence[NewFile]) -> tuple[ManifestLayout, dict[str, Any] | None]:
        if not files[0].partition:
            return self.unpartitioned()
        return layout(self._metadata.schema, self._metadata.specs[self._metadata.value("default-spec-id")]), None

    def add(self, files: Sequence[NewFile], home: ManifestLayout) -> ManifestFile:
        entries = [(added_entry(file, self.snapshot_id), runs_of_groups(file.stats.runs)) for file in files]
        return self._write(home, DATA, entries, None)

    def merge(self, joined: Sequence[ManifestFile], home: ManifestLayout) -> list[ManifestFile]:
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
        self, how: ManifestLayout, content: int, entries: list[tuple[dict[str, Any], Any]], partitions: list[Any] | None
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
            requirements=requirements(metadata),
            updates=updates_of(change, added_spec),
        )

    def forget(self, expired: frozenset[int], manifests: list[ManifestFile], write_metadata: bool) -> Commit:
        """Write the table without some old snapshots."""
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
            requirements=requirements(metadata),
            updates=({"action": "remove-snapshots", "snapshot-ids": sorted(expired)},),
        )

    def _tagged(self, after: TableMetadata, expired: frozenset[int]) -> TableMetadata:
        """With the tag that marks a history with gaps, which come and go with snapshots that expire."""
        if self._history is None:
            return after
        return with_tag(after, has_gaps(after) if expired else THINNED_TAG in after.refs)

    def _next_place(self, after: TableMetadata) -> str:
        return metadata_uri(self._chance, after, _version_of(self._table.metadata_location) + 1)

    def _own(self, versions: Sequence[str]) -> list[str]:
        """Of metadata files that left the log, those that the table may delete."""
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
            # A file of a snapshot that stays is gone. Care reports that; a commit only deletes nothing then.
            return []

    def _sync(self) -> bytes:
        return self._chance.randbytes(16)

    def _read_all(self, manifests: Sequence[ManifestFile]) -> list[Manifest]:
        found = self._store.get_all([listed.path for listed in manifests])
        return [read_manifest(data, listed) for data, listed in zip(found, manifests, strict=True)]


def metadata_uri(chance: random.Random, metadata: TableMetadata, version: int) -> str:
    """The URI of a new metadata file; engines read its version and whether it is packed out of the name."""
    ending = metadata_ending(metadata.properties)
    return f"{metadata.location}/metadata/{version:05d}-{_uuid(chance)}{ending}"


def _uuid(chance: random.Random) -> str:
    return str(UUID(int=chance.getrandbits(128), version=4))


def _with_spec(metadata: TableMetadata, spec: Mapping[str, Any]) -> TableMetadata:
    return metadata.replaced({"partition-specs": [*metadata.value("partition-specs"), spec]})


def _version_of(metadata_location: str) -> int:
    number = metadata_location.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdecimal() else 0

"""Snapshots as another engine writes them: plain Arrow files, manifests without our notes, REST commit requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakestream.data.tables.files.column_ids import OFFSET_ID, PARTITION_ID
from lakestream.data.tables.files.file_stats import int_bound, long_bound
from lakestream.data.tables.iceberg.manifests.files import (
    ADDED,
    DATA,
    DELETED,
    DELETES,
    EXISTING,
    POSITION_DELETES,
    ManifestFile,
    layout,
    layout_of,
    read_manifest,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.protocol.http.iceberg.drafts import CommitRequest
from lakestream.testing.lake.live_files import Rows

_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": b"2147483546"}),
        pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": b"2147483545"}),
    ]
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The commit request of a snapshot whose files are written."""

    snapshot_id: int
    request: CommitRequest
    written: tuple[str, ...]


class SnapshotWriter:
    """Writes snapshots on top of one version of a table."""

    def __init__(self, store: TableStore, table: Table, chance: Random) -> None:
        self._store = store
        self._table = table
        self._metadata = table.metadata
        self._chance = chance
        self._id = chance.getrandbits(62) + 1
        self._sequence = table.metadata.last_sequence_number + 1
        self._written: list[str] = []

    def replace(self, removed: set[str], rows: Rows, operation: str, now_ms: int) -> Prepared:
        """Replace data files by new ones with these rows, cut into files at a random place."""
        cut = self._chance.randint(0, rows.num_rows)
        parts = [part for part in (rows.slice(0, cut), rows.slice(cut)) if part.num_rows]
        manifests = self._without(removed)
        if parts:
            manifests.append(self._manifest(DATA, [self._data_file(part) for part in parts]))
        return self._prepared(manifests, operation, now_ms)

    def delete(self, places: Mapping[str, Sequence[int]], now_ms: int) -> Prepared:
        """Delete rows by their positions in data files."""
        pairs = [(path, place) for path in sorted(places) for place in sorted(places[path])]
        rows = pa.table([[path for path, _ in pairs], [place for _, place in pairs]], schema=_DELETES)
        file = self._put(rows, "deletes") | {"content": POSITION_DELETES}
        return self._prepared([*self._without(set()), self._manifest(DELETES, [file])], "delete", now_ms)

    def _data_file(self, rows: Rows) -> dict[str, Any]:
        file = self._put(rows, "other") | {"content": DATA}
        if self._chance.random() < 0.5:
            partitions, offsets = (rows.column(place).to_pylist() for place in (0, 1))
            for name, choose in (("lower_bounds", min), ("upper_bounds", max)):
                file[name] = [
                    {"key": PARTITION_ID, "value": int_bound(choose(partitions))},
                    {"key": OFFSET_ID, "value": long_bound(choose(offsets))},
                ]
        return file

    def _put(self, rows: pa.Table, kind: str) -> dict[str, Any]:
        uri = f"{self._metadata.location}/data/{kind}-{self._chance.getrandbits(60):x}.parquet"
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, row_group_size=self._chance.choice((2, 1000)), compression="snappy")
        data = sink.getvalue().to_pybytes()
        self._write(uri, data)
        return {
            "file_path": uri, "file_format": "PARQUET", "partition": {}, "record_count": rows.num_rows,
            "file_size_in_bytes": len(data),
        }  # fmt: skip

    def _without(self, removed: set[str]) -> list[ManifestFile]:
        head = self._metadata.current
        kept: list[ManifestFile] = []
        for listed in read_manifest_list(self._store.get(head.manifest_list)) if head is not None else ():
            manifest = read_manifest(self._store.get(listed.path), listed)
            entries = [manifest.entries[at] for at in manifest.live()]
            gone = [entry["data_file"]["file_path"] in removed for entry in entries]
            if not any(gone):
                kept.append(listed)
                continue
            changed = [
                {**entry, "status": DELETED, "snapshot_id": self._id} if dead else {**entry, "status": EXISTING}
                for entry, dead in zip(entries, gone, strict=True)
            ]
            kept.append(self._manifest(listed.content, changed, layout_of(manifest, listed)))
        return kept

    def _manifest(self, content: int, files: Sequence[dict[str, Any]], how: Any = None) -> ManifestFile:
        """Write a manifest of entries, or of new files."""
        entries = [
            file if "data_file" in file else {
                "status": ADDED, "snapshot_id": self._id, "sequence_number": None, "file_sequence_number": None,
                "data_file": file,
            }
            for file in files
        ]  # fmt: skip
        place = self._name("m") + ".avro"
        how = how or layout(self._metadata.schema, self._metadata.specs[0])
        listed, data = write_manifest(
            place, how, content, [(entry, None) for entry in entries], self._id, self._sequence, self._sync()
        )
        self._write(place, data)
        return listed

    def _prepared(self, manifests: list[ManifestFile], operation: str, now_ms: int) -> Prepared:
        metadata, place = self._metadata, self._name("snap") + ".avro"
        parent = metadata.current_snapshot_id
        self._write(place, write_manifest_list(manifests, self._id, parent, self._sequence, self._sync()))
        snapshot = {
            "snapshot-id": self._id,
            "sequence-number": self._sequence,
            "timestamp-ms": max([now_ms, *(head.timestamp_ms for head in metadata.snapshots[-1:])]),
            "manifest-list": place,
            "summary": {"operation": operation},
            "schema-id": metadata.value("current-schema-id"),
        }
        if parent is not None:
            snapshot["parent-snapshot-id"] = parent
        request = CommitRequest(
            [
                {"type": "assert-table-uuid", "uuid": metadata.uuid},
                {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent},
            ],
            [
                {"action": "add-snapshot", "snapshot": snapshot},
                {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": self._id},
            ],
        )
        return Prepared(self._id, request, tuple(self._written))

    def _name(self, kind: str) -> str:
        return f"{self._metadata.location}/metadata/{kind}-{self._chance.getrandbits(60):x}"

    def _sync(self) -> bytes:
        return self._chance.randbytes(16)

    def _write(self, uri: str, data: bytes) -> None:
        self._store.put(uri, data)
        self._written.append(uri)

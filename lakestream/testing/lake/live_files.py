"""The content of a snapshot, read in the plainest way: whole files, all rows, without the product's caches."""

from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from lakestream.data.tables.files.stream_columns import RAW_COLUMNS
from lakestream.data.tables.iceberg.manifests.files import DATA, read_manifest, read_manifest_list
from lakestream.data.tables.iceberg.metadata.table_metadata import SnapshotHead, TableMetadata
from lakestream.data.tables.stores.table_store import TableStore

Rows: TypeAlias = pa.Table


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A data file of a snapshot, and the delete files that may name it."""

    path: str
    sequence: int
    deletes: tuple[str, ...]

    def live(self, store: TableStore) -> Rows:
        """The rows of the file, without deleted ones."""
        rows = read_rows(store.get(self.path))
        dead = self.dead(store)
        return rows.take(pa.array([at for at in range(rows.num_rows) if at not in dead], pa.int64())) if dead else rows

    def dead(self, store: TableStore) -> set[int]:
        """The positions of deleted rows."""
        return reduce(set.union, (positions(store.get(path)).get(self.path, set()) for path in self.deletes), set())


def read_rows(data: bytes) -> Rows:
    return RAW_COLUMNS.conform(pq.read_table(pa.BufferReader(data), use_threads=False)).combine_chunks()


def positions(data: bytes) -> dict[str, set[int]]:
    """The positions in a file of position deletes, by the path of the data file."""
    rows = pq.read_table(pa.BufferReader(data), use_threads=False)
    found: dict[str, set[int]] = {}
    for path, place in zip(rows["file_path"].to_pylist(), rows["pos"].to_pylist(), strict=True):
        found.setdefault(path, set()).add(place)
    return found


def live_files(store: TableStore, metadata: TableMetadata) -> list[SnapshotFile]:
    """The data files of the current snapshot. Raises Missing."""
    head = metadata.current
    return files_of(store, head) if head is not None else []


def files_of(store: TableStore, head: SnapshotHead) -> list[SnapshotFile]:
    data: list[tuple[str, int]] = []
    deletes: list[tuple[str, int]] = []
    for listed in read_manifest_list(store.get(head.manifest_list)):
        manifest = read_manifest(store.get(listed.path), listed)
        for at in manifest.live():
            entry = manifest.entries[at]
            held = data if listed.content == DATA else deletes
            held.append((entry["data_file"]["file_path"], entry["sequence_number"]))
    return [
        SnapshotFile(path, sequence, tuple(delete for delete, later in deletes if later >= sequence))
        for path, sequence in data
    ]


def reachable(store: TableStore, metadata: TableMetadata) -> set[str]:
    """All files that a table's metadata leads to, from any snapshot, without the metadata file. Raises Missing."""
    found = {entry["metadata-file"] for entry in metadata.value("metadata-log", [])}
    manifests = {}
    for head in metadata.snapshots:
        found.add(head.manifest_list)
        manifests.update({listed.path: listed for listed in read_manifest_list(store.get(head.manifest_list))})
    for path, listed in manifests.items():
        found.add(path)
        manifest = read_manifest(store.get(path), listed)
        found.update(manifest.entries[at]["data_file"]["file_path"] for at in manifest.live())
    return found

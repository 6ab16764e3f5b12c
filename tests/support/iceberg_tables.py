"""Tables for tests: rows, data files, and another engine that rewrites and deletes as Iceberg allows it.

The other engine writes its manifests with PyIceberg and its Parquet with plain Arrow, so it knows nothing of ours.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.typedef import Record

from lakestream.data.tables.files.parquet import FileWriter
from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA
from lakestream.data.tables.iceberg.commit import Commit
from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.manifests.files import NewFile, read_manifest, read_manifest_list
from lakestream.data.tables.iceberg.metadata.table_metadata import SnapshotChange, Table, with_snapshot
from lakestream.data.tables.iceberg.progress import OffsetRange
from lakestream.data.tables.iceberg.topic_table import STREAM_ORDER, new_topic_table
from lakestream.data.tables.stores.table_store import FolderTableStore

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
TABLE_UUID = "8a3b4c5d-0000-4000-8000-000000000001"


def iceberg_schema() -> Schema:
    """The schema of a stream's table, as PyIceberg makes it from the Arrow schema and its field ids."""
    return pyarrow_to_schema(ARROW_SCHEMA)


def make_rows(
    cells: Sequence[tuple[int, int]], *, value_bytes: int = 20, seed: int = 0, noise_bytes: int = 0
) -> pa.Table:
    """Rows for (partition, offset) cells, in the order given; what is in them follows from the cell.

    `noise_bytes` make values as large in a file as they are in memory.
    """
    noise = [random.Random(f"{cell}").randbytes(noise_bytes) for cell in cells]
    return pa.table(
        [
            pa.array([partition for partition, _ in cells], pa.int32()),
            pa.array([offset for _, offset in cells], pa.int64()),
            pa.array([(NOW_MS + timestamp_of(*cell)) * 1000 for cell in cells], pa.timestamp("us", "UTC")),
            pa.array([None if offset % 7 == 3 else f"k{offset % 5}".encode() for _, offset in cells], pa.binary()),
            pa.array(
                [[{"key": "h", "value": b"" if offset % 2 else None}] * (offset % 3) for _, offset in cells],
                ARROW_SCHEMA.field("stream_headers").type,
            ),
            pa.array([0] * len(cells), pa.int32()),
            pa.array([None] * len(cells), pa.binary()),
            pa.array(
                [
                    value + rest if (value := value_of(*cell, value_bytes, seed)) is not None else None
                    for cell, rest in zip(cells, noise, strict=True)
                ],
                pa.binary(),
            ),
        ],
        schema=ARROW_SCHEMA,
    )


def timestamp_of(partition: int, offset: int) -> int:
    """Milliseconds after NOW_MS; they do not only grow."""
    return offset * 10 - (offset % 4) * 25 + partition


def value_of(partition: int, offset: int, value_bytes: int = 20, seed: int = 0) -> bytes | None:
    return None if offset % 11 == 10 else f"{partition}/{offset}/{seed}".encode().ljust(value_bytes, b".")


@dataclass
class Lake:
    """A warehouse in a folder with one topic's table, and the pointer that a catalog would keep."""

    folder: Path
    row_group_bytes: int = 8 << 20
    now_ms: int = NOW_MS
    committer: Committer = field(init=False)
    table: Table = field(init=False)
    numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.store = FolderTableStore(self.folder)
        self.committer = Committer(self.store, random.Random(7))
        self.table = self.committer.create(
            new_topic_table(
                table_uuid=TABLE_UUID, topic_id=TOPIC_ID, location=f"{self.store.root}/streams/clicks", now_ms=NOW_MS
            )
        )

    @property
    def location(self) -> str:
        return self.table.metadata_location

    def write(self, cells: Sequence[tuple[int, int]], **how: Any) -> NewFile:
        uri = f"{self.table.metadata.location}/data/1-1-{next(self.numbers)}/0-0.parquet"
        sink = pa.BufferOutputStream()
        writer = FileWriter(sink, row_group_bytes=self.row_group_bytes)
        for batch in make_rows(cells, **how).to_batches():
            writer.add(batch)
        stats = writer.finish(uri)
        data = sink.getvalue().to_pybytes()
        self.store.put(uri, data)
        return NewFile(stats=replace(stats, bytes=len(data)), sort_order_id=STREAM_ORDER)

    def append(self, ranges: Sequence[tuple[int, int, int]], *, step_ms: int = 5000, **how: Any) -> Commit:
        """Land the ranges (partition, start, end), dense, as one file."""
        self.now_ms += step_ms
        cells = [(partition, offset) for partition, start, end in ranges for offset in range(start, end)]
        files = [self.write(cells, **how)] if cells else []
        commit = self.committer.append(self.table, files, [OffsetRange(*each) for each in ranges], now_ms=self.now_ms)
        self.table = commit.table
        return commit

    def scan(self) -> pa.Table:
        """All rows, as PyIceberg sees them, in order."""
        rows = self.read_by_pyiceberg().scan().to_arrow()
        return rows.sort_by([("stream_partition", "ascending"), ("stream_offset", "ascending")])

    def cells(self) -> list[tuple[int, int]]:
        rows = self.scan()
        return list(zip(rows["stream_partition"].to_pylist(), rows["stream_offset"].to_pylist(), strict=True))

    def read_by_pyiceberg(self) -> StaticTable:
        return StaticTable.from_metadata(self.location)


class OtherEngine:
    """Rewrites, sorts and deletes in a lake's table, with PyIceberg's writers."""

    def __init__(self, lake: Lake, chance: random.Random) -> None:
        self._lake = lake
        self._chance = chance
        self._io = PyArrowFileIO()

    def live(self) -> list[tuple[ManifestFile, ManifestEntry]]:
        return [
            (manifest, entry)
            for manifest in self._manifests()
            if manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(self._io)
        ]

    def rewrite(
        self, paths: set[str], *, pieces: int = 1, shuffled: bool = True, extra_column: bool = False,
        change: Callable[[pa.Table], pa.Table] = lambda rows: rows,
    ) -> None:  # fmt: skip
        """Files into others of the same live rows, in another order and cut; `deletes` on them are applied."""
        gone = [entry for _, entry in self.live() if entry.data_file.file_path in paths]
        deleted = self._deleted_places()
        parts = []
        for entry in gone:
            rows = pq.read_table(_path(entry.data_file.file_path), schema=None)
            dead = deleted.get(entry.data_file.file_path, set())
            parts.append(rows.take(pa.array([at for at in range(rows.num_rows) if at not in dead], pa.int64())))
        rows = pa.concat_tables(parts, promote_options="default")
        order = list(range(rows.num_rows))
        if shuffled:
            self._chance.shuffle(order)
        rows = rows.take(pa.array(order, pa.int64()))
        if extra_column:
            rows = rows.append_column(
                pa.field("note", pa.string(), metadata={b"PARQUET:field_id": b"100"}), [["x"] * rows.num_rows]
            )
        rows = change(rows)
        cuts = sorted(self._chance.randrange(rows.num_rows + 1) for _ in range(pieces - 1)) if rows.num_rows else []
        edges = [0, *cuts, rows.num_rows]
        files = [self._write(rows.slice(a, b - a)) for a, b in itertools.pairwise(edges) if b > a]
        self._commit("replace", removed=paths, added=files)

    def delete(self, places: dict[str, list[int]]) -> None:
        """Delete rows by position: one delete file for all of them."""
        rows = [(path, place) for path in sorted(places) for place in sorted(places[path])]
        uri = f"{self._lake.table.metadata.location}/data/deletes-{self._chance.getrandbits(60):x}.parquet"
        schema = pa.schema(
            [
                pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": b"2147483546"}),
                pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": b"2147483545"}),
            ]
        )
        table = pa.table([[path for path, _ in rows], [place for _, place in rows]], schema=schema)
        _path(uri).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, _path(uri))
        file = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=uri,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=len(rows),
            file_size_in_bytes=_path(uri).stat().st_size,
            lower_bounds={2147483546: rows[0][0].encode()},
            upper_bounds={2147483546: rows[-1][0].encode()},
        )
        file.spec_id = 0
        self._commit("delete", deletes=[file])

    def _write(self, rows: pa.Table) -> DataFile:
        uri = f"{self._lake.table.metadata.location}/data/other-{self._chance.getrandbits(60):x}.parquet"
        _path(uri).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, _path(uri), row_group_size=max(rows.num_rows // 3, 1), compression="snappy")
        schema = self._lake.read_by_pyiceberg().schema()
        statistics = data_file_statistics_from_parquet_metadata(
            pq.read_metadata(_path(uri)), compute_statistics_plan(schema, {}), parquet_path_to_id_mapping(schema)
        )
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=uri,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=_path(uri).stat().st_size,
            **statistics.to_serialized_dict(),
        )
        file.spec_id = 0
        return file

    def _manifests(self) -> list[ManifestFile]:
        snapshot = self._lake.read_by_pyiceberg().current_snapshot()
        return snapshot.manifests(self._io) if snapshot else []

    def _deleted_places(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for manifest in self._manifests():
            if manifest.content == ManifestContent.DELETES:
                for entry in manifest.fetch_manifest_entry(self._io):
                    rows = pq.read_table(_path(entry.data_file.file_path)).to_pylist()
                    for row in rows:
                        found.setdefault(row["file_path"], set()).add(row["pos"])
        return found

    def _commit(
        self,
        operation: str,
        removed: set[str] | None = None,
        added: Sequence[DataFile] = (),
        deletes: Sequence[DataFile] = (),
    ) -> None:
        lake = self._lake
        metadata = lake.table.metadata
        lake.now_ms += 1000
        snapshot_id = self._chance.getrandbits(62) + 1
        sequence = metadata.last_sequence_number + 1
        schema = lake.read_by_pyiceberg().schema()
        kept = []
        for manifest in self._manifests():
            entries = manifest.fetch_manifest_entry(self._io)
            if not any(entry.data_file.file_path in (removed or set()) for entry in entries):
                kept.append(manifest)
                continue
            with self._writer(schema, snapshot_id, manifest.content) as writer:
                for entry in entries:
                    if entry.data_file.file_path in (removed or set()):
                        writer.delete(entry)
                    else:
                        writer.existing(entry)
            kept.append(writer.to_manifest_file())
        for files, content in ((added, ManifestContent.DATA), (deletes, ManifestContent.DELETES)):
            if files:
                with self._writer(schema, snapshot_id, content) as writer:
                    for file in files:
                        writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=file))
                kept.append(writer.to_manifest_file())
        uri = f"{metadata.location}/metadata/snap-{snapshot_id}.avro"
        output = self._io.new_output(uri)
        parent = metadata.current_snapshot_id
        with write_manifest_list(2, output, snapshot_id, parent, sequence, "deflate") as writer_of_list:
            writer_of_list.add_manifests(kept)
        lake.table = commit_by_hand(lake, snapshot_id, sequence, uri, operation)

    def _writer(self, schema: Schema, snapshot_id: int, content: ManifestContent) -> ManifestWriterV2:
        uri = f"{self._lake.table.metadata.location}/metadata/other-{self._chance.getrandbits(60):x}.avro"
        kind = _DeletesWriter if content == ManifestContent.DELETES else ManifestWriterV2
        return kind(UNPARTITIONED_PARTITION_SPEC, schema, self._io.new_output(uri), snapshot_id, "deflate")


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def commit_by_hand(lake: Lake, snapshot_id: int, sequence: int, manifest_list: str, operation: str) -> Table:
    """Another engine's commit, as a catalog would take it."""
    snapshot: dict[str, Any] = {
        "snapshot-id": snapshot_id,
        "sequence-number": sequence,
        "timestamp-ms": lake.now_ms,
        "manifest-list": manifest_list,
        "summary": {"operation": operation},
        "schema-id": 0,
    }
    if lake.table.metadata.current_snapshot_id is not None:
        snapshot["parent-snapshot-id"] = lake.table.metadata.current_snapshot_id
    after, _ = with_snapshot(lake.table, SnapshotChange(snapshot, {}, frozenset()), lake.now_ms, 20)
    uri = f"{after.location}/metadata/09999-{snapshot_id}.metadata.json"
    lake.store.put(uri, after.encode())
    return Table(uri, after)


def add_column(lake: Lake) -> None:
    """Another engine adds a column with an id of its own."""
    set_columns(lake, {"id": 100, "name": "note", "required": False, "type": "string"})


def set_columns(lake: Lake, *columns: dict[str, Any]) -> None:
    """Another engine adds, renames, promotes or drops columns: these are the ones behind the stream's from now on."""
    metadata = lake.table.metadata
    number = metadata.schema["schema-id"] + 1
    fields = [*(field for field in metadata.schema["fields"] if field["id"] < 100), *columns]
    schema = {**metadata.schema, "schema-id": number, "fields": fields}
    after = metadata.replaced(
        {"schemas": [*metadata.value("schemas"), schema], "current-schema-id": number, "last-column-id": 199}
    )
    uri = f"{after.location}/metadata/08888-{next(lake.numbers)}.metadata.json"
    lake.store.put(uri, after.encode())
    lake.table = Table(uri, after)


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def reachable(lake: Lake) -> set[str]:
    """Every file that some snapshot of the table needs, the long way."""
    metadata = lake.table.metadata
    found = {lake.location, *(entry["metadata-file"] for entry in metadata.value("metadata-log"))}
    for head in metadata.snapshots:
        found.add(head.manifest_list)
        for listed in read_manifest_list(lake.store.get(head.manifest_list)):
            found.add(listed.path)
            manifest = read_manifest(lake.store.get(listed.path), listed)
            found.update(manifest.entries[at]["data_file"]["file_path"] for at in manifest.live())
    return found


def stored(lake: Lake) -> set[str]:
    return {uri for uri, _ in lake.store.list(f"{lake.table.metadata.location}/")}

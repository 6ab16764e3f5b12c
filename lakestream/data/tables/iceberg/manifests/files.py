"""Iceberg's manifests and manifest lists, format version 2: their schemas, reading and writing.

Entries are Avro records (dictionaries) as the specification names them, so that fields of other engines survive when we
rewrite a manifest. Ours carry the runs of their files in the header (runs.py).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lakestream.data.tables.files.file_stats import FileStats
from lakestream.data.tables.files.runs import HEADER_KEY, pack_runs, unpack_runs
from lakestream.data.tables.iceberg.manifests.avro import SCHEMA, Record, read_container, read_header, write_container
from lakestream.data.tables.iceberg.manifests.schemas import MANIFEST_LIST_SCHEMA, entry_schema, partition_field
from lakestream.errors import Corrupt

if TYPE_CHECKING:
    from lakestream.data.tables.files.runs import RunMatrix

EXISTING, ADDED, DELETED = 0, 1, 2
"""The status of an entry."""
DATA, DELETES = 0, 1
"""The content of a manifest."""
POSITION_DELETES, EQUALITY_DELETES = 1, 2
"""The content of a delete file (DATA is that of a data file)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A data file to add to the table, and its partition values (none without a partition spec, T19)."""

    stats: FileStats
    sort_order_id: int | None = None
    partition: Mapping[str, Any] = field(default_factory=dict)
    """By the names of the spec's fields, as Avro holds them (a day is a number of days)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """A manifest as a manifest list shows it."""

    path: str
    length: int
    spec_id: int
    content: int
    sequence_number: int
    min_sequence_number: int
    added_snapshot_id: int
    added_files: int
    existing_files: int
    deleted_files: int
    added_rows: int
    existing_rows: int
    deleted_rows: int
    partitions: list[Record] | None = None
    key_metadata: bytes | None = None

    @property
    def live_files(self) -> int:
        return self.added_files + self.existing_files


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that was read: its entries with inherited fields filled in, and the runs of each, where known."""

    entries: list[Record]
    runs: "list[RunMatrix | None]"
    header: dict[str, bytes]

    def live(self) -> list[int]:
        return [index for index, entry in enumerate(self.entries) if entry["status"] != DELETED]


# -- reading -----------------------------------------------------------------------------------------------------------


def read_manifest_list(data: bytes) -> list[ManifestFile]:
    container = read_container(data)
    names = _names_by_id(container.header[SCHEMA].decode())
    return [_manifest_file(record, names) for record in container.records]


def _manifest_file(record: Record, names: Mapping[int, str]) -> ManifestFile:
    def value(field_id: int, default: Any = None) -> Any:
        found = record.get(names.get(field_id, ""))
        return default if found is None else found

    return ManifestFile(
        path=value(500),
        length=value(501),
        spec_id=value(502, 0),
        content=value(517, DATA),
        sequence_number=value(515, 0),
        min_sequence_number=value(516, 0),
        added_snapshot_id=value(503, 0),
        added_files=value(504, 0),
        existing_files=value(505, 0),
        deleted_files=value(506, 0),
        added_rows=value(512, 0),
        existing_rows=value(513, 0),
        deleted_rows=value(514, 0),
        partitions=value(507),
        key_metadata=value(519),
    )


@lru_cache(16)
def _names_by_id(schema: str) -> dict[int, str]:
    """Writers disagree on some names (added_files_count, added_data_files_count), never on the ids."""
    return {each["field-id"]: each["name"] for each in json.loads(schema)["fields"]}


STATISTICS = frozenset(
    ["column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "split_offsets", "key_metadata"]
)
"""Fields of a data file that only planners of queries look at."""


BOUNDS = frozenset(["lower_bounds", "upper_bounds"])


def tells_runs(data: bytes) -> bool:
    """Whether a manifest has the runs of its files in its header."""
    return HEADER_KEY in read_header(data)


def read_manifest(data: bytes, listed: ManifestFile, skipped: frozenset[str] = frozenset()) -> Manifest:
    """All entries; without the fields that are `skipped`, which is faster."""
    container = read_container(data, skipped)
    for entry in container.records:
        _inherit(entry, listed)
    found = unpack_runs(container.header.get(HEADER_KEY, b""))
    if len(found) != len(container.records):
        found = [None] * len(container.records)
    return Manifest(container.records, found, container.header)


def _inherit(entry: Record, listed: ManifestFile) -> None:
    if entry["snapshot_id"] is None:
        entry["snapshot_id"] = listed.added_snapshot_id
    for name in ("sequence_number", "file_sequence_number"):
        if entry.get(name) is None:
            if entry["status"] != ADDED and listed.sequence_number:
                raise Corrupt(f"{listed.path} has an old entry without a {name}")
            entry[name] = listed.sequence_number


# -- writing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ManifestLayout:
    """The format of the entries of one manifest: the table's schema and one of its partition specs, as JSON."""

    schema: str
    spec_id: int
    spec_fields: str
    avro: str


def layout(schema: Mapping[str, Any], spec: Mapping[str, Any]) -> ManifestLayout:
    partition = [partition_field(each, schema) for each in spec["fields"]]
    return ManifestLayout(
        json.dumps(schema, separators=(",", ":")),
        spec["spec-id"],
        json.dumps(spec["fields"], separators=(",", ":")),
        json.dumps(entry_schema(partition), separators=(",", ":")),
    )


def layout_of(manifest: Manifest, listed: ManifestFile) -> ManifestLayout:
    """The layout by which entries are written back as they were read, whichever engine made them."""
    text = {key: value.decode() for key, value in manifest.header.items()}
    return ManifestLayout(text["schema"], listed.spec_id, text["partition-spec"], text[SCHEMA])


def added_entry(file: NewFile, snapshot_id: int) -> Record:
    """The entry of a new file. Sequence numbers stay empty: they are inherited from the commit."""
    stats = file.stats
    return {
        "status": ADDED,
        "snapshot_id": snapshot_id,
        "sequence_number": None,
        "file_sequence_number": None,
        "data_file": {
            "content": DATA,
            "file_path": stats.path,
            "file_format": "PARQUET",
            "partition": dict(file.partition),
            "record_count": stats.rows,
            "file_size_in_bytes": stats.bytes,
            "column_sizes": _pairs(stats.column_sizes),
            "value_counts": _pairs(stats.value_counts),
            "null_value_counts": _pairs(stats.null_counts),
            "lower_bounds": _pairs(stats.lower_bounds),
            "upper_bounds": _pairs(stats.upper_bounds),
            "split_offsets": list(stats.split_offsets) or None,
            "sort_order_id": file.sort_order_id,
        },
    }


def _pairs(values: Mapping[int, Any]) -> list[Record]:
    return [{"key": key, "value": value} for key, value in values.items()]


def write_manifest(
    path: str,
    how: ManifestLayout,
    content: int,
    entries: "Sequence[tuple[Record, RunMatrix | None]]",
    snapshot_id: int,
    sequence_number: int,
    sync: bytes,
    partitions: list[Record] | None = None,
) -> tuple[ManifestFile, bytes]:
    """Returns the manifest as the manifest list shows it, and its bytes.

    `partitions` are the summaries of the partition values; without them engines look into the manifest.
    """
    header = {
        "schema": how.schema,
        "partition-spec": how.spec_fields,
        "partition-spec-id": str(how.spec_id),
        "format-version": "2",
        "content": "deletes" if content == DELETES else "data",
        HEADER_KEY: pack_runs([runs for _, runs in entries]),
    }
    data = write_container(how.avro, header, [entry for entry, _ in entries], sync)
    counts = [0, 0, 0]
    rows = [0, 0, 0]
    oldest = sequence_number
    for entry, _ in entries:
        status = entry["status"]
        counts[status] += 1
        rows[status] += entry["data_file"]["record_count"]
        if status != DELETED and entry["sequence_number"] is not None:
            oldest = min(oldest, entry["sequence_number"])
    listed = ManifestFile(
        path=path,
        length=len(data),
        spec_id=how.spec_id,
        content=content,
        sequence_number=sequence_number,
        min_sequence_number=oldest,
        added_snapshot_id=snapshot_id,
        added_files=counts[ADDED],
        existing_files=counts[EXISTING],
        deleted_files=counts[DELETED],
        added_rows=rows[ADDED],
        existing_rows=rows[EXISTING],
        deleted_rows=rows[DELETED],
        partitions=partitions,
    )
    return listed, data


def write_manifest_list(
    manifests: Sequence[ManifestFile], snapshot_id: int, parent_id: int | None, sequence_number: int, sync: bytes
) -> bytes:
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
        "sequence-number": str(sequence_number),
        "format-version": "2",
    }
    records = [
        {
            "manifest_path": listed.path,
            "manifest_length": listed.length,
            "partition_spec_id": listed.spec_id,
            "content": listed.content,
            "sequence_number": listed.sequence_number,
            "min_sequence_number": listed.min_sequence_number,
            "added_snapshot_id": listed.added_snapshot_id,
            "added_files_count": listed.added_files,
            "existing_files_count": listed.existing_files,
            "deleted_files_count": listed.deleted_files,
            "added_rows_count": listed.added_rows,
            "existing_rows_count": listed.existing_rows,
            "deleted_rows_count": listed.deleted_rows,
            "partitions": listed.partitions,
            "key_metadata": listed.key_metadata,
        }
        for listed in manifests
    ]
    return write_container(MANIFEST_LIST_SCHEMA, header, records, sync)

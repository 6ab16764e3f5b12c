"""Our code for manifests and metadata files beside PyIceberg's: time to read and to write, and memory at import.

    python -m bench.manifests

Each pair is measured in turns in one process, in CPU time; a ratio above 1 says how many times longer PyIceberg takes.
Both read and write the same entries: data files with the statistics that landing writes. docs/decisions/0009 quotes the
result.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lakestream.data.tables.files.column_ids import STREAM_COLUMN_IDS
from lakestream.data.tables.files.file_stats import FileStats, Run, int_bound
from lakestream.data.tables.files.runs import runs_of_groups
from lakestream.data.tables.iceberg.manifests.files import (
    BOUNDS,
    DATA,
    STATISTICS,
    ManifestFile,
    NewFile,
    added_entry,
    layout,
    read_manifest,
    write_manifest,
)
from lakestream.data.tables.iceberg.metadata.table_metadata import SnapshotChange, Table, TableMetadata, with_snapshot
from lakestream.data.tables.iceberg.topic_table import new_topic_table, topic_schema

NOW_MS = 1_700_000_000_000
TURNS = 5
FOLDER = "file:///warehouse/streams/orders"
IMPORTS = {
    "ours": "import lakestream.data.tables.iceberg.manifests.files, "
    "lakestream.data.tables.iceberg.metadata.updates",
    "PyIceberg": "import pyiceberg.manifest, pyiceberg.table.metadata, pyiceberg.io",
    "PyIceberg with its Arrow files": "import pyiceberg.manifest, pyiceberg.table, pyiceberg.io.pyarrow",
}


def main() -> None:
    for entries in (1_000, 10_000):
        manifests(entries)
    metadata_files(1_000)
    memory()


# -- manifests --------------------------------------------------------------------------------------------------------


def manifests(count: int) -> None:
    files = [NewFile(stats=_stats(number)) for number in range(count)]
    how = layout(topic_schema(), {"spec-id": 0, "fields": []})

    def write() -> tuple[ManifestFile, bytes]:
        entries = [(added_entry(file, 7), runs_of_groups(file.stats.runs)) for file in files]
        return write_manifest(f"{FOLDER}/metadata/m0.avro", how, DATA, entries, 7, 1, bytes(16))

    listed, data = write()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m0.avro"
        path.write_bytes(data)
        theirs = _TheirManifest(path, len(data))
        _tell(f"read a manifest of {count:,} entries", lambda: read_manifest(data, listed), theirs.read)
        _tell("the same as the index reads it", lambda: read_manifest(data, listed, STATISTICS | BOUNDS), theirs.read)
        _tell(f"write a manifest of {count:,} entries", write, theirs.write)


class _TheirManifest:
    """PyIceberg reads and writes files only, so its times have a file in the page cache in them."""

    def __init__(self, path: Path, length: int) -> None:
        from pyiceberg.io.pyarrow import PyArrowFileIO
        from pyiceberg.manifest import ManifestContent
        from pyiceberg.manifest import ManifestFile as TheirFile

        self._io = PyArrowFileIO()
        self._target = path.with_name("theirs.avro")
        self._file = TheirFile.from_args(
            manifest_path=str(path), manifest_length=length, partition_spec_id=0, content=ManifestContent.DATA,
            sequence_number=1, min_sequence_number=1, added_snapshot_id=7,
        )  # fmt: skip
        self._entries = self._file.fetch_manifest_entry(self._io, discard_deleted=False)

    def read(self) -> Any:
        return self._file.fetch_manifest_entry(self._io, discard_deleted=False)

    def write(self) -> Any:
        from pyiceberg.io.pyarrow import pyarrow_to_schema
        from pyiceberg.manifest import write_manifest as write_theirs
        from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

        from lakestream.data.tables.files.stream_columns import RAW_COLUMNS

        self._target.unlink(missing_ok=True)
        output = self._io.new_output(str(self._target))
        schema = pyarrow_to_schema(RAW_COLUMNS.schema)
        with write_theirs(2, UNPARTITIONED_PARTITION_SPEC, schema, output, 7, "null") as writer:
            for entry in self._entries:
                writer.add_entry(entry)


def _stats(number: int) -> FileStats:
    ids = sorted(STREAM_COLUMN_IDS)
    bounds = {each: int_bound(number) for each in ids}
    return FileStats(
        path=f"{FOLDER}/data/4-{number}/{number:08d}-part-0.parquet",
        rows=1000,
        bytes=123_456 + number,
        column_sizes=dict.fromkeys(ids, 4096 + number),
        value_counts=dict.fromkeys(ids, 1000),
        null_counts=dict.fromkeys(ids, number % 7),
        lower_bounds=bounds,
        upper_bounds=bounds,
        split_offsets=[4],
        runs=[[Run(number % 12, number * 1000, number * 1000 + 999, NOW_MS + number, 1000)]],
        digests={},
    )


# -- metadata files ---------------------------------------------------------------------------------------------------


def metadata_files(snapshots: int) -> None:
    from pyiceberg.table.metadata import TableMetadataUtil

    metadata = new_topic_table(
        location=FOLDER, table_uuid="8a3b4c5d-0000-4000-8000-000000000001", topic_id=bytes(16), now_ms=NOW_MS
    )
    for number in range(snapshots):
        metadata = _committed(metadata, number)
    data = metadata.encode()
    theirs = TableMetadataUtil.parse_raw(data.decode())
    _tell(
        f"read a metadata file of {snapshots:,} snapshots",
        lambda: TableMetadata.parse(data).current,
        lambda: TableMetadataUtil.parse_raw(data.decode()),
    )
    _tell(
        f"write a metadata file of {snapshots:,} snapshots",
        metadata.encode,
        lambda: theirs.model_dump_json(by_alias=True).encode(),
    )
    _tell(
        "the same with the commit before it",
        lambda: _committed(TableMetadata.parse(data), snapshots).encode(),
        lambda: _committed_by_them(TableMetadataUtil.parse_raw(data.decode()), snapshots),
    )


def _snapshot(number: int) -> dict[str, Any]:
    return {
        "snapshot-id": 1000 + number,
        "sequence-number": 1 + number,
        "timestamp-ms": NOW_MS + number,
        "manifest-list": f"{FOLDER}/metadata/snap-{1000 + number}-1.avro",
        "summary": {"operation": "append", "lakestream.ranges": f"0:{number}:{number + 1}"},
        "schema-id": 0,
        **({"parent-snapshot-id": 999 + number} if number else {}),
    }


def _committed(metadata: TableMetadata, number: int) -> TableMetadata:
    table = Table(f"{FOLDER}/metadata/{number:05d}.metadata.json", metadata)
    after, _ = with_snapshot(table, SnapshotChange(_snapshot(number), {}, frozenset()), NOW_MS + number, 100)
    return after


def _committed_by_them(metadata: Any, number: int) -> bytes:
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, update_table_metadata

    snapshot = Snapshot.model_validate(_snapshot(number))
    head = SetSnapshotRefUpdate.model_validate(
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot.snapshot_id}
    )
    after = update_table_metadata(metadata, (AddSnapshotUpdate(snapshot=snapshot), head))
    return after.model_dump_json(by_alias=True).encode()


# -- both -------------------------------------------------------------------------------------------------------------


def _tell(name: str, ours: Callable[[], object], theirs: Callable[[], object]) -> None:
    """Prints the medians of both, measured in turns, and their ratio."""
    spent: tuple[list[float], list[float]] = [], []
    for _ in range(TURNS):
        for work, times in zip((ours, theirs), spent, strict=True):
            started = time.process_time()
            work()
            times.append((time.process_time() - started) * 1000)
    own, other = (statistics.median(times) for times in spent)
    print(f"{name:<42} ours {own:9.2f} ms, PyIceberg {other:9.2f} ms: {other / own:6.1f} times", flush=True)


def memory() -> None:
    """Prints the resident memory and the time of a fresh interpreter after each import."""
    for name, statement in IMPORTS.items():
        program = (
            "import time; started = time.process_time()\n"
            f"{statement}\n"
            "spent = time.process_time() - started\n"
            "pages = int(open('/proc/self/statm').read().split()[1])\n"
            "print(f'{pages * 4096 / 2**20:.0f} MB, {spent:.2f} s')"
        )
        told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
        print(f"import of {name:<32} {told.strip()}", flush=True)


if __name__ == "__main__":
    main()

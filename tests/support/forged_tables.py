"""Faults to plant in a topic's table, past all that would refuse them: files rewritten in place, forged snapshots."""

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakestream.data.tables.files.file_stats import FileStats
from lakestream.data.tables.files.parquet import read_parquet, write_parquet
from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA
from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.manifests.files import NewFile
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from tests.support.iceberg_tables import Lake
from tests.support.verified_broker import TIME_MS, VerifyWorld

Change = Callable[[pa.Table], pa.Table]


class TopicLake(Lake):
    """A topic's table for those who commit past the catalog; `take_over` makes what they did the topic's."""

    def __init__(self, world: VerifyWorld, topic: str) -> None:
        self.world = world
        self.topic = topic
        super().__init__(world.folder, now_ms=TIME_MS * 2)

    def __post_init__(self) -> None:
        self.store = self.world.store
        self.committer = Committer(self.store, Random(hash(self.topic)))
        self.table: Table = self.committer.load(self.world.location(self.topic))

    def take_over(self) -> None:
        self.world.swap(self.topic, self.location)
        self.committer.close()

    def put(self, rows: pa.Table, name: str) -> FileStats:
        """A new data file of the table, which nobody refers to yet."""
        uri = f"{self.table.metadata.location}/data/{name}.parquet"
        sink = io.BytesIO()
        stats = write_parquet(rows, uri, sink)
        self.store.put(uri, sink.getvalue())
        return stats

    def rewrite(self, stats: FileStats, **how: Any) -> None:
        """One file in the place of all."""
        assert self.table.metadata.current_snapshot_id is not None
        removed = frozenset(f"file://{path}" for path in self.world.files(self.topic))
        self.table = self.committer.rewrite(
            self.table, self.table.metadata.current_snapshot_id, removed, [NewFile(stats=stats)],
            now_ms=self.now_ms, **how,
        ).table  # fmt: skip
        self.take_over()


def all_rows(world: VerifyWorld, topic: str) -> pa.Table:
    return pa.concat_tables([read_parquet(path.read_bytes()) for path in world.files(topic)])


def rewrite_in_place(path: Path, change: Change) -> None:
    """Other rows in a file that manifests speak of."""
    rows = change(read_parquet(path.read_bytes()))
    sink = io.BytesIO()
    write_parquet(rows, f"file://{path}", sink)
    path.write_bytes(sink.getvalue())


def without(*offsets: int) -> Change:
    def change(rows: pa.Table) -> pa.Table:
        keep = [offset not in offsets for offset in rows["stream_offset"].to_pylist()]
        return rows.filter(pa.array(keep))

    return change


def twice(offset: int) -> Change:
    def change(rows: pa.Table) -> pa.Table:
        at = rows["stream_offset"].to_pylist().index(offset)
        return pa.concat_tables([rows.slice(0, at + 1), rows.slice(at)]).combine_chunks()

    return change


def cell(column: str, offset: int, value: Callable[[Any], Any]) -> Change:
    """Another value in one cell."""

    def change(rows: pa.Table) -> pa.Table:
        at = rows["stream_offset"].to_pylist().index(offset)
        cells = rows[column].to_pylist()
        cells[at] = value(cells[at])
        place = rows.schema.get_field_index(column)
        return rows.set_column(place, ARROW_SCHEMA.field(column), pa.array(cells, ARROW_SCHEMA.field(column).type))

    return change


def with_bounds(stats: FileStats, number: int, lower: bytes | None = None, upper: bytes | None = None) -> FileStats:
    lowers = {**stats.lower_bounds, number: lower} if lower is not None else stats.lower_bounds
    uppers = {**stats.upper_bounds, number: upper} if upper is not None else stats.upper_bounds
    return replace(stats, lower_bounds=lowers, upper_bounds=uppers)


def make_old(path: Path, age_s: float) -> None:
    told = path.stat()
    os.utime(path, (told.st_atime - age_s, told.st_mtime - age_s))


def stray_file(path: Path, age_s: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": [1]}), path)
    make_old(path, age_s)
    return path

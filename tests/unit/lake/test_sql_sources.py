"""What DuckDB scans of a topic's table: only what a query needs, and only rows that live."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from lakestream.data.tables.reading.tail import PartitionBounds, TopicTail
from lakestream.data.tables.stores.table_store import FolderTableStore
from lakestream.errors import Missing
from lakestream.lake.sql.files import ReadFaults
from lakestream.lake.sql.sources import Stores, ahead, open_stores, topic_parts
from tests.support.iceberg_tables import NOW_MS, Lake, OtherEngine, add_column, timestamp_of

NOISE_BYTES = 1000


class Counting(FolderTableStore):
    """Notes what is read of which Parquet file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.read_bytes: dict[str, int] = {}

    def read(self, uri: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = super().read(uri, ranges)
        self.read_bytes[uri] = self.read_bytes.get(uri, 0) + sum(map(len, found))
        return found


class World:
    """Three files of 1,000 rows of partition 0 each, and one of partition 1."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(folder)
        for start in (0, 1000, 2000):
            self.lake.append([(0, start, start + 1000)], noise_bytes=NOISE_BYTES)
        self.lake.append([(1, 0, 1000)], noise_bytes=NOISE_BYTES)
        self.store = Counting(folder)
        self.faults = ReadFaults()

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        bounds = [PartitionBounds(0, 0, 3000, 3000), PartitionBounds(1, 0, 1000, 1000)]
        tail = TopicTail("t", self.store.root, self.lake.location, bounds, [], [], [])
        database = duckdb.connect()
        parts = topic_parts(Stores(self.store, self.store), tail, self.faults)
        for number, part in enumerate(parts):
            database.register(f"part{number}", part.source)
        union = " UNION ALL ".join(f"SELECT {part.select} FROM part{number}" for number, part in enumerate(parts))
        self.store.read_bytes.clear()
        return database.execute(f"WITH t AS ({union}) {query}").fetchall()

    def paths(self) -> list[str]:
        return sorted(task.file.file_path for task in self.lake.read_by_pyiceberg().scan().plan_files())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "warehouse")


def file_bytes(world: World) -> int:
    return sum(Path(path.removeprefix("file://")).stat().st_size for path in world.paths())


def test_a_count_reads_no_values(world: World) -> None:
    assert world.ask("select count(*) from t") == [(4000,)]
    assert world.ask("select max(stream_offset) from t group by stream_partition order by 1") == [(999,), (2999,)]
    assert sum(world.store.read_bytes.values()) < file_bytes(world) / 4


@pytest.mark.parametrize(
    ("condition", "count", "files"),
    [
        ("stream_offset between 1990 and 2009 and stream_partition = 0", 20, 2),
        ("stream_partition = 1", 1000, 1),
        ("stream_offset > 5000", 0, 0),
        (f"stream_timestamp >= make_timestamptz({(NOW_MS + timestamp_of(0, 2500) + 100) * 1000})", None, 1),
    ],
)
def test_files_whose_bounds_say_no_are_not_opened(world: World, condition: str, count: int | None, files: int) -> None:
    [(found,)] = world.ask(f"select count(*) from t where {condition}")
    assert found == count if count is not None else found > 400
    assert len(world.store.read_bytes) == files
    assert sum(world.store.read_bytes.values()) < file_bytes(world) / 8


def test_rows_deleted_by_position_are_not_there_and_clean_files_still_skip_values(world: World) -> None:
    first, second = world.paths()[:2]
    OtherEngine(world.lake, random.Random(3)).delete({first: [0, 5, 999], second: [7]})
    assert world.ask("select count(*), min(stream_offset) from t where stream_partition = 0") == [(2996, 1)]
    assert world.ask("select count(distinct (stream_partition, stream_offset)) from t") == [(3996,)]
    assert world.ask("select list_sort(list(stream_offset)) from t where stream_offset in (0, 5, 6, 999, 1007)") == [
        ([0, 5, 6, 6, 999],)
    ]
    assert sum(world.store.read_bytes.get(path, 0) for path in world.paths()[2:]) < file_bytes(world) / 8


def test_files_that_another_engine_rewrote_are_read_by_name_and_type(world: World) -> None:
    before = world.ask("select * from t order by stream_partition, stream_offset")
    add_column(world.lake)
    OtherEngine(world.lake, random.Random(5)).rewrite(set(world.paths()), pieces=3, extra_column=True)
    assert world.ask("select * exclude (note) from t order by stream_partition, stream_offset") == before
    [(value,)] = world.ask("select value from t where stream_partition = 0 and stream_offset = 1234")
    assert value.startswith(b"0/1234/0")


def test_a_file_that_is_gone_is_told_by_its_name(world: World) -> None:
    path = world.paths()[0]
    Path(path.removeprefix("file://")).unlink()
    with pytest.raises(duckdb.Error):
        world.ask("select sum(stream_offset) from t")
    assert isinstance(world.faults.first, Missing) and path in str(world.faults.first)


def test_a_table_in_another_catalog_is_read_where_it_lies(world: World, tmp_path: Path) -> None:
    bounds = [PartitionBounds(0, 0, 3000, 3000), PartitionBounds(1, 0, 1000, 1000)]
    tail = TopicTail("t", f"file://{tmp_path / 'elsewhere'}", world.lake.location, bounds, [], [], [])
    [part] = topic_parts(open_stores(tail), tail, world.faults)
    database = duckdb.connect()
    database.register("t", part.source)
    assert database.execute("select count(value) from t where stream_offset < 10").fetchall() == [(20,)]


def test_work_is_done_ahead_in_order_and_only_so_far() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        return item * item

    running = ahead(work, range(100), 4)
    assert [next(running) for _ in range(3)] == [0, 1, 4]
    running.close()
    assert len(begun) <= 3 + 4
    assert list(ahead(work, [5], 4)) == [25] and list(ahead(work, [], 4)) == []

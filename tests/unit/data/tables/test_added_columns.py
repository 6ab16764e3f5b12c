"""Columns that users added to a topic's table, as `sql` and the data source show them: what PyIceberg says is right."""

import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pytest

from lakestream.data.tables.reading.added_columns import added_columns
from lakestream.data.tables.reading.scan import ScanPiece, read
from lakestream.data.tables.reading.table_reader import ReadCaches, TableReader
from lakestream.data.tables.stores.small_files import SmallFiles
from tests.support.iceberg_tables import OtherEngine, set_columns
from tests.unit.lake.test_sql_sources import World

Column = dict[str, Any]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "warehouse")


def column(number: int, name: str, kind: Any) -> Column:
    return {"id": number, "name": name, "required": False, "type": kind}


def fill(field_id: int, name: str, kind: pa.DataType, make: Callable[[int], object]) -> Callable[[pa.Table], pa.Table]:
    """Rows with a column whose value is made of the offset."""

    def change(rows: pa.Table) -> pa.Table:
        values = pa.array([make(offset) for offset in rows["stream_offset"].to_pylist()], kind)
        return rows.append_column(pa.field(name, kind, metadata={b"PARQUET:field_id": str(field_id).encode()}), values)

    return change


def rewrite(world: World, place: int, *changes: Callable[[pa.Table], pa.Table]) -> None:
    def change(rows: pa.Table) -> pa.Table:
        for one in changes:
            rows = one(rows)
        return rows

    OtherEngine(world.lake, random.Random(place)).rewrite({world.untouched[place]}, change=change)


@pytest.fixture(autouse=True)
def paths(world: World) -> None:
    world.untouched = world.paths()  # type: ignore[attr-defined]


def same_as_pyiceberg(world: World) -> None:
    """All columns of all rows, by DuckDB, by the way around its datasets, and by the reader of the data source."""
    wanted = plain(world.lake.scan().to_pylist())
    names = list(wanted[0])
    picked = ", ".join(f'"{name}"' for name in names)
    found = world.ask(f"select {picked} from t order by stream_partition, stream_offset")
    assert [plain(dict(zip(names, row, strict=True))) for row in found] == wanted
    added = added_columns(world.lake.table.metadata)
    recent = SmallFiles(world.store)
    reader = TableReader(world.store, recent, ReadCaches(), lambda: world.lake.location, added)
    rows = [row for partition in range(2) for row in reader.read_rows(partition, 0, 9999, 1 << 30).rows.to_pylist()]
    recent.close()
    assert plain(rows) == wanted


def plain(value: Any) -> Any:
    """Libraries give maps as pairs or as dicts, and uuids as such or as bytes."""
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()} or []
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return dict(value)
    return [plain(one) for one in value] if isinstance(value, list) else value


def test_an_added_column_is_shown_and_null_where_files_do_not_have_it(world: World) -> None:
    set_columns(world.lake, column(100, "note", "string"))
    assert world.ask("select count(*), count(note) from t") == [(4000, 0)]
    rewrite(world, 0, fill(100, "note", pa.string(), lambda offset: f"n{offset % 10}" if offset % 2 else None))
    assert world.ask("select count(*), count(note) from t") == [(4000, 500)]
    assert world.ask("select count(*) from t where note = 'n3' and stream_partition = 0") == [(100,)]
    assert world.ask("select typeof(note) from t limit 1") == [("VARCHAR",)]
    same_as_pyiceberg(world)


def test_columns_are_followed_by_their_ids_through_renames_drops_and_promotions(world: World) -> None:
    set_columns(world.lake, column(100, "note", "int"), column(101, "ratio", "float"))
    rewrite(
        world, 0, fill(100, "note", pa.int32(), lambda offset: offset), fill(101, "ratio", pa.float32(), lambda _: 0.5)
    )
    # The name moves to another column, and the first one is renamed and becomes a long.
    columns = column(102, "note", "string"), column(100, "was_note", "long"), column(101, "ratio", "double")
    set_columns(world.lake, *columns)
    rewrite(
        world, 1, fill(102, "note", pa.string(), lambda _: "new"),
        fill(100, "was_note", pa.int64(), lambda offset: offset << 33),
    )  # fmt: skip
    found = world.ask("select count(note), count(was_note), max(was_note), sum(ratio) from t")
    assert found == [(1000, 2000, 1999 << 33, 500.0)]
    assert world.ask("select stream_offset from t where was_note = 999") == [(999,)]
    assert world.ask("select count(*) from t where was_note > 4000000000") == [(1000,)]
    same_as_pyiceberg(world)
    set_columns(world.lake, column(100, "was_note", "long"))
    assert world.ask("select count(was_note) from t where stream_offset < 5") == [(5,)]
    same_as_pyiceberg(world)


def test_nested_columns_may_grow_and_uuids_and_decimals_are_what_they_are(world: World) -> None:
    small = {"type": "struct", "fields": [column(101, "x", "int")]}
    kind = pa.struct([pa.field("x", pa.int32(), metadata={b"PARQUET:field_id": b"101"})])
    set_columns(world.lake, column(100, "point", small), column(105, "price", "decimal(5, 2)"))
    rewrite(
        world, 0, fill(100, "point", kind, lambda offset: {"x": offset} if offset % 3 else None),
        fill(105, "price", pa.decimal128(5, 2), lambda offset: Decimal(offset % 100)),
    )  # fmt: skip
    same_as_pyiceberg(world)
    grown = {"type": "struct", "fields": [column(102, "y", "string"), column(101, "ex", "long")]}
    columns = column(100, "point", grown), column(105, "price", "decimal(12, 2)"), column(106, "id", "uuid")
    set_columns(world.lake, *columns)
    rewrite(world, 1, fill(106, "id", pa.binary(16), lambda offset: b"%016d" % offset))
    assert world.ask("select max(point.ex), count(point), count(point.y), max(price) from t") == [
        (998, 666, 0, Decimal("99.00"))
    ]
    assert world.ask("select typeof(id) from t limit 1") == [("UUID",)]
    assert world.ask("select count(*) from t where id is not null") == [(1000,)]
    same_as_pyiceberg(world)


def test_lists_and_maps_are_fitted_element_by_element(world: World) -> None:
    element = {"type": "struct", "fields": [column(111, "x", "int")]}
    tags = {"type": "list", "element-id": 110, "element": element, "element-required": False}
    marks = {"type": "map", "key-id": 121, "key": "string", "value-id": 122, "value": "int", "value-required": False}

    def field(number: int, name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()})

    stored = pa.list_(field(110, "element", pa.struct([field(111, "x", pa.int32())])))
    mapped = pa.map_(
        pa.field("key", pa.string(), False, {b"PARQUET:field_id": b"121"}), field(122, "value", pa.int32())
    )
    set_columns(world.lake, column(100, "tags", tags), column(120, "marks", marks))

    def tags_of(n: int, **more: object) -> list[dict[str, object]] | None:
        return None if n % 5 == 0 else [{"ex" if more else "x": i, **more} for i in range(n % 4)]

    def marks_of(n: int) -> list[tuple[str, int | None]] | None:
        return None if n % 7 == 0 else [("a", n), ("b", None)][: n % 3]

    rewrite(world, 0, fill(100, "tags", stored, tags_of), fill(120, "marks", mapped, marks_of))
    # PyIceberg makes empty lists of those that are null here, so it is not asked.
    query = "select tags, marks from t where stream_partition = 0 order by stream_offset limit 1000"
    found = plain([list(row) for row in world.ask(query)])
    assert found == plain([[tags_of(n), marks_of(n)] for n in range(1000)])
    wider = {"type": "struct", "fields": [column(111, "ex", "long"), column(112, "why", "string")]}
    tags = {**tags, "element": wider}
    set_columns(world.lake, column(100, "tags", tags), column(120, "marks", {**marks, "value": "long"}))
    found = plain([list(row) for row in world.ask(query)])
    assert found == plain([[tags_of(n, why=None), marks_of(n)] for n in range(1000)])


def test_rows_deleted_by_position_stay_away_where_columns_were_added(world: World) -> None:
    set_columns(world.lake, column(100, "note", "string"))
    rewrite(world, 0, fill(100, "note", pa.string(), str))
    first = next(path for path in world.paths() if path not in world.untouched)  # type: ignore[attr-defined]
    OtherEngine(world.lake, random.Random(3)).delete({first: [0, 5, 999]})
    assert world.ask("select count(*), count(note) from t") == [(3997, 997)]
    same_as_pyiceberg(world)


def test_a_name_that_differs_in_capitals_only_is_told_apart(world: World) -> None:
    set_columns(world.lake, column(100, "Value", "string"))
    rewrite(world, 0, fill(100, "Value", pa.string(), lambda offset: f"mine {offset}"))
    [(theirs, stream)] = world.ask('select "Value_1", value from t where stream_partition = 0 and stream_offset = 7')
    assert theirs == "mine 7" and stream.startswith(b"0/7/0")


def test_a_column_of_another_type_is_told_by_its_name(world: World) -> None:
    set_columns(world.lake, column(100, "note", "string"))
    rewrite(world, 0, fill(100, "note", pa.string(), lambda offset: "no number"))
    set_columns(world.lake, column(100, "note", "long"))
    with pytest.raises(duckdb.Error):
        world.ask("select sum(note) from t")
    assert "the column note is of another type" in str(world.faults.first)


def test_the_data_source_reads_added_columns_only_if_somebody_wants_them(world: World) -> None:
    set_columns(world.lake, column(100, "note", "string"))
    rewrite(world, 0, fill(100, "note", pa.string(), str))
    how = {"broker": "", "topic": "t", "root": world.store.root, "partition": 0, "start": 990, "end": 1010}
    plain = pa.Table.from_batches(read(ScanPiece(**how, metadata_location=world.lake.location)))
    whole = pa.Table.from_batches(read(ScanPiece(**how, metadata_location=world.lake.location, added=True)))
    assert "note" not in plain.column_names and plain.num_rows == whole.num_rows == 20
    assert whole["note"].to_pylist() == [*map(str, range(990, 1000)), *[None] * 10]

"""A user's sort order: which can be applied, what they make of rows, and that files follow them (T4)."""

import math
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.iceberg.topic_table import new_topic_table
from lakestream.data.tables.reading.sort_orders import SortKey, in_order, users_order
from lakestream.data.tables.reading.table_reader import ReadCaches, TableReader
from lakestream.data.tables.stores.small_files import SmallFiles
from lakestream.pipeline.care.plan import ORDERED_GROUPS
from lakestream.pipeline.care.worker import ORDERED_BYTES
from tests.support.care_cluster import CareWorld, quiet, start_world
from tests.support.memory_broker import batch
from tests.unit.pipeline.test_care_jobs import foreign_metadata, interfere
from tests.unit.pipeline.test_landing import values

VALUE, TIMESTAMP, KEY, OFFSET = 8, 3, 4, 2


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[CareWorld]:
    made = await start_world(tmp_path)
    yield made
    await made.stop()


def by(source: int, transform: str = "identity", *, desc: bool = False, nulls_first: bool = True) -> dict[str, Any]:
    return {
        "source-id": source, "transform": transform, "direction": "desc" if desc else "asc",
        "null-order": "nulls-first" if nulls_first else "nulls-last",
    }  # fmt: skip


def ordered_by(*fields: dict[str, Any], columns: Sequence[dict[str, Any]] = ()) -> TableMetadata:
    empty = new_topic_table(table_uuid="u", topic_id=bytes(16), location="file:///t", now_ms=1)
    schema = {**empty.schema, "schema-id": 0, "fields": [*empty.schema["fields"], *columns]}
    orders = [{"order-id": 0, "fields": []}, {"order-id": 7, "fields": list(fields)}]
    return empty.replaced({"schemas": [schema], "sort-orders": orders, "default-sort-order-id": 7})


def one_column(values: Sequence[object], kind: pa.DataType) -> pa.RecordBatch:
    field = pa.field("c", kind, metadata={b"PARQUET:field_id": b"100"})
    return pa.record_batch([pa.array(values, kind)], schema=pa.schema([field]))


# -- which orders there are -------------------------------------------------------------------------------------------


def test_a_table_without_an_order_has_none() -> None:
    assert users_order(new_topic_table(table_uuid="u", topic_id=bytes(16), location="file:///t", now_ms=1)) is None


def test_an_order_is_taken_over_field_by_field() -> None:
    added = {"id": 100, "name": "city", "required": False, "type": "string"}
    fields = by(100, "truncate[2]", desc=True), by(1, "void"), by(TIMESTAMP, "day")
    found = users_order(ordered_by(*fields, columns=[added]))
    assert found is not None and (found.order_id, found.problem) == (7, "")
    assert found.keys == (
        SortKey(100, "truncate[2]", "string", True, True), SortKey(TIMESTAMP, "day", "timestamptz", False, True)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (by(VALUE, "truncate[4]"), r"truncate\[4\] of value cannot be sorted by here"),
        (by(OFFSET, "day"), "day of stream_offset cannot"),
        (by(OFFSET, "bucket[0]"), r"bucket\[0\] of stream_offset cannot"),
        (by(KEY, "zorder"), "zorder of stream_key cannot"),
        (by(5), "identity of stream_headers cannot"),
        (by(10), "the field 10, which is no column"),
    ],
)
def test_an_order_that_cannot_be_applied_says_why(field: dict[str, Any], why: str) -> None:
    found = users_order(ordered_by(by(OFFSET), field))
    assert found is not None and not found.keys
    assert re.search(why, found.problem)


# -- rows in order ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("desc", "nulls_first", "wanted"),
    [
        (False, True, [None, -1.0, 2.5, math.inf, math.nan]),
        (False, False, [-1.0, 2.5, math.inf, math.nan, None]),
        (True, True, [None, math.nan, math.inf, 2.5, -1.0]),
        (True, False, [math.nan, math.inf, 2.5, -1.0, None]),
    ],
)
def test_nulls_and_what_is_no_number_lie_where_iceberg_says(desc: bool, nulls_first: bool, wanted: list[float]) -> None:
    rows = one_column([2.5, math.nan, None, -1.0, math.inf], pa.float64())
    found = in_order(rows, [SortKey(100, "identity", "double", desc, nulls_first)]).column(0).to_pylist()
    assert [str(one) for one in found] == [str(one) for one in wanted]


def test_bytes_are_compared_unsigned_and_equal_rows_stay_as_they_come() -> None:
    field = pa.field("n", pa.int32(), metadata={b"PARQUET:field_id": b"101"})
    rows = one_column([b"\xff", b"a", b"", b"\x7f", b"a"], pa.binary())
    rows = rows.append_column(field, pa.array(range(5), pa.int32()))
    found = in_order(rows, [SortKey(100, "identity", "binary", False, True)])
    assert found.column(1).to_pylist() == [2, 1, 4, 3, 0]
    assert in_order(rows, [SortKey(999, "identity", "int", False, True)]).equals(rows), "a column that is not there"


def test_a_file_that_is_older_than_a_columns_type_is_sorted_by_the_type_it_has_now() -> None:
    rows = one_column([7, 12, 3, None], pa.int32())
    found = in_order(rows, [SortKey(100, "truncate[10]", "long", True, False)])
    assert found.column(0).to_pylist() == [12, 7, 3, None]


# -- files in order ---------------------------------------------------------------------------------------------------


async def filled(world: CareWorld, records: int, size: int = 8_000, rounds: int = 3, partitions: int = 2) -> bytes:
    """Values whose order has nothing to do with that of the offsets."""
    streams = await world.broker.topic("a", partitions)
    for n in range(rounds):
        for stream in streams:
            some = [(n * records + i) * 7919 % 100_003 for i in range(records)]
            await world.broker.append((stream, batch(*(f"{one:06d}".encode() * (size // 6) for one in some))))
        await world.pipeline.replica.catch_up()
        assert await world.pipeline.driver.drain() == 0
    return streams[0].topic.id


async def set_order(world: CareWorld, *fields: dict[str, Any]) -> None:
    orders = [{"order-id": 0, "fields": []}, {"order-id": 7, "fields": list(fields)}]
    await foreign_metadata(world, "a", {"sort-orders": orders, "default-sort-order-id": 7})


def entries(world: CareWorld) -> list[dict[str, Any]]:
    from pyiceberg.table import StaticTable

    location = world.pipeline.replica.state.catalog.tables["streams", "a"].location
    return StaticTable.from_metadata(location).inspect.files().to_pylist()  # type: ignore[no-any-return]


async def test_t4_optimize_orders_the_rows_inside_files_of_narrow_ranges(world: CareWorld) -> None:
    topic_id = await filled(world, records=600)
    before = values(world.pipeline, "a")
    await set_order(world, by(VALUE, desc=True))
    result = await world.jobs.optimize(topic_id, quiet, asked=True)
    assert result.text == "" and result.figures["rows"] == 3600
    files = [pq.ParquetFile(one.removeprefix("file://")) for one in world.files("a")]
    assert len(files) == 2, "29 MB of records, and a file holds 16"
    ranges = []
    for file in files:
        rows = file.read(["stream_partition", "stream_offset", "value"])
        found = rows["value"].to_pylist()
        assert found == sorted(found, reverse=True)
        places = sorted(zip(rows["stream_partition"].to_pylist(), rows["stream_offset"].to_pylist(), strict=True))
        ranges.append((places[0], places[-1]))
        groups = [file.metadata.row_group(one) for one in range(file.num_row_groups)]
        assert all(group.column(group.num_columns - 1).statistics is not None for group in groups)
    assert sorted(ranges)[0][1] < sorted(ranges)[1][0], "which rows a file has is a matter of offsets"
    assert max(file.num_row_groups for file in files) == ORDERED_GROUPS and ORDERED_BYTES == 16 << 20
    assert {one["sort_order_id"] for one in entries(world)} == {7}
    assert values(world.pipeline, "a") == before and world.balance("a") == world.holds("a")
    again = await world.jobs.optimize(topic_id, quiet, asked=True)
    assert again.text == "nothing to rewrite"


async def test_history_comes_in_the_order_of_offsets_out_of_ordered_files(world: CareWorld) -> None:
    topic_id = await filled(world, records=600)
    await set_order(world, by(VALUE))
    await world.jobs.optimize(topic_id, quiet, asked=True)
    await world.jobs.delete(topic_id, "stream_partition = 1 and stream_offset % 100 = 7", quiet)
    location = world.pipeline.replica.state.catalog.tables["streams", "a"].location
    recent = SmallFiles(world.pipeline.store)
    reader = TableReader(world.pipeline.store, recent, ReadCaches(), lambda: location)
    for partition in range(2):
        at, found = 0, []
        while at < 1800:
            reader.warm(partition, at, 1800)
            some = reader.read_rows(partition, at, 1800, 100_000)
            assert some.end > at and some.rows.nbytes < 200_000, "little is copied for a small fetch"
            found += some.rows["stream_offset"].to_pylist()
            at = some.end
        assert found == [n for n in range(1800) if partition == 0 or n % 100 != 7]
    recent.close()
    assert world.balance("a") == world.holds("a")


async def test_only_what_is_not_in_order_yet_is_brought_into_it_and_full_files_are_left_alone(world: CareWorld) -> None:
    topic_id = await filled(world, records=1100, rounds=2)
    await set_order(world, by(VALUE))
    first = await world.jobs.optimize(topic_id, quiet, asked=True)
    assert first.figures["files_after"] == 3
    stream = world.broker.replica.state.streams.by_id[world.broker.replica.state.topics.by_name["a"].streams[0]]
    await world.land(stream, records=10)
    second = await world.jobs.optimize(topic_id, quiet, asked=True)
    assert second.figures["files_before"] == 2, "the new one, and the one that was not full"
    assert {one["sort_order_id"] for one in entries(world)} == {7} and world.balance("a") == world.holds("a")


async def test_t8_an_ordered_rewrite_is_thrown_away_when_others_commit_meanwhile(world: CareWorld) -> None:
    topic_id = await filled(world, records=20)
    await set_order(world, by(VALUE))
    counted = interfere(world, world.jobs, [world.files("a")[0]])
    result = await world.jobs.optimize(topic_id, quiet, asked=True)
    assert len(counted) == 2 and result.figures["rows"] == world.pipeline.rows("a").num_rows == 80


async def test_a_partition_spec_and_an_order_are_applied_together(world: CareWorld) -> None:
    topic_id = await filled(world, records=40)
    spec = {"spec-id": 1, "fields": [{"source-id": 1, "field-id": 1000, "name": "p", "transform": "identity"}]}
    specs = [*world.metadata("a").value("partition-specs"), spec]
    await foreign_metadata(world, "a", {"partition-specs": specs, "default-spec-id": 1, "last-partition-id": 1000})
    await set_order(world, by(VALUE))
    await world.jobs.optimize(topic_id, quiet, asked=True)
    found = sorted((one["partition"]["p"], one["sort_order_id"], one["record_count"]) for one in entries(world))
    assert found == [(0, 7, 120), (1, 7, 120)] and world.balance("a") == world.holds("a")
    for one in world.files("a"):
        inside = pq.read_table(one.removeprefix("file://"))["value"].to_pylist()
        assert inside == sorted(inside)


async def test_an_order_that_cannot_be_applied_is_left_out_and_said(world: CareWorld) -> None:
    topic_id = await filled(world, records=20)
    await set_order(world, by(VALUE, "truncate[3]"))
    result = await world.jobs.optimize(topic_id, quiet, asked=True)
    assert result.text == "the table's sort order is not applied: truncate[3] of value cannot be sorted by here"
    assert result.figures["files_after"] == 1 and {one["sort_order_id"] for one in entries(world)} == {0}
    again = await world.jobs.optimize(topic_id, quiet, asked=True)
    assert again.text.startswith("nothing to rewrite; the table's sort order is not applied")

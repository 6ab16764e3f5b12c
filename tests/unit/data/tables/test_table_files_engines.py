"""What other engines see in our files: field ids, true bounds, row groups, and rows that they rewrote."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, EqualTo, GreaterThanOrEqual
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.io.pyarrow import (
    ArrowScan,
    PyArrowFileIO,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record as PartitionRecord

from lakestream.data.tables.files.arrow_view import digest_rows
from lakestream.data.tables.files.column_ids import VALUE_ID
from lakestream.data.tables.files.decode import decode_slices
from lakestream.data.tables.files.file_stats import FileStats, Run, lower_bound, upper_bound
from lakestream.data.tables.files.parquet import (
    FileWriter,
    footer_bytes,
    parse_footer,
    read_parquet,
    read_row_group,
    row_group_range,
    row_sizes,
)
from lakestream.data.tables.files.rebuild import rebuild
from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA, RAW_COLUMNS
from lakestream.errors import Corrupt
from tests.support.iceberg_tables import iceberg_schema
from tests.support.raw_records import RawRecord, encode, read

TIME = 1_700_000_000_000


def records(count: int) -> list[RawRecord]:
    """Of all sorts; keys and values that differ behind their sixteenth byte."""
    return [
        RawRecord(
            offset=i,
            timestamp=(TIME + i * 7919 % 1000, -1, -5, 2**60)[i % 4],
            key=(None, b"", b"key of more than sixteen bytes %d" % i)[i % 3],
            value=(None, b"value of more than sixteen bytes %d" % i)[i % 2],
            headers=((b"h\xff" if i % 10 == 9 else b"h", b"%d" % i),) * (i % 3),
        )
        for i in range(count)
    ]


def written(folder: Path, rows: pa.Table, row_group_bytes: int = 8 << 20) -> tuple[Path, FileStats]:
    path = folder / "a.parquet"
    with path.open("wb") as sink:
        writer = FileWriter(sink, row_group_bytes=row_group_bytes)
        for one in rows.to_batches():
            writer.add(one)
        stats = writer.finish(f"file://{path}")
    return path, stats


@pytest.fixture
def rows() -> pa.Table:
    return decode_slices([(5, 100, encode(records(300))), (2, 7, encode(records(200)))])


def test_the_file_carries_the_field_ids_of_the_table_nested_ones_too(tmp_path: Path, rows: pa.Table) -> None:
    path, _ = written(tmp_path, rows)
    stored = pq.read_schema(path)
    assert stored.equals(ARROW_SCHEMA) and stored.equals(
        ARROW_SCHEMA.with_metadata(stored.metadata), check_metadata=True
    )
    assert parquet_path_to_id_mapping(iceberg_schema()) == RAW_COLUMNS.leaf_ids
    assert {field.field_id: field.name for field in iceberg_schema().fields} == RAW_COLUMNS.names
    assert iceberg_schema().highest_field_id == 11


def test_the_field_ids_are_those_that_any_catalog_gives_to_a_new_table() -> None:
    """Catalogs number a new table's columns themselves: files with other ids would be read wrongly there."""
    fresh = assign_fresh_schema_ids(iceberg_schema())
    assert fresh.as_struct() == iceberg_schema().as_struct()
    assert [(field.field_id, field.name) for field in fresh.fields] == list(RAW_COLUMNS.names.items())


def test_required_columns_are_required_everywhere_T1(tmp_path: Path, rows: pa.Table) -> None:
    path, _ = written(tmp_path, rows)
    required = {"stream_partition", "stream_offset", "stream_flags"}
    assert {field.name for field in iceberg_schema().fields if field.required} == required
    assert {field.name for field in pq.read_schema(path) if not field.nullable} == required


def test_bounds_and_counts_are_true(tmp_path: Path, rows: pa.Table) -> None:
    path, stats = written(tmp_path, rows, row_group_bytes=4000)
    assert (stats.rows, stats.bytes, len(stats.runs) > 3) == (500, path.stat().st_size, True)
    for field in iceberg_schema().fields:
        if field.name == "stream_headers":
            assert field.field_id not in stats.lower_bounds and field.field_id not in stats.null_counts
            continue
        column = rows[field.name]
        assert stats.value_counts[field.field_id] == 500
        assert stats.null_counts[field.field_id] == column.null_count
        low, high = (
            from_bytes(field.field_type, bounds[field.field_id]) for bounds in (stats.lower_bounds, stats.upper_bounds)
        )  # type: ignore[arg-type]
        column = column.cast(pa.int64()) if field.name == "stream_timestamp" else column
        least, greatest = (pc.min_max(column)[name].as_py() for name in ("min", "max"))
        if isinstance(least, bytes):
            assert (low, high) == (least[:16], greatest[:15] + bytes([greatest[15] + 1]))
        else:
            assert (low, high) == (least, greatest)


def test_bounds_agree_with_those_that_iceberg_takes_from_the_footer(tmp_path: Path, rows: pa.Table) -> None:
    without = rows.set_column(6, ARROW_SCHEMA.field("stream_original"), pa.nulls(500, pa.binary()))
    _, stats = written(tmp_path, without, row_group_bytes=6000)
    theirs = iceberg_statistics(tmp_path / "a.parquet")
    for name in ("lower_bounds", "upper_bounds", "null_counts"):
        mine, other = getattr(stats, name), theirs[name]
        shared = [field_id for field_id in other if field_id in mine and field_id != VALUE_ID]
        assert len(shared) >= 5
        assert {field_id: mine[field_id] for field_id in shared} == {field_id: other[field_id] for field_id in shared}
    assert stats.column_sizes == theirs["column_sizes"]
    assert list(stats.split_offsets) == theirs["split_offsets"]


def iceberg_statistics(path: Path) -> dict[str, Any]:
    from pyiceberg.io.pyarrow import compute_statistics_plan

    schema = iceberg_schema()
    found = data_file_statistics_from_parquet_metadata(
        parquet_metadata=pq.read_metadata(path),
        stats_columns=compute_statistics_plan(schema, {}),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    ).to_serialized_dict()
    return {**found, "null_counts": found["null_value_counts"]}


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        (b"", b"", b""),
        (b"x" * 16, b"x" * 16, b"x" * 16),
        (b"x" * 17, b"x" * 16, b"x" * 15 + b"y"),
        (b"x" * 15 + b"\xff\0", b"x" * 15 + b"\xff", b"x" * 14 + b"y"),
        (b"\xff" * 16, b"\xff" * 16, b"\xff" * 16),
        (b"\xff" * 17, b"\xff" * 16, None),
    ],
)
def test_upper_bounds_are_rounded_up_and_lower_ones_down(value: bytes, low: bytes, high: bytes | None) -> None:
    assert (lower_bound(value), upper_bound(value)) == (low, high)
    assert high is None or high >= value >= low


def test_a_value_that_no_short_bound_is_above_leaves_the_column_without_one(tmp_path: Path) -> None:
    rows = decode_slices([(0, 0, encode([RawRecord(offset=0, key=b"\xff" * 17), RawRecord(offset=1, key=b"a")]))])
    _, stats = written(tmp_path, rows)
    assert stats.lower_bounds[4] == b"a" and 4 not in stats.upper_bounds
    assert VALUE_ID not in stats.lower_bounds and VALUE_ID not in stats.upper_bounds
    assert stats.null_counts[VALUE_ID] == 2


def test_row_groups_hold_at_most_their_bytes_and_know_their_runs_T4(tmp_path: Path, rows: pa.Table) -> None:
    path, stats = written(tmp_path, rows, row_group_bytes=5000)
    file = pq.ParquetFile(path)
    assert file.metadata.num_row_groups == len(stats.runs) == len(stats.split_offsets)
    for group, runs in enumerate(stats.runs):
        own = RAW_COLUMNS.conform(file.read_row_group(group))
        assert sum(int(row_sizes(one).sum()) for one in own.to_batches()) <= 5000
        assert [(run.partition, run.first, run.last, run.rows) for run in runs] == spans(own)
    assert max(run.max_timestamp for group in stats.runs for run in group) == 2**60


def spans(rows: pa.Table) -> list[tuple[int, int, int, int]]:
    partitions, offsets = rows["stream_partition"].to_numpy(), rows["stream_offset"].to_numpy()
    return [
        (
            int(one),
            int(offsets[partitions == one].min()),
            int(offsets[partitions == one].max()),
            int(np.sum(partitions == one)),
        )
        for one in np.unique(partitions)
    ]


def test_a_row_group_is_read_from_its_bytes_alone(tmp_path: Path, rows: pa.Table) -> None:
    path, stats = written(tmp_path, rows, row_group_bytes=5000)
    whole = path.read_bytes()
    tail = whole[-footer_bytes(whole[-8:]) :]
    footer = parse_footer(tail)
    groups = []
    for group in range(footer.num_row_groups):
        start, length = row_group_range(footer, group)
        assert start == stats.split_offsets[group]
        groups.append(read_row_group(footer, group, start, whole[start : start + length]))
    assert pa.concat_tables(groups).combine_chunks().equals(rows.combine_chunks())
    start, length = row_group_range(footer, 0)
    with pytest.raises(Corrupt, match="cannot be read"):
        read_row_group(footer, 0, start, whole[start : start + length - 1])


@pytest.mark.parametrize("data", [b"", b"PAR1", bytes(100), b"PAR1" + b"\xff" * 20 + struct.pack("<I", 20) + b"PAR1"])
def test_what_is_no_parquet_file_is_corruption(data: bytes) -> None:
    with pytest.raises(Corrupt):
        read_parquet(data)
    with pytest.raises(Corrupt):
        parse_footer(data)


def test_narrow_columns_cost_little(tmp_path: Path) -> None:
    plain = [RawRecord(offset=i, timestamp=TIME + i // 10, value=bytes(range(100))) for i in range(20_000)]
    _, stats = written(tmp_path, decode_slices([(0, 0, encode(plain))]))
    assert sum(stats.column_sizes[field_id] for field_id in set(RAW_COLUMNS.leaf_ids.values()) - {VALUE_ID}) < 20_000


# -- other engines -----------------------------------------------------------------------------------------------------


def test_duckdb_reads_the_file_and_prunes_by_it_rightly(tmp_path: Path, rows: pa.Table) -> None:
    path, _ = written(tmp_path, rows, row_group_bytes=4000)
    with duckdb.connect() as database:
        found = database.execute(f"select * from '{path}' order by stream_partition, stream_offset").to_arrow_table()
        assert digest_rows(RAW_COLUMNS.conform(found)) == digest_rows(rows)
        low, high, keys = database.execute(
            f"select min(stream_offset), max(stream_offset), count(stream_key) from '{path}' where stream_partition = 5"
        ).fetchall()[0]
        assert (low, high, keys) == (100, 399, 200)
        asked = f"select stream_offset from '{path}' where stream_offset between 150 and 152 order by all"
        assert database.execute(asked).fetchall() == [(150,), (150,), (151,), (151,), (152,), (152,)]


def test_a_file_that_duckdb_wrote_anew_in_another_order_gives_the_same_batches_T4(
    tmp_path: Path, rows: pa.Table
) -> None:
    path, _ = written(tmp_path, rows)
    other = tmp_path / "other.parquet"
    with duckdb.connect() as database:
        database.execute(
            f"copy (select value, stream_key, 1 as mine, * exclude (value, stream_key) from '{path}'"
            f" order by value desc) to '{other}' (format parquet, row_group_size 100)"
        )
    again = read_parquet(other.read_bytes())
    assert digest_rows(again) == digest_rows(rows)
    for partition, base, count in ((5, 100, 300), (2, 7, 200)):
        found, _ = read(rebuild(again.filter(pc.equal(again["stream_partition"], partition))))
        assert [one.value for one in found] == [one.value for one in records(count)]
        assert [(one.offset - base, one.timestamp, one.headers) for one in found] == [
            (one.offset, one.timestamp, one.headers) for one in records(count)
        ]


def test_columns_are_found_by_their_ids_where_somebody_renamed_them(rows: pa.Table) -> None:
    renamed = rows.rename_columns([f"{name}_once" for name in rows.column_names])
    assert RAW_COLUMNS.conform(renamed).equals(rows)
    with pytest.raises(Corrupt, match="no column value"):
        RAW_COLUMNS.conform(rows.drop_columns(["value"]))
    with pytest.raises(Corrupt, match="another type"):
        RAW_COLUMNS.conform(rows.set_column(1, ARROW_SCHEMA.field(1).with_type(pa.string()), pa.array(["x"] * 500)))


def test_wide_types_of_other_engines_are_taken(rows: pa.Table) -> None:
    wide = pa.schema(
        [
            field.with_type({"binary": pa.large_binary(), "int32": pa.int64()}.get(str(field.type), field.type))
            for field in ARROW_SCHEMA
        ]
    )
    assert RAW_COLUMNS.conform(rows.cast(wide)).equals(rows)


def iceberg_file(stats: FileStats) -> DataFile:
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=stats.path,
        file_format=FileFormat.PARQUET,
        partition=PartitionRecord(),
        record_count=stats.rows,
        file_size_in_bytes=stats.bytes,
        column_sizes=dict(stats.column_sizes),
        value_counts=dict(stats.value_counts),
        null_value_counts=dict(stats.null_counts),
        nan_value_counts={},
        lower_bounds=dict(stats.lower_bounds),
        upper_bounds=dict(stats.upper_bounds),
        split_offsets=list(stats.split_offsets),
    )
    file.spec_id = 0
    return file


def test_pyiceberg_scans_the_file_as_a_data_file_of_the_table(tmp_path: Path, rows: pa.Table) -> None:
    _, stats = written(tmp_path, rows, row_group_bytes=4000)
    # Not by `new_table_metadata`, which gives every column a fresh id.
    metadata = TableMetadataV2(
        location=f"file://{tmp_path}",
        last_column_id=iceberg_schema().highest_field_id,
        schemas=[iceberg_schema()],
        partition_specs=[UNPARTITIONED_PARTITION_SPEC],
        sort_orders=[UNSORTED_SORT_ORDER],
    )
    task = FileScanTask(iceberg_file(stats), set(), AlwaysTrue())

    def scan(condition: Any, projected: Schema) -> pa.Table:
        return ArrowScan(metadata, PyArrowFileIO(), projected, condition).to_table([task])

    everything = scan(AlwaysTrue(), metadata.schema())
    assert digest_rows(RAW_COLUMNS.conform(everything)) == digest_rows(rows)
    some = scan(GreaterThanOrEqual("stream_offset", 395), metadata.schema().select("stream_offset", "value"))
    assert some["stream_offset"].to_pylist() == [395, 396, 397, 398, 399]


@pytest.mark.parametrize(
    ("column", "value", "possible"),
    [
        ("stream_offset", 6, False),
        ("stream_offset", 7, True),
        ("stream_offset", 400, False),
        ("stream_partition", 1, False),
        ("stream_partition", 3, True),
        ("stream_key", b"zebra", False),
        ("stream_key", b"key of more than sixteen bytes 299", True),
        ("value", b"another", False),
    ],
)
def test_iceberg_skips_the_file_by_its_bounds_only_where_it_may(
    tmp_path: Path, rows: pa.Table, column: str, value: Any, possible: bool
) -> None:
    _, stats = written(tmp_path, rows)
    assert _InclusiveMetricsEvaluator(iceberg_schema(), EqualTo(column, value)).eval(iceberg_file(stats)) is possible


def test_runs_of_one_partition_in_several_batches_are_one(tmp_path: Path) -> None:
    parts: Sequence[pa.Table] = [decode_slices([(1, base, encode(records(10)))]) for base in (20, 0)]
    _, stats = written(tmp_path, pa.concat_tables(parts))
    assert stats.runs == [[Run(1, 0, 29, 2**60, 20)]]

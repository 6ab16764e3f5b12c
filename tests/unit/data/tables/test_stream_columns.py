"""A topic's table may have other columns than another's: writers, bounds and readers ask its `StreamColumns`."""

import io

import pyarrow as pa
import pytest

from lakestream.data.tables.files.file_stats import long_bound
from lakestream.data.tables.files.parquet import FileWriter, parse_footer, read_row_group, row_group_range
from lakestream.data.tables.files.stream_columns import RAW_COLUMNS, StreamColumns, field_id_of
from lakestream.errors import Corrupt
from tests.support.iceberg_tables import make_rows


def typed(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(field_id).encode()})


AMOUNT, USER = typed("amount", pa.int64(), 100), typed("user", pa.binary(), 101)
ORDERS = StreamColumns([AMOUNT, USER])


def orders() -> pa.RecordBatch:
    raw = make_rows([(0, offset) for offset in range(50)])
    amounts, users = pa.array(range(50), pa.int64()), pa.array([b"u%02d" % number for number in range(50)], pa.binary())
    table = raw.drop_columns(["value"]).append_column(AMOUNT, amounts).append_column(USER, users)
    return table.cast(ORDERS.schema).combine_chunks().to_batches()[0]


def test_a_file_of_other_columns_is_written_bounded_and_read_by_them() -> None:
    sink = io.BytesIO()
    writer = FileWriter(sink, columns=ORDERS)
    writer.add(orders())
    stats = writer.finish("file:///orders.parquet")
    assert stats.lower_bounds[100] == long_bound(0) and stats.upper_bounds[100] == long_bound(49)
    assert stats.lower_bounds[101] == b"u00" and stats.upper_bounds[101] == b"u49"
    assert {100, 101} <= stats.column_sizes.keys() and 8 not in stats.column_sizes.keys() | stats.null_counts.keys()
    data = sink.getvalue()
    footer = parse_footer(data)
    start, length = row_group_range(footer, 0)
    found = read_row_group(footer, 0, start, data[start : start + length], ORDERS)
    assert found.equals(pa.Table.from_batches([orders()]))


def test_columns_are_found_by_their_ids_whatever_their_names_and_order() -> None:
    rows = pa.Table.from_batches([orders()])
    moved = rows.select([*reversed(rows.schema.names)]).rename_columns([f"c{at}" for at in range(rows.num_columns)])
    assert ORDERS.conform(moved).equals(rows)


def test_a_file_without_a_column_of_the_topic_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="value"):
        RAW_COLUMNS.conform(pa.Table.from_batches([orders()]))
    with pytest.raises(Corrupt, match="amount, user"):
        ORDERS.conform(make_rows([(0, 0)]))


def test_columns_of_the_stream_are_none_that_users_added() -> None:
    note = typed("note", pa.string(), 200)
    schema = ORDERS.with_added([note])
    assert [field_id_of(field) for field in ORDERS.added_fields(schema)] == [200]
    assert [field.name for field in RAW_COLUMNS.added_fields(schema)] == ["amount", "user", "note"]

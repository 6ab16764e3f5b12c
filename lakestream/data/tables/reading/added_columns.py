"""The columns that users added to a stream's table (T13): those of today, and how older files hold them.

Iceberg knows a column by its id: a file keeps the name and the type of the day when it was written, and lacks younger
columns. Rows are converted to the names and types of today, inside of nested columns, too.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.data.tables.files.stream_columns import RAW_COLUMNS, StreamColumns, field_id_of
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.errors import Corrupt


def added_columns(metadata: TableMetadata, columns: StreamColumns = RAW_COLUMNS) -> list[pa.Field]:
    """The columns that are none of the stream's, with their ids, in the order of the table.

    A name that differs from another one in capitals only gets a number behind it: some engines ignore capitals.
    """
    fields = [field for field in metadata.schema["fields"] if field["id"] not in columns.names]
    if not fields:
        return []
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import Schema

    found: list[pa.Field] = []
    taken = {name.casefold() for name in columns.names.values()}
    for field in schema_to_pyarrow(Schema.model_validate({"type": "struct", "fields": fields})):
        name, number = field.name, 1
        while name.casefold() in taken:
            name, number = f"{field.name}_{number}", number + 1
        taken.add(name.casefold())
        found.append(field.with_name(name).with_nullable(True))
    return found


def shaped(rows: pa.Table, added: Sequence[pa.Field], columns: StreamColumns = RAW_COLUMNS) -> pa.Table:
    """The stream's columns, and behind them the added ones, out of rows of any file. Raises Corrupt."""
    plain = columns.conform(rows)
    stored = {field_id_of(field): field.name for field in columns.added_fields(rows.schema)}
    for field in added:
        name = stored.get(field_id_of(field))
        if name is None:
            column = pa.nulls(rows.num_rows, field.type)
        else:
            column = rows.column(rows.schema.get_field_index(name)).combine_chunks()
            column = pa.chunked_array([_fitted_column(column, field)])
        plain = plain.append_column(field, column)
    return plain


def with_nulls(
    rows: pa.RecordBatch, added: Sequence[pa.Field], columns: StreamColumns = RAW_COLUMNS
) -> pa.RecordBatch:
    """Rows that have the stream's columns only, with nulls in the added ones."""
    if not added:
        return rows
    arrays = [*rows.columns, *(pa.nulls(rows.num_rows, field.type) for field in added)]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.with_added(added))


def _fitted_column(column: Any, field: pa.Field) -> pa.Array:
    # A column of several chunks stays one if its bytes are too many for one array.
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks > 1:
            raise Corrupt(f"the column {field.name} is too large for one batch")
        column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    try:
        return fitted(column, field.type)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise Corrupt(f"the column {field.name} is of another type in the table's files: {error}") from error


def fitted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as a type of today, promoted, its children found by their ids. Raises errors of Arrow."""
    if pa.types.is_struct(kind):
        stored = {field_id_of(field): place for place, field in enumerate(column.type)}
        children = column.flatten()
        parts = [
            fitted(children[stored[field_id_of(field)]], field.type)
            if field_id_of(field) in stored
            else pa.nulls(len(column), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())
    if pa.types.is_map(kind):
        # Arrow gives a slice of a map the keys and items of the whole column.
        column = column.take(pa.array(np.arange(len(column)))) if column.offset else column
        keys, items = fitted(column.keys, kind.key_type), fitted(column.items, kind.item_type)
        return pa.MapArray.from_arrays(column.offsets, keys, items, type=kind, mask=column.is_null())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        large = pa.types.is_large_list(kind)
        starts = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int64() if large else pa.int32())
        lists = pa.LargeListArray if large else pa.ListArray
        return lists.from_arrays(starts, fitted(column.flatten(), kind.value_type), type=kind, mask=column.is_null())
    if isinstance(kind, pa.ExtensionType):
        storage = column.storage if isinstance(column, pa.ExtensionArray) else column
        return pa.ExtensionArray.from_storage(kind, storage.cast(kind.storage_type))
    return column.cast(kind)

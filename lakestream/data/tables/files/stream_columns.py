"""The columns of a stream's table (T1), once, for Arrow, for Parquet and for Iceberg.

The field ids are for ever: Iceberg, and every file that was ever written, knows a column by its id. They are those that
any catalog gives to a new table of these columns (docs/decisions/0004-field-ids.md). Columns that come later (a value
with a schema) start at FIRST_FREE_ID.
"""

from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from lakestream.errors import Corrupt

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

PARTITION_ID = 1
OFFSET_ID = 2
TIMESTAMP_ID = 3
KEY_ID = 4
HEADERS_ID = 5
FLAGS_ID = 6
ORIGINAL_ID = 7
VALUE_ID = 8
HEADER_ID = 9
HEADER_KEY_ID = 10
HEADER_VALUE_ID = 11
FIRST_FREE_ID = 100

_ID = b"PARQUET:field_id"


def _field(field_id: int, name: str, kind: pa.DataType, required: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=not required, metadata={_ID: str(field_id).encode()})


_HEADER = pa.struct([_field(HEADER_KEY_ID, "key", pa.string()), _field(HEADER_VALUE_ID, "value", pa.binary())])

ARROW_SCHEMA = pa.schema(
    [
        _field(PARTITION_ID, "stream_partition", pa.int32(), required=True),
        _field(OFFSET_ID, "stream_offset", pa.int64(), required=True),
        _field(TIMESTAMP_ID, "stream_timestamp", pa.timestamp("us", tz="UTC")),
        _field(KEY_ID, "stream_key", pa.binary()),
        _field(HEADERS_ID, "stream_headers", pa.list_(_field(HEADER_ID, "element", _HEADER))),
        _field(FLAGS_ID, "stream_flags", pa.int32(), required=True),
        _field(ORIGINAL_ID, "stream_original", pa.binary()),
        _field(VALUE_ID, "value", pa.binary()),
    ]
)
"""A row. Null and empty are different everywhere; a list of no headers is written as an empty one."""

NAMES = {int(field.metadata[_ID]): field.name for field in ARROW_SCHEMA}
"""The names of the columns by their ids, in order."""

LEAF_IDS = {
    "stream_partition": PARTITION_ID,
    "stream_offset": OFFSET_ID,
    "stream_timestamp": TIMESTAMP_ID,
    "stream_key": KEY_ID,
    "stream_headers.list.element.key": HEADER_KEY_ID,
    "stream_headers.list.element.value": HEADER_VALUE_ID,
    "stream_flags": FLAGS_ID,
    "stream_original": ORIGINAL_ID,
    "value": VALUE_ID,
}
"""The field ids of the columns that a Parquet file of ours stores, by their paths in it."""


@cache
def iceberg_schema() -> "Schema":
    """The same for Iceberg."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import (
        BinaryType,
        IcebergType,
        IntegerType,
        ListType,
        LongType,
        NestedField,
        StringType,
        StructType,
        TimestamptzType,
    )

    simple: dict[pa.DataType, IcebergType] = {
        pa.int32(): IntegerType(),
        pa.int64(): LongType(),
        pa.timestamp("us", tz="UTC"): TimestamptzType(),
        pa.binary(): BinaryType(),
        pa.string(): StringType(),
    }

    def converted(field: pa.Field) -> NestedField:
        return NestedField(
            field_id=int(field.metadata[_ID]),
            name=field.name,
            field_type=simple[field.type] if field.type in simple else nested(field.type),
            required=not field.nullable,
        )

    def nested(kind: pa.DataType) -> IcebergType:
        if pa.types.is_struct(kind):
            return StructType(*(converted(field) for field in kind))
        element = converted(kind.value_field)
        return ListType(element_id=element.field_id, element_type=element.field_type, element_required=element.required)

    return Schema(*(converted(field) for field in ARROW_SCHEMA))


def added_fields(schema: pa.Schema) -> list[pa.Field]:
    """The columns of a file that are none of the stream's: somebody added them to the table."""
    names = set(NAMES.values())
    return [field for field in schema if not _is_stream_column(field, names)]


def _is_stream_column(field: pa.Field, names: set[str]) -> bool:
    stored = field_id_of(field)
    return field.name in names if stored is None else stored in NAMES


def field_id_of(field: pa.Field) -> int | None:
    """The id that a file gives to a column, if it does."""
    stored = (field.metadata or {}).get(_ID)
    return None if stored is None else int(stored)


def with_added(rows: pa.Table) -> pa.Table:
    """The columns of ARROW_SCHEMA, and behind them those that somebody added, as they are. Raises Corrupt."""
    plain = conform(rows)
    for field in added_fields(rows.schema):
        plain = plain.append_column(field, rows.column(rows.schema.get_field_index(field.name)))
    return plain


def conform(rows: pa.Table) -> pa.Table:
    """The columns of ARROW_SCHEMA out of rows that some engine wrote, found by their ids, or by name if there are none.

    Other columns are left out; other types of the same meaning are cast. Raises Corrupt.
    """
    if rows.schema.equals(ARROW_SCHEMA):
        return rows.replace_schema_metadata(None)
    found: dict[int, int] = {}
    by_name = {name: field_id for field_id, name in NAMES.items()}
    for index, field in enumerate(rows.schema):
        stored = field_id_of(field)
        field_id = by_name.get(field.name) if stored is None else stored
        if field_id is not None:
            found.setdefault(field_id, index)
    missing = [name for field_id, name in NAMES.items() if field_id not in found]
    if missing:
        raise Corrupt(f"the table's files have no column {', '.join(missing)}")
    columns = [rows.column(found[field_id]) for field_id in NAMES]
    try:
        return pa.table(
            [column.cast(field.type) for column, field in zip(columns, ARROW_SCHEMA, strict=True)],
            schema=ARROW_SCHEMA,
        )
    except pa.ArrowException as error:
        raise Corrupt(f"the table's files have columns of another type: {error}") from error

"""The columns of a topic's table (T1): one `StreamColumns`, which writers, readers, bounds and SQL ask.

Every table begins with the columns of the record; behind them are those of the value. RAW_COLUMNS has the value as the
bytes that were produced.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lakestream.data.tables.files.column_ids import (
    FLAGS_ID,
    HEADER_ID,
    HEADER_KEY_ID,
    HEADER_VALUE_ID,
    HEADERS_ID,
    KEY_ID,
    OFFSET_ID,
    ORIGINAL_ID,
    PARTITION_ID,
    TIMESTAMP_ID,
    VALUE_ID,
)
from lakestream.errors import Corrupt

_ID = b"PARQUET:field_id"


def _field(field_id: int, name: str, kind: pa.DataType, required: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=not required, metadata={_ID: str(field_id).encode()})


_HEADER = pa.struct([_field(HEADER_KEY_ID, "key", pa.string()), _field(HEADER_VALUE_ID, "value", pa.binary())])
RECORD_FIELDS = (
    _field(PARTITION_ID, "stream_partition", pa.int32(), required=True),
    _field(OFFSET_ID, "stream_offset", pa.int64(), required=True),
    _field(TIMESTAMP_ID, "stream_timestamp", pa.timestamp("us", tz="UTC")),
    _field(KEY_ID, "stream_key", pa.binary()),
    _field(HEADERS_ID, "stream_headers", pa.list_(_field(HEADER_ID, "element", _HEADER))),
    _field(FLAGS_ID, "stream_flags", pa.int32(), required=True),
    _field(ORIGINAL_ID, "stream_original", pa.binary()),
)
"""The columns with which every topic's table begins."""


def field_id_of(field: pa.Field) -> int | None:
    """The id that a file gives to a column, if it does."""
    stored = (field.metadata or {}).get(_ID)
    return None if stored is None else int(stored)


class StreamColumns:
    """The columns of one topic's table. Immutable.

    Null and empty are different everywhere; a list of no headers is written as an empty one.
    """

    def __init__(self, value: Sequence[pa.Field]) -> None:
        self.schema = pa.schema([*RECORD_FIELDS, *value])
        """As Arrow has them, with their field ids."""
        self.names = {int(field.metadata[_ID]): field.name for field in self.schema}
        """The names of the columns by their ids, in order."""
        self.leaf_ids = {path: field_id for field in self.schema for path, field_id in _leaves(field, field.name)}
        """The field ids of the columns that a Parquet file stores, by their paths in it."""
        self.blobs = tuple(field.name for field in self.schema if pa.types.is_binary(field.type))
        """The columns of bytes."""
        self._by_name = {name: field_id for field_id, name in self.names.items()}

    def with_added(self, added: Sequence[pa.Field]) -> pa.Schema:
        """The schema with the columns that users added behind those of the stream."""
        return pa.schema([*self.schema, *added]) if added else self.schema

    def added_fields(self, schema: pa.Schema) -> list[pa.Field]:
        """The columns of a file that are none of the stream's: users added them to the table."""
        return [field for field in schema if self._id_in_file(field) not in self.names]

    def select(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The stream's columns of rows that have them in order, and maybe added ones behind them."""
        return rows if rows.num_columns == len(self.schema) else rows.select(self.schema.names)

    def conform(self, rows: pa.Table) -> pa.Table:
        """The stream's columns of rows that any engine wrote, found by their ids, or by name if a column has no id.

        Other columns are left out; other types of the same meaning are cast. Raises Corrupt.
        """
        if rows.schema.equals(self.schema):
            return rows.replace_schema_metadata(None)
        found: dict[int, int] = {}
        for index, field in enumerate(rows.schema):
            field_id = self._id_in_file(field)
            if field_id is not None:
                found.setdefault(field_id, index)
        missing = [name for field_id, name in self.names.items() if field_id not in found]
        if missing:
            raise Corrupt(f"the table's files have no column {', '.join(missing)}")
        columns = [rows.column(found[field_id]) for field_id in self.names]
        try:
            return pa.table(
                [column.cast(field.type) for column, field in zip(columns, self.schema, strict=True)],
                schema=self.schema,
            )
        except pa.ArrowException as error:
            raise Corrupt(f"the table's files have columns of another type: {error}") from error

    def conform_with_added(self, rows: pa.Table) -> pa.Table:
        """The stream's columns, and behind them the added ones as the file has them. Raises Corrupt."""
        plain = self.conform(rows)
        for field in self.added_fields(rows.schema):
            plain = plain.append_column(field, rows.column(rows.schema.get_field_index(field.name)))
        return plain

    def _id_in_file(self, field: pa.Field) -> int | None:
        stored = field_id_of(field)
        return self._by_name.get(field.name) if stored is None else stored


def _leaves(field: pa.Field, path: str) -> Iterator[tuple[str, int]]:
    if pa.types.is_struct(field.type):
        for child in field.type:
            yield from _leaves(child, f"{path}.{child.name}")
    elif pa.types.is_list(field.type):
        element = field.type.value_field
        yield from _leaves(element, f"{path}.list.{element.name}")
    else:
        yield path, int(field.metadata[_ID])


RAW_COLUMNS = StreamColumns([_field(VALUE_ID, "value", pa.binary())])
"""The columns of every topic's table today."""

ARROW_SCHEMA = RAW_COLUMNS.schema
"""The schema of records as rows: decoding makes them, rebuilding and digests take them."""

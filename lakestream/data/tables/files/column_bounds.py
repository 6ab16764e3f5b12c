"""The bounds of a file's columns. Engines answer queries from them, so a bound is either true or absent."""

import pyarrow as pa
import pyarrow.compute as pc

from lakestream.data.tables.files.arrow_view import bytes_view_of
from lakestream.data.tables.files.file_stats import BOUND_BYTES, int_bound, long_bound, lower_bound, upper_bound
from lakestream.data.tables.files.stream_columns import RAW_COLUMNS, StreamColumns
from lakestream.model.kernels import table_columns

_ENCODERS = {pa.int32(): int_bound, pa.int64(): long_bound, pa.timestamp("us", tz="UTC"): long_bound}
_COMPARED_BYTES = BOUND_BYTES + 1
"""One more than a bound keeps: it tells whether the greatest value is longer than its bound."""


class ColumnBounds:
    """Gathers the least value, the greatest, and the number of nulls of every column of numbers, times or bytes."""

    def __init__(self, columns: StreamColumns = RAW_COLUMNS) -> None:
        kinds = {field_id: columns.schema.field(name).type for field_id, name in columns.names.items()}
        self._names = columns.names
        self._encoders = {field_id: _ENCODERS[kind] for field_id, kind in kinds.items() if kind in _ENCODERS}
        self._blob_ids = [field_id for field_id, name in columns.names.items() if name in columns.blobs]
        self.null_counts = dict.fromkeys([*self._encoders, *self._blob_ids], 0)
        self._numbers: dict[int, tuple[int, int]] = {}
        self._blobs: dict[int, tuple[bytes, bytes]] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        for field_id in self._encoders:
            column = rows.column(self._names[field_id])
            self.null_counts[field_id] += column.null_count
            found = pc.min_max(column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column)
            if found["min"].is_valid:
                self._add_number(field_id, found["min"].as_py(), found["max"].as_py())
        for field_id in self._blob_ids:
            column = rows.column(self._names[field_id])
            held = bytes_view_of(column)
            least, greatest, nulls = table_columns.blob_bounds(held.view, table_columns.KEY, _COMPARED_BYTES)
            self.null_counts[field_id] += nulls
            if least >= 0:
                self._add_blob(field_id, _start(column, least), _start(column, greatest))

    def lower(self) -> dict[int, bytes]:
        """The lower bounds in Iceberg's encoding."""
        numbers = {field_id: self._encoders[field_id](low) for field_id, (low, _) in self._numbers.items()}
        return numbers | {field_id: lower_bound(low) for field_id, (low, _) in self._blobs.items()}

    def upper(self) -> dict[int, bytes]:
        """The upper bounds; a column whose greatest value has no short upper bound has none."""
        numbers = {field_id: self._encoders[field_id](high) for field_id, (_, high) in self._numbers.items()}
        blobs = {field_id: upper_bound(high) for field_id, (_, high) in self._blobs.items()}
        return numbers | {field_id: bound for field_id, bound in blobs.items() if bound is not None}

    def _add_number(self, field_id: int, low: int, high: int) -> None:
        before = self._numbers.get(field_id, (low, high))
        self._numbers[field_id] = min(before[0], low), max(before[1], high)

    def _add_blob(self, field_id: int, low: bytes, high: bytes) -> None:
        before = self._blobs.get(field_id, (low, high))
        self._blobs[field_id] = min(before[0], low), max(before[1], high)


def _start(column: pa.Array, row: int) -> bytes:
    return bytes(memoryview(column[row].as_buffer())[:_COMPARED_BYTES])

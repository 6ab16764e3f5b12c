"""The bounds of a file's columns. Engines trust them and even answer from them, so they are true or not there."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from lakestream.data.tables.files.arrow_view import view_of
from lakestream.data.tables.files.file_stats import BOUND_BYTES, int_bound, long_bound, lower_bound, upper_bound
from lakestream.data.tables.files.stream_columns import (
    FLAGS_ID,
    KEY_ID,
    NAMES,
    OFFSET_ID,
    ORIGINAL_ID,
    PARTITION_ID,
    TIMESTAMP_ID,
    VALUE_ID,
)
from lakestream.model.kernels import table_columns

_NUMBERS: dict[int, Callable[[int], bytes]] = {
    PARTITION_ID: int_bound,
    OFFSET_ID: long_bound,
    TIMESTAMP_ID: long_bound,
    FLAGS_ID: int_bound,
}
_BLOBS = {KEY_ID: table_columns.KEY, ORIGINAL_ID: table_columns.ORIGINAL, VALUE_ID: table_columns.VALUE}
_COMPARED_BYTES = BOUND_BYTES + 1
"""One more than a bound keeps, which tells whether the greatest value goes on behind it."""


class Bounds:
    """Gathers least, greatest and number of nulls of every column outside the headers."""

    def __init__(self) -> None:
        self.null_counts = dict.fromkeys([*_NUMBERS, *_BLOBS], 0)
        self._numbers: dict[int, tuple[int, int]] = {}
        self._blobs: dict[int, tuple[bytes, bytes]] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        for field_id in _NUMBERS:
            column = rows.column(NAMES[field_id])
            self.null_counts[field_id] += column.null_count
            found = pc.min_max(column.view(pa.int64()) if field_id == TIMESTAMP_ID else column)
            if found["min"].is_valid:
                self._add_number(field_id, found["min"].as_py(), found["max"].as_py())
        held = view_of(rows)
        for field_id, slot in _BLOBS.items():
            least, greatest, nulls = table_columns.blob_bounds(held.view, slot, _COMPARED_BYTES)
            self.null_counts[field_id] += nulls
            if least >= 0:
                column = rows.column(NAMES[field_id])
                self._add_blob(field_id, _start(column, least), _start(column, greatest))

    def lower(self) -> dict[int, bytes]:
        """The lower bounds in Iceberg's encoding."""
        numbers = {field_id: _NUMBERS[field_id](low) for field_id, (low, _) in self._numbers.items()}
        return numbers | {field_id: lower_bound(low) for field_id, (low, _) in self._blobs.items()}

    def upper(self) -> dict[int, bytes]:
        """The upper ones; a column whose greatest value has no short upper bound has none."""
        numbers = {field_id: _NUMBERS[field_id](high) for field_id, (_, high) in self._numbers.items()}
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

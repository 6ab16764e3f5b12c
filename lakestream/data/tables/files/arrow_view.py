"""Arrow's buffers as compiled code sees them: the view of table_columns.py over a record batch, and digests by it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestream.data.tables.files.file_stats import Digest, add_digests
from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA, RAW_COLUMNS, RECORD_FIELDS
from lakestream.model.kernels import table_columns
from lakestream.model.kernels.table_columns import View

VALUE_PLACE = len(RECORD_FIELDS)
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ArrowView:
    """A view, and the objects whose memory it points into."""

    view: View
    owners: tuple[object, ...]


def view_of(batch: pa.RecordBatch) -> ArrowView:
    """The view of records as rows, with the columns of ARROW_SCHEMA; in rows of other columns the value is null."""
    columns = batch.columns
    partition, offset, timestamp, key, headers, flags, original = columns[:VALUE_PLACE]
    has_value = batch.schema.field(VALUE_PLACE).name == ARROW_SCHEMA.names[VALUE_PLACE]
    value = columns[VALUE_PLACE] if has_value else pa.nulls(batch.num_rows, pa.binary())
    view = np.zeros(table_columns.SLOTS, dtype=np.int64)
    view[table_columns.ROWS] = batch.num_rows
    if not batch.num_rows:
        return ArrowView(view, ())
    view[table_columns.PARTITION] = partition.buffers()[1].address + 4 * partition.offset
    view[table_columns.OFFSET] = offset.buffers()[1].address + 8 * offset.offset
    view[table_columns.FLAGS] = flags.buffers()[1].address + 4 * flags.offset
    validity, times = timestamp.buffers()
    view[table_columns.TIMESTAMP] = times.address + 8 * timestamp.offset
    view[table_columns.TIMESTAMP_VALID] = validity.address if validity is not None else 0
    view[table_columns.TIMESTAMP_BIT] = timestamp.offset
    _place(view, table_columns.KEY, key)
    _place(view, table_columns.ORIGINAL, original)
    _place(view, table_columns.VALUE, value)
    validity, starts = headers.buffers()[:2]
    view[table_columns.HEADERS] = starts.address + 4 * headers.offset
    view[table_columns.HEADERS + table_columns.VALID] = validity.address if validity is not None else 0
    view[table_columns.HEADERS + table_columns.BIT] = headers.offset
    # Flattened, so that a header that is null as a whole has a null key and a null value.
    header_keys, header_values = headers.values.flatten()
    _place(view, table_columns.HEADER_KEY, header_keys)
    _place(view, table_columns.HEADER_VALUE, header_values)
    return ArrowView(view, (batch, value, header_keys, header_values))


def bytes_view_of(column: pa.Array) -> ArrowView:
    """The view of one column of bytes alone, in the slot of keys."""
    view = np.zeros(table_columns.SLOTS, dtype=np.int64)
    view[table_columns.ROWS] = len(column)
    _place(view, table_columns.KEY, column)
    return ArrowView(view, (column,))


def digest_rows(rows: pa.Table | pa.RecordBatch) -> dict[int, Digest]:
    """The digests of rows of a table, equal to those of the batches that they came from (T16)."""
    batches = [rows] if isinstance(rows, pa.RecordBatch) else RAW_COLUMNS.conform(rows).to_batches()
    return add_digests(_digest(batch) for batch in batches if batch.num_rows)


def row_hashes(batch: pa.RecordBatch) -> Numbers:
    """The hash of every row as the record that was produced; their sum is the digest (T16)."""
    held = view_of(batch)
    hashes = np.empty(batch.num_rows, dtype=np.int64)
    table_columns.hash_rows(held.view, hashes)
    return hashes


def produced_timestamps(batch: pa.RecordBatch) -> Numbers:
    """The timestamps of any topic's rows as they were produced, in milliseconds; -1 is none."""
    held = view_of(batch)
    timestamps = np.empty(batch.num_rows, dtype=np.int64)
    table_columns.produced_timestamps(held.view, timestamps)
    return timestamps


def by_partition(batch: pa.RecordBatch) -> tuple[Numbers, Numbers | None, Numbers]:
    """The partitions of some rows, the order that sorts rows by them (None: they are sorted), and the start of each."""
    partitions = batch.column(0).to_numpy()
    order = None
    if (partitions[1:] < partitions[:-1]).any():
        order = np.argsort(partitions, kind="stable")
        partitions = partitions[order]
    starts = np.flatnonzero(np.diff(partitions, prepend=partitions[:1] - 1))
    return partitions[starts], order, starts


def _place(view: View, slot: int, column: pa.Array) -> None:
    validity, starts, data = column.buffers()
    view[slot] = starts.address + 4 * column.offset if starts is not None else 0
    view[slot + table_columns.DATA] = data.address if data is not None else 0
    view[slot + table_columns.VALID] = validity.address if validity is not None else 0
    view[slot + table_columns.BIT] = column.offset


def _digest(batch: pa.RecordBatch) -> dict[int, Digest]:
    hashes = row_hashes(batch)
    partitions, order, starts = by_partition(batch)
    parts = np.split(hashes if order is None else hashes[order], starts[1:])
    return {
        partition: Digest(len(part), int(table_columns.add_up(part, 0)) % 2**64)
        for partition, part in zip(partitions.tolist(), parts, strict=True)
    }

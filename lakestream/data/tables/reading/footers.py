"""Reads footers and row groups of data files, and the runs of files whose manifest does not have them (T3)."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakestream.data.tables.files.arrow_view import produced_timestamps
from lakestream.data.tables.files.column_ids import OFFSET_ID, ORIGINAL_ID, PARTITION_ID, TIMESTAMP_ID
from lakestream.data.tables.files.parquet import (
    FOOTER_GUESS_BYTES,
    footer_bytes,
    parse_footer,
    read_row_group,
    read_whole_row_group,
    row_group_range,
)
from lakestream.data.tables.files.runs import run_matrix, runs_of_rows
from lakestream.data.tables.files.stream_columns import RAW_COLUMNS
from lakestream.data.tables.reading.added_columns import shaped
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt

if TYPE_CHECKING:
    from lakestream.data.tables.files.runs import RunMatrix

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class FileFooter:
    """A file's footer, and where its row groups begin, counted in rows."""

    path: str
    metadata: Any

    @cached_property
    def starts(self) -> list[int]:
        counts = [self.metadata.row_group(group).num_rows for group in range(self.metadata.num_row_groups)]
        return np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).tolist()  # type: ignore[no-any-return]


def read_footer(store: TableStore, path: str, size: int) -> FileFooter:
    """Raises Missing or Corrupt."""
    guess = min(size, FOOTER_GUESS_BYTES)
    [tail] = store.read(path, [(size - guess, guess)])
    needed = footer_bytes(tail)
    if needed > len(tail):
        [tail] = store.read(path, [(max(size - needed, 0), needed)])
    return FileFooter(path, parse_footer(tail))


def read_group(store: TableStore, footer: FileFooter, group: int, added: Sequence[pa.Field] = ()) -> pa.RecordBatch:
    """The rows of a row group as one batch, the `added` columns last. Raises Missing or Corrupt."""
    start, length = row_group_range(footer.metadata, group)
    [data] = store.read(footer.path, [(start, length)])
    if added:
        table = shaped(read_whole_row_group(footer.metadata, group, start, data), added)
    else:
        table = read_row_group(footer.metadata, group, start, data)
    rows = table.combine_chunks().to_batches()
    if len(rows) > 1:
        raise Corrupt(f"row group {group} of {footer.path} is too large for one batch")
    return rows[0] if rows else pa.RecordBatch.from_pylist([], schema=None)


def runs_in_file(store: TableStore, footer: FileFooter) -> "RunMatrix":
    """The runs of a file, out of its narrow columns. Raises Missing or Corrupt.

    They are not in the footer: engines copy its entries into files of other rows.
    """
    groups = range(footer.metadata.num_row_groups)
    return np.concatenate([run_matrix([]), *(_runs_in_group(store, footer, group) for group in groups)])


def _runs_in_group(store: TableStore, footer: FileFooter, group: int) -> "RunMatrix":
    columns = _leaf_columns(footer.metadata)
    if not _has_only_nulls(footer.metadata, group, columns[ORIGINAL_ID]):
        rows = read_group(store, footer, group)
        partitions = rows.column(0).to_numpy().astype(np.int64)
        return runs_of_rows(group, partitions, rows.column(1).to_numpy(), produced_timestamps(rows))
    wanted = [columns[PARTITION_ID], columns[OFFSET_ID], columns[TIMESTAMP_ID]]
    # One range for each column: another writer may have put the values between them.
    ranges = [row_group_range(footer.metadata, group, [column]) for column in wanted]
    parts = dict(zip((start for start, _ in ranges), store.read(footer.path, ranges), strict=True))
    names = [footer.metadata.schema.column(column).path for column in wanted]
    try:
        file = pq.ParquetFile(pa.PythonFile(_Parts(parts), mode="r"), metadata=footer.metadata, pre_buffer=False)
        rows = file.read_row_group(group, columns=names, use_threads=False).select(names)
        partitions, offsets = (rows.column(place).to_numpy().astype(np.int64) for place in range(2))
        times = rows.column(2).cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).fill_null(-1)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"row group {group} of {footer.path} cannot be read: {error}") from error
    return runs_of_rows(group, partitions, offsets, times.to_numpy())


def _leaf_columns(metadata: Any) -> dict[int, int]:
    """The Parquet columns of the stream columns, by field id; by name in files without ids."""
    ids = {name: field_id for field_id, name in RAW_COLUMNS.names.items()}
    places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    found: dict[int, int] = {}
    for field in metadata.schema.to_arrow_schema():
        stored = (field.metadata or {}).get(_FIELD_ID)
        field_id = ids.get(field.name) if stored is None else int(stored)
        if field_id is not None and field.name in places:
            found[field_id] = places[field.name]
    needed = (PARTITION_ID, OFFSET_ID, TIMESTAMP_ID, ORIGINAL_ID)
    missing = [RAW_COLUMNS.names[each] for each in needed if each not in found]
    if missing:
        raise Corrupt(f"a file of the table has no column {', '.join(missing)}")
    return found


def _has_only_nulls(metadata: Any, group: int, column: int) -> bool:
    chunk = metadata.row_group(group).column(column)
    statistics = chunk.statistics
    return statistics is not None and statistics.has_null_count and statistics.null_count == chunk.num_values


class _Parts(io.RawIOBase):
    """A file of which only some ranges are here."""

    def __init__(self, parts: dict[int, bytes]) -> None:
        self._parts = parts
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        end = max(start + len(data) for start, data in self._parts.items())
        self._at = position + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: end}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        for start, data in self._parts.items():
            if start <= self._at and self._at + size <= start + len(data):
                begin = self._at - start
                self._at += size
                return data[begin : begin + size]
        raise OSError(f"bytes {self._at} to {self._at + size} are not at hand")


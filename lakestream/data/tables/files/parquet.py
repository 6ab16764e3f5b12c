"""Parquet files of a table: written with true bounds, and read without I/O of their own.

    writer = FileWriter(sink)                 # any file-like sink; row groups go out as they fill up
    writer.add(rows)                          # record batches of the table's columns
    stats = writer.finish(uri)

A reader fetches the tail of the file, then the byte range of a row group, and hands both in.
"""

import io
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakestream.data.tables.files.arrow_view import Numbers, by_partition, produced_timestamps
from lakestream.data.tables.files.column_bounds import ColumnBounds
from lakestream.data.tables.files.file_stats import Digests, FileStats, Run
from lakestream.data.tables.files.stream_columns import RAW_COLUMNS, StreamColumns, field_id_of
from lakestream.errors import Corrupt

ROW_GROUP_BYTES = 8 << 20
"""The most raw bytes in a row group (T4), a single larger record aside."""
ROW_BYTES = 32
"""Bytes of a row beside its keys and values: partition, offset, timestamp, flags, lengths."""
FOOTER_GUESS_BYTES = 64 * 1024
COMPRESSION = "zstd"
COMPRESSION_LEVEL = 1
_MAGIC = b"PAR1"
_ENDING = 8


class FileWriter:
    """Writes one file. Rows are stored in the order in which they come.

    Rows bring `extra`, the columns that users added to the table, behind those of the stream. Row groups have the least
    and the greatest value of the record's columns, and of those in `statistics_of` (field ids).
    """

    def __init__(
        self, sink: Any, *, row_group_bytes: int = ROW_GROUP_BYTES, extra: Sequence[pa.Field] = (),
        statistics_of: frozenset[int] = frozenset(), columns: StreamColumns = RAW_COLUMNS,
    ) -> None:  # fmt: skip
        self._sink = sink
        self._columns = columns
        self._schema = columns.with_added(extra)
        self._start = int(sink.tell())
        told = [path for path in columns.leaf_ids if path.startswith("stream_") and "." not in path]
        told += [field.name for field in self._schema if field_id_of(field) in statistics_of and field.name not in told]
        self._writer = pq.ParquetWriter(
            sink,
            self._schema,
            compression=COMPRESSION,
            compression_level=COMPRESSION_LEVEL,
            # Few values, long runs: dictionaries make nothing of them. Keys and values are seldom worth one.
            use_dictionary=["stream_partition", "stream_flags"],
            column_encoding={"stream_offset": "DELTA_BINARY_PACKED", "stream_timestamp": "DELTA_BINARY_PACKED"},
            # A kilobyte of value for every row group would make the footer the largest part of some files.
            write_statistics=told,
            # The types are all in Parquet's own schema; Arrow's would only be 1 KB more to read for each file.
            store_schema=False,
        )
        self._row_group_bytes = row_group_bytes
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._bounds = ColumnBounds(columns)
        self._runs: list[list[Run]] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows; whole row groups are written at once."""
        sizes = np.cumsum(row_sizes(rows, self._columns))
        start = 0
        while start < rows.num_rows:
            before = int(sizes[start - 1]) if start else 0
            room = self._row_group_bytes - self._pending_bytes
            stop = int(np.searchsorted(sizes, before + room, side="right"))
            if stop == start and not self._pending:
                stop += 1
            if stop > start:
                self._pending.append(rows.slice(start, stop - start))
                self._pending_bytes += int(sizes[stop - 1]) - before
            if stop < rows.num_rows:
                self._flush()
            start = stop

    def finish(self, path: str, digests: Digests | None = None) -> FileStats:
        """Write the rest and the footer. `path` is the absolute URI by which engines will find the file."""
        self._flush()
        self._writer.close()
        footer = self._writer.writer.metadata
        chunks = [
            footer.row_group(group).column(column)
            for group in range(footer.num_row_groups)
            for column in range(footer.num_columns)
        ]
        leaf_ids = self._columns.leaf_ids
        column_sizes = dict.fromkeys(leaf_ids.values(), 0)
        for chunk in chunks:
            if chunk.path_in_schema in leaf_ids:
                column_sizes[leaf_ids[chunk.path_in_schema]] += chunk.total_compressed_size
        return FileStats(
            path=path,
            rows=footer.num_rows,
            bytes=int(self._sink.tell()) - self._start,
            column_sizes=column_sizes,
            value_counts=dict.fromkeys(self._bounds.null_counts, footer.num_rows),
            null_counts=self._bounds.null_counts,
            lower_bounds=self._bounds.lower(),
            upper_bounds=self._bounds.upper(),
            split_offsets=[row_group_range(footer, group)[0] for group in range(footer.num_row_groups)],
            runs=self._runs,
            digests=digests or {},
        )

    def _flush(self) -> None:
        if not self._pending:
            return
        plain = [self._columns.select(rows) for rows in self._pending]
        for rows in plain:
            self._bounds.add(rows)
        self._runs.append(runs_of(plain))
        group = pa.Table.from_batches(self._pending, schema=self._schema)
        self._writer.write_table(group, row_group_size=group.num_rows)
        self._pending, self._pending_bytes = [], 0


def write_parquet(rows: pa.Table, path: str, sink: Any, digests: Digests | None = None) -> FileStats:
    """Write rows, in their order, as one file into an open sink."""
    writer = FileWriter(sink)
    for one in RAW_COLUMNS.conform(rows).to_batches():
        writer.add(one)
    return writer.finish(path, digests)


def row_sizes(rows: pa.RecordBatch, columns: StreamColumns = RAW_COLUMNS) -> Numbers:
    """The raw bytes of each row."""
    sizes = np.full(rows.num_rows, ROW_BYTES, dtype=np.int64)
    for name in columns.blobs:
        sizes += np.diff(_starts(rows.column(name)))
    headers = rows.column("stream_headers")
    entries = _starts(headers)
    if len(entries) and entries[-1] > entries[0]:
        for child in headers.values.flatten():
            sizes += np.diff(_starts(child)[entries])
        sizes += np.diff(entries) * ROW_BYTES
    return sizes


def runs_of(batches: Iterable[pa.RecordBatch]) -> list[Run]:
    """The runs of one row group, by which an index finds an offset or a time in it (T3)."""
    found: dict[int, Run] = {}
    for rows in batches:
        if not rows.num_rows:
            continue
        partitions, order, starts = by_partition(rows)
        offsets, timestamps = rows.column("stream_offset").to_numpy(), produced_timestamps(rows)
        if order is not None:
            offsets, timestamps = offsets[order], timestamps[order]
        columns = (
            partitions,
            np.minimum.reduceat(offsets, starts),
            np.maximum.reduceat(offsets, starts),
            np.maximum.reduceat(timestamps, starts),
            np.diff(starts, append=rows.num_rows),
        )
        for run in (Run(*line) for line in zip(*(column.tolist() for column in columns), strict=True)):
            found[run.partition] = _joined(found[run.partition], run) if run.partition in found else run
    return [found[partition] for partition in sorted(found)]


def _joined(one: Run, other: Run) -> Run:
    return Run(
        one.partition,
        min(one.first, other.first),
        max(one.last, other.last),
        max(one.max_timestamp, other.max_timestamp),
        one.rows + other.rows,
    )


# -- reading ----------------------------------------------------------------------------------------------------------


def footer_bytes(tail: bytes | bytearray | memoryview) -> int:
    """How many bytes at the end of a file its footer takes, from its last 8 or more. Raises Corrupt."""
    if len(tail) < _ENDING or bytes(tail[-4:]) != _MAGIC:
        raise Corrupt("no Parquet file")
    return int(struct.unpack_from("<I", tail, len(tail) - _ENDING)[0]) + _ENDING


def parse_footer(tail: bytes | bytearray | memoryview) -> Any:
    """The footer (pyarrow's FileMetaData) from at least `footer_bytes` of a file's end. Raises Corrupt."""
    size = footer_bytes(tail)
    if size > len(tail):
        raise Corrupt("a Parquet file is shorter than its footer says")
    try:
        return pq.read_metadata(io.BytesIO(_MAGIC + bytes(tail[len(tail) - size :])))
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"no Parquet footer: {error}") from error


def row_group_range(footer: Any, group: int, columns: Sequence[int] | None = None) -> tuple[int, int]:
    """Start and length of the bytes of a row group, or of some of its columns."""
    chosen = range(footer.num_columns) if columns is None else columns
    chunks = [footer.row_group(group).column(column) for column in chosen]
    starts = [_chunk_start(chunk) for chunk in chunks]
    ends = [start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True)]
    return min(starts), max(ends) - min(starts)


def read_row_group(
    footer: Any, group: int, start: int, data: bytes | bytearray | memoryview, columns: StreamColumns = RAW_COLUMNS
) -> pa.Table:
    """The rows of a row group, with the stream's columns, from the bytes of its range. Raises Corrupt."""
    return columns.conform(read_whole_row_group(footer, group, start, data))


def read_whole_row_group(footer: Any, group: int, start: int, data: bytes | bytearray | memoryview) -> pa.Table:
    """As `read_row_group`, with all columns as the file has them."""
    try:
        file = pq.ParquetFile(pa.PythonFile(_Window(start, data), mode="r"), metadata=footer, pre_buffer=False)
        return file.read_row_group(group, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"row group {group} cannot be read: {error}") from error


def read_parquet(data: Any) -> pa.Table:
    """All rows of a file at hand, with the columns of RAW_COLUMNS. Raises Corrupt."""
    try:
        return RAW_COLUMNS.conform(pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False))
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"no readable Parquet file: {error}") from error


@dataclass(slots=True)
class _Window:
    """A file of which only some bytes are here."""

    start: int
    data: bytes | bytearray | memoryview
    position: int = 0
    closed: bool = False

    def read(self, size: int = -1) -> memoryview:
        begin = self.position - self.start
        end = begin + size
        if begin < 0 or size < 0 or end > len(self.data):
            raise OSError(f"bytes {self.position} to {self.position + size} are not at hand")
        self.position += size
        return memoryview(self.data)[begin:end]

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.start + len(self.data)}[whence]
        self.position = base + position
        return self.position

    def tell(self) -> int:
        return self.position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def _chunk_start(chunk: Any) -> int:
    first: int = chunk.data_page_offset
    # Some writers write 0 for an absent dictionary.
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        first = min(first, chunk.dictionary_page_offset)
    return first


def _starts(column: pa.Array) -> Numbers:
    """The offsets of a column of lists or bytes, one more than it has rows; a null may still span some bytes."""
    starts = column.buffers()[1]
    if starts is None:
        return np.zeros(len(column) + 1, dtype=np.int64)
    return np.frombuffer(starts, dtype=np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)

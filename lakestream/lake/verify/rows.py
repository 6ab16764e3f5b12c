"""Reads a table's data files for the checker: every row once, its hash into a ledger, the bounds compared.

Memory does not depend on the files: a large row group of another engine is read in parts, of a row at least.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakestream.data.tables.files.arrow_view import row_hashes
from lakestream.data.tables.files.column_ids import OFFSET_ID, PARTITION_ID, TIMESTAMP_ID
from lakestream.data.tables.files.stream_columns import RAW_COLUMNS
from lakestream.data.tables.reading.footers import FileFooter, read_footer, read_group
from lakestream.data.tables.reading.position_deletes import parse_deletes, within
from lakestream.data.tables.stores.lru import Lru
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, Missing
from lakestream.lake.sql.files import RangedFile, ReadFaults
from lakestream.lake.verify.ledger import Ledger, Numbers
from lakestream.lake.verify.plan import PlannedFile
from lakestream.lake.verify.report import Finding, FindingKind

DELETE_BYTES = 32 << 20
WHOLE_BYTES = 32 << 20
"""A row group of more raw bytes is read in parts. Ours have 8 MB; engines that do not obey the table's property make
row groups of a million rows, whatever these weigh."""
PART_BYTES = 8 << 20
PAGE_BYTES = 1 << 20
_FORMATS = {PARTITION_ID: "<i", OFFSET_ID: "<q", TIMESTAMP_ID: "<q"}

Extremes = dict[int, tuple[int, int]]
"""Least and greatest value of the columns whose bounds matter, by field id."""


@dataclass(frozen=True, slots=True)
class ReadFile:
    """The result of reading a data file."""

    rows: int
    live: int
    extremes: Extremes


class RowReader:
    """Reads data files, with the rows that position deletes took left out."""

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self._deletes: Lru[str, dict[str, Numbers]] = Lru(DELETE_BYTES)

    def read(
        self, path: str, size: int, deletes: Sequence[str], take: Callable[[pa.RecordBatch], None]
    ) -> ReadFile:
        """Passes the live rows of each row group to `take`. Raises Missing or Corrupt."""
        footer = read_footer(self._store, path, size)
        gone = [places for one in deletes if (places := self._deleted(one).get(path)) is not None]
        live, extremes = 0, Extremes()
        at = 0
        for rows in self._batches(footer, size):
            _widen(extremes, rows)
            dead = within(gone, at, rows.num_rows)
            at += rows.num_rows
            if len(dead):
                keep = np.ones(rows.num_rows, dtype=bool)
                keep[dead] = False
                rows = rows.filter(pa.array(keep))
            live += rows.num_rows
            if rows.num_rows:
                take(rows)
        return ReadFile(footer.metadata.num_rows, live, extremes)

    def _batches(self, footer: FileFooter, size: int) -> Iterator[pa.RecordBatch]:
        """All rows of a file, in its order: row groups one by one, large ones in parts."""
        for group in range(footer.metadata.num_row_groups):
            held = footer.metadata.row_group(group)
            if held.total_byte_size <= WHOLE_BYTES:
                parts: Iterable[pa.RecordBatch] = [read_group(self._store, footer, group)]
            else:
                parts = self._parts(footer, group, size, max(held.num_rows * PART_BYTES // held.total_byte_size, 1))
            yield from (rows for rows in parts if rows.num_rows)

    def _parts(self, footer: FileFooter, group: int, size: int, rows: int) -> Iterator[pa.RecordBatch]:
        faults = ReadFaults()
        source = pa.PythonFile(RangedFile(self._store, footer.path, size, faults), mode="r")
        try:
            # With a buffer the pages of a column come one after the other, and not the whole column at once.
            file = pq.ParquetFile(source, metadata=footer.metadata, pre_buffer=False, buffer_size=PAGE_BYTES)
            for part in file.iter_batches(rows, row_groups=[group], use_threads=False):
                yield from RAW_COLUMNS.conform(pa.Table.from_batches([part])).to_batches()
        except (pa.ArrowException, OSError) as error:
            raise faults.first or Corrupt(f"row group {group} of {footer.path} cannot be read: {error}") from error

    def _deleted(self, path: str) -> dict[str, Numbers]:
        found = self._deletes.get(path)
        if found is None:
            found = parse_deletes(self._store.get(path))
            self._deletes.put(path, found, sum(each.nbytes for each in found.values()))
        return found


def row_at(reader: RowReader, file: PlannedFile, partition: int, offset: int) -> pa.Table:
    """One row of a data file, or none. Raises Missing or Corrupt."""
    found: list[pa.RecordBatch] = []

    def take(rows: pa.RecordBatch) -> None:
        mask = (rows.column(0).to_numpy() == partition) & (rows.column(1).to_numpy() == offset)
        if mask.any():
            found.append(rows.filter(pa.array(mask)))

    reader.read(file.path, file.size, file.deletes, take)
    return pa.Table.from_batches(found, schema=RAW_COLUMNS.schema)


def into(ledger: Ledger, tag: int) -> Callable[[pa.RecordBatch], None]:
    """Puts rows into a ledger with their hashes."""

    def take(rows: pa.RecordBatch) -> None:
        partitions = rows.column(0).to_numpy().astype(np.int64)
        ledger.add(partitions, rows.column(1).to_numpy(), row_hashes(rows), tag)

    return take


Take = Callable[[pa.RecordBatch], None]


def check_file(
    topic: str, planned: PlannedFile, sizes: Mapping[str, int], reader: RowReader, take: Take
) -> tuple[int, list[Finding]]:
    """Reads one file of a table; returns its live rows and its faults."""

    def finding(kind: FindingKind, text: str, rows: int = 0) -> Finding:
        return Finding(kind=kind, text=text, topic=topic, place=planned.path, rows=rows)

    size = sizes.get(planned.path, planned.size)
    try:
        found = reader.read(planned.path, size, planned.deletes, take)
    except Missing as error:
        text = f"the table refers to a file that is not there: {error}"
        return 0, [finding(FindingKind.FILE_MISSING, text, planned.rows)]
    except Corrupt as error:
        return 0, [finding(FindingKind.FILE_UNREADABLE, f"a file of the table cannot be read: {error}", planned.rows)]
    findings = []
    if size != planned.size:
        text = f"the file has {size} bytes, its manifest says {planned.size}: the file was written to"
        findings.append(finding(FindingKind.FILE_CHANGED, text))
    if found.rows != planned.rows:
        text = f"the file has {found.rows} rows, its manifest says {planned.rows}"
        findings.append(finding(FindingKind.FILE_CHANGED, text, abs(found.rows - planned.rows)))
    findings += [finding(FindingKind.BOUNDS, text) for text in wrong_bounds(planned, found.extremes)]
    return found.live, findings


def wrong_bounds(planned: PlannedFile, extremes: Extremes) -> list[str]:
    """Bounds that engines would trust and that rows of the file lie outside of."""
    wrong = []
    for number, (least, greatest) in extremes.items():
        lower, upper = planned.lower.get(number), planned.upper.get(number)
        try:
            low = least if lower is None else struct.unpack(_FORMATS[number], lower)[0]
            high = greatest if upper is None else struct.unpack(_FORMATS[number], upper)[0]
        except struct.error:
            wrong.append(f"the bounds of {RAW_COLUMNS.names[number]} in the manifest are no bounds")
            continue
        if least < low or greatest > high:
            name = RAW_COLUMNS.names[number]
            wrong.append(f"{name} goes from {least} to {greatest} in the file, from {low} to {high} in its manifest")
    return wrong


def _widen(extremes: Extremes, rows: pa.RecordBatch) -> None:
    for number in _FORMATS:
        column = rows.column(RAW_COLUMNS.names[number])
        found = pc.min_max(column.view(pa.int64()) if number == TIMESTAMP_ID else column)
        if found["min"].is_valid:
            least, greatest = found["min"].as_py(), found["max"].as_py()
            before = extremes.get(number, (least, greatest))
            extremes[number] = min(before[0], least), max(before[1], greatest)

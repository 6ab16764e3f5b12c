"""Decodes slices of the WAL: Kafka record batches to Arrow record batches.

Nothing here loops over records: one compiled walk measures, a second one fills Arrow's buffers. Only the CRC and the
decompression are done batch by batch.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fastcrc import crc32

from lakestream.data.tables.files.file_stats import Digest, Digests, add_digests
from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA
from lakestream.errors import Corrupt, Rejected
from lakestream.interfaces import Buffer
from lakestream.model.batches.compression import decompress
from lakestream.model.batches.header import (
    CHECKED_POSITION,
    CODEC_MASK,
    CONTROL,
    CRC_POSITION,
    HEADER_SIZE,
    LOG_APPEND_TIME,
)
from lakestream.model.batches.records import MAX_DECODED_BYTES
from lakestream.model.kernels import table_columns, table_rows
from lakestream.model.kernels.pointers import address_of
from lakestream.model.kernels.table_rows import (
    B_ATTRIBUTES,
    B_BASE_OFFSET,
    B_BASE_TIMESTAMP,
    B_COUNT,
    B_LAST_DELTA,
    B_LENGTH,
    B_MAX_TIMESTAMP,
    B_POSITION,
    S_ADDRESS,
    S_ATTRIBUTES,
    S_BASE_OFFSET,
    S_BASE_TIMESTAMP,
    S_COUNT,
    S_END,
    S_FIRST,
    S_LENGTH,
    S_MAX_TIMESTAMP,
    S_PARTITION,
)

PIECE_BYTES = 32 << 20
"""Rows are made for about so many bytes of records at a time (T20); a larger batch is a piece by itself."""
ARROW_BYTES_MAX = 2**31 - 1
"""What a column of a piece can hold: its offsets are int32."""
STAMPED = -1
END_OF_LOG = 2**63 - 1

Lines = npt.NDArray[np.int64]


class WalSlice(NamedTuple):
    """Batches of one partition in ascending order, out of the WAL.

    With `base_offset` STAMPED they carry their own offsets (merged objects); else they count on from it, whatever they
    carry (tick objects). Records outside [first, end) are left out. `append_ms` is the append time of batches that a
    broker stamped; None if the batches have it themselves.
    """

    partition: int
    base_offset: int
    data: Buffer
    first: int = 0
    end: int = END_OF_LOG
    append_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows with the schema ARROW_SCHEMA, and the digests of the batches that they came from."""

    rows: pa.RecordBatch
    digests: Digests


def decode_slices(slices: Iterable[WalSlice | tuple[int, int, Buffer]]) -> pa.Table:
    """All rows at once. Raises Corrupt."""
    return pa.Table.from_batches([piece.rows for piece in decode_pieces(slices)], schema=ARROW_SCHEMA)


def decode_pieces(
    slices: Iterable[WalSlice | tuple[int, int, Buffer]],
    *,
    piece_bytes: int = PIECE_BYTES,
    max_batch_bytes: int = MAX_DECODED_BYTES,
) -> Iterator[Decoded]:
    """The rows in order of partition and offset, in pieces of about `piece_bytes`. Control batches give none.

    Raises Corrupt if a batch is not what was written.
    """
    opened = [_open(WalSlice(*one)) for one in slices]
    opened.sort(key=lambda one: (one.slice.partition, one.first_offset))
    gathered: list[_Sections] = []
    size = 0
    for one in opened:
        for sections in one.sections(max_batch_bytes):
            while len(sections.lines):
                taken = _fitting(sections.lines, piece_bytes - size, at_least_one=not gathered)
                if taken:
                    gathered.append(_Sections(sections.lines[:taken], sections.owner))
                    size += int(sections.lines[:taken, S_LENGTH].sum())
                    sections = _Sections(sections.lines[taken:], sections.owner)
                if len(sections.lines):
                    yield from _rows(gathered)
                    gathered, size = [], 0
    yield from _rows(gathered)


@dataclass(frozen=True, slots=True)
class _Sections:
    """Lines for `measure` and `fill`, and the buffer that they point into."""

    lines: Lines
    owner: object


@dataclass(frozen=True, slots=True)
class _Opened:
    """A slice whose batches were found and checked."""

    slice: WalSlice
    lines: Lines
    bases: npt.NDArray[np.int64]

    @property
    def first_offset(self) -> int:
        return int(self.bases[0]) if len(self.bases) else 0

    def sections(self, max_batch_bytes: int) -> Iterator[_Sections]:
        """The sections to walk: all at once if nothing is compressed, else batch by batch, which needs less memory."""
        keep = (self.lines[:, B_ATTRIBUTES] & CONTROL == 0) & (self.bases < self.slice.end)
        keep &= self.bases + self.lines[:, B_LAST_DELTA] >= self.slice.first
        lines, bases = self.lines[keep], self.bases[keep]
        sections = np.empty((len(lines), table_rows.SECTION_FIELDS), dtype=np.int64)
        sections[:, S_ADDRESS] = address_of(self.slice.data) + lines[:, B_POSITION] + HEADER_SIZE if len(lines) else 0
        sections[:, S_LENGTH] = lines[:, B_LENGTH] - HEADER_SIZE
        sections[:, S_COUNT] = lines[:, B_COUNT]
        sections[:, S_BASE_OFFSET] = bases
        sections[:, S_BASE_TIMESTAMP] = lines[:, B_BASE_TIMESTAMP]
        sections[:, S_MAX_TIMESTAMP] = lines[:, B_MAX_TIMESTAMP]
        sections[:, S_ATTRIBUTES] = lines[:, B_ATTRIBUTES]
        sections[:, S_PARTITION] = self.slice.partition
        sections[:, S_FIRST] = self.slice.first
        sections[:, S_END] = self.slice.end
        if not (lines[:, B_ATTRIBUTES] & CODEC_MASK).any():
            yield _Sections(sections, self.slice.data)
            return
        view = memoryview(self.slice.data)
        for index, line in enumerate(lines.tolist()):
            start = line[B_POSITION] + HEADER_SIZE
            packed = view[start : line[B_POSITION] + line[B_LENGTH]]
            try:
                body = decompress(line[B_ATTRIBUTES] & CODEC_MASK, packed, max_batch_bytes)
            except Rejected as error:
                raise Corrupt(f"partition {self.slice.partition}, offset {bases[index]}: {error}") from error
            section = sections[index : index + 1]
            section[0, S_ADDRESS] = address_of(body)
            section[0, S_LENGTH] = len(body)
            yield _Sections(section, body)


def _open(one: WalSlice) -> _Opened:
    view = memoryview(one.data)
    address = address_of(one.data) if len(view) else 0
    count = table_rows.count_batches(address, len(view))
    if count < 0:
        raise Corrupt(f"partition {one.partition}, offset {one.base_offset}: the slice is no row of batches")
    lines = np.empty((count, table_rows.BATCH_FIELDS), dtype=np.int64)
    table_rows.split_batches(address, lines)
    if one.base_offset == STAMPED:
        bases = lines[:, B_BASE_OFFSET].copy()
        if (bases < 0).any() or (np.diff(bases) <= lines[:-1, B_LAST_DELTA]).any():
            raise Corrupt(f"partition {one.partition}: the batches of a slice overlap")
    else:
        counted = np.cumsum(lines[:, B_LAST_DELTA] + 1)
        bases = one.base_offset + counted - lines[:, B_LAST_DELTA] - 1
    crc = crc32.iscsi
    for index, (start, length) in enumerate(lines[:, (B_POSITION, B_LENGTH)].tolist()):
        stored = int.from_bytes(view[start + CRC_POSITION : start + CHECKED_POSITION], "big")
        if stored != crc(view[start + CHECKED_POSITION : start + length]):
            raise Corrupt(f"partition {one.partition}, offset {bases[index]}: the CRC of a batch does not match")
    if one.append_ms is not None:
        lines[lines[:, B_ATTRIBUTES] & LOG_APPEND_TIME != 0, B_MAX_TIMESTAMP] = one.append_ms
    return _Opened(one, lines, bases)


def _fitting(lines: Lines, room: int, *, at_least_one: bool) -> int:
    fitting = int(np.searchsorted(np.cumsum(lines[:, S_LENGTH]), room, side="right"))
    return max(fitting, 1) if at_least_one else fitting


def _rows(gathered: list[_Sections]) -> Iterator[Decoded]:
    """The rows of some sections; yields nothing if there are none."""
    if not gathered:
        return
    lines = np.concatenate([sections.lines for sections in gathered])
    totals = np.zeros(table_rows.MEASURES, dtype=np.int64)
    wrong = table_rows.measure(lines, totals)
    if wrong:
        bad = lines[totals[table_rows.M_SECTION]]
        where = f"partition {bad[S_PARTITION]}, offset {bad[S_BASE_OFFSET]}"
        raise Corrupt(f"{where}: the records of a batch do not add up ({wrong})")
    if totals[: table_rows.M_SECTION].max() > ARROW_BYTES_MAX:
        raise Corrupt("a batch is too large for a column of bytes")
    rows = int(totals[table_rows.M_ROWS])
    if not rows:
        return
    digests = np.empty((len(lines), 2), dtype=np.int64)
    batch = _filled(lines, totals.tolist(), digests)
    yield Decoded(batch, _digests(lines[:, S_PARTITION], digests))


def _digests(partitions: npt.NDArray[np.int64], digests: Lines) -> dict[int, Digest]:
    found = {}
    for partition in np.unique(partitions).tolist():
        chosen = digests[partitions == partition]
        total = table_columns.add_up(np.ascontiguousarray(chosen[:, 1]), 0)
        found[partition] = Digest(int(chosen[:, 0].sum()), int(total) % 2**64)
    return add_digests([found])


class _Bytes:
    """The buffers of a column of bytes that is being written."""

    def __init__(self, rows: int, size: int) -> None:
        self.starts = np.empty(rows + 1, dtype=np.int32)
        self.starts[0] = 0
        self.data = np.empty(size, dtype=np.uint8)
        self.validity = np.zeros(rows // 8 + 1, dtype=np.uint8)
        self.rows = rows

    def place(self, view: table_columns.View, slot: int) -> None:
        view[slot] = self.starts.ctypes.data
        view[slot + table_columns.DATA] = self.data.ctypes.data
        view[slot + table_columns.VALID] = self.validity.ctypes.data

    def array(self, kind: pa.DataType) -> pa.Array:
        buffers = [pa.py_buffer(self.validity), pa.py_buffer(self.starts), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(kind, self.rows, buffers)


def _filled(lines: Lines, totals: list[int], digests: Lines) -> pa.RecordBatch:
    rows, key_bytes, value_bytes, original_bytes, header_count, header_key_bytes, header_value_bytes, _ = totals
    partition = np.empty(rows, dtype=np.int32)
    offset = np.empty(rows, dtype=np.int64)
    timestamp = np.empty(rows, dtype=np.int64)
    known = np.zeros(rows // 8 + 1, dtype=np.uint8)
    flags = np.empty(rows, dtype=np.int32)
    header_starts = np.zeros(rows + 1, dtype=np.int32)
    key, value, original = (_Bytes(rows, size) for size in (key_bytes, value_bytes, original_bytes))
    header_key, header_value = (_Bytes(header_count, size) for size in (header_key_bytes, header_value_bytes))
    view = np.zeros(table_columns.SLOTS, dtype=np.int64)
    view[table_columns.ROWS] = rows
    view[table_columns.PARTITION] = partition.ctypes.data
    view[table_columns.OFFSET] = offset.ctypes.data
    view[table_columns.TIMESTAMP] = timestamp.ctypes.data
    view[table_columns.TIMESTAMP_VALID] = known.ctypes.data
    view[table_columns.FLAGS] = flags.ctypes.data
    view[table_columns.HEADERS] = header_starts.ctypes.data
    key.place(view, table_columns.KEY)
    value.place(view, table_columns.VALUE)
    original.place(view, table_columns.ORIGINAL)
    header_key.place(view, table_columns.HEADER_KEY)
    header_value.place(view, table_columns.HEADER_VALUE)
    table_rows.fill(lines, view, digests)
    kinds = {field.name: field.type for field in ARROW_SCHEMA}
    headers = kinds["stream_headers"]
    header = headers.value_type
    header_columns = [header_key.array(header.field("key").type), header_value.array(header.field("value").type)]
    structs = pa.StructArray.from_arrays(header_columns, fields=list(header))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(partition),
            pa.array(offset),
            pa.Array.from_buffers(kinds["stream_timestamp"], rows, [pa.py_buffer(known), pa.py_buffer(timestamp)]),
            key.array(pa.binary()),
            pa.Array.from_buffers(headers, rows, [None, pa.py_buffer(header_starts)], children=[structs]),
            pa.array(flags),
            original.array(pa.binary()),
            value.array(pa.binary()),
        ],
        schema=ARROW_SCHEMA,
    )

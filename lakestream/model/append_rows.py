"""The body of an `Append` command: a head, then one row for each batch, in the order of their streams.

This is the only description of a row. The appender packs rows (`pack_append`), compiled code writes the rows of many
small batches (`join_batches` in kernels/produce_loops.py), and the fold and `lakestream metadata` read them.

The rows of kinds 10 and 75 have no attributes, and their bytes never change. A kind of append whose batches have
attributes, such as flags of a transaction, gets a layout with one more field at the end; everything below is made from
FIELDS. numba keeps compiled code until its own file changes: change produce_loops.py together with the layout.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

HEAD = struct.Struct("<QII")
"""The tick, the size of its object, and the number of rows."""
FIELDS = (
    ("stream", "I"),
    ("records", "I"),
    ("position", "I"),  # of the batch in the object
    ("length", "I"),
    ("max_timestamp", "q"),
    ("producer_id", "q"),
    ("producer_epoch", "h"),
    ("first_sequence", "i"),
)
"""The fields of a row and their types, as `struct` names them."""
ROW = struct.Struct("<" + "".join(kind for _, kind in FIELDS))
ROW_BYTES = ROW.size
(
    STREAM_AT, RECORDS_AT, POSITION_AT, LENGTH_AT, MAX_TIMESTAMP_AT, PRODUCER_ID_AT, PRODUCER_EPOCH_AT,
    FIRST_SEQUENCE_AT,
) = (struct.calcsize("<" + "".join(kind for _, kind in FIELDS[:index])) for index in range(len(FIELDS)))  # fmt: skip
"""Where each field begins in a row."""

AppendRow = tuple[int, int, int, int, int, int, int, int]
"""The fields of a row, in their order."""
BatchRow = tuple[int, int, int, int, int, int, int]
"""The fields of a row but the position, which a batch gets when its object is joined."""

_TIMESTAMP = struct.Struct("<q")


class AppendBody(NamedTuple):
    """The parts of an `Append`; `rows` are the packed rows."""

    tick: int
    size: int
    batches: int
    rows: memoryview


class BatchPlace(NamedTuple):
    """Where one batch lies in its object."""

    stream: int
    position: int
    length: int


def pack_append(tick: int, size: int, rows: Sequence[AppendRow]) -> bytes:
    """The body of an `Append` command."""
    pack = ROW.pack
    return HEAD.pack(tick, size, len(rows)) + b"".join([pack(*row) for row in rows])


def pack_packed_rows(tick: int, size: int, rows: bytearray) -> bytes:
    """The body of an `Append` command whose rows are packed."""
    return HEAD.pack(tick, size, len(rows) // ROW_BYTES) + rows


def read_append(payload: memoryview) -> AppendBody | None:
    """The parts of an `Append`; None if its rows do not agree with its head."""
    if len(payload) < HEAD.size:
        return None
    tick, size, count = HEAD.unpack_from(payload)
    rows = payload[HEAD.size :]
    return AppendBody(tick, size, count, rows) if len(rows) == count * ROW_BYTES else None


def appended_streams(payload: bytes | memoryview) -> set[int]:
    """The streams that an `Append` command has batches of."""
    return {row[0] for row in ROW.iter_unpack(memoryview(payload)[HEAD.size :])}


def batch_places(payload: bytes) -> Iterator[BatchPlace]:
    """Where the batches of an `Append` lie in its object."""
    for stream, _, position, length, *_ in ROW.iter_unpack(memoryview(payload)[HEAD.size :]):
        yield BatchPlace(stream, position, length)


def with_max_timestamps(payload: memoryview, times: Mapping[int, int]) -> memoryview:
    """The `Append` with other max timestamps, given by stream. A malformed body is returned as it is."""
    if read_append(payload) is None:
        return payload
    packed = bytearray(payload)
    for index, row in enumerate(ROW.iter_unpack(payload[HEAD.size :])):
        if (time_ms := times.get(row[0])) is not None:
            _TIMESTAMP.pack_into(packed, HEAD.size + index * ROW_BYTES + MAX_TIMESTAMP_AT, time_ms)
    return memoryview(packed)

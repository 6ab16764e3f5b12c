"""Records in and out of batches, for small amounts: tools, look-ups by timestamp, synthetic batches, tests.

Encoding is plain Python; decoding runs on the compiled kernels, and `decode_columns` is also meant for bulk.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lakestream.errors import Corrupt, Rejected
from lakestream.model.batches import header
from lakestream.model.batches.compression import compress, decompress
from lakestream.model.kernels import record_loops
from lakestream.model.kernels.pointers import address_of

MAX_DECODED_BYTES = 256 << 20
"""Positions are int32: no limit may be larger than those reach."""
SMALLEST_RECORD = 7
_EARLIEST = -(1 << 63)

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as a client sees it. Timestamps are milliseconds, -1 is none."""

    offset: int = 0
    timestamp: int = header.NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The records of a batch in columns. `fields` has kernels.FIELDS rows: see there; positions are in `body`."""

    base_offset: int
    attributes: int
    body: bytes | memoryview
    timestamps: npt.NDArray[np.int64]
    fields: npt.NDArray[np.int32]


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: int = header.Codec.NONE,
    producer_id: int = header.NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    log_append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """A batch of at least one record. Offsets are as the records say, at or above `base_offset` and growing."""
    base_timestamp = records[0].timestamp
    body = b"".join(_encode_record(record, base_offset, base_timestamp) for record in records)
    attributes = (
        codec
        | (header.LOG_APPEND_TIME if log_append_time else 0)
        | (header.TRANSACTIONAL if transactional else 0)
        | (header.CONTROL if control else 0)
    )
    body = compress(codec, body)
    encoded = bytearray(header.HEADER_SIZE) + body
    header.HEADER.pack_into(
        encoded, 0, base_offset, len(encoded) - header.PREFIX_SIZE, header.LEADER_EPOCH, header.MAGIC, 0, attributes,
        records[-1].offset - base_offset, base_timestamp, max(record.timestamp for record in records),
        producer_id, producer_epoch, base_sequence, len(records),
    )  # fmt: skip
    crc = header.checksum(memoryview(encoded), 0, len(encoded))
    struct.pack_into(">I", encoded, header.CRC_POSITION, crc)
    return bytes(encoded)


def decode_batch(view: bytes | memoryview, max_bytes: int = MAX_DECODED_BYTES) -> list[Record]:
    """The records of one stored batch. Raises Corrupt."""
    columns = decode_columns(view, max_bytes)
    body = memoryview(columns.body)
    return [
        Record(
            offset=columns.base_offset + delta,
            timestamp=timestamp,
            key=_bytes(body, key, key_size),
            value=_bytes(body, value, value_size),
            headers=_decode_headers(body[headers : headers + headers_size], header_count),
        )
        for timestamp, (delta, key, key_size, value, value_size, headers, header_count, headers_size) in zip(
            columns.timestamps.tolist(), columns.fields.T.tolist(), strict=True
        )
    ]


def decode_columns(view: bytes | memoryview, max_bytes: int = MAX_DECODED_BYTES) -> Columns:
    """The records of one stored batch in columns. An uncompressed batch is not copied. Raises Corrupt."""
    section = _open(view, max_bytes)
    timestamps = np.empty(section.count, dtype=np.int64)
    fields = np.empty((record_loops.FIELDS, section.count), dtype=np.int32)
    wrong = record_loops.decode_records(
        address_of(section.body),
        len(section.body),
        section.count,
        section.base_timestamp,
        address_of(timestamps.data),
        address_of(fields.data.cast("B")) if section.count else 0,
    )
    if wrong:
        raise Corrupt(f"the records of a batch do not add up ({wrong})")
    if section.attributes & header.LOG_APPEND_TIME:
        timestamps.fill(section.max_timestamp)
    return Columns(
        base_offset=section.base_offset,
        attributes=section.attributes,
        body=section.body,
        timestamps=timestamps,
        fields=fields,
    )


def find_timestamp(
    view: bytes | memoryview, target: int, floor: int = 0, max_bytes: int = MAX_DECODED_BYTES
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record of the batch at or after `target`, and not below the offset `floor`."""
    section = _open(view, max_bytes)
    if section.max_timestamp < target:
        return None
    return _first(section, _EARLIEST if section.attributes & header.LOG_APPEND_TIME else target, floor)


def find_max_timestamp(
    view: bytes | memoryview, floor: int = 0, max_bytes: int = MAX_DECODED_BYTES
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record of the batch with the greatest timestamp, `floor` as above."""
    section = _open(view, max_bytes)
    if section.attributes & header.LOG_APPEND_TIME:
        return _first(section, _EARLIEST, floor)
    delta, timestamp = record_loops.find_max_timestamp(
        address_of(section.body), len(section.body), section.count, section.base_timestamp, floor - section.base_offset
    )
    return _found(section, delta, timestamp)


def next_offset(batches: bytes | bytearray | memoryview) -> int:
    """The offset behind some whole batches."""
    last = record_loops.last_batch(address_of(batches), len(batches))
    head = header.HEADER.unpack_from(batches, last)
    return int(head[0]) + int(head[6]) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    base_offset: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    count: int
    body: bytes | memoryview


def _open(view: bytes | memoryview, max_bytes: int) -> _Section:
    """Header and uncompressed records of one batch, with its CRC checked; the records themselves are not yet."""
    view = memoryview(view)
    if len(view) < header.HEADER_SIZE:
        raise Corrupt(f"{len(view)} bytes cannot hold a batch")
    (
        base_offset, length, _, magic, crc, attributes, _, base_timestamp, max_timestamp, _, _, _, count,
    ) = header.HEADER.unpack_from(view)  # fmt: skip
    if magic != header.MAGIC or length + header.PREFIX_SIZE != len(view):
        raise Corrupt(f"no batch: magic {magic}, length {length} of {len(view) - header.PREFIX_SIZE}")
    if crc != header.checksum(view, 0, len(view)):
        raise Corrupt("the CRC of a batch does not match")
    try:
        body = decompress(attributes & header.CODEC_MASK, view[header.HEADER_SIZE :], max_bytes)
    except Rejected as error:
        raise Corrupt(str(error)) from error
    # Before anything is allocated for so many records.
    if not 0 <= count <= len(body) // SMALLEST_RECORD:
        raise Corrupt(f"{count} records in {len(body)} bytes")
    return _Section(
        base_offset=base_offset,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        count=count,
        body=body,
    )


def _first(section: _Section, target: int, floor: int) -> tuple[int, int] | None:
    delta, timestamp = record_loops.find_timestamp(
        address_of(section.body), len(section.body), section.count, section.base_timestamp, target,
        floor - section.base_offset,
    )  # fmt: skip
    return _found(section, delta, timestamp)


def _found(section: _Section, delta: int, timestamp: int) -> tuple[int, int] | None:
    if delta < -1:
        raise Corrupt(f"the records of a batch do not add up ({delta + 1})")
    if delta < 0:
        return None
    stamped = section.attributes & header.LOG_APPEND_TIME
    return section.base_offset + delta, section.max_timestamp if stamped else timestamp


def _encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    parts = [
        b"\x00",
        encode_varint(record.timestamp - base_timestamp),
        encode_varint(record.offset - base_offset),
        _encode_bytes(record.key),
        _encode_bytes(record.value),
        encode_varint(len(record.headers)),
    ]
    for key, value in record.headers:
        parts += (_encode_bytes(key.encode()), _encode_bytes(value))
    encoded = b"".join(parts)
    return encode_varint(len(encoded)) + encoded


def _encode_bytes(value: bytes | None) -> bytes:
    return b"\x01" if value is None else encode_varint(len(value)) + value


def encode_varint(value: int) -> bytes:
    """The zigzag varint of a number of up to 64 bits."""
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _decode_headers(view: memoryview, count: int) -> tuple[Header, ...]:
    """The headers of a record whose lengths the kernel has checked."""
    if not count:
        return ()
    _, position = _decode_varint(view, 0)
    headers = []
    for _ in range(count):
        size, position = _decode_varint(view, position)
        key = bytes(view[position : position + size]).decode(errors="replace")
        size, position = _decode_varint(view, position + size)
        headers.append((key, _bytes(view, position, size)))
        position += max(size, 0)
    return tuple(headers)


def _decode_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while view[position] & 0x80:
        value |= (view[position] & 0x7F) << shift
        shift += 7
        position += 1
    value |= view[position] << shift
    return (value >> 1) ^ -(value & 1), position + 1


def _bytes(view: memoryview, start: int, size: int) -> bytes | None:
    return None if size < 0 else bytes(view[start : start + size])

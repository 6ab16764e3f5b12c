"""Records as bytes, headers that are no text included: plain batches in, plain records out, and a plain hash of them.

Written for clarity beside the compiled code that it judges; nothing here is shared with it but Kafka's numbers.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lakestream.model.batches import header
from lakestream.model.batches.compression import compress, decompress
from lakestream.model.batches.records import encode_varint

RawHeader = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecord:
    """One record, and whether its timestamp is the broker's."""

    offset: int
    timestamp: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[RawHeader, ...] = ()
    stamped: bool = False


def encode(
    records: Sequence[RawRecord],
    *,
    codec: int = 0,
    base_offset: int = 0,
    control: bool = False,
    producer: tuple[int, int, int] = (7, 3, 0),
) -> bytes:
    """A batch. All records are stamped or none; if they are, they have one timestamp."""
    stamped = records[0].stamped
    base_timestamp = 12_345 if stamped else 0
    body = bytearray()
    for record in records:
        delta = 77 if stamped else record.timestamp - base_timestamp
        parts = [b"\0", encode_varint(delta), encode_varint(record.offset - base_offset)]
        parts += [_sized(record.key), _sized(record.value), encode_varint(len(record.headers))]
        for key, value in record.headers:
            parts += [_sized(key), _sized(value)]
        encoded = b"".join(parts)
        body += encode_varint(len(encoded)) + encoded
    packed = compress(codec, bytes(body))
    attributes = codec | (header.LOG_APPEND_TIME if stamped else 0) | (header.CONTROL if control else 0)
    whole = bytearray(header.HEADER_SIZE) + packed
    header.HEADER.pack_into(
        whole, 0, base_offset, len(whole) - 12, 0, 2, 0, attributes, records[-1].offset - base_offset, base_timestamp,
        records[0].timestamp if stamped else max(-1, *(record.timestamp for record in records)), *producer,
        len(records),
    )  # fmt: skip
    struct.pack_into(">I", whole, header.CRC_POSITION, header.checksum(memoryview(whole), 0, len(whole)))
    return bytes(whole)


def read(batches: Iterable[memoryview | bytes]) -> tuple[list[RawRecord], list[tuple[int, int]]]:
    """The records of rebuilt batches, control records left out, and the offsets that each batch covers."""
    records: list[RawRecord] = []
    covered: list[tuple[int, int]] = []
    for view in batches:
        data = bytes(view)
        base, length, epoch, magic, crc, attributes, last, base_timestamp, greatest, *producer, count = (
            header.HEADER.unpack_from(data)
        )
        assert (length, epoch, magic, producer) == (len(data) - 12, 0, 2, [-1, -1, -1])
        assert crc == header.checksum(memoryview(data), 0, len(data))
        covered.append((base, base + last))
        body = bytes(decompress(attributes & header.CODEC_MASK, data[header.HEADER_SIZE :], 1 << 30))
        stamped = bool(attributes & header.LOG_APPEND_TIME)
        found = list(_walk(body, count, base, base_timestamp, greatest if stamped else None))
        assert found[-1].offset == base + last
        assert greatest == (greatest if stamped else max(-1, *(record.timestamp for record in found)))
        if attributes & header.CONTROL:
            [marker] = found
            assert (marker.key, marker.value) == (b"\0\0\0\1", b"\0\0\0\0\0\0")
        else:
            assert count == last + 1
            records += found
    return records, covered


def digest(records: Iterable[RawRecord]) -> int:
    """The sum of the records' hashes, as docs/formats/table-file.md has them."""
    return sum(map(_hash_record, records)) % 2**64


def _walk(body: bytes, count: int, base: int, base_timestamp: int, stamp: int | None) -> Iterable[RawRecord]:
    position = 0
    for _ in range(count):
        size, position = _varint(body, position)
        end = position + size
        delta, position = _varint(body, position + 1)
        offset, position = _varint(body, position)
        key, position = _blob(body, position)
        value, position = _blob(body, position)
        header_count, position = _varint(body, position)
        headers = []
        for _ in range(header_count):
            name, position = _blob(body, position)
            content, position = _blob(body, position)
            assert name is not None
            headers.append((name, content))
        assert position == end
        yield RawRecord(
            offset=base + offset,
            timestamp=base_timestamp + delta if stamp is None else stamp,
            key=key,
            value=value,
            headers=tuple(headers),
            stamped=stamp is not None,
        )
    assert position == len(body)


def _sized(value: bytes | None) -> bytes:
    return b"\x01" if value is None else encode_varint(len(value)) + value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position


def _blob(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = _varint(data, position)
    return (None, position) if size < 0 else (data[position : position + size], position + size)


_MASK = 2**64 - 1
_K0, _K1, _K2, _K3 = -0x5F3B9A8D2C71E04B & _MASK, 0x2D358DCCAA6C78A5, -0x7452B6F4A09D3C1F & _MASK, 0x4B33A62ED433D4A3
_NULL = 0x1F67B3B7A4A44073


def _mix(left: int, right: int) -> int:
    product = (left & _MASK) * (right & _MASK)
    return (product >> 64) ^ (product & _MASK)


def _hash_bytes(data: bytes | None, seed: int) -> int:
    if data is None:
        return _mix(seed ^ _NULL, _K3)
    state = _mix(seed ^ _K0, len(data) ^ _K1)
    while len(data) > 16:
        low, high = struct.unpack_from("<QQ", data)
        state, data = _mix(low ^ _K1, high ^ state), data[16:]
    low, high = int.from_bytes(data, "little"), 0
    if len(data) >= 8:
        low, high = int.from_bytes(data[:8], "little"), int.from_bytes(data[-8:], "little")
    return _mix(low ^ _K2, high ^ state)


def _hash_record(record: RawRecord) -> int:
    headers = _K3
    for key, value in record.headers:
        headers = _hash_bytes(value, _hash_bytes(key, headers))
    headers ^= len(record.headers)
    state = _mix((record.offset & _MASK) ^ _K0, (record.timestamp & _MASK) ^ _K2)
    return _mix(_hash_bytes(record.value, _hash_bytes(record.key, state)) ^ _K1, headers ^ _K2)

"""Any records round-trip; any mutation of a batch is judged alike by the kernel and by a plain reference walker."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.errors import LakestreamError, Rejected
from lakestream.model.batches import header
from lakestream.model.batches.check import check_batch
from lakestream.model.batches.compression import compress, decompress
from lakestream.model.batches.header import Codec
from lakestream.model.batches.records import Record, decode_batch, encode_batch
from lakestream.model.kernels.pointers import address_of

LIMIT = 1 << 16

blobs = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=10), blobs), max_size=4).map(tuple)
timestamps = st.integers(-1, 2**62)
records = st.lists(
    st.builds(Record, timestamp=timestamps, key=blobs, value=blobs, headers=headers), min_size=1, max_size=30
).map(lambda items: [with_offset(record, offset) for offset, record in enumerate(items)])


def with_offset(record: Record, offset: int) -> Record:
    return Record(offset=offset, timestamp=record.timestamp, key=record.key, value=record.value, headers=record.headers)


@settings(max_examples=300, deadline=None)
@given(records, st.sampled_from(Codec), st.integers(0, 2**62))
def test_any_records_round_trip_and_pass_the_check(items: list[Record], codec: Codec, base_offset: int) -> None:
    data = bytearray(encode_batch(items, codec=codec))
    info = check_batch(memoryview(data), 0, len(data), address_of(data), 1 << 20)
    assert (info.count, info.max_timestamp) == (len(items), max(item.timestamp for item in items))
    assert decode_batch(memoryview(data)) == items
    header.stamp(data, 0, base_offset)
    assert decode_batch(memoryview(data)) == [with_offset(item, base_offset + item.offset) for item in items]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Rejected):
        check_batch(memoryview(data), 0, len(data), address_of(data), LIMIT)
    with pytest.raises(LakestreamError):
        decode_batch(data)


@pytest.mark.parametrize("codec", list(Codec))
def test_mutations_are_judged_as_a_plain_walker_judges_them(codec: Codec) -> None:
    rng = random.Random(codec)
    accepted = 0
    for _ in range(2000):
        data = mutated(rng, codec)
        expected = reference(bytes(data))
        try:
            info = check_batch(memoryview(data), 0, len(data), address_of(data), LIMIT)
        except Rejected:
            assert expected is None, data.hex()
            continue
        accepted += 1
        assert expected == (info.count, info.min_timestamp, info.max_timestamp), data.hex()
        assert len(decode_batch(memoryview(data), LIMIT)) == info.count, "what is appended can be read"
    assert accepted > 20


def mutated(rng: random.Random, codec: Codec) -> bytearray:
    """A valid batch with a few bytes of header or records changed, cut or added, then its length and CRC made right."""
    items = [
        Record(
            offset=offset,
            timestamp=rng.choice([5, 1000, 2**40, -1]),
            key=rng.choice([None, b"", b"key"]),
            value=rng.choice([None, b"", rng.randbytes(rng.randint(1, 200))]),
            headers=rng.choice([(), (("a", b"b"),), (("", None), ("x" * 70, b""))]),
        )
        for offset in range(rng.randint(1, 5))
    ]
    plain = bytearray(encode_batch(items, producer_id=1, producer_epoch=1, base_sequence=1))
    for _ in range(rng.randint(0, 3)):
        position = rng.randrange(61, len(plain)) if rng.random() < 0.8 else rng.randrange(21, 61)
        match rng.randrange(4):
            case 0:
                plain[position] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            case 1:
                plain[position] ^= 1 << rng.randrange(8)
            case 2 if position > 61:
                del plain[position : position + rng.randint(1, 3)]
            case _:
                plain[61:61] = b"" if position < 61 else rng.randbytes(rng.randint(0, 1))
    struct.pack_into(">h", plain, 21, struct.unpack_from(">h", plain, 21)[0] & ~0x07 | codec)
    data = plain[:61] + compress(codec, bytes(plain[61:]))
    if codec and rng.random() < 0.2:
        data[rng.randrange(61, len(data))] ^= 1 << rng.randrange(8)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, header.checksum(memoryview(data), 0, len(data)))
    return data


class Wrong(Exception):
    """What the reference walker raises."""


def reference(data: bytes) -> tuple[int, int, int] | None:
    """Count, least and greatest timestamp of a batch that may be appended; None if it may not."""
    header = struct.unpack_from(">qiibIhiqqqhii", data)
    attributes, last_delta, base_timestamp, _, producer, epoch, sequence, count = header[5:]
    if attributes & 0x68 or count < 1 or last_delta != count - 1 or (producer >= 0 and (epoch < 0 or sequence < 0)):
        return None
    try:
        body = bytes(decompress(attributes & 7, data[61:], LIMIT))
        position, found = 0, []
        for index in range(count):
            timestamp, position = walk(body, position, index)
            if not -(2**63) <= base_timestamp + timestamp < 2**63:
                return None
            found.append(base_timestamp + timestamp)
    except (Wrong, Rejected):
        return None
    if position != len(body):
        return None
    known = [timestamp for timestamp in found if timestamp != -1]
    greatest = max([-1, *found])
    return count, min([greatest, *known]), greatest


def walk(body: bytes, position: int, index: int) -> tuple[int, int]:
    size, position = number(body, position, 32)
    record = body[position : position + size]
    if size < 1 or len(record) != size:
        raise Wrong
    timestamp, at = number(record, 1, 64)
    delta, at = number(record, at, 32)
    if delta != index:
        raise Wrong
    at = skip(record, at, -1)
    at = skip(record, at, -1)
    count, at = number(record, at, 32)
    if count < 0:
        raise Wrong
    for _ in range(count):
        at = skip(record, at, 0)
        at = skip(record, at, -1)
    if at != size:
        raise Wrong
    return timestamp, position + size


def skip(record: bytes, position: int, least: int) -> int:
    size, position = number(record, position, 32)
    if size < least or position + max(size, 0) > len(record):
        raise Wrong
    return position + max(size, 0)


def number(data: bytes, position: int, bits: int) -> tuple[int, int]:
    value = 0
    for index in range(-(-bits // 7)):
        if position + index >= len(data):
            raise Wrong
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >> bits:
                raise Wrong
            return (value >> 1) ^ -(value & 1), position + index + 1
    raise Wrong

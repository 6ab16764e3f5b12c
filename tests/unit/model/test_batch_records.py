"""Records in and out of batches, look-ups by timestamp, and the batch that covers a gap."""

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

from lakestream.errors import Corrupt
from lakestream.model.batches import header
from lakestream.model.batches.header import Codec
from lakestream.model.batches.records import (
    Record,
    decode_batch,
    decode_columns,
    encode_batch,
    find_max_timestamp,
    find_timestamp,
    next_offset,
)
from tests.support.reference_batches import control_batch

RECORDS = [
    Record(offset=10, timestamp=1000, key=b"k", value=b"v" * 300, headers=(("h", b"x"), ("n", None), ("é", b""))),
    Record(offset=11, timestamp=900),
    Record(offset=13, timestamp=3000, key=b"", value=b""),
    Record(offset=20, timestamp=3000, value=b"z"),
]


@pytest.mark.parametrize("codec", list(Codec))
def test_records_come_back_as_they_went_in(codec: Codec) -> None:
    assert decode_batch(encode_batch(RECORDS, base_offset=10, codec=codec)) == RECORDS


@pytest.mark.parametrize("codec", list(Codec))
def test_aiokafka_reads_what_we_encode(codec: Codec) -> None:
    theirs = AiokafkaBatch(bytearray(encode_batch(RECORDS, base_offset=10, codec=codec, producer_id=3)))
    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.next_offset) == (3, 21)
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs] == [
        (r.offset, r.timestamp, r.key, r.value, r.headers) for r in RECORDS
    ]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_kafka_python_reads_what_we_encode(codec: Codec) -> None:
    theirs = KafkaPythonBatch(encode_batch(RECORDS, base_offset=10, codec=codec))
    assert theirs.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs] == [
        (r.offset, r.timestamp, r.key, r.value, r.headers) for r in RECORDS
    ]


def test_columns_point_into_the_body() -> None:
    columns = decode_columns(encode_batch(RECORDS, base_offset=10))
    assert columns.timestamps.tolist() == [1000, 900, 3000, 3000]
    deltas, keys, key_sizes, values, value_sizes, _, header_counts, _ = columns.fields.tolist()
    assert deltas == [0, 1, 3, 10] and header_counts == [3, 0, 0, 0]
    assert key_sizes == [1, -1, 0, -1] and value_sizes == [300, -1, 0, 1]
    assert columns.body[keys[0]] == ord("k") and columns.body[values[3]] == ord("z")


def test_the_control_batch_over_a_gap_holds_one_record_at_its_last_offset_l31() -> None:
    data = control_batch(100, 250, 7777)
    for theirs in (AiokafkaBatch(bytearray(data)), KafkaPythonBatch(data)):
        assert theirs.validate_crc() and theirs.is_control_batch and not theirs.is_transactional
        assert (theirs.base_offset, theirs.next_offset, theirs.producer_id) == (100, 251, -1)
    [record] = decode_batch(data)
    assert (record.offset, record.timestamp) == (250, 7777)
    assert record.key == struct.pack(">hh", 0, 1), "a commit marker"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_timestamp_finds_the_first_record_at_or_after_it(codec: Codec) -> None:
    data = encode_batch(RECORDS, base_offset=10, codec=codec)
    assert find_timestamp(data, 0) == (10, 1000)
    assert find_timestamp(data, 1000) == (10, 1000)
    assert find_timestamp(data, 1001) == (13, 3000)
    assert find_timestamp(data, 3001) is None


def test_the_greatest_timestamp_is_that_of_its_first_record() -> None:
    assert find_max_timestamp(encode_batch(RECORDS, base_offset=10)) == (13, 3000)
    assert find_max_timestamp(encode_batch([Record(offset=5, timestamp=-1)], base_offset=5)) == (5, -1)


def test_records_below_the_floor_do_not_count() -> None:
    times = (300, 100, 200, 200)
    data = encode_batch([Record(offset=10 + i, timestamp=t) for i, t in enumerate(times)], base_offset=10)
    assert find_timestamp(data, 150, 10) == (10, 300)
    assert find_timestamp(data, 150, 11) == find_max_timestamp(data, 11) == (12, 200)
    assert find_timestamp(data, 250, 11) is find_timestamp(data, 0, 14) is find_max_timestamp(data, 14) is None


def test_the_offset_behind_whole_batches_is_found_without_reading_records() -> None:
    first, second = encode_batch(RECORDS, base_offset=10), control_batch(21, 300, 7)
    assert next_offset(memoryview(first)) == 21
    assert next_offset(memoryview(first + first + second)) == 301


def test_under_log_append_time_all_records_have_the_batches_time_l19() -> None:
    data = bytearray(encode_batch(RECORDS, base_offset=10))
    header.restamp_log_append_time(data, 0, len(data), 5000)
    assert find_timestamp(memoryview(data), 4000) == find_max_timestamp(memoryview(data)) == (10, 5000)
    assert find_timestamp(memoryview(data), 4000, 13) == find_max_timestamp(memoryview(data), 13) == (13, 5000)
    assert find_timestamp(memoryview(data), 5001) is None
    assert {record.timestamp for record in decode_batch(memoryview(data))} == {5000}


def damaged(position: int, layout: str, value: int) -> bytes:
    data = bytearray(encode_batch(RECORDS, base_offset=10))
    struct.pack_into(layout, data, position, value)
    struct.pack_into(">I", data, 17, header.checksum(memoryview(data), 0, len(data)))
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(61),
        encode_batch(RECORDS)[:-1],
        encode_batch(RECORDS) + b"x",
        encode_batch(RECORDS)[:-1] + b"x",
        damaged(57, ">i", -1),
        damaged(57, ">i", 5),
        damaged(57, ">i", 2**31 - 1),
        damaged(57, ">i", 3),
        damaged(21, ">h", 1),
        damaged(21, ">h", 7),
        damaged(61, ">b", -1),
    ],
)
def test_damaged_batches_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_batch(data)


def test_offsets_that_do_not_grow_are_corrupt() -> None:
    records = [Record(offset=1), Record(offset=1)]
    with pytest.raises(Corrupt):
        decode_columns(encode_batch(records))


def test_look_ups_in_damaged_records_are_corrupt() -> None:
    data = damaged(62, ">h", -1)
    for look_up in (lambda: find_timestamp(data, 3000), lambda: find_max_timestamp(data)):
        with pytest.raises(Corrupt):
            look_up()


def test_more_than_the_allowed_bytes_are_not_decoded() -> None:
    with pytest.raises(Corrupt):
        decode_batch(encode_batch([Record(value=bytes(5000))], codec=Codec.ZSTD), max_bytes=1000)

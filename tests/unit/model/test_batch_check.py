"""What a producer may send, and every lie that is refused: nothing false is ever appended."""

import struct
from collections.abc import Callable

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from lakestream.errors import Rejected
from lakestream.model.batches import header
from lakestream.model.batches.check import check_batch
from lakestream.model.batches.compression import compress
from lakestream.model.batches.header import BatchInfo, Codec, Fault
from lakestream.model.batches.records import Record, encode_batch
from lakestream.model.kernels.pointers import address_of

LIMIT = 1 << 20
RECORDS = [
    Record(offset=0, timestamp=1000, key=b"k", value=b"v" * 200, headers=(("h", b"x"), ("null", None), ("", b""))),
    Record(offset=1, timestamp=900),
    Record(offset=2, timestamp=3000, key=b"", value=b""),
]


def check(data: bytes | bytearray, limit: int = LIMIT) -> BatchInfo:
    """Checked in the middle of a larger buffer, as on a connection."""
    buffer = bytearray(b"\xff" * 7) + data + b"\xff" * 7
    return check_batch(memoryview(buffer), 7, len(data), address_of(buffer), limit)


def refused(data: bytes | bytearray, limit: int = LIMIT) -> int:
    with pytest.raises(Rejected) as caught:
        check(data, limit)
    return caught.value.reason


def with_crc(data: bytes | bytearray) -> bytearray:
    fixed = bytearray(data)
    struct.pack_into(">i", fixed, 8, len(fixed) - 12)
    struct.pack_into(">I", fixed, 17, header.checksum(memoryview(fixed), 0, len(fixed)))
    return fixed


def patched(position: int, layout: str, value: int) -> bytearray:
    data = bytearray(encode_batch(RECORDS))
    struct.pack_into(layout, data, position, value)
    return with_crc(data)


def with_body(body: bytes, count: int = 1, codec: int = 0) -> bytearray:
    data = bytearray(encode_batch([Record(offset=0, timestamp=0), Record(offset=count - 1, timestamp=0)]))
    struct.pack_into(">i", data, 57, count)
    struct.pack_into(">h", data, 21, codec)
    return with_crc(data[:61] + compress(codec, body))


@pytest.mark.parametrize("codec", list(Codec))
def test_an_honest_batch_passes_and_tells_what_an_append_needs(codec: Codec) -> None:
    data = encode_batch(RECORDS, codec=codec, producer_id=7, producer_epoch=2, base_sequence=40, transactional=True)
    info = check(data)
    assert (info.count, info.length, info.codec) == (3, len(data), codec)
    assert (info.min_timestamp, info.max_timestamp) == (900, 3000)
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (7, 2, 40)
    assert info.transactional and not info.control and not info.log_append_time


# kafka-python brings no codec of its own but gzip.
@pytest.mark.parametrize(
    ("builder", "codec"),
    [
        *((AiokafkaBuilder, codec) for codec in Codec),
        (KafkaPythonBuilder, Codec.NONE),
        (KafkaPythonBuilder, Codec.GZIP),
    ],
)
def test_what_real_clients_build_passes(builder: Callable[..., AiokafkaBuilder], codec: Codec) -> None:
    built = builder(2, int(codec), 0, 5, 0, 3, 1 << 20)
    for offset in range(200):
        headers = [("header", b"x")] * (offset % 3)
        key = None if offset % 5 == 0 else b"key"
        value = None if offset % 7 == 0 else b"value" * (offset * 10)
        assert built.append(offset, timestamp=1_700_000_000_000 - offset, key=key, value=value, headers=headers)
    data = bytes(built.build())
    info = check(data)
    assert (info.count, info.codec, info.producer_id, info.base_sequence) == (200, codec, 5, 3)
    assert (info.min_timestamp, info.max_timestamp) == (1_700_000_000_000 - 199, 1_700_000_000_000)


def test_records_without_timestamps_do_not_count_as_the_earliest() -> None:
    info = check(encode_batch([Record(offset=0, timestamp=-1), Record(offset=1, timestamp=50)]))
    assert (info.min_timestamp, info.max_timestamp) == (50, 50)
    info = check(encode_batch([Record(offset=0, timestamp=-1)]))
    assert (info.min_timestamp, info.max_timestamp) == (-1, -1)


@pytest.mark.parametrize("claimed", [-1, 0, 2999, 3001])
def test_a_wrong_max_timestamp_is_corrected_with_its_crc_as_kafka_does(claimed: int) -> None:
    data = patched(35, ">q", claimed)
    info = check_batch(memoryview(data), 0, len(data), address_of(data), LIMIT)
    assert info.max_timestamp == 3000
    assert data == encode_batch(RECORDS)


def test_a_wrong_max_timestamp_that_cannot_be_corrected_is_refused() -> None:
    data = bytes(patched(35, ">q", 2999))
    with pytest.raises(Rejected) as caught:
        check_batch(memoryview(data), 0, len(data), address_of(data), LIMIT)
    assert caught.value.reason == Fault.INVALID_RECORD


@pytest.mark.parametrize("position", [*range(16, 61), 61, 70, -1])
def test_a_flipped_bit_anywhere_under_the_crc_is_refused(position: int) -> None:
    data = bytearray(encode_batch(RECORDS))
    data[position] ^= 0x10
    assert refused(data) in (Fault.CORRUPT, Fault.NOT_ONE_BATCH)


@pytest.mark.parametrize("magic", [-1, 0, 1, 3])
def test_another_record_format_is_refused_and_one_that_kafka_never_had_is_corruption(magic: int) -> None:
    assert refused(patched(16, ">b", magic)) == (Fault.NOT_ONE_BATCH if magic in (0, 1) else Fault.CORRUPT)


@pytest.mark.parametrize("base_offset", [-1, 1, 2**40])
def test_offsets_that_a_producer_chose_itself_are_refused(base_offset: int) -> None:
    assert refused(patched(0, ">q", base_offset)) == Fault.INVALID_RECORD


@pytest.mark.parametrize("difference", [-1, 1, 1000, -1000])
def test_a_batch_length_that_disagrees_is_refused(difference: int) -> None:
    data = bytearray(encode_batch(RECORDS))
    struct.pack_into(">i", data, 8, len(data) - 12 + difference)
    assert refused(data) == (Fault.CORRUPT if difference < -100 else Fault.NOT_ONE_BATCH)


@pytest.mark.parametrize("length", [0, 11, 12, 60])
def test_what_is_too_short_for_a_header_is_refused(length: int) -> None:
    assert refused(encode_batch(RECORDS)[:length]) == Fault.NOT_ONE_BATCH


def test_a_batch_that_runs_over_the_buffer_is_refused() -> None:
    data = bytearray(encode_batch(RECORDS))
    with pytest.raises(Rejected):
        check_batch(memoryview(data)[:-1], 0, len(data), address_of(data), LIMIT)


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 1, 2, 4, 100, 2**31 - 1])
def test_a_lie_about_the_record_count_is_refused(count: int) -> None:
    assert refused(patched(57, ">i", count)) == Fault.INVALID_RECORD
    both = patched(57, ">i", count)
    struct.pack_into(">i", both, 23, max(count - 1, -(2**31)))
    assert refused(with_crc(both)) == Fault.INVALID_RECORD


@pytest.mark.parametrize("delta", [-1, 0, 1, 3, 2**31 - 1])
def test_a_lie_about_the_last_offset_delta_is_refused(delta: int) -> None:
    assert refused(patched(23, ">i", delta)) == Fault.INVALID_RECORD


@pytest.mark.parametrize(
    ("bit", "reason"),
    [
        (header.CONTROL, Fault.INVALID_RECORD),
        (header.LOG_APPEND_TIME, Fault.INVALID_TIMESTAMP),
        (header.DELETE_HORIZON, Fault.INVALID_RECORD),
    ],
)
def test_attributes_that_are_not_for_producers_are_refused(bit: int, reason: Fault) -> None:
    assert refused(patched(21, ">h", bit)) == reason


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    assert refused(patched(21, ">h", codec)) == Fault.UNSUPPORTED_COMPRESSION


@pytest.mark.parametrize(("epoch", "sequence"), [(-1, 0), (0, -1), (-1, -1)])
def test_a_producer_id_without_epoch_or_sequence_is_refused(epoch: int, sequence: int) -> None:
    data = encode_batch(RECORDS, producer_id=1, producer_epoch=epoch, base_sequence=sequence)
    assert refused(data) == (Fault.INVALID_EPOCH if epoch < 0 else Fault.INVALID_RECORD)


GOOD = b"\x0c\x00\x00\x00\x01\x01\x00"
BODIES = {
    "no bytes at all": b"",
    "a byte too many": GOOD + b"\x00",
    "a byte too few": GOOD[:-1],
    "a record that is too short": b"\x0a" + GOOD[1:],
    "a record that is too long": b"\x0e" + GOOD[1:],
    "a record with a byte after its headers": b"\x0e\x00\x00\x00\x01\x01\x00\x00",
    "a record of no length": b"\x00" + GOOD[1:],
    "a record of negative length": b"\x0b" + GOOD[1:],
    "a record length of 4 GB": b"\xfe\xff\xff\xff\x0f" + GOOD[1:],
    "a length varint without end": b"\xff" * 16,
    "a length varint of six bytes": b"\x8c\x80\x80\x80\x80\x00" + GOOD[1:],
    "a length varint with bits beyond 32": b"\x8c\x80\x80\x80\x10" + GOOD[1:],
    "an offset delta of 1": b"\x0c\x00\x00\x02\x01\x01\x00",
    "an offset delta of -1": b"\x0c\x00\x00\x01\x01\x01\x00",
    "a key that runs over": b"\x0c\x00\x00\x00\x08\x01\x00",
    "a key length of -2": b"\x0c\x00\x00\x00\x03\x01\x00",
    "a value that runs over": b"\x0c\x00\x00\x00\x01\x06\x00",
    "a value length of -2": b"\x0c\x00\x00\x00\x01\x03\x00",
    "a value of 2 GB": b"\x14\x00\x00\x00\x01\xfe\xff\xff\xff\x0f\x00",
    "a header that is not there": b"\x0c\x00\x00\x00\x01\x01\x02",
    "two billion headers": b"\x14\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f",
    "a negative number of headers": b"\x0c\x00\x00\x00\x01\x01\x01",
    "a header key of null": b"\x10\x00\x00\x00\x01\x01\x02\x01\x01",
    "a header key that runs over": b"\x10\x00\x00\x00\x01\x01\x02\x08\x01",
    "a header value of -2": b"\x10\x00\x00\x00\x01\x01\x02\x00\x03",
    "a header value that runs over": b"\x10\x00\x00\x00\x01\x01\x02\x00\x04",
    "a timestamp varint of eleven bytes": b"\x20\x00" + b"\x80" * 10 + b"\x00\x00\x01\x01\x00",
    "a timestamp varint with bits beyond 64": b"\x1e\x00" + b"\x80" * 9 + b"\x02\x00\x01\x01\x00",
}


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_contradicts_itself_is_refused(name: str, codec: Codec) -> None:
    assert refused(with_body(BODIES[name], codec=codec)) in (Fault.INVALID_RECORD, Fault.CORRUPT)


def test_the_body_that_those_lies_were_made_from_is_good() -> None:
    assert check(with_body(GOOD)).count == 1
    assert check(with_body(b"\x8c\x80\x80\x80\x00" + GOOD[1:])).count == 1, "long, but it says the same to everyone"


def test_a_timestamp_beyond_64_bits_is_refused() -> None:
    data = patched(27, ">q", 2**63 - 1)
    assert refused(data) == Fault.INVALID_RECORD


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_body_that_decompresses_beyond_the_limit_is_too_large(codec: Codec) -> None:
    data = encode_batch([Record(value=bytes(100_000))], codec=codec)
    assert check(data, 101_000).count == 1
    assert refused(data, 100_000) == Fault.TOO_LARGE


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_body_that_is_not_what_its_codec_says_is_corrupt(codec: Codec) -> None:
    data = bytearray(encode_batch(RECORDS))
    struct.pack_into(">h", data, 21, codec)
    assert refused(with_crc(data)) in (Fault.CORRUPT, Fault.TOO_LARGE)


@pytest.mark.parametrize("codec", list(Codec))
def test_where_keys_are_needed_a_record_without_one_is_refused_and_an_empty_one_is_a_key(codec: Codec) -> None:
    for keys, fault in (((b"k", b"", b"l"), None), ((b"k", None, b"l"), Fault.NO_KEY), ((None,), Fault.NO_KEY)):
        records = [Record(offset=place, timestamp=place, key=key) for place, key in enumerate(keys)]
        data = bytearray(encode_batch(records, codec=codec))
        where = (memoryview(data), 0, len(data), address_of(data), LIMIT)
        assert check_batch(*where).count == len(keys)
        if fault is None:
            assert check_batch(*where, True).count == len(keys)
        else:
            with pytest.raises(Rejected) as caught:
                check_batch(*where, True)
            assert caught.value.reason == fault

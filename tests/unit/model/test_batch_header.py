"""The header of a batch: stamping offsets, the broker's time."""

import struct

from lakestream.model.batches import header
from lakestream.model.batches.header import BatchInfo
from lakestream.model.batches.records import Record, decode_batch, encode_batch


def two_records(**options: bool) -> bytearray:
    return bytearray(
        encode_batch([Record(offset=0, timestamp=100, value=b"a"), Record(offset=1, timestamp=105)], **options)
    )


def test_the_header_is_61_bytes_with_the_crc_at_17_and_the_attributes_at_21() -> None:
    assert header.HEADER.size == header.HEADER_SIZE == 61
    assert struct.calcsize(">qiib") == header.CRC_POSITION
    assert struct.calcsize(">qiibI") == header.CHECKED_POSITION
    assert struct.calcsize(">qiibIhiq") == header.MAX_TIMESTAMP_POSITION


def test_stamping_the_offset_sets_leader_epoch_0_and_leaves_all_else_alone_l7() -> None:
    field = bytearray(b"head") + two_records()
    struct.pack_into(">i", field, 4 + 12, -1)
    before = bytes(field)
    header.stamp(field, 4, 2**40)
    assert struct.unpack_from(">qii", field, 4) == (2**40, len(field) - 4 - 12, 0)
    assert field[20:] == before[20:] and field[:4] == b"head"
    assert [record.offset for record in decode_batch(memoryview(field)[4:])] == [2**40, 2**40 + 1]


def test_log_append_time_gives_every_record_the_brokers_time_and_a_good_crc_l19() -> None:
    field = bytearray(b"head") + two_records(transactional=True)
    header.restamp_log_append_time(field, 4, len(field) - 4, 777)
    fields = header.HEADER.unpack_from(field, 4)
    assert fields[5] == header.LOG_APPEND_TIME | header.TRANSACTIONAL
    assert fields[7:9] == (100, 777), "the base timestamp stays as produced"
    assert [record.timestamp for record in decode_batch(memoryview(field)[4:])] == [777, 777]


def test_the_info_of_a_batch_reads_its_attributes() -> None:
    info = BatchInfo(3, 200, 0x34, 1, 2, 9, 0, 17)
    assert (info.codec, info.log_append_time, info.transactional, info.control) == (4, False, True, True)
    assert "producer_id=9" in repr(info) and "count=3" in repr(info)

"""The WAL object's format: what is sealed is found again, and no damage goes unseen."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.errors import Corrupt
from lakestream.model.batches import wal_object
from lakestream.model.batches.wal_object import (
    FOOTER_BYTES,
    HEADER_BYTES,
    BatchMark,
    MergedSlice,
    ObjectName,
    TickSlice,
    WalObjectKind,
    checkpoint_key,
    folded_by_writer,
    header,
    lay_out,
    mark_at_or_before,
    mark_with_timestamp,
    merged_key,
    merged_tail,
    parse_checkpoint_key,
    parse_footer,
    parse_index,
    parse_merged_index,
    parse_merged_key,
    parse_wal_key,
    tick_tail,
    verify,
    wal_key,
)
from tests.support.places import GOLDEN
from tests.support.reference_batches import merge_slice


def batch(offset: int, last_delta: int, max_timestamp: int, body: int = 0) -> bytes:
    """A batch as far as the format looks into it: a header of 61 bytes and a body."""
    fields = (offset, 49 + body, 0, 2, 0, 0, last_delta, max_timestamp - 5, max_timestamp, -1, -1, -1, last_delta + 1)
    return struct.pack(">qiibIhiqqqhii", *fields) + bytes(body)


def tick_object() -> bytes:
    streams = {3: [b"three" * 5, b"3"], 4: [b"four"], 1 << 40: [b"big" * 100]}
    rows = lay_out((stream, sum(map(len, parts)), len(parts)) for stream, parts in streams.items())
    body = bytearray().join([header(77), *(part for parts in streams.values() for part in parts)])
    return bytes(body + tick_tail(body, rows))


def merged_object() -> bytes:
    first = b"".join(batch(10 + 5 * n, 3, 1000 + n, body=100_000) for n in range(12))
    second = batch(7, 0, 55)
    body = bytearray().join([header(77), first, second])
    rows = [merge_slice(body, 2, 16, len(first)), merge_slice(body, 9, 16 + len(first), len(second))]
    return bytes(body + merged_tail(body, rows))


def small_merged_object() -> bytes:
    batches = [batch(10, 3, 1000, body=5), batch(14, 0, 1700, body=7), batch(20, 1, 1600), batch(7, 0, -1)]
    body = bytearray().join([header(77), *batches])
    first = MergedSlice(2, 16, 195, 3, 10, [BatchMark(10, 16, 1700), BatchMark(20, 150, 1600)])
    return bytes(body + merged_tail(body, [first, merge_slice(body, 9, 211, 61)]))


def parsed(whole: bytes) -> tuple[wal_object.WalFooter, bytes]:
    footer = parse_footer(whole[-FOOTER_BYTES:])
    return footer, whole[footer.index_position : footer.index_position + footer.index_length]


def test_a_tick_object_is_read_back_from_its_end() -> None:
    whole = tick_object()
    footer, index = parsed(whole)
    assert footer.kind is WalObjectKind.TICK
    assert footer.object_size == len(whole)
    rows = parse_index(footer, index)
    assert rows == [TickSlice(3, 16, 26, 2), TickSlice(4, 42, 4, 1), TickSlice(1 << 40, 46, 300, 1)]
    assert whole[rows[1].position :][: rows[1].length] == b"four"
    assert verify(whole) == rows


def test_a_merged_object_tells_where_offsets_lie() -> None:
    whole = merged_object()
    footer, index = parsed(whole)
    assert footer.kind is WalObjectKind.MERGED
    first, second = parse_merged_index(footer, index)
    assert (first.stream, first.base_offset, first.batches) == (2, 10, 12)
    assert [mark.offset for mark in first.marks] == [10, 25, 40, 55]
    assert [mark.max_timestamp for mark in first.marks] == [1002, 1005, 1008, 1011]
    assert second == MergedSlice(9, 16 + first.length, 61, 1, 7, [BatchMark(7, 16 + first.length, 55)])
    assert [tuple(row) for row in verify(whole)] == [row[:4] for row in (first, second)]
    for mark in first.marks:
        assert struct.unpack_from(">q", whole, mark.position) == (mark.offset,)


def test_a_reader_walks_from_the_last_mark_at_or_before_its_offset() -> None:
    marks = [BatchMark(10, 16, 5), BatchMark(25, 300, 9), BatchMark(40, 600, 7)]
    assert [mark_at_or_before(marks, offset) for offset in (0, 10, 24, 25, 39, 40, 1000)] == [0, 0, 0, 1, 1, 2, 2]
    assert [mark_with_timestamp(marks, timestamp) for timestamp in (0, 5, 6, 9, 10)] == [0, 0, 1, 1, None]


@given(
    st.dictionaries(
        st.integers(0, 2**63), st.lists(st.binary(max_size=50), min_size=1, max_size=4), max_size=20
    ).map(lambda found: dict(sorted(found.items())))
)
def test_any_tick_is_read_back(streams: dict[int, list[bytes]]) -> None:
    rows = lay_out((stream, sum(map(len, parts)), len(parts)) for stream, parts in streams.items())
    body = b"".join([header(77), *(part for parts in streams.values() for part in parts)])
    whole = body + tick_tail(body, rows)
    assert verify(whole) == rows
    for row, parts in zip(rows, streams.values(), strict=True):
        assert whole[row.position : row.position + row.length] == b"".join(parts)


@pytest.mark.parametrize("make", [tick_object, merged_object])
@settings(max_examples=150)
@given(data=st.data())
def test_no_changed_or_missing_byte_goes_unseen(make: object, data: st.DataObject) -> None:
    whole = bytearray(make())  # type: ignore[operator]
    at = data.draw(st.one_of(st.integers(0, len(whole) - 1), st.integers(len(whole) - 200, len(whole) - 1)))
    if data.draw(st.booleans()):
        whole[at] ^= data.draw(st.integers(1, 255))
    else:
        del whole[at:]
    with pytest.raises(Corrupt):
        verify(whole)


def test_bytes_put_behind_an_object_are_seen() -> None:
    whole = tick_object()
    for wrong in (whole + whole, whole + b"\0", b"\0" + whole, whole[:16] + whole[17:]):
        with pytest.raises(Corrupt):
            verify(wrong)


def test_an_index_that_lies_with_right_checksums_is_refused() -> None:
    body = header(77) + b"0123456789"
    for rows in (
        [TickSlice(1, 16, 9, 1)],
        [TickSlice(1, 16, 11, 1)],
        [TickSlice(1, 17, 9, 1)],
        [TickSlice(2, 16, 5, 1), TickSlice(1, 21, 5, 1)],
        [TickSlice(1, 16, 5, 1), TickSlice(1, 21, 5, 1)],
        [],
    ):
        with pytest.raises(Corrupt, match="slices"):
            verify(body + tick_tail(body, rows))


def test_marks_that_lie_with_right_checksums_are_refused() -> None:
    body = header(77) + batch(5, 0, 1) + batch(6, 0, 1)
    good = [BatchMark(5, 16, 1), BatchMark(6, 77, 1)]
    verify(body + merged_tail(body, [MergedSlice(1, 16, 122, 2, 5, good)]))
    early, inside, late = BatchMark(4, 16, 1), BatchMark(5, 17, 1), BatchMark(6, 138, 1)
    for marks in ([], [early], [inside], good[::-1], [good[0], good[0]], [good[0], late]):
        with pytest.raises(Corrupt, match="mark"):
            verify(body + merged_tail(body, [MergedSlice(1, 16, 122, 2, 5, marks)]))


def test_a_footer_of_another_version_or_kind_is_refused() -> None:
    whole = tick_object()
    for place, value in ((32, 3), (33, 2)):
        footer = bytearray(whole[-FOOTER_BYTES:])
        footer[place] = value
        footer[-8:-4] = struct.pack("<I", wal_object.crc32.iscsi(footer[:-8]))
        with pytest.raises(Corrupt, match="not known"):
            parse_footer(footer)
    with pytest.raises(Corrupt, match="too short"):
        parse_footer(b"")
    footer, index = parsed(whole)
    with pytest.raises(Corrupt, match="no merged"):
        parse_merged_index(footer, index)
    with pytest.raises(Corrupt, match="checksum"):
        parse_index(footer, index[:-1])


def test_batches_out_of_order_or_cut_are_not_merged() -> None:
    for wrong in (
        batch(5, 3, 1) + batch(8, 0, 1),
        batch(5, 0, 1) + batch(4, 0, 1),
        batch(5, 0, 1)[:-1],
        batch(5, 0, 1, body=9)[:-1],
        batch(5, -1, 1),
        batch(5, 0, 1).replace(b"\2", b"\1"),
        b"",
    ):
        with pytest.raises(Corrupt):
            merge_slice(wrong, 1, 0, len(wrong))


def test_names_carry_cluster_member_epoch_and_number_l12() -> None:
    assert wal_key("c1", 2, 3, 4) == "c1/wal/2/00000000000000000003/00000000000000000004"
    assert parse_wal_key(wal_key("c1", 2, 3, 4)) == ObjectName("c1", 2, 3, 4)
    assert parse_merged_key(merged_key("c1", 2, 3, 4)) == ObjectName("c1", 2, 3, 4)
    assert parse_checkpoint_key(checkpoint_key("c1", 4, 2, 3)) == ObjectName("c1", 2, 3, 4)
    assert sorted([wal_key("c", 1, 10, 2), wal_key("c", 1, 9, 11)]) == [wal_key("c", 1, 9, 11), wal_key("c", 1, 10, 2)]
    assert checkpoint_key("c", 9, 5, 5) < checkpoint_key("c", 10, 1, 1)


def test_foreign_names_are_nobodys() -> None:
    ours = wal_key("c1", 2, 3, 4)
    for foreign in ("", "c1", ours[:-1], ours + "0", ours + "/x", ours.replace("wal", "law"), ours.replace("2", "02"),
                    ours.replace("2", "x"), ours.replace("0003", "-003"), ours.replace("0004", "000\u0664")):
        assert parse_wal_key(foreign) is None, foreign
        assert parse_merged_key(foreign) is None, foreign
        assert parse_checkpoint_key(foreign) is None, foreign
    assert parse_merged_key(ours) is None
    assert parse_checkpoint_key(checkpoint_key("c", 1, 2, 3).replace("checkpoints", "points")) is None


@pytest.mark.parametrize(("name", "make"), [("wal-tick-2.bin", tick_object), ("wal-merged-2.bin", small_merged_object)])
def test_the_golden_objects_are_still_written_and_read_the_same(name: str, make: object) -> None:
    golden = (GOLDEN / name).read_bytes()
    assert golden == make()  # type: ignore[operator]
    verify(golden)


@pytest.mark.parametrize(("old", "make"), [("wal-tick-1.bin", tick_object), ("wal-merged-1.bin", small_merged_object)])
def test_objects_of_the_first_version_are_read_and_do_not_say_what_was_folded(old: str, make: object) -> None:
    golden = (GOLDEN / old).read_bytes()
    assert verify(golden) == verify(make())  # type: ignore[operator]
    assert folded_by_writer(golden) == 0


def test_l5_an_object_says_what_its_writer_had_folded() -> None:
    assert folded_by_writer(tick_object()[:HEADER_BYTES]) == 77
    for wrong in (b"", header(1)[:-1], b"X" + header(1)[1:], header(1)[:4] + b"\x03" + header(1)[5:]):
        with pytest.raises(Corrupt):
            folded_by_writer(wrong)

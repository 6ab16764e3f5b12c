"""Slices of the WAL as rows, files and batches: what hypothesis seldom hits, and what other software makes of it."""

import subprocess
import sys
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kafka.record.memory_records import MemoryRecords

from lakestream.data.tables.files.arrow_view import digest_rows
from lakestream.data.tables.files.decode import STAMPED, WalSlice, decode_pieces, decode_slices
from lakestream.data.tables.files.file_stats import Digest, FileStats
from lakestream.data.tables.files.landed_file import land
from lakestream.data.tables.files.parquet import read_parquet
from lakestream.data.tables.files.rebuild import in_order, rebuild
from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA
from lakestream.errors import Corrupt
from lakestream.model.batches.check import check_batch
from lakestream.model.batches.header import Codec
from lakestream.model.kernels import table_batches
from lakestream.model.kernels.pointers import address_of
from tests.support import places
from tests.support.raw_records import RawRecord, digest, encode, read
from tests.support.reference_batches import control_batch

GOLDEN = places.GOLDEN / "table-file-v1.parquet"
TIME = 1_700_000_000_000


def some(count: int, start: int = 0) -> list[RawRecord]:
    return [
        RawRecord(
            offset=start + i, timestamp=TIME + i, key=b"k%d" % i, value=b"value %d" % i, headers=((b"h", b"%d" % i),)
        )
        for i in range(count)
    ]


ODD = [
    RawRecord(offset=0, timestamp=TIME, key=b"key", value=b"value", headers=((b"a", b"1"), (b"a", None), (b"", b""))),
    RawRecord(offset=1, timestamp=-1, key=None, value=None),
    RawRecord(offset=2, timestamp=-2, key=b"", value=b""),
    RawRecord(offset=3, timestamp=2**62, key=b"absurd", value=b"far away"),
    RawRecord(
        offset=4, timestamp=TIME, key=b"odd", value=b"headers", headers=((b"\xff\xfe", b"x"), ("é".encode(), None))
    ),
    RawRecord(offset=5, timestamp=-(2**63), value=b"both", headers=((b"\xed\xa0\x80", None),)),
]


def landed(*slices: WalSlice | tuple[int, int, bytes]) -> tuple[pa.Buffer, FileStats]:
    sink = pa.BufferOutputStream()
    stats = land(slices, "file:///data/a.parquet", sink)
    return sink.getvalue(), stats


# -- from batches to rows ----------------------------------------------------------------------------------------------


def test_a_row_shows_what_sql_can_show_and_keeps_the_rest_in_its_original_T1() -> None:
    rows = decode_slices([(7, 100, encode(ODD))]).to_pylist()
    assert [row["stream_offset"] for row in rows] == [100, 101, 102, 103, 104, 105]
    assert [row["stream_flags"] for row in rows] == [0, 1, 0, 4, 4, 4]
    assert [row["stream_original"] is None for row in rows] == [True, True, True, False, False, False]
    assert [row["stream_timestamp"] is None for row in rows] == [False, True, False, True, False, True]
    assert rows[0]["stream_headers"] == [
        {"key": "a", "value": b"1"},
        {"key": "a", "value": None},
        {"key": "", "value": b""},
    ]
    assert rows[4]["stream_headers"] == [{"key": "??", "value": b"x"}, {"key": "é", "value": None}]
    assert (rows[1]["value"], rows[2]["value"], rows[2]["stream_key"]) == (None, b"", b"")


def test_an_update_by_another_engine_counts_although_the_row_has_an_original_T1() -> None:
    rows = decode_slices([(0, 0, encode(ODD))])
    cells = rows.to_pylist()
    cells[3]["value"] = b"redacted"
    cells[5]["stream_headers"] = []
    found, _ = read(rebuild(pa.Table.from_pylist(cells, schema=ARROW_SCHEMA)))
    assert found[3] == replace(ODD[3], value=b"redacted", timestamp=-1)
    assert found[5] == replace(ODD[5], headers=(), timestamp=-1)
    assert found[:3] == ODD[:3] and found[4] == ODD[4]


@pytest.mark.parametrize(
    "original",
    [b"", b"\x01", b"\x02" + bytes(17), b"\x01\x01" + bytes(8), b"\x01\x02" + bytes(8) + b"\x02\xff", None],
)
def test_a_forged_original_is_ignored(original: bytes | None) -> None:
    cells = decode_slices([(0, 0, encode(some(1)))]).to_pylist()
    cells[0] |= {"stream_original": original, "stream_flags": 4}
    found, _ = read(rebuild(pa.Table.from_pylist(cells, schema=ARROW_SCHEMA)))
    assert found == some(1)


def test_an_original_with_the_right_hash_and_broken_headers_is_ignored() -> None:
    cells = decode_slices([(0, 0, encode(ODD))]).to_pylist()
    cells[4]["stream_original"] = cells[4]["stream_original"][:-1]
    found, _ = read(rebuild(pa.Table.from_pylist(cells, schema=ARROW_SCHEMA)))
    assert found[4].headers == ((b"??", b"x"), ("é".encode(), None))


def test_control_batches_give_no_rows_but_take_their_offsets() -> None:
    data = encode(some(2)) + control_batch(0, 4, TIME) + encode(some(1))
    assert decode_slices([(0, 10, data)])["stream_offset"].to_pylist() == [10, 11, 17]


def test_batches_that_carry_their_offsets_keep_them() -> None:
    data = encode(some(2, 50), base_offset=50) + encode(some(1, 90), base_offset=90)
    assert decode_slices([WalSlice(0, STAMPED, data)])["stream_offset"].to_pylist() == [50, 51, 90]


def test_only_the_offsets_asked_for_become_rows() -> None:
    data = encode(some(5)) + encode(some(5), codec=Codec.LZ4)
    rows = decode_slices([WalSlice(0, 100, data, first=103, end=107)])
    assert rows["stream_offset"].to_pylist() == [103, 104, 105, 106]
    assert digest_rows(rows)[0].records == 4
    assert decode_slices([WalSlice(0, 100, data, first=110)]).num_rows == 0


def test_slices_come_out_sorted_by_partition_and_offset() -> None:
    data = encode(some(2))
    rows = decode_slices([(2, 0, data), (1, 5, data), (1, 3, data), (0, 9, bytearray(data)), (0, 0, memoryview(data))])
    places = list(zip(rows["stream_partition"].to_pylist(), rows["stream_offset"].to_pylist(), strict=True))
    assert places == sorted(places) and len(places) == 10
    assert in_order(rows) is rows


@pytest.mark.parametrize("codec", list(Codec))
def test_a_changed_byte_in_a_slice_is_corruption(codec: Codec) -> None:
    whole = encode(some(3), codec=codec)
    for place in (30, len(whole) - 1):
        broken = bytearray(whole)
        broken[place] ^= 1
        with pytest.raises(Corrupt, match="partition 4, offset 9"):
            decode_slices([(4, 9, broken)])


@pytest.mark.parametrize("data", [b"\0", b"\0" * 61, encode(some(1))[:-1], encode(some(1)) + b"\0", b"\xff" * 200])
def test_what_is_no_row_of_batches_is_corruption(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_slices([(0, 0, data)])


def test_batches_that_overlap_are_corruption() -> None:
    data = encode(some(2, 5), base_offset=5)
    with pytest.raises(Corrupt, match="overlap"):
        decode_slices([WalSlice(0, STAMPED, data + data)])


def test_nothing_gives_no_rows() -> None:
    assert decode_slices([]).schema == ARROW_SCHEMA
    assert decode_slices([(0, 0, b"")]).num_rows == 0


def test_pieces_are_cut_by_bytes_T20() -> None:
    data = b"".join(encode([RawRecord(offset=0, value=bytes(1000))]) for _ in range(10))
    pieces = list(decode_pieces([(0, 0, data)], piece_bytes=3500))
    assert [piece.rows.num_rows for piece in pieces] == [3, 3, 3, 1]


def test_a_record_of_100_megabytes_is_a_row_and_the_same_bytes_back_T20() -> None:
    big = RawRecord(
        offset=1, timestamp=TIME, key=b"big", value=b"0123456789abcdef" * (100 * 65536), headers=((b"\xff", b""),)
    )
    records = [some(1)[0], big, replace(some(1)[0], offset=2)]
    slices = [(0, 0, b"".join(encode([replace(one, offset=0)]) for one in records))]
    data, stats = landed(*slices)
    assert [[run.rows for run in group] for group in stats.runs] == [[1], [1], [1]]
    rows = read_parquet(data)
    assert rows["value"][1].as_buffer().size == 100 << 20
    assert digest_rows(rows) == stats.digests
    batches = rebuild(rows)
    found, _ = read(batches)
    assert len(batches) == 3 and found == records


def test_decoding_a_wal_larger_than_memory_needs_room_for_a_few_pieces_only() -> None:
    data = encode([RawRecord(offset=0, value=bytes(1 << 20))]) * 64
    tracemalloc.start()
    for _ in decode_pieces([(0, 0, data)], piece_bytes=2 << 20):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


# -- from rows to batches ----------------------------------------------------------------------------------------------


def test_rebuilt_batches_pass_the_check_of_produced_ones_and_name_no_producer_L32() -> None:
    rows = decode_slices([(0, 0, encode(some(1000)))])
    for codec in Codec:
        batches = rebuild(rows, codec=codec, target_bytes=4096)
        assert len(batches) > 5
        for one in batches:
            data = bytearray(8) + one[8:]  # producers leave the base offset at 0
            info = check_batch(memoryview(data), 0, len(data), address_of(data), 1 << 20)
            assert (info.producer_id, info.transactional, info.codec) == (-1, False, codec)
            assert len(one) <= 4096 + 61


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_another_client_reads_rebuilt_batches(codec: Codec) -> None:
    records = [*some(3), *(replace(one, stamped=True, timestamp=TIME, offset=one.offset + 3) for one in some(3))]
    slices = encode(records[:3]) + encode([replace(one, offset=one.offset - 3) for one in records[3:]])
    parsed = MemoryRecords(b"".join(rebuild(decode_slices([(0, 0, slices)]), 0, 9, codec=codec)))
    found = []
    while (one := parsed.next_batch()) is not None:
        assert one.validate_crc()
        found += [] if one.is_control_batch else list(one)
    assert [(one.offset, one.timestamp, one.timestamp_type, one.key, one.value) for one in found] == [
        (one.offset, one.timestamp, int(one.stamped), one.key, one.value) for one in records
    ]


def test_a_range_without_rows_is_one_control_batch_L31() -> None:
    nothing = decode_slices([])
    [gap] = rebuild(nothing, 5, 12)
    assert read([gap]) == ([], [(5, 11)])
    assert bytes(gap) == control_batch(5, 11, -1)
    assert rebuild(nothing) == rebuild(nothing, 3, 3) == []


def test_a_gap_longer_than_a_batch_can_say_is_several_L31() -> None:
    rows = decode_slices([(0, 5 << 31, encode(some(1)))])
    found, covered = read(rebuild(rows, 0, 8 << 31))
    assert len(found) == 1 and covered[0][0] == 0 and covered[-1][1] == (8 << 31) - 1
    assert all(before[1] + 1 == after[0] for before, after in pairwise(covered))
    assert table_batches.LONGEST_GAP == 2**31 - 1


def test_timestamps_that_no_batch_can_span_get_batches_of_their_own() -> None:
    records = [RawRecord(offset=i, timestamp=(2**63 - 1, -(2**63), -1, 2**62)[i % 4], value=b"") for i in range(8)]
    found, _ = read(rebuild(decode_slices([(0, 0, encode(records))])))
    assert found == records


def test_two_rows_of_one_offset_are_corruption() -> None:
    rows = decode_slices([(0, 0, encode(some(3)))])
    with pytest.raises(Corrupt, match="two rows"):
        rebuild(pa.concat_tables([rows, rows.slice(1, 1)]))


def test_rows_outside_of_what_was_asked_for_are_corruption() -> None:
    rows = decode_slices([(0, 5, encode(some(3)))])
    for first, end in ((6, 8), (5, 7)):
        with pytest.raises(Corrupt):
            rebuild(rows, first, end)
    with pytest.raises(Corrupt, match="partitions 0 and 1"):
        rebuild(pa.concat_tables([rows, decode_slices([(1, 8, encode(some(3)))])]))


def test_slices_and_chunks_of_arrow_columns_are_taken_as_they_are() -> None:
    rows = decode_slices([(0, 0, encode(some(40) + [replace(one, offset=40 + one.offset) for one in ODD]))])
    expected, _ = read(rebuild(rows))
    cut = pa.concat_tables([rows.slice(0, 3), rows.slice(3, 0), rows.slice(3, 38), rows.slice(41)])
    assert read(rebuild(cut))[0] == expected
    assert read(rebuild(rows.slice(39, 4)))[0] == expected[39:43]
    assert digest_rows(cut) == digest_rows(rows)
    assert sum(digest_rows(rows.slice(i, 1))[0].hash for i in range(46)) % 2**64 == digest(expected)


def test_headers_that_another_engine_nulled_are_read_as_empty() -> None:
    cells = decode_slices([(0, 0, encode(some(3)))]).to_pylist()
    cells[0]["stream_headers"] = None
    cells[1]["stream_headers"] = [None, {"key": None, "value": b"v"}]
    rows = pa.Table.from_pylist(cells, schema=ARROW_SCHEMA)
    found, _ = read(rebuild(rows))
    assert [one.headers for one in found] == [(), ((b"", None), (b"", b"v")), ((b"h", b"2"),)]
    assert digest_rows(rows)[0] == Digest(3, digest(found))


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_golden_file_still_gives_the_records_it_was_made_of_and_their_digest() -> None:
    data = pa.py_buffer(GOLDEN.read_bytes())
    rows = read_parquet(data)
    found, _ = read(rebuild(rows.filter(pc.equal(rows["stream_partition"], 3))))
    assert found == [replace(one, offset=one.offset + 1000) for one in ODD]
    assert digest_rows(rows) == {3: Digest(6, 15433022010863640250), 4: Digest(5, 16696668509399041107)}


def test_a_broker_that_starts_loads_neither_arrow_nor_the_code_for_tables() -> None:
    check = (
        "import sys, lakestream.assembly.broker, lakestream.broker, lakestream.cli.broker;"
        "print([name for name in sys.modules if name.split('.')[0] in ('pyarrow', 'pyiceberg')"
        " or name.startswith('lakestream.model.table_')])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_file_of_ours_can_be_read_by_any_reader_of_parquet() -> None:
    data, _ = landed((0, 0, encode(some(3))))
    table = pq.read_table(pa.BufferReader(data))
    assert table.num_rows == 3 and table.column_names == ARROW_SCHEMA.names

"""Whatever was produced: as rows, as a file, as rows again and as batches again it is the same records (T1, T16)."""

import random
import struct
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.data.tables.files.arrow_view import digest_rows
from lakestream.data.tables.files.decode import STAMPED, WalSlice, decode_pieces, decode_slices
from lakestream.data.tables.files.file_stats import Digest, add_digests
from lakestream.data.tables.files.parquet import FileWriter, read_parquet
from lakestream.data.tables.files.rebuild import rebuild
from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA
from lakestream.errors import Corrupt
from lakestream.model.batches import header
from lakestream.model.batches.header import Codec
from tests.support.raw_records import RawRecord, digest, encode, read

blobs = st.none() | st.binary(max_size=40)
header_keys = st.text(max_size=6).map(str.encode) | st.binary(max_size=6)
headers = st.lists(st.tuples(header_keys, blobs), max_size=4).map(tuple)
timestamps = (
    st.just(-1)
    | st.integers(1_600_000_000_000, 1_700_000_000_000)
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([0, -2, -62_135_596_800_000, -62_135_596_800_001, 253_402_300_799_999, 253_402_300_800_000])
    | st.sampled_from([2**63 - 1, -(2**63), 9_223_372_036_854_776, -9_223_372_036_854_777])
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[RawRecord], Codec]:
    """Records from offset 0 on, as one producer's batch."""
    stamp = draw(st.none() | timestamps)
    count = draw(st.integers(1, 12))
    records = [
        RawRecord(
            offset=offset,
            timestamp=draw(timestamps) if stamp is None else stamp,
            key=draw(blobs),
            value=draw(blobs),
            headers=draw(headers),
            stamped=stamp is not None,
        )
        for offset in range(count)
    ]
    return records, draw(st.sampled_from(Codec))


@st.composite
def logs(draw: st.DrawFn) -> dict[int, tuple[list[RawRecord], list[WalSlice]]]:
    """By partition: its records, with their offsets, and the slices that hold them."""
    found = {}
    for partition in draw(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=3)):
        base = draw(st.integers(0, 2**62))
        stamped = draw(st.booleans())
        records: list[RawRecord] = []
        slices: list[WalSlice] = []
        for produced in draw(st.lists(st.lists(batches(), min_size=1, max_size=3), min_size=1, max_size=3)):
            start = base
            data = b""
            for own, codec in produced:
                moved = [replace(record, offset=base + record.offset) for record in own]
                carried = base if stamped else draw(st.sampled_from([0, 99]))
                data += encode([replace(one, offset=carried + i) for i, one in enumerate(own)], codec=codec,
                               base_offset=carried)  # fmt: skip
                records += moved
                base += len(own)
            slices.append(WalSlice(partition, STAMPED if stamped else start, data))
        found[partition] = records, slices
    return found


@settings(max_examples=80, deadline=None)
@given(logs(), st.sampled_from([1, 200, 1 << 20]), st.sampled_from([1, 300, 1 << 20]), st.data())
def test_records_survive_the_way_to_the_table_and_back(
    log: dict[int, tuple[list[RawRecord], list[WalSlice]]], piece_bytes: int, group_bytes: int, data: st.DataObject
) -> None:
    slices = data.draw(st.permutations([one for _, own in log.values() for one in own]))
    sink = pa.BufferOutputStream()
    writer = FileWriter(sink, row_group_bytes=group_bytes)
    digests = {}
    for piece in decode_pieces(slices, piece_bytes=piece_bytes):
        piece.rows.validate(full=True)
        assert digest_rows(piece.rows) == piece.digests
        digests = add_digests([digests, piece.digests])
        writer.add(piece.rows)
    stats = writer.finish("file:///here", digests)
    file = sink.getvalue()
    assert (stats.bytes, stats.rows) == (file.size, sum(len(records) for records, _ in log.values()))

    rows = read_parquet(file)
    rows.validate(full=True)
    assert rows.equals(decode_slices(slices).combine_chunks())
    assert digest_rows(rows) == digests
    assert digests == {partition: Digest(len(own), digest(own)) for partition, (own, _) in log.items()}
    for partition, (records, _) in log.items():
        mine = rows.filter(pc.equal(rows["stream_partition"], partition))
        codec = data.draw(st.sampled_from(Codec))
        rebuilt = rebuild(mine, codec=codec, target_bytes=data.draw(st.sampled_from([1, 300, 1 << 20])))
        found, covered = read(rebuilt)
        assert found == records
        assert covered[0][0] == records[0].offset and covered[-1][1] == records[-1].offset


@settings(max_examples=80, deadline=None)
@given(logs(), st.data())
def test_gaps_of_deleted_rows_are_tiled_so_that_positions_always_advance_L31(
    log: dict[int, tuple[list[RawRecord], list[WalSlice]]], data: st.DataObject
) -> None:
    partition, (records, slices) = next(iter(log.items()))
    rows = decode_slices(slices)
    kept = [data.draw(st.booleans()) for _ in records]
    first = records[0].offset - data.draw(st.integers(0, min(5, records[0].offset)))
    end = records[-1].offset + 1 + data.draw(st.integers(0, 5))
    left = rows.filter(pa.array(kept))
    shuffled = left.take(pa.array(data.draw(st.permutations(range(left.num_rows))), pa.int64()))
    found, covered = read(rebuild(shuffled, first, end))
    assert found == [record for record, keep in zip(records, kept, strict=True) if keep]
    assert covered[0][0] == first and covered[-1][1] == end - 1
    assert all(before[1] + 1 == after[0] for before, after in pairwise(covered))
    assert digest_rows(shuffled).get(partition, Digest()) == Digest(len(found), digest(found))


CHANGES: list[tuple[str, Any]] = [
    ("stream_offset", lambda old: old + 1),
    ("stream_timestamp", lambda old: 0 if old is None else None),
    ("stream_key", lambda old: b"" if old is None else None),
    ("stream_key", lambda old: (old or b"") + b"\0"),
    ("value", lambda old: b"" if old is None else None),
    ("value", lambda old: b"x" + (old or b"")),
    ("stream_headers", lambda old: [*old, {"key": "", "value": None}]),
    ("stream_headers", lambda old: [{"key": h["key"], "value": b"" if h["value"] is None else None} for h in old]),
    ("stream_headers", lambda old: [{"key": (h["key"] or "") + "x", "value": h["value"]} for h in old]),
]


@settings(max_examples=80, deadline=None)
@given(batches(), st.sampled_from(range(len(CHANGES))), st.data())
def test_a_changed_lost_or_doubled_row_changes_the_digest_T16(
    produced: tuple[list[RawRecord], Codec], change: int, data: st.DataObject
) -> None:
    rows = decode_slices([(0, 0, encode(produced[0]))])
    before = digest_rows(rows)
    row = data.draw(st.integers(0, rows.num_rows - 1))
    assert digest_rows(pa.concat_tables([rows.slice(0, row), rows.slice(row + 1)])) != before
    assert digest_rows(pa.concat_tables([rows, rows.slice(row, 1)])) != before

    name, changed = CHANGES[change]
    cells = rows.to_pylist()
    old = cells[row][name]
    cells[row][name] = changed(old)
    after = digest_rows(pa.Table.from_pylist(cells, schema=ARROW_SCHEMA))
    # No headers, each changed, are still the same.
    assert (after != before) == (cells[row][name] != old)


@settings(max_examples=80, deadline=None)
@given(batches(), st.randoms(use_true_random=False))
def test_a_batch_that_lies_under_a_right_checksum_is_corruption_or_rows_but_never_a_crash(
    produced: tuple[list[RawRecord], Codec], rng: random.Random
) -> None:
    whole = encode(produced[0])
    for _ in range(20):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            # The record count, or anything in the records.
            place = rng.choice([57, 58, 59, 60, *range(61, len(data))])
            data[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        struct.pack_into(">I", data, header.CRC_POSITION, header.checksum(memoryview(data), 0, len(data)))
        try:
            rows = decode_slices([(0, 0, data)])
        except Corrupt:
            continue
        rows.validate(full=True)
        assert sum(one.records for one in digest_rows(rows).values()) == rows.num_rows
        found, _ = read(rebuild(rows))
        assert [one.offset for one in found] == rows["stream_offset"].to_pylist()

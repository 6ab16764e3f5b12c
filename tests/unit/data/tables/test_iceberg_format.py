"""The stored formats beneath a table: Avro, manifests, progress; ours and PyIceberg's read each other."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakestream.data.tables.iceberg.manifests.avro import read_container, write_container
from lakestream.data.tables.iceberg.manifests.files import read_manifest, read_manifest_list
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.iceberg.progress import (
    LandedOffsets,
    OffsetRange,
    advance,
    pack_progress,
    pack_ranges,
    unpack_progress,
    unpack_ranges,
)
from lakestream.errors import Corrupt
from tests.support.iceberg_tables import Lake, OtherEngine

LONG = st.integers(-(2**63), 2**63 - 1)
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "number", "type": "long"},
            {"name": "flag", "type": "boolean"},
            {"name": "text", "type": ["null", "string"]},
            {"name": "double", "type": "double"},
            {"name": "fixed", "type": {"type": "fixed", "name": "four", "size": 4}},
            {"name": "again", "type": ["null", "four"]},
            {"name": "list", "type": {"type": "array", "items": "bytes"}},
            {"name": "map", "type": {"type": "map", "values": "int"}},
        ],
    }
)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "number": LONG,
            "flag": st.booleans(),
            "text": st.none() | st.text(),
            "double": st.floats(allow_nan=False),
            "fixed": st.binary(min_size=4, max_size=4),
            "again": st.none() | st.binary(min_size=4, max_size=4),
            "list": st.lists(st.binary()),
            "map": st.dictionaries(st.text(), st.integers(-(2**31), 2**31 - 1)),
        }
    ),
    max_size=5,
)


@given(RECORDS, st.sampled_from(["null", "deflate"]))
def test_avro_comes_back_as_it_was_written(records: list[dict[str, object]], codec: str) -> None:
    data = write_container(SCHEMA, {"key": "välue"}, records, b"s" * 16, codec)
    found = read_container(data)
    assert found.records == records
    assert found.header["key"].decode() == "välue"


@given(RECORDS.filter(bool), st.data())
def test_a_damaged_avro_file_is_corrupt_or_reads_as_something(
    records: list[dict[str, object]], data: st.DataObject
) -> None:
    whole = bytearray(write_container(SCHEMA, {}, records, b"s" * 16, "null"))
    cut = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:cut] if data.draw(st.booleans()) else whole[:cut] + bytes([whole[cut] ^ 0x55]) + whole[cut + 1 :]
    try:
        read_container(bytes(damaged))
    except Corrupt:
        return


def test_we_read_manifests_that_pyiceberg_wrote_and_it_reads_ours(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append([(0, 0, 30), (1, 0, 5)])
    lake.append([(0, 30, 40)])
    engine = OtherEngine(lake, random.Random(1))
    theirs = engine.live()
    engine.rewrite({theirs[0][1].data_file.file_path}, pieces=2)
    head = lake.table.metadata.current
    assert head is not None
    ours = {
        entry["data_file"]["file_path"]: entry
        for listed in read_manifest_list(lake.store.get(head.manifest_list))
        for entry in read_manifest(lake.store.get(listed.path), listed).entries
        if entry["status"] != 2
    }
    for _, entry in engine.live():
        same = ours.pop(entry.data_file.file_path)
        assert same["sequence_number"] == entry.sequence_number
        assert same["snapshot_id"] == entry.snapshot_id
        assert same["data_file"]["record_count"] == entry.data_file.record_count
        lower = {pair["key"]: pair["value"] for pair in same["data_file"]["lower_bounds"]}
        assert lower == dict(entry.data_file.lower_bounds)
    assert not ours
    snapshot = lake.read_by_pyiceberg().current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(PyArrowFileIO())) == len(read_manifest_list(lake.store.get(head.manifest_list)))


PROGRESS = st.dictionaries(
    st.integers(0, 10_000),
    st.tuples(st.integers(0, 2**62), st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99)), max_size=3)),
    max_size=20,
)


@given(PROGRESS)
def test_progress_comes_back_as_it_was_packed_T6(drawn: dict[int, tuple[int, list[tuple[int, int]]]]) -> None:
    progress = {}
    for partition, (end, steps) in drawn.items():
        at, above = end, []
        for gap, length in steps:
            above.append((at + gap, at + gap + length))
            at += gap + length
        progress[partition] = LandedOffsets(end, tuple(above))
    assert unpack_progress(pack_progress(progress)) == progress


@given(st.lists(st.builds(OffsetRange, st.integers(0, 999), st.integers(0, 2**40), st.integers(2**40, 2**41))))
def test_ranges_come_back_as_they_were_packed_T6(ranges: list[OffsetRange]) -> None:
    assert unpack_ranges(pack_ranges(ranges)) == ranges


def test_the_progress_of_a_thousand_partitions_is_a_few_kilobytes_T6() -> None:
    assert len(pack_progress({partition: LandedOffsets(10**9 + partition) for partition in range(1000)})) < 10_000


@pytest.mark.parametrize("text", ["", "AA==", "AQE=", "AQEB", "AQAA", "not base64", "AYA="])
def test_a_progress_that_cannot_be_read_is_never_taken_for_none(text: str) -> None:
    with pytest.raises(Corrupt):
        unpack_progress(text)


def test_progress_only_goes_on_and_may_jump_to_a_moved_log_start() -> None:
    progress = advance({0: LandedOffsets(5)}, [OffsetRange(0, 9, 12), OffsetRange(3, 0, 4)])
    assert progress == {0: LandedOffsets(12), 3: LandedOffsets(4)}
    for wrong in (OffsetRange(0, 11, 20), OffsetRange(0, 12, 11)):
        with pytest.raises(ValueError, match="does not follow"):
            advance(progress, [wrong])


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format-version":1}', b'{"format-version":3}'])
def test_what_is_no_table_of_version_2_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        TableMetadata.parse(data)

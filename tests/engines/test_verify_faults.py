"""`lakestream verify` finds and names every fault that is planted (T16), each in a topic of its own."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")

from lakestream.data.tables.files.file_stats import int_bound, long_bound
from lakestream.data.tables.iceberg.manifests.files import NewFile, read_manifest_list
from lakestream.data.tables.iceberg.progress import PROGRESS_PROPERTY, LandedOffsets, pack_progress
from lakestream.data.tables.iceberg.topic_table import TOPIC_ID_PROPERTY
from lakestream.model.batches.records import Record
from lakestream.model.batches.wal_object import wal_key
from lakestream.model.catalog.names import root_of
from tests.support.forged_tables import (
    TopicLake,
    all_rows,
    cell,
    rewrite_in_place,
    stray_file,
    twice,
    with_bounds,
    without,
)
from tests.support.verified_broker import PIPELINE, Checked, VerifyWorld, verify_world

DAY_S = 86_400


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifyWorld]:
    with verify_world(tmp_path_factory.mktemp("faults")) as one:
        yield one


def ranges(checked: Checked, kind: str) -> list[list[int]]:
    return [list(one) for finding in checked.of(kind) for one in finding["ranges"]]


def plant(world: VerifyWorld, topic: str, change: Callable[[pa.Table], pa.Table]) -> Checked:
    world.landed(topic)
    [path] = world.files(topic)
    rewrite_in_place(path, change)
    checked = world.verify(topic)
    assert checked.code == 1
    return checked


def test_a_row_lost_from_a_file_is_a_loss(world: VerifyWorld) -> None:
    checked = plant(world, "lost", without(42))
    assert ranges(checked, "lost-rows") == [[42, 43]]
    [loss] = checked.of("lost-rows")
    assert (loss["partition"], loss["rows"]) == (0, 1) and "99 are there" in loss["text"]
    assert "its manifest says 100" in str(checked.of("changed-file"))


def test_a_row_lost_in_a_rewrite_is_a_loss_and_the_snapshot_is_named(world: VerifyWorld) -> None:
    world.landed("rewritten")
    lake = TopicLake(world, "rewritten")
    lake.rewrite(lake.put(without(7, 8)(all_rows(world, "rewritten")), "rewritten"))
    checked = world.verify("rewritten")
    assert checked.code == 1 and checked.kinds == {"lost-rows"}
    [loss] = checked.of("lost-rows")
    assert loss["ranges"] == [[7, 9]] and str(lake.table.metadata.current_snapshot_id) in loss["text"]


def test_a_row_that_is_twice_in_a_file_is_found(world: VerifyWorld) -> None:
    checked = plant(world, "twice", twice(17))
    assert ranges(checked, "doubled-rows") == [[17, 18]] and not checked.of("lost-rows")


def test_a_file_that_landed_twice_is_found(world: VerifyWorld) -> None:
    world.landed("again")
    lake = TopicLake(world, "again")
    stats = lake.put(all_rows(world, "again").slice(10, 20), "again")
    lake.table = lake.committer.append(lake.table, [NewFile(stats=stats)], [], now_ms=lake.now_ms).table
    lake.take_over()
    checked = world.verify("again")
    assert checked.code == 1 and ranges(checked, "doubled-rows") == [[10, 30]]
    assert checked.of("doubled-rows")[0]["rows"] == 20


@pytest.mark.parametrize(
    ("name", "column", "change"),
    [
        ("value", "value", lambda value: bytes([value[0] ^ 1]) + value[1:]),
        ("key", "stream_key", lambda value: value[:-1] + b"x"),
        ("null", "stream_key", lambda _: None),
        ("empty", "value", lambda _: b""),
        ("time", "stream_timestamp", lambda value: value + timedelta(milliseconds=1)),
        ("header", "stream_headers", lambda value: [{"key": value[0]["key"], "value": b"other"}]),
        ("headers", "stream_headers", lambda _: []),
    ],
)
def test_one_changed_byte_is_found(world: VerifyWorld, name: str, column: str, change: Callable[[Any], Any]) -> None:
    checked = plant(world, f"changed-{name}", cell(column, 63, change))
    [found] = checked.of("changed-rows")
    assert found["partition"] == 0 and found["ranges"] == [[0, 100]]
    assert not checked.of("lost-rows") and not checked.of("unprovable")


def test_a_byte_that_changed_between_the_table_and_consumers_is_found(world: VerifyWorld) -> None:
    """The broker has the old rows in memory, the file has others: whoever is right, they differ."""
    world.landed("differs")
    assert world.verify("differs").code == 0
    [path] = world.files("differs")
    rewrite_in_place(path, cell("value", 50, lambda value: value + b"!"))
    checked = world.verify("differs")
    assert checked.code == 1 and {"changed-rows", "changed-file"} <= checked.kinds
    assert ranges(checked, "stream-differs") == [[50, 51]]
    assert "offset 50: other value than in" in checked.topic["notes"][0]


def test_a_wrong_offset_is_a_stray_row_and_a_loss(world: VerifyWorld) -> None:
    checked = plant(world, "offset", cell("stream_offset", 30, lambda _: 5_000_000))
    assert ranges(checked, "lost-rows") == [[30, 31]]
    assert ranges(checked, "stray-rows") == [[5_000_000, 5_000_001]]


def test_a_wrong_offset_on_top_of_another_is_a_double_and_a_loss(world: VerifyWorld) -> None:
    checked = plant(world, "offset-double", cell("stream_offset", 30, lambda _: 31))
    assert ranges(checked, "doubled-rows") == [[31, 32]] and ranges(checked, "lost-rows") == [[30, 31]]


@pytest.mark.parametrize(
    ("name", "number", "lower", "upper"),
    [
        ("offset", 2, None, long_bound(98)),
        ("partition", 1, int_bound(1), None),
        ("timestamp", 3, None, long_bound(0)),
        ("garbage", 2, b"\x00", None),
    ],
)
def test_wrong_bounds_in_a_manifest_are_found(
    world: VerifyWorld, name: str, number: int, lower: bytes | None, upper: bytes | None
) -> None:
    topic = f"bounds-{name}"
    world.landed(topic)
    lake = TopicLake(world, topic)
    lake.rewrite(with_bounds(lake.put(all_rows(world, topic), "bounds"), number, lower, upper))
    checked = world.verify(topic)
    assert checked.code == 1 and "wrong-bounds" in checked.kinds and "lost-rows" not in checked.kinds


def test_a_missing_file_and_the_rows_in_it_are_named(world: VerifyWorld) -> None:
    world.landed("missing")
    world.append("missing", 0, [Record(timestamp=1, value=b"more")] * 10)
    world.land()
    first, second = sorted(world.files("missing"), key=lambda path: path.stat().st_mtime_ns)
    second.unlink()
    checked = world.verify("missing")
    assert checked.code == 1 and ranges(checked, "lost-rows") == [[100, 110]]
    assert checked.of("missing-file")[0]["place"] == f"file://{second}"
    assert first.exists()


def test_a_file_that_is_no_parquet_any_more_is_named(world: VerifyWorld) -> None:
    world.landed("garbage")
    [path] = world.files("garbage")
    path.write_bytes(b"\0" * path.stat().st_size)
    checked = world.verify("garbage")
    assert checked.code == 1 and checked.of("unreadable-file")[0]["place"] == f"file://{path}"
    assert checked.of("lost-rows")[0]["rows"] == 100


@pytest.mark.parametrize("damage", ["missing", "zeroed", "cut"])
@pytest.mark.parametrize("which", ["metadata", "list", "manifest"])
def test_metadata_that_is_damaged_is_a_finding_and_the_tail_is_read_all_the_same(
    world: VerifyWorld, which: str, damage: str
) -> None:
    topic = f"{which}-{damage}"
    world.landed(topic)
    world.append(topic, 0, [Record(timestamp=1, value=b"tail")] * 3)
    current = world.metadata(topic).current
    assert current is not None
    [listed] = read_manifest_list(world.store.get(current.manifest_list))
    uri = {"metadata": world.location(topic), "list": current.manifest_list, "manifest": listed.path}[which]
    path = world.path(uri)
    size = path.stat().st_size
    path.unlink()
    if damage != "missing":
        path.write_bytes(b"\0" * size if damage == "zeroed" else b"")
    checked = world.verify(topic)
    assert checked.code == 1 and checked.topic["tail_records"] == 3
    assert checked.kinds == {"missing-file" if damage == "missing" else "unreadable-file"}


def test_a_progress_that_disagrees_with_the_state_is_found(world: VerifyWorld) -> None:
    world.landed("progress")
    lake = TopicLake(world, "progress")
    properties = {**lake.table.metadata.properties, PROGRESS_PROPERTY: pack_progress({0: LandedOffsets(99)})}
    forged = lake.table.metadata.replaced({"properties": properties})
    location = f"{lake.table.metadata.location}/metadata/99999-forged.metadata.json"
    lake.store.put(location, forged.encode())
    world.swap("progress", location)
    checked = world.verify("progress")
    assert checked.code == 1 and checked.kinds == {"progress-disagrees"}
    assert "below 99" in checked.findings[0]["text"] and "says 100" in checked.findings[0]["text"]


def test_a_leaked_wal_object_is_found_once_the_collector_had_its_time(world: VerifyWorld) -> None:
    world.landed("leak")
    key = wal_key(world.state.cluster, 0, 0, 77)
    path = stray_file(world.folder / key, age_s=0)
    try:
        assert world.verify("leak").code == 0
        assert world.verify("leak", flags=["--no-grace"]).of("leaked-wal-object")[0]["place"] == f"file://{path}"
        path.unlink()
        stray_file(path, age_s=DAY_S)
        checked = world.verify("leak")
        assert checked.code == 1 and checked.kinds == {"leaked-wal-object"}
        assert checked.findings[0]["place"] == f"file://{path}"
    finally:
        path.unlink()


def test_a_wal_object_of_the_tail_that_is_gone_is_found(world: VerifyWorld) -> None:
    world.landed("gone")
    world.append("gone", 0, [Record(timestamp=1, value=b"tail")])
    state = world.state
    [entry] = state.streams.by_id[state.topics.by_name["gone"].streams[0]].entries(100)
    one = state.streams.objects[entry.object]
    path = world.folder / wal_key(state.cluster, one.member, one.epoch, one.tick)
    kept = path.read_bytes()
    path.unlink()
    try:
        checked = world.verify("gone")
        assert checked.code == 1 and checked.of("missing-wal-object")[0]["place"] == f"file://{path}"
    finally:
        path.write_bytes(kept)
    assert world.verify("gone").code == 0


def test_orphan_files_are_found_once_the_sweep_had_its_time(world: VerifyWorld) -> None:
    world.landed("orphans")
    folder = world.path(f"{root_of(world.location('orphans'))}/data")
    ours, others = folder / "1000000-0-3" / "0-0.parquet", folder / "foreign.parquet"
    member = world.state.members.by_id[PIPELINE]
    under_way = folder / f"{PIPELINE}-{member.epoch}-{member.tick + 1000}" / "0-0.parquet"
    stray_file(under_way, age_s=9 * DAY_S)
    stray_file(ours, age_s=60)
    stray_file(others, age_s=DAY_S)
    assert world.verify("orphans").code == 0
    assert len(world.verify("orphans", flags=["--no-grace"]).of("orphan-file")) == 2
    stray_file(ours, age_s=3600)
    stray_file(others, age_s=4 * DAY_S)
    checked = world.verify("orphans")
    assert checked.code == 1 and checked.kinds == {"orphan-file"}
    assert {one["place"] for one in checked.findings} == {f"file://{ours}", f"file://{others}"}


def test_a_folder_of_no_table_is_found_when_all_topics_are_checked(tmp_path: Path) -> None:
    with verify_world(tmp_path) as alone:
        alone.landed("one")
        folder = alone.path(root_of(alone.location("one"))).parent / "gone-0123"
        stray_file(folder / "metadata" / "00000.metadata.json", age_s=DAY_S)
        assert alone.verify().code == 0
        stray_file(folder / "metadata" / "00000.metadata.json", age_s=4 * DAY_S)
        checked = alone.verify()
        assert checked.code == 1 and [one["place"] for one in checked.of("orphan-file")] == [f"file://{folder}"]


def test_a_table_of_another_topic_is_found(world: VerifyWorld) -> None:
    world.landed("bound")
    metadata = world.metadata("bound")
    forged = metadata.replaced({"properties": {**metadata.properties, TOPIC_ID_PROPERTY: str(UUID(int=5))}})
    location = f"{metadata.location}/metadata/99999-forged.metadata.json"
    world.store.put(location, forged.encode())
    world.swap("bound", location)
    checked = world.verify("bound")
    assert checked.code == 1 and checked.kinds == {"catalog-disagrees"}


def test_a_topic_that_does_not_exist_and_a_broker_that_is_away_are_not_clean(world: VerifyWorld) -> None:
    checked = world.verify("nobody")
    assert checked.code == 2 and "no topic" in checked.topic["unchecked"]
    assert world.verify("nobody", flags=["--bootstrap", "127.0.0.1:1"]).code == 2

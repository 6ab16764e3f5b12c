"""`lakestream verify` on a real broker and real tables: what is well is clean, rows that went rightly are explained."""

import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.expressions import BooleanExpression, EqualTo
from pyiceberg.table import Table

pytest.importorskip("pyiceberg")

from lakestream.cli.verify import Brokers, verify
from lakestream.data.tables.files.arrow_view import digest_rows
from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA
from lakestream.data.tables.iceberg.topic_table import METADATA_VERSIONS
from lakestream.lake.verify import topic
from lakestream.lake.verify.plan import PlannedFile
from lakestream.model.batches.records import Record
from lakestream.model.catalog.landed import LandedRange, NoteRemoved
from lakestream.model.commands import AdvanceLogStart
from lakestream.pipeline.tables.waiting import ENABLED
from tests.support.forged_tables import TopicLake, all_rows
from tests.support.iceberg_tables import OtherEngine
from tests.support.verified_broker import TIME_MS, Checked, VerifyWorld, plain_records, verify_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifyWorld]:
    with verify_world(tmp_path_factory.mktemp("verify")) as one:
        yield one


def explained(checked: Checked) -> list[tuple[str, int, list[list[int]]]]:
    return [(one["why"], one["rows"], [list(pair) for pair in one["ranges"]]) for one in checked.topic["explained"]]


def account(world: VerifyWorld, topic: str, removed: list[LandedRange]) -> None:
    """What table care does after a foreign removal: note it, before its snapshot may go."""
    state = world.state
    topic_id = state.topics.by_name[topic].id
    before = state.catalog.landings[topic_id].accounted
    sequence = world.metadata(topic).last_sequence_number
    assert world.call(world.core.replica.propose(NoteRemoved(topic_id, before, sequence, removed))) is None


def removed_range(rows: pa.Table, start: int, end: int) -> LandedRange:
    digest = digest_rows(rows.slice(start, end - start))[0]
    return LandedRange(0, start, end, digest.records, digest.hash)


def expire_all_but_last(world: VerifyWorld, topic: str) -> None:
    """Another engine expires every snapshot but the current one."""
    table = world.table(topic)
    current = table.current_snapshot()
    assert current is not None
    old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != current.snapshot_id]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert len(world.metadata(topic).snapshots) == 1


def test_a_landed_topic_and_its_tail_are_clean(world: VerifyWorld) -> None:
    world.landed("clean", 500, partitions=2)
    world.append("clean", 0, [Record(timestamp=5, key=None, value=b"tail")])
    checked = world.verify("clean")
    assert checked.findings == [] and checked.code == 0
    topic = checked.topic
    assert (topic["table_rows"], topic["proven_rows"], topic["compared_rows"]) == (1000, 1000, 1000)
    assert topic["tail_records"] == 1 and topic["explained"] == []


def test_odd_records_are_clean(world: VerifyWorld) -> None:
    world.topic("odd")
    odd = [
        Record(timestamp=TIME_MS, key=None, value=None),
        Record(timestamp=TIME_MS, key=b"", value=b""),
        Record(timestamp=-1, key=b"k", value=b"no time"),
        Record(timestamp=-5_000_000, key=b"k", value=b"before 1970"),
        Record(timestamp=2**62, key=b"k", value=b"after all"),
        Record(timestamp=-(2**62), key=b"k", value=b"before all"),
        Record(timestamp=7, value=b"h", headers=(("a", b""), ("a", None), ("", b"x"), ("ä", b"\xff" * 300))),
        Record(timestamp=8, key=b"big", value=b"v" * 3_000_000),
    ]
    world.append("odd", 0, odd)
    world.append("odd", 0, plain_records(50, "stamped"), log_append_time=True)
    world.append("odd", 0, plain_records(50, "packed"), codec=4)
    world.land()
    world.append("odd", 0, odd)
    checked = world.verify("odd")
    assert checked.findings == [] and checked.code == 0
    assert (checked.topic["proven_rows"], checked.topic["tail_records"]) == (108, 8)


def test_a_topic_without_a_table_is_checked_as_a_stream(world: VerifyWorld) -> None:
    world.topic("plain", **{ENABLED: "false"})
    world.append("plain", 0, plain_records(30, "plain"))
    checked = world.verify("plain")
    assert checked.code == 0 and (checked.topic["files"], checked.topic["tail_records"]) == (0, 30)


def test_all_topics_are_checked_when_none_is_named_and_people_get_a_table(world: VerifyWorld) -> None:
    world.landed("named")
    result = CliRunner().invoke(verify, ["--bootstrap", world.bootstrap, "--http", world.http])
    assert "named" in result.stdout and "PROVEN" in result.stdout


def test_many_quick_topics_are_checked_by_few_exports_of_the_state(
    world: VerifyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"quick-{n}" for n in range(8)]
    for name in names:
        world.topic(name)
        world.append(name, 0, plain_records(3, name))
    world.land()
    exported, exports = Brokers.exported, 0

    async def counted(brokers: Brokers) -> Any:
        nonlocal exports
        exports += 1
        return await exported(brokers)

    monkeypatch.setattr(Brokers, "exported", counted)
    checked = world.verify(*names)
    assert checked.code == 0 and [one["proven_rows"] for one in checked.report["topics"]] == [3] * 8
    assert exports < 8


@pytest.mark.parametrize(
    ("topic", "condition", "ranges"),
    [
        ("delete-range", "stream_offset >= 10 and stream_offset < 20", [[10, 20]]),
        ("delete-key", EqualTo("stream_key", b"k15"), [[15, 16]]),
        ("delete-file", "stream_offset >= 0", [[0, 100]]),
    ],
)
def test_a_delete_by_another_engine_is_explained(
    world: VerifyWorld, topic: str, condition: str | BooleanExpression, ranges: list[list[int]]
) -> None:
    world.landed(topic)
    world.table(topic).delete(condition)
    checked = world.verify(topic)
    assert checked.findings == [] and checked.code == 0
    gone = ranges[0][1] - ranges[0][0]
    assert explained(checked) == [("deleted", gone, ranges)]
    snapshot = world.table(topic).current_snapshot()
    assert snapshot is not None and checked.topic["explained"][0]["snapshot"] == snapshot.snapshot_id
    assert checked.topic["proven_rows"] == 100 - gone


def test_a_deleted_file_and_rows_that_land_later_are_explained(world: VerifyWorld) -> None:
    world.landed("later")
    world.table("later").delete("stream_offset < 100")
    world.append("later", 0, plain_records(20, "more"))
    world.land()
    checked = world.verify("later")
    assert checked.code == 0 and explained(checked) == [("deleted", 100, [[0, 100]])]
    assert (checked.topic["table_rows"], checked.topic["proven_rows"]) == (20, 20)


def test_position_deletes_are_explained(world: VerifyWorld) -> None:
    world.landed("positions")
    lake = TopicLake(world, "positions")
    [path] = world.files("positions")
    OtherEngine(lake, Random(1)).delete({f"file://{path}": [3, 4, 50]})
    lake.take_over()
    checked = world.verify("positions")
    assert checked.findings == [] and checked.code == 0
    assert explained(checked) == [("deleted", 3, [[3, 5], [50, 51]])]


def test_files_that_another_engine_rewrote_in_a_foreign_order_are_clean(world: VerifyWorld) -> None:
    world.landed("sorted", 300, partitions=2)
    lake = TopicLake(world, "sorted")
    engine = OtherEngine(lake, Random(2))
    engine.rewrite({f"file://{path}" for path in world.files("sorted")}, pieces=3)
    lake.take_over()
    checked = world.verify("sorted")
    assert checked.findings == [] and checked.code == 0
    assert checked.topic["proven_rows"] == 600 and checked.topic["explained"] == []


def test_an_update_by_another_engine_is_explained(world: VerifyWorld) -> None:
    world.landed("update")
    rows = all_rows(world, "update").slice(40, 1)
    place = rows.schema.get_field_index("value")
    rows = rows.set_column(place, ARROW_SCHEMA.field("value"), pa.array([b"redacted"], pa.binary()))
    world.table("update").overwrite(rows, overwrite_filter="stream_offset = 40")
    checked = world.verify("update")
    assert checked.findings == [] and checked.code == 0
    assert ("changed", 1, [[40, 41]]) in explained(checked)
    assert checked.topic["proven_rows"] == 100


def test_an_accounted_delete_is_explained_even_when_its_snapshot_is_expired(world: VerifyWorld) -> None:
    world.landed("accounted")
    rows = all_rows(world, "accounted")
    world.table("accounted").delete("stream_offset >= 10 and stream_offset < 20")
    account(world, "accounted", [removed_range(rows, 10, 20)])
    checked = world.verify("accounted")
    assert checked.code == 0 and explained(checked) == [("recorded", 10, [[10, 20]])]
    expire_all_but_last(world, "accounted")
    checked = world.verify("accounted")
    assert checked.code == 0 and explained(checked) == [("recorded", 10, [[10, 20]])]
    assert checked.topic["proven_rows"] == 90


def test_a_delete_that_somebody_expired_before_it_was_accounted_is_unprovable(world: VerifyWorld) -> None:
    world.landed("expired")
    world.table("expired").delete("stream_offset >= 10 and stream_offset < 20")
    world.append("expired", 0, plain_records(20, "more"))
    world.land()
    expire_all_but_last(world, "expired")
    checked = world.verify("expired")
    assert checked.code == 1 and checked.kinds == {"unprovable"}
    [found] = checked.findings
    assert found["rows"] == 10 and found["ranges"] == [[10, 20]]
    # What landed after it is proven all the same.
    assert checked.topic["proven_rows"] == 20


def test_expired_snapshots_that_only_landed_rows_leave_nothing_to_prove(world: VerifyWorld) -> None:
    world.landed("appends")
    world.append("appends", 0, plain_records(20, "more"))
    world.land()
    expire_all_but_last(world, "appends")
    checked = world.verify("appends")
    assert checked.code == 0 and checked.topic["proven_rows"] == 120


def test_rows_below_a_log_start_that_moved_stay_proven_and_go_explained(world: VerifyWorld) -> None:
    world.landed("start")
    stream = world.state.topics.by_name["start"].streams[0]
    world.call(world.core.replica.propose(AdvanceLogStart([(stream, 60)])))
    checked = world.verify("start")
    assert checked.code == 0 and (checked.topic["proven_rows"], checked.topic["compared_rows"]) == (100, 40)
    world.table("start").delete("stream_offset < 60")
    checked = world.verify("start")
    assert checked.code == 0 and explained(checked) == [("deleted", 60, [[0, 60]])]


def test_records_that_were_gone_before_they_landed_are_not_missed(world: VerifyWorld) -> None:
    world.topic("skipped")
    world.append("skipped", 0, plain_records(50, "skipped"))
    stream = world.state.topics.by_name["skipped"].streams[0]
    world.call(world.core.replica.propose(AdvanceLogStart([(stream, 30)])))
    world.land()
    checked = world.verify("skipped")
    assert checked.findings == [] and checked.topic["proven_rows"] == 20


def test_a_topic_is_clean_while_records_land_and_are_deleted_beside_the_check(world: VerifyWorld) -> None:
    world.landed("busy", 2000, partitions=2)
    stop = threading.Event()

    def disturb() -> None:
        turn = 0
        while not stop.is_set():
            world.append("busy", turn % 2, plain_records(50, f"turn{turn}"))
            world.land()
            if turn % 4 == 3:
                world.table("busy").delete(f"stream_offset = {turn}")
                # A check is begun anew when rows went meanwhile, so now and then one has to fit between two deletes.
                stop.wait(2.0)
            turn += 1

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        checks = [world.verify("busy") for _ in range(3)]
    finally:
        stop.set()
        thread.join(30)
    assert [one.findings for one in checks] == [[], [], []] and [one.code for one in checks] == [0, 0, 0]


def test_a_check_that_takes_longer_than_metadata_files_are_kept_finds_nothing_wrong(
    world: VerifyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T11: landing goes on, and the metadata file that the check began with is deleted while it reads the rows."""
    world.landed("long")
    began, planned = world.location("long"), topic.plan

    def plan(table: Table) -> list[PlannedFile]:
        found = planned(table)
        for _ in range(METADATA_VERSIONS + 1):
            world.append("long", 0, plain_records(1, "later"))
            world.land()
        world.call(world.tables.delete_obsolete(600.0))
        assert not world.path(began).exists()
        return found

    monkeypatch.setattr(topic, "plan", plan)
    checked = world.verify("long")
    assert checked.code == 0, checked.report

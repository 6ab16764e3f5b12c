"""What others do to a stream's table that care has to get right: where their files lie, how they spell that, and how
many of their changes are accounted for at once.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import httpx
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.exceptions import ForbiddenError

from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA
from lakestream.data.tables.foreign.allowed_changes import Refused
from lakestream.data.tables.foreign.rows import judge_rows
from lakestream.data.tables.iceberg.metadata.documents import checked
from lakestream.pipeline.care.caretaker import CareSchedule, Caretaker
from lakestream.pipeline.care.jobs import CareJobs
from lakestream.pipeline.care.plan import CareLimits
from lakestream.pipeline.care.repair import lost_files
from lakestream.process.clock import SystemClock
from tests.support.forged_tables import all_rows
from tests.support.verified_broker import VerifyWorld, plain_records, verify_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VerifyWorld]:
    with verify_world(tmp_path) as made:
        yield made


def caretaker(world: VerifyWorld) -> Caretaker:
    limits, clock = CareLimits(), SystemClock()
    jobs = CareJobs(world.tables, world.driver, world.driver._engine, limits, f"file://{world.folder}")
    world.call(world.replica.catch_up())
    return Caretaker(world.replica, world.tables, jobs, clock, Random(6), limits, CareSchedule(orphans_first_s=0.0))


def update(world: VerifyWorld, topic: str, offset: int) -> None:
    """What UPDATE does: the file is written anew with another value in one row."""
    rows = all_rows(world, topic)
    rows = rows.filter(pc.equal(rows["stream_offset"], offset))
    changed = pa.array([b"redacted"], pa.binary())
    rows = rows.set_column(rows.schema.get_field_index("value"), ARROW_SCHEMA.field("value"), changed)
    world.table(topic).overwrite(rows, overwrite_filter=f"stream_offset = {offset}")


def set_data_path(world: VerifyWorld, topic: str, place: str) -> None:
    with world.table(topic).transaction() as transaction:
        transaction.set_properties({"write.data.path": place})


def test_files_whose_place_is_spelled_otherwise_are_the_tables_all_the_same_t12(world: VerifyWorld) -> None:
    world.landed("t", 20)
    place = world.table("t").location().replace("file:///", "file:/")
    assert place.startswith("file:/") and not place.startswith("file://")
    set_data_path(world, "t", f"{place}/data/mine")
    update(world, "t", 4)
    assert any(not uri.startswith("file://") for uri in live(world, "t"))
    topic = world.state.topics.by_name["t"]
    found = world.call(caretaker(world).remove_orphans(topic.id, 0, dry_run=False))
    assert found.figures["others"] == 0, "they look old enough to go, and are read"
    assert not lost_files(world.store, world.tables.format.committer.load(world.location("t")))
    checked = world.verify("t")
    assert checked.code == 0, checked.findings


def live(world: VerifyWorld, topic: str) -> list[str]:
    return [task.file.file_path for task in world.table(topic).scan().plan_files()]


def test_a_table_does_not_write_into_the_folder_of_another_t13(world: VerifyWorld) -> None:
    """Its care, or its end, would take the files along."""
    world.landed("a", 20)
    world.landed("b", 20)
    elsewhere = world.table("b").location()
    with pytest.raises(ForbiddenError, match="own folder"):
        set_data_path(world, "a", f"{elsewhere}/shared")
    set_data_path(world, "a", f"{world.table('a').location()}/shared")
    before = checked(world.metadata("a"))
    update(world, "a", 4)
    after = checked(world.metadata("a"))
    old, new = (one.snapshot_fields(one.main_id) for one in (before, after))
    assert new is not None
    judge_rows(world.store, before.location, old, new, Random(1))
    with pytest.raises(Refused, match="own folder"):
        judge_rows(world.store, elsewhere, old, new, Random(1))


def in_two_landings(world: VerifyWorld, topic: str) -> bytes:
    world.topic(topic)
    for part in range(2):
        world.append(topic, 0, plain_records(25, f"p{part}"))
        world.land()
    return world.state.topics.by_name[topic].id


def test_a_delete_and_an_update_are_accounted_for_together_t16(world: VerifyWorld) -> None:
    topic_id = in_two_landings(world, "t")
    world.table("t").delete("stream_offset = 3")
    update(world, "t", 40)
    care = caretaker(world)
    table = world.call(world.tables.table_of(topic_id))
    assert care.accounts.due(topic_id, table)
    world.call(care._settle(topic_id, quiet))
    checked = world.verify("t")
    assert checked.code == 0, checked.findings


async def quiet(_: str) -> None: ...


def test_what_came_by_a_branch_is_accounted_for_when_main_is_moved_to_it_t16(world: VerifyWorld) -> None:
    topic_id = in_two_landings(world, "t")
    table = world.table("t")
    main = table.metadata.current_snapshot_id
    assert main is not None
    table.manage_snapshots().create_branch(main, "audit").commit()
    world.table("t").delete("stream_offset = 7", branch="audit")
    audit = world.table("t").refs()["audit"].snapshot_id
    care = caretaker(world)
    world.call(care._jobs.expire(topic_id, 0))
    forward = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": audit}
    asserted = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": main}
    answer = httpx.post(
        f"http://{world.http}/iceberg/v1/namespaces/streams/tables/t",
        json={"requirements": [asserted], "updates": [forward]},
    )
    assert answer.status_code == 200, answer.text
    assert world.verify("t").code == 0
    world.call(world.replica.catch_up())
    world.call(care._settle(topic_id, quiet))
    landing = world.state.catalog.landings[topic_id]
    assert sum(mark.records for marks in landing.removed.values() for mark in marks) == 1
    checked = world.verify("t")
    assert checked.code == 0, checked.findings

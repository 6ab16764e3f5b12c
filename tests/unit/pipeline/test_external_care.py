"""Care of tables in somebody else's catalog: the same jobs and accounts, with the commit first and the state after."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from pyiceberg.expressions import EqualTo, GreaterThanOrEqual

from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.stores.table_store import FolderTableStore
from lakestream.errors import Unknown
from lakestream.lake.verify.snapshots import snapshot_effects
from lakestream.model.commands import AdvanceLogStart
from lakestream.model.streams import Stream
from lakestream.pipeline.care.jobs import CareJobs
from lakestream.pipeline.care.plan import CareLimits
from lakestream.pipeline.care.results import NotDone
from lakestream.pipeline.landing.rounds import Work
from lakestream.pipeline.tables.external_catalog import ExternalCatalog
from tests.support.broker_and_pipeline import TestPipeline
from tests.support.care_cluster import care_jobs, quiet
from tests.support.external_catalog_cluster import (  # noqa: F401 (fixtures)
    VALUES,
    OutsideWorld,
    landed_stream,
    sql_world,
)
from tests.support.iceberg_tables import Lake, OtherEngine
from tests.support.landed_table import rows as made_rows


@pytest.fixture
def jobs(world: OutsideWorld) -> CareJobs:
    return care_jobs(world.pipeline, world.folder)


def external_of(pipeline: TestPipeline) -> ExternalCatalog:
    assert pipeline.tables.catalogs.external is not None
    return pipeline.tables.catalogs.external


def lake(world: OutsideWorld) -> set[Path]:
    return {path for path in (world.folder.parent / "lake").rglob("*") if path.is_file()}


def kept(offsets: range, *gone: int) -> list[tuple[int, int]]:
    return [(0, n) for n in offsets if n not in gone]


async def test_a_table_there_is_rewritten_deleted_from_and_expired_like_our_own(
    world: OutsideWorld, stream: Stream, jobs: CareJobs
) -> None:
    topic_id = stream.topic.id
    merged = await jobs.optimize(topic_id, quiet, asked=True)
    assert (merged.figures["files_before"], merged.figures["files_after"]) == (2, 1)
    assert await world.values(stream) == VALUES and world.proven()
    gone = await jobs.delete(topic_id, "stream_offset in (3, 12)", quiet)
    assert gone.figures["rows_removed"] == 2
    assert world.offsets() == kept(range(20), 3, 12) and world.proven()
    assert [(one.start, one.end, one.records) for one in world.landing().removed[0]] == [(3, 13, 2)]
    expired = await jobs.expire(topic_id, 0)
    assert expired.figures["snapshots_left"] == 1 and len(world.table().metadata.snapshots) == 1
    await world.pipeline.tables.delete_obsolete(0.0)
    assert len(list((world.folder.parent / "lake").rglob("*.parquet"))) == 1
    assert world.offsets() == kept(range(20), 3, 12) and world.proven() and world.landing().held == ""
    await world.fill(stream, tag="x")
    assert await world.land() == 0
    assert world.offsets() == kept(range(30), 3, 12) and len(await world.values(stream)) == 28 and world.proven()


async def test_care_goes_on_by_itself_there(world: OutsideWorld) -> None:
    [stream] = await world.broker.topic("orders")
    care = world.caretaker(CareLimits(small_files=3))
    for tag in ("a", "b", "c"):
        await world.fill(stream, tag=tag)
        assert await world.land() == 0
    await care.step()
    assert len(world.table().inspect.files()) == 1, "the small files are one"
    await world.broker.replica.propose(AdvanceLogStart([(stream.id, 25)]))
    await world.pipeline.replica.catch_up()
    care._seen[stream.topic.id].again_s = 0.0
    await care.step()
    assert world.offsets() == kept(range(25, 30)) and world.proven(), "rows follow the log start (T21)"


def delete_again(world: OutsideWorld) -> None:
    """Offset 7 is deleted by writing its file again."""
    world.table().delete(EqualTo("stream_offset", 7))


def delete_by_position(world: OutsideWorld) -> None:
    """The same by a file of positions: the data files stay."""
    folder = world.folder.parent
    theirs = Lake(folder / "theirs")
    theirs.store = FolderTableStore(folder / "lake")
    theirs.committer = Committer(theirs.store, Random(3))
    theirs.table = theirs.committer.load(world.table().metadata_location)
    theirs.now_ms = theirs.table.metadata.value("last-updated-ms")
    files = [task.file for task in world.table().scan(row_filter="stream_offset == 7").plan_files()]
    OtherEngine(theirs, Random(4)).delete({files[0].file_path: [7]})
    world.catalog.drop_table(("streams", "orders"))
    world.catalog.register_table(("streams", "orders"), theirs.location)


def interfere(world: OutsideWorld, delete: Callable[[OutsideWorld], None]) -> list[int]:
    """Between the work and the commit another engine deletes a row, once. Counts the jobs."""
    engine, change = world.pipeline.driver._engine, world.pipeline.tables.change
    run, counted = engine.run, list[int]()
    waiting = [delete]

    def counting(work: Work, tasks: Sequence[bytes]) -> list[list[bytes]]:
        counted.append(len(tasks))
        return run(work, tasks)

    async def late(*args: Any, **kwargs: Any) -> Any:
        if waiting:
            waiting.pop()(world)
        return await change(*args, **kwargs)

    engine.run = counting  # type: ignore[method-assign]
    world.pipeline.tables.change = late  # type: ignore[method-assign]
    return counted


@pytest.mark.parametrize("delete", [delete_again, delete_by_position])
async def test_t8_rows_that_others_delete_during_a_rewrite_do_not_come_back(
    world: OutsideWorld, stream: Stream, jobs: CareJobs, delete: Callable[[OutsideWorld], None]
) -> None:
    counted = interfere(world, delete)
    result = await jobs.optimize(stream.topic.id, quiet, asked=True)
    assert len(counted) == 2 and result.figures["rows"] == 19, "the first result was thrown away"
    assert world.offsets() == kept(range(20), 7)
    await world.caretaker().step()
    assert world.proven()


async def test_t8_a_delete_that_comes_between_the_check_and_the_commit_is_not_undone(
    world: OutsideWorld, stream: Stream, jobs: CareJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = external_of(world.pipeline).catalog
    commit, waiting = catalog.commit, [delete_again]

    def late(*args: Any) -> str:
        if waiting:
            waiting.pop()(world)
        return commit(*args)

    monkeypatch.setattr(catalog, "commit", late)
    result = await jobs.optimize(stream.topic.id, quiet, asked=True)
    assert result.figures["rows"] == 19 and world.offsets() == kept(range(20), 7)
    await world.caretaker().step()
    assert world.proven()


async def test_a_rewrite_goes_through_over_our_own_appends(
    world: OutsideWorld, stream: Stream, jobs: CareJobs
) -> None:
    change = world.pipeline.tables.change

    async def late(*args: Any, **kwargs: Any) -> Any:
        world.pipeline.tables.change = change  # type: ignore[method-assign]
        await world.fill(stream, tag="x")
        assert await world.land() == 0
        return await change(*args, **kwargs)

    world.pipeline.tables.change = late  # type: ignore[method-assign]
    result = await jobs.optimize(stream.topic.id, quiet, asked=True)
    assert result.figures["rows"] == 20 and world.offsets() == kept(range(30)) and world.proven()


# -- accounts ---------------------------------------------------------------------------------------------------------


async def test_t16_what_others_delete_and_change_is_accounted_for_before_it_may_expire(
    world: OutsideWorld, stream: Stream, jobs: CareJobs
) -> None:
    world.table().delete(EqualTo("stream_offset", 3))
    world.table().overwrite(made_rows([4], mark=b"redacted"), EqualTo("stream_offset", 4))
    await world.fill(stream, tag="x")
    assert await world.land() == 0
    assert world.landing().accounted == 2, "a landing does not pass over what others did"
    expired = await jobs.expire(stream.topic.id, 0)
    assert expired.figures["snapshots_left"] == 5, "what others made, the one before it, and what came since"
    await world.caretaker().step()
    whole = "the row that was changed is no other than its file's"
    assert [(one.start, one.end, one.records) for one in world.landing().removed[0]] == [(0, 10, 1)], whole
    await world.follow()
    assert world.proven()
    assert (await jobs.expire(stream.topic.id, 0)).figures["snapshots_left"] == 1
    await world.pipeline.tables.delete_obsolete(0.0)
    assert len(await world.values(stream)) == 29 and world.proven()


async def test_t16_to_expire_older_snapshots_does_not_account_for_the_last_one(
    world: OutsideWorld, stream: Stream, jobs: CareJobs
) -> None:
    world.table().delete(EqualTo("stream_offset", 3))
    assert (await jobs.expire(stream.topic.id, 0)).figures["snapshots_left"] == 2
    assert world.landing().accounted == 2
    await world.caretaker().step()
    assert world.proven()


@pytest.mark.parametrize("first", [3, 0])
async def test_t16_a_snapshot_that_others_expired_before_it_was_accounted_for_makes_the_past_unproven(
    world: OutsideWorld, stream: Stream, first: int
) -> None:
    """PyIceberg makes the oldest snapshot that is left look like the first one; with no row left nothing differs."""
    before = world.table().current_snapshot().snapshot_id
    world.table().delete(GreaterThanOrEqual("stream_offset", first))
    world.table().maintenance.expire_snapshots().by_id(before).commit()
    await world.follow()
    metadata = TableMetadata.parse(world.pipeline.store.get(world.landing().location))
    past = snapshot_effects(world.pipeline.store, metadata, world.landing().accounted, external=True)
    assert not past.complete
    await world.caretaker().step()
    last = world.table().current_snapshot().sequence_number
    assert world.landing().unproven and world.landing().accounted == last


async def test_t16_an_expired_snapshot_that_nobody_accounted_for_is_missed_also_below_our_own(
    world: OutsideWorld, stream: Stream
) -> None:
    before = world.table().current_snapshot().snapshot_id
    world.table().delete(EqualTo("stream_offset", 3))
    deleted = world.table().current_snapshot().snapshot_id
    await world.fill(stream, tag="x")
    assert await world.land() == 0
    for one in (before, deleted):
        world.table().maintenance.expire_snapshots().by_id(one).commit()
    await world.follow()
    assert world.landing().unproven and world.landing().held == ""
    assert world.landing().accounted == world.table().current_snapshot().sequence_number


async def test_t16_rows_that_a_repair_gave_up_make_the_past_unproven(world: OutsideWorld, stream: Stream) -> None:
    with world.table().manage_snapshots() as change:
        change.rollback_to_snapshot(world.table().metadata.snapshots[0].snapshot_id)
    await world.follow()
    result = await world.caretaker().repair(stream.topic.id, accept_loss=True)
    assert "the rows that are left" in result.text and result.figures == {"files": 1, "rows": 10}
    assert world.landing().unproven


async def test_t16_lost_files_that_are_given_up_make_the_past_unproven(world: OutsideWorld, stream: Stream) -> None:
    min((world.folder.parent / "lake").rglob("*.parquet"), key=lambda path: path.parent.name).unlink()
    await world.caretaker().repair(stream.topic.id, accept_loss=True)
    assert world.landing().unproven and world.offsets() == kept(range(10, 20))


# -- crashes ----------------------------------------------------------------------------------------------------------


class Died(BaseException):
    """The pipeline is gone, in the middle of it."""


@pytest.mark.parametrize("step", ["_accept", "_account"])
@pytest.mark.parametrize("job", ["delete", "retain", "optimize"])
async def test_a_crash_between_the_commit_and_the_state_heals_by_itself(
    world: OutsideWorld, stream: Stream, jobs: CareJobs, monkeypatch: pytest.MonkeyPatch, step: str, job: str
) -> None:
    """`_accept`: the state is not told at all. `_account`: it knows the table, but not what was taken away (T16)."""

    async def die(*_: Any) -> None:
        raise Died

    # Only the commit's own telling dies, not the look at the table before it.
    external, topic_id = external_of(world.pipeline), stream.topic.id
    commit = external.commit

    async def dying(*args: Any) -> Any:
        monkeypatch.setattr(external, step, die)
        return await commit(*args)

    monkeypatch.setattr(external, "commit", dying)
    with pytest.raises(Died):
        if job == "delete":
            await jobs.delete(topic_id, "stream_offset = 3", quiet)
        elif job == "retain":
            await jobs.retain(topic_id, {0: 14}, quiet)
        else:
            await jobs.optimize(topic_id, quiet, asked=True)
    gone = {"delete": (3,), "retain": tuple(range(10)), "optimize": ()}[job]
    assert world.offsets() == kept(range(20), *gone), "the table has it"
    assert world.landing().accounted == 2
    other = await world.another()
    assert await other.driver.drain() == 0
    landing = other.replica.state.catalog.landings[topic_id]
    metadata = TableMetadata.parse(other.store.get(landing.location))
    past = snapshot_effects(other.store, metadata, landing.accounted, external=True)
    assert past.complete and past.removals.rows == len(gone), "the checker finds what the state was not told of"
    await world.caretaker(pipeline=other).step()
    assert world.proven(pipeline=other)
    assert len(await world.values(stream)) == 20 - len(gone)
    await other.stop()


async def test_what_another_pipeline_tells_first_is_noted_once(
    world: OutsideWorld, stream: Stream, jobs: CareJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await world.another(member=1_000_001)
    external, accept = external_of(world.pipeline), external_of(world.pipeline)._accept

    async def late(*args: Any) -> Any:
        await other.driver.drain()
        await world.caretaker(pipeline=other).step()
        return await accept(*args)

    monkeypatch.setattr(external, "_accept", late)
    await jobs.delete(stream.topic.id, "stream_offset = 3", quiet)
    assert world.proven()
    assert [one.records for one in world.landing().removed[0]] == [1]
    await other.stop()


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("job", ["delete", "expire"])
async def test_t7_a_commit_whose_answer_is_lost_is_looked_up_before_anything_is_deleted(
    world: OutsideWorld, stream: Stream, jobs: CareJobs, monkeypatch: pytest.MonkeyPatch, made: bool, job: str
) -> None:
    catalog, before = external_of(world.pipeline).catalog, lake(world)
    commit = catalog.commit

    def silent(*args: Any) -> str:
        if made:
            commit(*args)
        raise Unknown("no answer")

    monkeypatch.setattr(catalog, "commit", silent)
    with nullcontext() if made else pytest.raises(NotDone, match="no answer"):
        if job == "delete":
            await jobs.delete(stream.topic.id, "stream_offset >= 10", quiet)
        else:
            await jobs.expire(stream.topic.id, 0)
    monkeypatch.undo()
    await world.pipeline.tables.delete_obsolete(0.0)
    snapshots = len(world.table().metadata.snapshots)
    assert snapshots == {"delete": 3 if made else 2, "expire": 1 if made else 2}[job]
    assert made or before <= lake(world), "nothing is deleted that may be needed"
    left = 10 if made and job == "delete" else 20
    assert len(await world.values(stream)) == left and world.offsets() == kept(range(left)) and world.proven()


async def test_files_that_a_new_branch_of_others_needs_stay_although_we_expire_the_snapshot_that_had_them(
    world: OutsideWorld, stream: Stream, jobs: CareJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our look at the table and our commit somebody writes to a branch that goes on from an old snapshot."""
    old = world.table().current_snapshot().snapshot_id
    await jobs.delete(stream.topic.id, "stream_offset >= 10", quiet)
    catalog = external_of(world.pipeline).catalog
    commit = catalog.commit

    def late(*args: Any) -> str:
        table = world.table()
        with table.manage_snapshots() as change:
            change.create_branch(old, "theirs")
        world.table().delete(EqualTo("stream_offset", 0), branch="theirs")
        return commit(*args)

    monkeypatch.setattr(catalog, "commit", late)
    await jobs.expire(stream.topic.id, 0)
    await world.pipeline.tables.delete_obsolete(0.0)
    theirs = world.table().scan(snapshot_id=world.table().metadata.refs["theirs"].snapshot_id)
    assert theirs.to_arrow().num_rows == 19
    assert world.offsets() == kept(range(10)) and world.proven()


# -- orphans ----------------------------------------------------------------------------------------------------------


async def test_t12_orphans_of_a_dead_pipeline_go_and_it_cannot_commit_them_any_more(
    world: OutsideWorld, stream: Stream, jobs: CareJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie, asleep = external_of(world.pipeline), list[Any]()

    async def sleep(*args: Any) -> int:
        asleep.append(args)
        raise Died

    before = lake(world)
    with monkeypatch.context() as patch:
        patch.setattr(zombie, "commit", sleep)
        with pytest.raises(Died):
            await jobs.optimize(stream.topic.id, quiet, asked=True)
    left = lake(world) - before
    assert len(left) == 5, "a data file, a manifest of it, two of what went, and their list"
    other = await world.another()
    care = world.caretaker(pipeline=other)
    dry = await care.remove_orphans(stream.topic.id, 0, dry_run=True)
    assert dry.figures["ours"] == len(left) and left <= lake(world)
    done = await care.remove_orphans(stream.topic.id, 0, dry_run=False)
    assert done.figures["ours"] == len(left) and not left & lake(world)
    [(topic, commit)] = asleep
    assert not isinstance(await zombie.commit(topic, commit), int), "what it prepared is worthless"
    assert world.offsets() == kept(range(20)) and world.proven(pipeline=other)
    await other.stop()


async def test_t12_files_of_others_and_their_metadata_files_go_only_when_they_are_old(
    world: OutsideWorld, stream: Stream
) -> None:
    place = world.table().location()
    theirs = [f"{place}/data/part-1.parquet", f"{place}/metadata/00000-{'0' * 36}.metadata.json"]
    for uri in theirs:
        world.pipeline.store.put(uri, b"theirs")
    care = world.caretaker()
    kept_all = await care.remove_orphans(stream.topic.id, None, dry_run=False)
    assert kept_all.figures == {"ours": 0, "others": 0, "spared": 0, "bytes": 0}
    await asyncio.sleep(0.02)
    assert (await care.remove_orphans(stream.topic.id, 0, dry_run=False)).figures["others"] == 2
    assert await world.values(stream) == VALUES


async def test_files_that_have_their_grace_are_no_orphans(world: OutsideWorld, stream: Stream, jobs: CareJobs) -> None:
    await jobs.optimize(stream.topic.id, quiet, asked=True)
    await jobs.expire(stream.topic.id, 0)
    before = lake(world)
    await world.pipeline.membership._beat()
    await world.caretaker().remove_orphans(stream.topic.id, 0, dry_run=False)
    assert await world.pipeline.driver.sweep() == 0 and lake(world) == before
    await world.pipeline.tables.delete_obsolete(0.0)
    assert len(lake(world)) < len(before) and await world.values(stream) == VALUES


async def test_a_table_that_is_not_as_it_should_be_gets_no_care(
    world: OutsideWorld, stream: Stream, jobs: CareJobs
) -> None:
    world.table().append(made_rows([500]))
    before = lake(world)
    for job in (jobs.optimize(stream.topic.id, quiet, asked=True), jobs.expire(stream.topic.id, 0)):
        with pytest.raises(NotDone, match="would be new"):
            await job
    assert lake(world) >= before



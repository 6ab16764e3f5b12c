"""The caretaker: requests by command, accounts of what others did, orphans, repair, and what it does by itself."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lakestream.data.tables.files.parquet import read_parquet
from lakestream.data.tables.iceberg.manifests.files import NewFile
from lakestream.errors import Rejected
from lakestream.model.catalog.landed import HoldTopic
from lakestream.model.commands import AdvanceLogStart
from lakestream.pipeline.care import caretaker as care_module
from lakestream.pipeline.care.caretaker import CareSchedule, Caretaker
from lakestream.pipeline.care.diagnosis import diagnose
from lakestream.pipeline.care.plan import CareLimits
from lakestream.pipeline.care.results import NotDone
from tests.support import care_cluster as care_world
from tests.support.broker_and_pipeline import TestPipeline, start_pipeline
from tests.support.care_cluster import CareWorld, care_jobs, quiet, start_world
from tests.unit.pipeline.test_care_jobs import filled, foreign_commit, foreign_delete
from tests.unit.pipeline.test_landing import data_files, values


def caretaker(
    world: CareWorld, pipeline: TestPipeline | None = None, limits: CareLimits | None = None,
    schedule: CareSchedule | None = None,
) -> Caretaker:  # fmt: skip
    return care_world.caretaker(pipeline or world.pipeline, world.folder, limits, schedule)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[CareWorld]:
    made = await start_world(tmp_path)
    yield made
    await made.stop()


@asynccontextmanager
async def caring(world: CareWorld) -> AsyncIterator[None]:
    running = asyncio.create_task(caretaker(world, schedule=CareSchedule(enabled=False)).run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_care_is_asked_for_by_command_and_the_command_tells_what_came_of_it(
    world: CareWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(world)
    async with caring(world):
        done = await world.command("optimize", "a")
        assert done.exit_code == 0, done.output
        assert done.stdout.startswith("a: done; files before 6, files after 1, rows 120, ")
        assert (await world.command("optimize")).stdout == "a: nothing to rewrite\n"
        gone = await world.command("delete", "a", "--where", "stream_offset < 5")
        assert (gone.exit_code, gone.stdout) == (0, "a: done; rows removed 10, files removed 1, files written 1\n")
        expired = await world.command("expire", "a", "--older-than", "0s")
        assert expired.exit_code == 0 and "snapshots left 1" in expired.output
        assert (await world.command("orphans", "a", "--dry-run")).exit_code == 0
        assert "all files are there" in (await world.command("repair", "a")).output
        wrong = await world.command("expire", "a", "--older-than", "99999999999d")
        assert wrong.exit_code == 1 and "failed" in wrong.output and "no number of milliseconds" in wrong.output
        assert "expire of topic a was asked for and failed" in caplog.text
        assert (await world.command("optimize", "nothing")).exit_code != 0
    assert [one[:2] for one in values(world.pipeline, "a")] == [(p, n) for p in range(2) for n in range(5, 60)]


async def test_a_request_that_died_with_its_pipeline_is_done_by_the_next_one(
    world: CareWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(world)
    asked = await world.command("optimize", "a", "--no-wait")
    assert asked.exit_code == 0
    await world.pipeline.replica.catch_up()
    request = world.pipeline.replica.state.care.waiting()[0]
    first = caretaker(world)
    await first.requests._tell(request, "running", "begun", {})
    caplog.clear()
    await world.pipeline.membership.leave()
    assert not [line for line in caplog.records if line.levelname == "WARNING"], "it wanted to leave"
    second = await start_pipeline(world.folder, world.log, member=1_000_001, seed=11)
    await caretaker(world, second).step()
    assert second.replica.state.care.requests[request].status == "done"
    assert len(second.rows("a")) == 120
    await second.stop()


# -- accounts ---------------------------------------------------------------------------------------------------------


async def test_what_others_delete_is_accounted_for_and_then_may_expire_t16(world: CareWorld) -> None:
    topic_id = await filled(world)
    await foreign_delete(world, "a", world.files("a")[0])
    await world.pipeline.replica.catch_up()
    jobs = care_jobs(world.pipeline, world.folder)
    before = len(world.metadata("a").snapshots)
    assert (await jobs.expire(topic_id, 0)).figures["snapshots_left"] == 2, "the delete and the one before it stay"
    assert before == 7
    care = caretaker(world)
    await care.step()
    landing = world.pipeline.replica.state.catalog.landings[topic_id]
    assert sum(one.records for marks in landing.removed.values() for one in marks) == 20
    assert not landing.unproven and world.balance("a") == world.holds("a")
    assert (await jobs.expire(topic_id, 0)).figures["snapshots_left"] == 1
    assert world.balance("a") == world.holds("a")


async def test_the_way_back_to_a_snapshot_that_is_not_accounted_for_is_never_broken_t16(world: CareWorld) -> None:
    """One that others made stays until it is accounted for, and so does what we committed after it."""
    topic_id = await filled(world)
    await foreign_delete(world, "a", world.files("a")[0])
    await world.pipeline.replica.catch_up()
    streams = [
        world.broker.replica.state.streams.by_id[one]
        for one in world.broker.replica.state.topics.by_name["a"].streams
    ]
    for n in range(3):
        await world.land(*streams, tag=f"later{n}-")
    jobs = care_jobs(world.pipeline, world.folder)
    expired = await jobs.expire(topic_id, 0)
    assert expired.figures["snapshots_left"] == 5, "the delete, the one before it, and what came since"
    await world.pipeline.tables.delete_obsolete(0)
    assert world.pipeline.rows("a").num_rows == 160
    await caretaker(world).step()
    assert world.balance("a") == world.holds("a")


async def test_our_own_snapshots_since_the_last_account_stay_with_others_that_wait_t16(world: CareWorld) -> None:
    """A hole among them would look like a snapshot of others that was expired before anybody compared it."""
    topic_id = await filled(world)
    await foreign_delete(world, "a", world.files("a")[0])
    await world.pipeline.replica.catch_up()
    await caretaker(world).accounts.settle(topic_id, quiet)
    stream = world.broker.replica.state.streams.by_id[world.broker.replica.state.topics.by_name["a"].streams[0]]
    world.pipeline.tables.catalogs.own._accounted = lambda *_: 0  # type: ignore[method-assign]
    for n in range(3):
        await world.land(stream, tag=f"since{n}-")
    await foreign_delete(world, "a", world.files("a")[0])
    await world.pipeline.replica.catch_up()
    await care_jobs(world.pipeline, world.folder).expire(topic_id, 0)
    await caretaker(world).accounts.settle(topic_id, quiet)
    assert not world.pipeline.replica.state.catalog.landings[topic_id].unproven
    assert world.balance("a") == world.holds("a")


async def test_of_two_pipelines_that_account_for_the_same_snapshots_one_is_told_that_it_is_done_t16(
    world: CareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = await filled(world)
    await foreign_delete(world, "a", world.files("a")[0])
    await world.pipeline.replica.catch_up()
    first, second = caretaker(world).accounts, caretaker(world).accounts
    judge = first._judge

    async def late(*arguments: Any) -> Any:
        found = await judge(*arguments)
        await second.settle(topic_id, quiet)
        return found

    monkeypatch.setattr(first, "_judge", late)
    with pytest.raises(NotDone, match="accounted for up to"):
        await first.settle(topic_id, quiet)
    assert world.balance("a") == world.holds("a")


async def foreign_update(world: CareWorld, topic_id: bytes, snapshots: int) -> None:
    """What an UPDATE does: one file again, with another value in one row; PyIceberg's makes two snapshots of it."""
    import pyarrow as pa

    from lakestream.data.tables.files.parquet import write_parquet

    tables = world.pipeline.tables
    table = await tables.table_of(topic_id)
    old = world.files("a")[0]
    rows = read_parquet(world.pipeline.store.get(old))
    changed = pa.array([b"redacted" if n == 3 else one for n, one in enumerate(rows["value"].to_pylist())])
    sink = pa.BufferOutputStream()
    uri = f"{table.metadata.location}/data/updated.parquet"  # type: ignore[union-attr]
    stats = write_parquet(rows.set_column(7, rows.schema.field(7), changed), uri, sink)
    tables.files.store.put(uri, sink.getvalue().to_pybytes())
    if snapshots == 2:
        await foreign_commit(world, "a", old, [], "delete")
    await foreign_commit(world, "a", old if snapshots == 1 else "", [NewFile(stats=stats)], "overwrite")
    await world.pipeline.replica.catch_up()


@pytest.mark.parametrize("snapshots", [1, 2])
async def test_an_update_is_the_old_row_removed_and_the_new_one_landed_t16(world: CareWorld, snapshots: int) -> None:
    topic_id = await filled(world)
    await foreign_update(world, topic_id, snapshots)
    landing = world.pipeline.replica.state.catalog.landings[topic_id]
    behind = landing.accounted
    assert world.balance("a") != world.holds("a")
    stream = world.broker.replica.state.streams.by_id[world.broker.replica.state.topics.by_name["a"].streams[0]]
    await world.land(stream, tag="more")
    assert landing.accounted == behind, "a landing does not pass over what others did"
    await caretaker(world).step()
    assert world.balance("a") == world.holds("a") and not landing.unproven
    assert [(one.records, one.start) for marks in landing.removed.values() for one in marks] == [(0, 0)]
    await world.land(stream, tag="yet more")
    assert landing.accounted == world.metadata("a").last_sequence_number


async def test_a_snapshot_that_was_expired_before_it_was_accounted_for_makes_the_past_unproven_t16(
    world: CareWorld,
) -> None:
    topic_id = await filled(world)
    await foreign_delete(world, "a", world.files("a")[0])
    await world.pipeline.replica.catch_up()
    iceberg = world.pipeline.tables.format
    iceberg.protected = lambda topic_id, table: frozenset()  # type: ignore[method-assign]
    await world.jobs.expire(topic_id, 0)
    await caretaker(world).step()
    assert world.pipeline.replica.state.catalog.landings[topic_id].unproven


# -- orphans ----------------------------------------------------------------------------------------------------------


async def test_what_a_killed_pipeline_had_still_to_delete_is_found_by_the_next_one_c10(world: CareWorld) -> None:
    topic_id = await filled(world, rounds=25)
    await world.jobs.optimize(topic_id, quiet, asked=True)
    await world.jobs.expire(topic_id, 0)
    folder = Path(world.metadata("a").location.removeprefix("file://"))
    assert world.pipeline.tables.obsolete
    before = files_in(folder)
    await caretaker(world).remove_orphans(topic_id, None, dry_run=False)
    assert files_in(folder) == before, "they have their grace while this pipeline lives"
    second = await start_pipeline(world.folder, world.log, seed=12)
    later = caretaker(world, second)
    found = await later.remove_orphans(topic_id, None, dry_run=False)
    assert files_in(folder) == before, "nor does another pipeline know how long they have lain there (T11)"
    assert found.figures["ours"] == 0 and found.figures["spared"] > 50 and "for their readers" in found.text
    result = await later.remove_orphans(topic_id, 0, dry_run=False)
    assert result.figures["ours"] == found.figures["spared"] and result.figures["others"] == 0
    location = second.replica.state.catalog.tables["streams", "a"].location
    from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
    from lakestream.data.tables.iceberg.reachable_files import reachable

    known = reachable(second.store, location, TableMetadata.parse(second.store.get(location)))
    assert files_in(folder) == {uri.removeprefix("file://") for uri in known} & files_in(folder)
    assert len(second.rows("a")) == 500
    await second.stop()


async def test_a_round_that_commits_while_orphans_are_judged_keeps_its_files_T12(
    world: CareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a round is over is asked before what the table knows: in between it may land, and be over."""
    topic_id = await filled(world, rounds=1)
    working, second = world.pipeline, await start_pipeline(world.folder, world.log, member=1_000_001, seed=12)
    finish, written, go_on = working.lander.finish, asyncio.Event(), asyncio.Event()

    async def put_off(*arguments: Any) -> Any:
        written.set()
        await go_on.wait()
        return await finish(*arguments)

    monkeypatch.setattr(working.lander, "finish", put_off)
    state = world.broker.replica.state
    await world.fill(*(state.streams.by_id[one] for one in state.topics.by_id[topic_id].streams))
    await working.replica.catch_up()
    round_ = asyncio.create_task(working.driver.drain())
    await written.wait()
    location_of = second.tables.location_of

    async def lands_meanwhile(topic_id: bytes) -> str:
        location = await location_of(topic_id)
        go_on.set()
        await round_
        await working.membership._beat()
        await second.replica.catch_up()
        return location

    monkeypatch.setattr(second.tables, "location_of", lands_meanwhile)
    result = await caretaker(world, second).remove_orphans(topic_id, 0, dry_run=False)
    assert result.figures["ours"] == 0
    assert second.rows("a").num_rows == 40
    await second.stop()


def files_in(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


async def test_files_of_others_go_only_when_they_are_old_t12(world: CareWorld) -> None:
    topic_id = await filled(world, rounds=1)
    place = world.metadata("a").location
    theirs = [f"{place}/data/part-0001.parquet", f"{place}/metadata/{'0' * 36}-m0.avro", f"{place}/data/x/y.puffin"]
    newer = f"{place}/metadata/99999-{'0' * 36}.metadata.json"
    for uri in [*theirs, newer]:
        world.pipeline.store.put(uri, b"theirs")
    care = caretaker(world)
    kept = await care.remove_orphans(topic_id, None, dry_run=False)
    assert kept.figures == {"ours": 0, "others": 0, "spared": 0, "bytes": 0}
    await asyncio.sleep(0.02)
    assert (await care.remove_orphans(topic_id, 0, dry_run=True)).figures["others"] == 4
    assert (await care.remove_orphans(topic_id, 0, dry_run=False)).figures["others"] == 4
    assert world.pipeline.rows("a").num_rows == 20
    older = f"{place}/metadata/00000-{'0' * 36}.metadata.json"
    world.pipeline.store.put(older, b"lost a race")
    assert (await care.remove_orphans(topic_id, 0, dry_run=False)).figures["ours"] == 1


# -- repair -----------------------------------------------------------------------------------------------------------


async def test_repair_says_what_is_lost_and_gives_it_up_only_when_told_to(world: CareWorld) -> None:
    topic_id = await filled(world)
    await world.broker.replica.propose(HoldTopic(topic_id, "a disk died"))
    await world.pipeline.replica.catch_up()
    lost = world.files("a")[2]
    whole = world.pipeline.store.get(lost)
    world.pipeline.store.delete([lost])
    care = caretaker(world)
    with pytest.raises(Rejected, match="1 files of the table are gone"):
        await care.repair(topic_id, accept_loss=False)
    landing = world.pipeline.replica.state.catalog.landings[topic_id]
    assert landing.held == "a disk died"
    world.pipeline.store.put(lost, whole)
    assert (await care.repair(topic_id, accept_loss=False)).text.endswith("; released")
    assert not landing.held
    world.pipeline.store.delete([lost])
    given_up = await care.repair(topic_id, accept_loss=True)
    assert "1 files that are gone" in given_up.text and world.pipeline.rows("a").num_rows == 100
    assert landing.unproven, "nobody can prove what was lost"


async def test_what_repair_finds_wrong_is_said(world: CareWorld) -> None:
    topic_id = await filled(world, rounds=1)
    state = world.pipeline.replica.state
    bound = state.catalog.tables["streams", "a"]
    stream = state.streams.by_id[state.topics.by_name["a"].streams[0]]
    stream.landed -= 1
    found = diagnose(world.pipeline.tables, state, stream.topic, bound)
    assert found.text() == "partition 0: the table has landed 10, the state says 9"
    stream.landed += 1
    assert diagnose(world.pipeline.tables, state, stream.topic, bound).healthy
    [lost] = world.files("a")
    world.pipeline.store.delete([lost])
    assert "1 data files with 20 rows are lost" in diagnose(world.pipeline.tables, state, stream.topic, bound).text()
    world.pipeline.store.delete([bound.location])
    assert "restore it from a backup" in diagnose(world.pipeline.tables, state, stream.topic, bound).text()
    assert topic_id == stream.topic.id


# -- by itself --------------------------------------------------------------------------------------------------------


async def test_many_small_files_are_rewritten_by_themselves(world: CareWorld) -> None:
    care = caretaker(world, limits=CareLimits(small_files=4))
    topic_id = await filled(world, rounds=3)
    await care.step()
    assert len(world.files("a")) == 3
    stream = world.broker.replica.state.streams.by_id[world.broker.replica.state.topics.by_name["a"].streams[1]]
    await world.land(stream)
    await care.step()
    assert len(world.files("a")) == 1 and world.pipeline.rows("a").num_rows == 70
    assert topic_id in care._seen


async def test_rows_follow_the_log_start_by_themselves_t21(world: CareWorld) -> None:
    await filled(world)
    care = caretaker(world)
    streams = world.broker.replica.state.topics.by_name["a"].streams
    await care.step()
    await world.broker.replica.propose(AdvanceLogStart([(streams[0], 40), (streams[1], 60)]))
    await world.pipeline.replica.catch_up()
    for seen in care._seen.values():
        seen.again_s = 0.0
    await care.step()
    assert [one[:2] for one in values(world.pipeline, "a")] == [(0, n) for n in range(40, 60)]
    assert world.balance("a") == world.holds("a")
    assert len(data_files(world.folder)) > len(world.files("a"))


async def test_t14_files_are_left_as_they_are_for_a_while_after_others_changed_the_table(world: CareWorld) -> None:
    """A DELETE of theirs that copies files would fail if we replaced one of them meanwhile."""
    await filled(world)
    await foreign_delete(world, "a", world.files("a")[0])
    await world.pipeline.replica.catch_up()
    limits = CareLimits(small_files=4)
    await caretaker(world, limits=limits).step()
    assert len(world.files("a")) == 5
    await caretaker(world, limits=limits, schedule=CareSchedule(others_rest_s=0.0)).step()
    assert len(world.files("a")) == 1


async def test_files_that_pile_up_are_rewritten_even_while_others_change_the_table(
    world: CareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(care_module, "PILED_UP", 2)
    await filled(world)
    await foreign_delete(world, "a", world.files("a")[0])
    await world.pipeline.replica.catch_up()
    await caretaker(world, limits=CareLimits(small_files=2)).step()
    assert len(world.files("a")) == 1


# -- what fails -------------------------------------------------------------------------------------------------------


async def test_care_that_fails_again_and_again_says_why_until_it_succeeds(world: CareWorld) -> None:
    topic_id = await filled(world)
    lost, aside = world.files("a")[0].removeprefix("file://"), world.folder / "aside"
    os.rename(lost, aside)
    care = caretaker(world, limits=CareLimits(small_files=2), schedule=CareSchedule(again_s=0.0))
    await care.step()
    assert "ok" in (await world.command("list")).output, "once may be a race"
    await care.step()
    told = (await world.command("describe", "a")).output
    assert "its care fails" in told and os.path.basename(lost) in told
    assert world.pipeline.replica.state.catalog.landings[topic_id].uncared
    os.rename(aside, lost)
    await care.step()
    assert "its care fails" not in (await world.command("list")).output and len(world.files("a")) == 1


async def test_a_fault_in_the_care_of_one_table_stops_neither_others_nor_who_asked(
    world: CareWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = await filled(world)
    await filled(world, "b")
    care = caretaker(world, limits=CareLimits(small_files=2))
    right = care._jobs.optimize

    async def optimize(topic_id: bytes, *args: Any, **how: Any) -> Any:
        if topic_id == faulty:
            raise ZeroDivisionError
        return await right(topic_id, *args, **how)

    monkeypatch.setattr(care._jobs, "optimize", optimize)
    assert (await world.command("optimize", "a", "--no-wait")).exit_code == 0
    await world.pipeline.replica.catch_up()
    await care.step()
    [asked] = world.pipeline.replica.state.care.requests.values()
    assert (asked.status, asked.text) == ("failed", "ZeroDivisionError")
    assert len(world.files("a")) == 6 and len(world.files("b")) == 1
    assert "Traceback" in caplog.text


async def test_tables_that_were_never_bound_are_looked_for_once_for_all_who_ask(
    world: CareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in "abc":
        await filled(world, topic, rounds=1)
    care, looks = caretaker(world, schedule=CareSchedule(enabled=False)), []
    right = care.remove_unbound

    async def remove_unbound() -> int:
        looks.append(await right())
        return looks[-1]

    monkeypatch.setattr(care, "remove_unbound", remove_unbound)
    assert (await world.command("orphans", "--dry-run", "--no-wait")).exit_code == 0
    await world.pipeline.replica.catch_up()
    await care.step()
    assert not looks
    for _ in range(2):
        assert (await world.command("orphans", "--no-wait")).exit_code == 0
        await world.pipeline.replica.catch_up()
        await care.step()
    assert looks == [0, 0]

"""Topics in somebody else's catalog: PyIceberg's SQL catalog on SQLite, with a broker and a pipeline without Spark."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from pyiceberg.expressions import EqualTo, GreaterThanOrEqual
from pyiceberg.table.update import SetCurrentSchemaUpdate, SetPropertiesUpdate
from pyiceberg.types import StringType

from lakestream.errors import Corrupt, Retry
from lakestream.model.commands import DeleteTopic
from lakestream.model.streams import Stream
from lakestream.pipeline.tables.holds import HELD_BY_TABLE
from tests.support.broker_and_pipeline import start_pipeline
from tests.support.external_catalog_cluster import (  # noqa: F401 (fixtures)
    VALUES,
    OutsideWorld,
    landed_stream,
    sql_world,
)
from tests.support.landed_table import rows as made_rows


async def test_records_land_in_a_table_of_the_other_catalog_and_are_served_from_it(world: OutsideWorld) -> None:
    streams = await world.broker.topic("orders", 2)
    await world.fill(*streams)
    assert await world.land() == 0
    await world.fill(*streams, tag="w")
    assert await world.land() == 0
    assert world.offsets() == [(p, n) for p in range(2) for n in range(20)]
    table = world.table()
    assert table.location().startswith(f"file://{world.folder.parent}/lake/")
    assert not list(world.folder.rglob("*.parquet")), "nothing of the table lies in the cluster's folder"
    landing = world.landing()
    assert landing.uuid == str(table.metadata.table_uuid) and landing.location == table.metadata_location
    assert landing.held == "" and [mark.records for mark in landing.marks(0)] == [10, 10]
    assert await world.values(streams[1]) == VALUES
    assert not world.broker.replica.state.streams.objects, "the state has forgotten the WAL's copy"


async def test_a_topic_without_records_has_an_empty_table_there(world: OutsideWorld) -> None:
    await world.broker.topic("quiet")
    assert await world.land() == 0
    assert world.offsets("quiet") == []


async def test_c7_what_another_engine_deleted_is_gone_for_consumers(world: OutsideWorld, stream: Stream) -> None:
    world.table().delete(EqualTo("stream_offset", 3))
    assert len(await world.values(stream)) == 20
    await world.follow()
    assert await world.values(stream) == [value for at, value in enumerate(VALUES) if at != 3]
    await world.fill(stream, tag="x")
    assert await world.land() == 0
    assert world.offsets() == [(0, n) for n in range(30) if n != 3] and world.landing().held == ""


async def test_t13_updates_new_columns_and_tags_are_allowed(world: OutsideWorld, stream: Stream) -> None:
    world.table().overwrite(made_rows([4], mark=b"redacted"), EqualTo("stream_offset", 4))
    with world.table().update_schema() as change:
        change.add_column("note", StringType())
    table = world.table()
    with table.manage_snapshots() as change:
        change.create_tag(table.metadata.snapshots[0].snapshot_id, "first")
    await world.follow()
    assert (await world.values(stream))[4] == b"redacted4"
    await world.fill(stream)
    assert await world.land() == 0
    assert world.landing().held == "" and len(world.offsets()) == 30


async def test_t13_foreign_rows_hold_the_topic_until_they_are_gone(world: OutsideWorld, stream: Stream) -> None:
    world.table().append(made_rows([500]))
    await world.follow()
    held = world.landing().held
    assert held.startswith(HELD_BY_TABLE) and "(partition 0, offset 500) would be new" in held
    assert await world.values(stream) == VALUES, "consumers go on with the table as it was"
    await world.fill(stream, tag="x")
    assert await world.land() == 1
    assert len(await world.values(stream)) == 30, "the tail is served, too"
    world.table().delete(GreaterThanOrEqual("stream_offset", 500))
    assert await world.land() == 0
    assert world.landing().held == "" and world.offsets() == [(0, n) for n in range(30)]


async def test_a_round_finds_foreign_rows_by_itself_and_appends_nothing(world: OutsideWorld, stream: Stream) -> None:
    world.table().append(made_rows([500]))
    await world.fill(stream, tag="x")
    assert await world.land() == 1
    assert world.offsets() == [(0, n) for n in range(20)] + [(0, 500)]
    assert "would be new" in world.landing().held


async def test_t9_a_rollback_holds_the_topic_until_it_is_undone(world: OutsideWorld, stream: Stream) -> None:
    first, last = (snapshot.snapshot_id for snapshot in world.table().metadata.snapshots)
    with world.table().manage_snapshots() as change:
        change.rollback_to_snapshot(first)
    await world.fill(stream, tag="x")
    assert await world.land() == 1
    assert "rolled back or replaced" in world.landing().held
    assert await world.values(stream) == [*VALUES, *(b"x%d" % n for n in range(10))]
    assert world.offsets() == [(0, n) for n in range(10)], "nothing is appended to what is not ours any more"
    with world.table().manage_snapshots() as change:
        change.set_current_snapshot(last)
    assert await world.land() == 0
    assert world.landing().held == "" and world.offsets() == [(0, n) for n in range(30)]


def read(location: str) -> bytes:
    return Path(location.removeprefix("file://")).read_bytes()


def register(world: OutsideWorld, location: str, metadata: Any) -> None:
    """Somebody has the catalog point at a file of his own."""
    path = Path(location.removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(metadata))
    world.catalog.drop_table(("streams", "orders"))
    world.catalog.register_table(("streams", "orders"), location)


def commit(world: OutsideWorld, *updates: Any) -> None:
    world.catalog.commit_table(world.table(), (), updates)


async def test_t9_a_progress_below_the_states_holds_the_topic(world: OutsideWorld, stream: Stream) -> None:
    before = world.table().properties["lakestream.progress"]
    commit(world, SetPropertiesUpdate(updates={"lakestream.progress": "AQEACgA="}))
    await world.fill(stream)
    assert await world.land() == 1
    assert "put back to an earlier state" in world.landing().held
    commit(world, SetPropertiesUpdate(updates={"lakestream.progress": before}))
    assert await world.land() == 0 and world.landing().held == ""


async def test_a_progress_that_somebody_raised_is_not_believed(world: OutsideWorld, stream: Stream) -> None:
    commit(world, SetPropertiesUpdate(updates={"lakestream.progress": "AQEAKAA="}))
    await world.follow()
    assert "moved by another writer" in world.landing().held and stream.landed == 20


async def test_t2_another_topics_id_in_the_table_holds_the_topic(world: OutsideWorld, stream: Stream) -> None:
    commit(world, SetPropertiesUpdate(updates={"lakestream.topic-id": "00000000-0000-0000-0000-000000000000"}))
    await world.follow()
    assert "properties that begin with lakestream." in world.landing().held


async def test_t13_a_dropped_column_holds_the_topic_and_a_schema_put_back_releases_it(
    world: OutsideWorld, stream: Stream
) -> None:
    old = world.table().metadata.current_schema_id
    with world.table().update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("value")
    await world.fill(stream)
    assert await world.land() == 1
    assert "the column value holds a part of every record" in world.landing().held
    commit(world, SetCurrentSchemaUpdate(schema_id=old))
    assert await world.land() == 0 and world.landing().held == ""
    assert len(await world.values(stream)) == 30


async def test_t13_a_format_upgrade_holds_the_topic(world: OutsideWorld, stream: Stream) -> None:
    place = world.table().metadata_location
    upgraded = f"{place.rpartition('/')[0]}/00009-upgraded.metadata.json"
    register(world, upgraded, {**json.loads(read(place)), "format-version": 3, "next-row-id": 0})
    await world.follow()
    assert "format version 3" in world.landing().held
    assert await world.values(stream) == VALUES


async def test_a_dropped_table_holds_the_topic_until_it_is_registered_again(
    world: OutsideWorld, stream: Stream
) -> None:
    location = world.table().metadata_location
    world.catalog.drop_table(("streams", "orders"))
    await world.fill(stream, tag="x")
    assert await world.land() == 1
    assert "not in the catalog any more" in world.landing().held
    assert len(await world.values(stream)) == 30
    world.catalog.register_table(("streams", "orders"), location)
    assert await world.land() == 0
    assert world.landing().held == "" and len(world.offsets()) == 30


async def test_t2_another_table_of_the_same_name_is_not_landed_in(world: OutsideWorld, stream: Stream) -> None:
    world.catalog.drop_table(("streams", "orders"))
    world.catalog.create_table(("streams", "orders"), made_rows([1]).schema)
    await world.fill(stream)
    assert await world.land() == 1
    assert world.landing().held.startswith(HELD_BY_TABLE) and world.offsets() == []


async def test_t2_a_table_that_was_there_before_the_topic_is_not_taken(world: OutsideWorld) -> None:
    world.catalog.create_namespace("streams")
    world.catalog.create_table(("streams", "orders"), made_rows([1]).schema)
    [stream] = await world.broker.topic("orders")
    await world.fill(stream)
    assert await world.land() == 1
    assert "already that is not this topic's" in world.landing().held
    world.catalog.drop_table(("streams", "orders"))
    assert await world.land() == 0 and len(world.offsets()) == 10


async def test_a_metadata_file_outside_the_tables_folder_is_refused(world: OutsideWorld, stream: Stream) -> None:
    place = world.table().metadata_location
    register(world, f"file://{world.folder.parent}/elsewhere/metadata/00009-x.metadata.json", json.loads(read(place)))
    await world.follow()
    assert "which is not in its folder" in world.landing().held
    assert await world.values(stream) == VALUES


# -- crashes ---------------------------------------------------------------------------------------------------------


class Died(BaseException):
    """The pipeline is gone, in the middle of it."""


async def test_t7_a_crash_between_the_commit_and_the_state_is_healed_without_writing_again(
    world: OutsideWorld, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: Any) -> None:
        raise Died

    external = world.pipeline.tables.catalogs.external
    assert external is not None
    monkeypatch.setattr(external, "_accept", die)
    await world.fill(stream, tag="x")
    with pytest.raises(Died):
        await world.land()
    assert len(world.offsets()) == 30 and stream.landed == 20
    snapshots = len(world.table().metadata.snapshots)
    other = await world.another()
    assert await other.driver.drain() == 0
    await world.broker.replica.catch_up()
    assert stream.landed == 30 and len(world.table().metadata.snapshots) == snapshots
    assert await world.values(stream) == [*VALUES, *(b"x%d" % n for n in range(10))]
    healed = list(other.replica.state.catalog.landings[stream.topic.id].marks(0))
    assert [mark.records for mark in healed] == [10, 10, 10] and healed[-1].digest != 0
    await other.stop()


async def test_what_a_crash_left_untold_is_told_although_somebody_deleted_in_between(
    world: OutsideWorld, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: Any) -> None:
        raise Died

    external = world.pipeline.tables.catalogs.external
    assert external is not None
    with monkeypatch.context() as patch:
        patch.setattr(external, "_accept", die)
        await world.fill(stream, tag="x")
        with pytest.raises(Died):
            await world.land()
    world.table().delete(EqualTo("stream_offset", 25))
    assert await world.land() == 0
    assert world.landing().held == "" and stream.landed == 30
    assert [mark.records for mark in world.landing().marks(0)] == [10, 10, 10], "what was acked, not what is left"
    assert len(await world.values(stream)) == 29


async def test_two_pipelines_at_once_land_each_record_once(world: OutsideWorld) -> None:
    streams = await world.broker.topic("orders", 3)
    other = await world.another(member=1_000_001)
    for n in range(6):
        await world.fill(*streams, tag=f"{n}-")
        await other.replica.catch_up()
        await asyncio.gather(world.land(), other.driver.drain())
    assert await world.land() == 0
    assert world.offsets() == [(p, n) for p in range(3) for n in range(60)]
    assert world.landing().held == ""
    await other.stop()


async def test_t12_files_of_a_pipeline_that_died_are_swept_and_it_cannot_commit_them_any_more(
    world: OutsideWorld, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie = world.pipeline.tables.catalogs.external
    assert zombie is not None
    asleep: list[Any] = []

    async def sleep(topic: Any, commit: Any) -> int:
        asleep.append((topic, commit))
        raise Died

    lake = world.folder.parent / "lake"
    with monkeypatch.context() as patch:
        patch.setattr(zombie, "commit", sleep)
        await world.fill(stream, tag="x")
        with pytest.raises(Died):
            await world.land()
    files = set(lake.rglob("*.parquet"))
    other = await world.another()
    assert await other.driver.sweep() == 1
    assert len(set(lake.rglob("*.parquet"))) == len(files) - 1
    [(topic, commit)] = asleep
    with pytest.raises(Retry):
        outcome = await zombie.commit(topic, commit)
        raise Retry(outcome.message)
    assert await other.driver.drain() == 0
    assert world.offsets() == [(0, n) for n in range(30)]
    await other.stop()


# -- topics come and go ----------------------------------------------------------------------------------------------


async def test_a_deleted_topic_takes_its_table_along(world: OutsideWorld, stream: Stream) -> None:
    await world.broker.replica.propose(DeleteTopic(stream.topic.id))
    await world.pipeline.replica.catch_up()
    await world.follow()
    assert not world.catalog.table_exists(("streams", "orders"))
    assert not world.pipeline.replica.state.catalog.departed
    assert not list((world.folder.parent / "lake").rglob("*.parquet"))


async def test_a_deleted_topic_leaves_its_table_if_that_was_asked_and_the_next_one_gets_its_own(
    world: OutsideWorld,
) -> None:
    [stream] = await world.broker.topic("orders", **{"lakestream.table.on.delete": "keep"})
    await world.fill(stream)
    assert await world.land() == 0
    await world.broker.replica.propose(DeleteTopic(stream.topic.id))
    await world.pipeline.replica.catch_up()
    await world.follow()
    kept = world.table(f"orders-{stream.topic.id.hex()}")
    assert kept.scan().to_arrow().num_rows == 10
    assert not any(name.startswith("lakestream.") for name in kept.properties)


async def test_a_topic_whose_catalog_is_not_configured_any_more_is_held_and_still_served(
    world: OutsideWorld, stream: Stream
) -> None:
    await world.fill(stream, tag="x")
    plain = await start_pipeline(world.folder, world.log, seed=9)
    assert await plain.driver.drain() == 1
    assert "the setting `catalog` is empty" in plain.replica.state.catalog.landings[stream.topic.id].held
    assert len(await world.values(stream)) == 30
    await plain.stop()


async def test_lost_files_are_an_error_of_the_store_and_not_of_the_offset(world: OutsideWorld, stream: Stream) -> None:
    for path in (world.folder.parent / "lake").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(Corrupt, match="cannot be read from its table"):
        await world.values(stream)


# -- when the past is gone -------------------------------------------------------------------------------------------


async def test_t13_expiry_by_others_is_allowed_even_of_what_we_saw_last(world: OutsideWorld, stream: Stream) -> None:
    seen = world.table().current_snapshot().snapshot_id
    world.table().delete(EqualTo("stream_offset", 3))
    world.table().maintenance.expire_snapshots().by_id(seen).commit()
    await world.follow()
    assert world.landing().held == "" and len(await world.values(stream)) == 19
    await world.fill(stream)
    assert await world.land() == 0 and len(world.offsets()) == 29


async def test_a_metadata_file_that_the_catalog_removed_meanwhile_is_made_up_for_by_our_last_snapshot(
    world: OutsideWorld, stream: Stream
) -> None:
    old = world.landing().location
    world.table().delete(EqualTo("stream_offset", 3))
    forget(world, old)
    await world.follow()
    assert world.landing().held == "" and len(await world.values(stream)) == 19
    old = world.landing().location
    world.table().append(made_rows([500]))
    forget(world, old)
    await world.follow()
    assert "would be new" in world.landing().held


def forget(world: OutsideWorld, location: str) -> None:
    """A metadata file is gone, and nobody has it in memory."""
    Path(location.removeprefix("file://")).unlink()
    world.pipeline.tables.format.committer.forget()


async def test_what_a_crash_left_untold_is_told_from_the_rows_when_the_summaries_are_gone(
    world: OutsideWorld, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: Any) -> None:
        raise Died

    external = world.pipeline.tables.catalogs.external
    assert external is not None
    with monkeypatch.context() as patch:
        patch.setattr(external, "_accept", die)
        await world.fill(stream, tag="x")
        with pytest.raises(Died):
            await world.land()
    untold = world.table().current_snapshot()
    world.table().delete(EqualTo("stream_offset", 25))
    world.table().maintenance.expire_snapshots().by_id(untold.snapshot_id).commit()
    world.table().maintenance.expire_snapshots().by_id(untold.parent_snapshot_id).commit()
    assert await world.land() == 0
    assert world.landing().held == "" and stream.landed == 30
    assert [mark.records for mark in world.landing().marks(0)] == [10, 10, 9]
    assert len(await world.values(stream)) == 29


async def test_c10_old_metadata_files_of_our_commits_are_removed(world: OutsideWorld) -> None:
    [stream] = await world.broker.topic("orders")
    for n in range(24):
        await world.fill(stream, records=1, tag=f"{n}-")
        assert await world.land() == 0
    await world.pipeline.tables.delete_obsolete(0.0)
    left = list((world.folder.parent / "lake").rglob("*.metadata.json"))
    mentioned = [entry.metadata_file for entry in world.table().metadata.metadata_log]
    assert sorted(f"file://{path}" for path in left) == sorted([*mentioned, world.table().metadata_location])
    assert len(left) < 24 and len(await world.values(stream)) == 24


async def test_c10_a_forged_metadata_log_leads_the_clean_up_to_no_file_of_others(world: OutsideWorld) -> None:
    stream = await world.landed()
    wal = world.folder / "object-of-the-wal"
    wal.write_bytes(b"records")
    rows = list((world.folder.parent / "lake").rglob("*.parquet"))
    location = world.table().metadata_location
    older = [f"{location.rpartition('/')[0]}/{number}-older.metadata.json" for number in range(50)]
    log = [{"metadata-file": file, "timestamp-ms": 1} for file in (f"file://{wal}", *map(Path.as_uri, rows), *older)]
    forged = json.loads(read(location)) | {"metadata-log": log}
    register(world, location.replace(".metadata.json", "-x.metadata.json"), forged)
    await world.fill(stream)
    assert await world.land() == 0
    await world.pipeline.tables.delete_obsolete(0.0)
    assert len(world.table().metadata.metadata_log) < len(older), "entries were pushed out of the log"
    assert [path for path in (wal, *rows) if not path.exists()] == []

"""Iceberg behind the plug point of table formats: what a plan writes, when a commit counts, and in which catalog."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from lakestream.data.tables.iceberg.live_files import LiveFiles
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.model.catalog.landed import Land, LandedRange
from lakestream.model.reasons import No, Reason
from lakestream.pipeline.tables.failure import Failed
from lakestream.pipeline.tables.iceberg_format import Append, Rewrite
from tests.support.care_cluster import CareWorld, start_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[CareWorld]:
    made = await start_world(tmp_path)
    yield made
    await made.stop()


async def landed(world: CareWorld) -> tuple[bytes, Table]:
    streams = await world.broker.topic("a", 2)
    await world.land(*streams)
    table = await world.pipeline.tables.table_of(streams[0].topic.id)
    assert isinstance(table, Table)
    return streams[0].topic.id, table


async def test_a_plan_is_seen_by_nobody_until_it_is_committed(world: CareWorld) -> None:
    topic_id, table = await landed(world)
    tables, [*files] = world.pipeline.tables, world.files("a")
    plan = tables.format.plan(topic_id, table, Append([], []))
    again = tables.format.plan(topic_id, table, Append([], []))
    assert await tables.location_of(topic_id) == table.metadata_location and plan.written != again.written
    assert await tables.format.commit(topic_id, again, world.pipeline.replica.epoch) == 1
    refused = await tables.format.commit(topic_id, plan, world.pipeline.replica.epoch)
    assert isinstance(refused, No) and refused.reason == Reason.STALE_PREMISE
    assert await tables.location_of(topic_id) == again.table.metadata_location and world.files("a") == files


async def test_a_commit_of_an_ended_epoch_is_refused_before_the_catalog_is_asked_t12(world: CareWorld) -> None:
    topic_id, table = await landed(world)
    table_format, epoch = world.pipeline.tables.format, world.pipeline.replica.epoch
    refused = await table_format.commit(topic_id, table_format.plan(topic_id, table, Append([], [])), epoch - 1)
    assert isinstance(refused, No) and "has ended" in refused.message
    assert await world.pipeline.tables.location_of(topic_id) == table.metadata_location


async def test_files_and_progress_are_those_of_the_table_as_it_was_given(world: CareWorld) -> None:
    topic_id, before = await landed(world)
    stream = world.broker.replica.state.streams.by_id[world.broker.replica.state.topics.by_id[topic_id].streams[0]]
    await world.land(stream, tag="more")
    after = await world.pipeline.tables.table_of(topic_id)
    assert isinstance(after, Table)
    table_format = world.pipeline.tables.format
    assert table_format.progress(before) == {0: 10, 1: 10} and table_format.progress(after) == {0: 20, 1: 10}
    old = table_format.files(after, before.metadata.current_snapshot_id)
    assert table_format.files(before) == old != LiveFiles({}, ())
    assert old.data.keys() < table_format.files(after).data.keys()


async def test_a_job_keeps_the_snapshot_that_it_works_from(world: CareWorld) -> None:
    topic_id, table = await landed(world)
    base, table_format = table.metadata.current_snapshot_id, world.pipeline.tables.format
    assert base is not None and table_format.protected(topic_id, table) == frozenset()
    table_format.protect(topic_id, base)
    stream = world.broker.replica.state.streams.by_id[world.broker.replica.state.topics.by_id[topic_id].streams[0]]
    await world.land(stream, tag="more")
    now = await world.pipeline.tables.table_of(topic_id)
    assert isinstance(now, Table) and table_format.expire(topic_id, now, 0) is None
    table_format.protect(topic_id, None)
    commit = table_format.expire(topic_id, now, 0)
    assert commit is not None and len(commit.table.metadata.snapshots) == 1


async def test_removed_rows_are_noted_by_the_commit_that_removes_them_t16(world: CareWorld) -> None:
    topic_id, table = await landed(world)
    [path] = world.files("a")
    landing = world.pipeline.replica.state.catalog.landings[topic_id]
    gone = [mark for partition in range(2) for mark in landing.marks(partition)]
    removed = [LandedRange(n, one.start, one.end, one.records, one.digest) for n, one in enumerate(gone)]
    base = table.metadata.current_snapshot_id
    assert base is not None
    change = Rewrite(base, frozenset([path]), [], "delete", "test", removed)
    tables = world.pipeline.tables
    commit = await tables.change(topic_id, lambda now: tables.format.plan(topic_id, now, change), 1 << 40)
    assert isinstance(commit, Failed), "another epoch"
    epoch = world.pipeline.replica.epoch
    commit = await tables.change(topic_id, lambda now: tables.format.plan(topic_id, now, change), epoch)
    assert not isinstance(commit, Failed) and world.balance("a") == world.holds("a") == {}


async def test_a_table_in_an_external_catalog_cannot_be_used_without_the_setting(world: CareWorld) -> None:
    [stream] = await world.broker.topic("a")
    await world.broker.replica.propose(Land(stream.topic.id, "u", 0, [], "file:///lake/a/metadata/0.metadata.json", ""))
    await world.pipeline.replica.catch_up()
    tables = world.pipeline.tables
    assert tables.is_external(stream.topic.id)
    refused = await tables.table_of(stream.topic.id)
    assert isinstance(refused, Failed) and refused.lasting and "the setting `catalog` is empty" in refused.reason
    assert not await tables.fence(stream.topic.id)

"""A table that was written and never bound to its topic leaves nothing behind, once its maker is gone (C10, T12)."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from lakestream.data.tables.iceberg.metadata.names import unpacked
from lakestream.data.tables.iceberg.topic_table import MAKER_PROPERTY
from lakestream.errors import LakestreamError, Retry, Unknown
from lakestream.model.catalog.tables import CommitTables
from tests.support.broker_and_pipeline import TestPipeline, start_pipeline
from tests.support.care_cluster import CareWorld, caretaker, start_world
from tests.unit.pipeline.test_care_jobs import filled


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*.metadata.json") if path.is_file()}


async def half_made(world: CareWorld, monkeypatch: pytest.MonkeyPatch, error: LakestreamError) -> None:
    """A table's first file is written, and the command that would bind it fails."""
    replica = world.pipeline.replica
    propose = replica.propose

    async def fails(body: Any) -> Any:
        if isinstance(body, CommitTables):
            raise error
        return await propose(body)

    with monkeypatch.context() as patch:
        patch.setattr(replica, "propose", fails)
        await world.broker.topic("b")
        await replica.catch_up()
        await world.pipeline.tables.make_all()


async def another(world: CareWorld) -> TestPipeline:
    """The same member in its next epoch: the one before is over."""
    return await start_pipeline(world.folder, world.log, seed=12)


async def test_it_goes_when_its_makers_epoch_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await start_world(tmp_path)
    await filled(world, rounds=1)
    before = files_in(tmp_path)
    await half_made(world, monkeypatch, Unknown("the answer was lost"))
    assert len(files_in(tmp_path)) == len(before) + 1
    assert await caretaker(world.pipeline, tmp_path).remove_unbound() == 0, "the command may still come"
    second = await another(world)
    assert await caretaker(second, tmp_path).remove_unbound() == 1
    assert files_in(tmp_path) == before and second.rows("a").num_rows == 20
    await second.stop()
    await world.stop()


async def test_a_maker_that_knows_takes_it_away_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await start_world(tmp_path)
    await filled(world, rounds=1)
    before = files_in(tmp_path)
    await half_made(world, monkeypatch, Retry("the log is away"))
    assert files_in(tmp_path) == before
    await world.stop()


async def test_a_table_is_not_bound_after_the_epoch_that_it_was_written_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await start_world(tmp_path)
    await filled(world, rounds=1)
    before, tables, replica = files_in(tmp_path), world.pipeline.tables, world.pipeline.replica
    create = tables.format.committer.create

    def slow(metadata: Any) -> Any:
        table = create(metadata)
        replica.epoch += 1
        return table

    monkeypatch.setattr(tables.format.committer, "create", slow)
    await world.broker.topic("b")
    await replica.catch_up()
    await tables.make_all()
    assert files_in(tmp_path) == before and ("streams", "b") not in replica.state.catalog.tables
    await world.stop()


async def test_what_is_bound_or_somebody_elses_stays(tmp_path: Path) -> None:
    world = await start_world(tmp_path)
    topic_id = (await world.broker.topic("empty"))[0].topic.id
    await world.pipeline.replica.catch_up()
    await world.pipeline.tables.make_all()
    bound = world.pipeline.replica.state.catalog.of_topic(topic_id)
    assert bound is not None and MAKER_PROPERTY.encode() in unpacked(world.pipeline.store.get(bound.location))
    place = bound.location.partition("/streams/")[0] + "/streams"
    theirs = f"{place}/theirs-1/metadata/00000-x.metadata.json"
    dropped = bound.location.replace("/empty-", "/dropped-")
    world.pipeline.store.put(theirs, b"{}")
    world.pipeline.store.put(dropped, world.pipeline.store.get(bound.location))
    world.pipeline.store.put(f"{dropped.rpartition('/metadata/')[0]}/data/1-1-1/x.parquet", b"rows")
    before = files_in(tmp_path)
    second = await another(world)
    assert await caretaker(second, tmp_path).remove_unbound() == 0 and files_in(tmp_path) == before
    await second.stop()
    await world.stop()

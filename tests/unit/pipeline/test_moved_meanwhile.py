"""What the simulator found in landing: the world moves on while a round, a fetch or a sweep waits for something."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.iceberg.reachable_files import reachable_from
from lakestream.data.tables.stores.table_store import open_table_store
from lakestream.errors import Retry
from lakestream.model.batches.header import HEADER
from lakestream.model.catalog.landed import HoldTopic
from lakestream.model.catalog.tables import CommitTables, TableChange
from lakestream.model.commands import DeleteTopic
from lakestream.pipeline.landing.driver import TICK_S, release_idle
from lakestream.pipeline.tables.holds import HELD_BY_US
from lakestream.stream.cache import Cache
from lakestream.stream.history import HistoryReader
from lakestream.stream.limits import ReadLimits
from lakestream.stream.reader import Reader
from tests.support.broker_and_pipeline import live_files, start_both, start_pipeline
from tests.support.memory_broker import batch


class LandsMeanwhile:
    """A WAL whose reads take so long that everything lands."""

    def __init__(self, wal: Any, land: Any) -> None:
        self._wal = wal
        self._land = land

    async def read(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytearray]:
        found: list[bytearray] = await self._wal.read(key, ranges)
        await self._land()
        return found


async def test_a_fetch_gives_what_it_read_though_the_rest_lands_meanwhile_C2(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    [stream] = await broker.topic("a")
    for text in (b"one", b"two", b"three"):
        await broker.append((stream, batch(text)))

    async def land() -> None:
        await pipeline.driver.drain()
        await broker.replica.catch_up()

    history = HistoryReader(broker.replica, open_table_store(f"file://{tmp_path}"))
    wal: Any = LandsMeanwhile(broker.wal, land)
    reader = Reader(broker.replica, wal, Cache(0), ReadLimits(), history)
    views = await reader.read(stream, 0, 1 << 20)
    assert stream.landed == 3
    assert HEADER.unpack_from(views[0])[0] == 0, "records were skipped"
    await history.close()
    await pipeline.stop()
    await broker.stop()


async def test_a_round_survives_that_its_objects_go_while_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, pipeline, log = await start_both(tmp_path)
    other = await start_pipeline(tmp_path, log, member=1_000_001, seed=8)
    [stream] = await broker.topic("a")
    await broker.append((stream, batch(b"one")))
    await pipeline.replica.catch_up()
    real = pipeline.lander.open_round

    async def late(*arguments: Any) -> Any:
        await other.driver.drain()
        await pipeline.replica.catch_up()
        return await real(*arguments)

    monkeypatch.setattr(pipeline.lander, "open_round", late)
    assert await pipeline.driver.round([stream.topic.id]) == set()
    assert pipeline.rows("a").num_rows == 1
    for one in (pipeline, other, broker):
        await one.stop()


async def test_a_step_whose_epoch_ends_while_tables_are_made_is_put_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    [stream] = await broker.topic("a", **{"lakestream.table.freshness.ms": "0"})
    await broker.append((stream, batch(b"one")))
    await pipeline.replica.catch_up()

    async def ends() -> None:
        pipeline.replica._end_epoch()

    monkeypatch.setattr(pipeline.tables, "make_all", ends)
    assert await pipeline.driver.step() == TICK_S
    await pipeline.stop()
    await broker.stop()


async def test_a_round_survives_that_it_cannot_remove_what_a_lost_commit_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    [stream] = await broker.topic("a")
    await broker.append((stream, batch(b"one")))
    await pipeline.replica.catch_up()
    plan = pipeline.lander._plan

    async def interfered(table: Any, *rest: Any) -> Any:
        """Somebody else commits meanwhile, and then the store fails."""
        commit = await plan(table, *rest)
        monkeypatch.setattr(pipeline.lander, "_plan", plan)
        theirs = Committer(pipeline.store, Random(3)).create(table.metadata)
        swap = TableChange("streams", "a", table.metadata.uuid, table.metadata_location, theirs.metadata_location)
        assert await broker.replica.propose(CommitTables([swap])) == 1
        monkeypatch.setattr(pipeline.store, "delete", refuse)
        return commit

    def refuse(_: Sequence[str]) -> None:
        raise Retry("not now")

    monkeypatch.setattr(pipeline.lander, "_plan", interfered)
    assert await pipeline.driver.round([stream.topic.id]) == {stream.topic.id}
    assert pipeline.rows("a").num_rows == 1
    await pipeline.stop()
    await broker.stop()


async def test_a_topic_that_is_deleted_while_its_table_is_loaded_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    [stream] = await broker.topic("a")
    topic_id = stream.topic.id
    await broker.append((stream, batch(b"one")))
    await pipeline.replica.catch_up()
    await pipeline.tables.make_all()
    real, looks = pipeline.tables.table, []

    async def deleted(topic: Any) -> Any:
        table = await real(topic)
        looks.append(topic)
        if len(looks) == 2:
            await broker.replica.propose(DeleteTopic(topic_id))
            await pipeline.replica.catch_up()
        return table

    monkeypatch.setattr(pipeline.tables, "table", deleted)
    assert await pipeline.driver.round([topic_id]) == set()
    assert len(looks) == 2 and not [one for one in caplog.records if one.exc_info]
    await pipeline.stop()
    await broker.stop()


async def test_a_topic_is_not_held_for_what_another_pipeline_landed(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    [stream] = await broker.topic("a")
    topic_id = stream.topic.id
    await broker.append((stream, batch(b"one")))
    await pipeline.driver.drain()
    for reason, after in ((f"{HELD_BY_US}too slow", ""), ("by a person", "by a person")):
        await pipeline.replica.propose(HoldTopic(topic_id, reason))
        await release_idle(pipeline.replica)
        assert pipeline.replica.state.catalog.landings[topic_id].held == after
    await pipeline.stop()
    await broker.stop()


async def test_a_file_that_is_only_said_to_be_removed_is_no_file_of_the_table_T12(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    [stream] = await broker.topic("a")
    await broker.append((stream, batch(b"one")))
    await pipeline.driver.drain()
    committer = Committer(pipeline.store, Random(3))
    bound = pipeline.replica.state.catalog.of_topic(stream.topic.id)
    assert bound is not None
    table = committer.load(bound.location)
    [path] = live_files(pipeline.store, bound.location)
    base = table.metadata.current_snapshot_id
    assert base is not None
    after = committer.rewrite(table, base, frozenset([path]), [], now_ms=1, operation="delete").table
    assert path in reachable_from(pipeline.store, after.metadata_location), "the snapshot before needs it"
    last = TableMetadata({**after.metadata.value_all(), "snapshots": after.metadata.value("snapshots")[-1:]})
    place = f"{after.metadata.location}/metadata/later.metadata.json"
    pipeline.store.put(place, last.encode())
    assert path not in reachable_from(pipeline.store, place)
    committer.close()
    await pipeline.stop()
    await broker.stop()

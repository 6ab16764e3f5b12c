"""Landing: WAL to committed rows, once each, whatever dies, fails or comes in between."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from lakestream.errors import Retry
from lakestream.model.batches.records import Record, encode_batch
from lakestream.model.batches.wal_object import wal_key
from lakestream.model.catalog.tables import CommitTables, TableChange
from lakestream.model.streams import Stream
from lakestream.pipeline.landing import driver as driver_module
from lakestream.pipeline.landing.planner import RoundLimits
from lakestream.pipeline.landing.rounds import JobFailed, LocalEngine, Work
from lakestream.pipeline.tables.holds import HELD_BY_US
from lakestream.pipeline.tables.waiting import ENABLED, FRESHNESS
from tests.support.broker_and_pipeline import TestPipeline, live_files, start_both, start_pipeline
from tests.support.memory_broker import TestBroker, batch

SMALL = RoundLimits(round_bytes=20_000, task_bytes=4_000, small_task_bytes=1_000, file_weight_bytes=100)


async def fill(broker: TestBroker, *streams: Stream, records: int = 10, tag: str = "v") -> None:
    """One object with a batch for each stream."""
    values = [f"{tag}{n}".encode() for n in range(records)]
    answer = await broker.append(*((stream, batch(*values)) for stream in sorted(streams, key=lambda one: one.id)))
    assert all(base >= 0 for base in answer), answer


def values(pipeline: TestPipeline, topic: str) -> list[tuple[int, int, bytes]]:
    rows = pipeline.rows(topic)
    columns = (rows[name].to_pylist() for name in ("stream_partition", "stream_offset", "value"))
    return list(zip(*columns, strict=True))


async def configure(pipeline: TestPipeline, topic: str, name: str, value: str) -> None:
    await pipeline.replica.catch_up()
    pipeline.replica.state.topics.by_name[topic].configs = {name: value}


def data_files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*.parquet")}


async def test_acked_records_become_rows_and_their_entries_go(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    streams = await broker.topic("orders", 2)
    await fill(broker, *streams)
    await fill(broker, streams[0], tag="w")
    assert await pipeline.driver.drain() == 0
    got = values(pipeline, "orders")
    assert [one[:2] for one in got] == [(0, n) for n in range(20)] + [(1, n) for n in range(10)]
    assert got[12][2] == b"w2"
    await broker.replica.catch_up()
    state = broker.replica.state
    assert [stream.landed for stream in streams] == [20, 10]
    assert not any(stream.bases for stream in streams) and not state.streams.objects
    marks = list(state.catalog.landings[state.topics.by_name["orders"].id].marks(0))
    assert (marks[0].start, marks[0].end, marks[0].records) == (0, 20, 20) and marks[0].digest
    await pipeline.stop()
    await broker.stop()


async def test_a_topic_without_records_has_an_empty_table(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    await broker.topic("quiet")
    await broker.topic("private")
    await configure(pipeline, "private", ENABLED, "false")
    await pipeline.tables.make_all()
    assert pipeline.rows("quiet").num_rows == 0
    assert ("streams", "private") not in pipeline.replica.state.catalog.tables
    await pipeline.stop()
    await broker.stop()


async def test_rounds_go_on_where_the_last_one_ended(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path, SMALL)
    streams = await broker.topic("a", 3)
    for n in range(30):
        await fill(broker, *streams, records=20, tag=f"{n}-")
        if n % 7 == 0:
            await pipeline.driver.drain()
    assert await pipeline.driver.drain() == 0
    assert pipeline.driver.figures.rounds > 5
    assert [one[:2] for one in values(pipeline, "a")] == [(p, n) for p in range(3) for n in range(600)]
    await pipeline.stop()
    await broker.stop()


async def test_many_topics_land_in_one_round_each_by_its_own_command(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    streams = [(await broker.topic(f"t{n:02d}"))[0] for n in range(20)]
    await fill(broker, *streams)
    await pipeline.replica.catch_up()
    await pipeline.driver.drain()
    assert pipeline.driver.figures.rounds == 1 and pipeline.driver.figures.commits == 20
    assert all(pipeline.rows(f"t{n:02d}").num_rows == 10 for n in range(20))
    await pipeline.stop()
    await broker.stop()


class Mortal(LocalEngine):
    """An engine that dies, or lets a topic kill its worker."""

    def __init__(self, poison: bytes = b"") -> None:
        super().__init__()
        self.poison = poison
        self.jobs = 0

    def run(self, work: Work, tasks: Sequence[bytes]) -> list[list[bytes]]:
        self.jobs += 1
        if self.poison and any(self.poison in task for task in tasks):
            raise JobFailed("a worker was killed")
        return super().run(work, tasks)


async def test_a_topic_that_kills_workers_does_not_stop_the_others_t18(tmp_path: Path) -> None:
    engine = Mortal()
    broker, pipeline, _ = await start_both(tmp_path, engine=engine)
    streams = [(await broker.topic(f"t{n}"))[0] for n in range(8)]
    engine.poison = streams[5].topic.id
    await fill(broker, *streams)
    await pipeline.replica.catch_up()
    assert await pipeline.driver.drain() == 1
    assert [pipeline.rows(f"t{n}").num_rows for n in range(8)] == [10] * 5 + [0] + [10] * 2
    held = pipeline.replica.state.catalog.landings[streams[5].topic.id].held
    assert held.startswith(HELD_BY_US) and "a worker was killed" in held
    engine.poison = b""
    assert await pipeline.driver.drain() == 0
    assert pipeline.rows("t5").num_rows == 10
    assert pipeline.replica.state.catalog.landings[streams[5].topic.id].held == ""
    await pipeline.stop()
    await broker.stop()


async def test_a_corrupted_object_holds_its_topic_alone_with_the_reason(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    bad, good = (await broker.topic("bad"))[0], (await broker.topic("good"))[0]
    await fill(broker, bad, good)
    await pipeline.replica.catch_up()
    entry = bad.entry(0)
    one = broker.replica.state.streams.objects[entry.object]
    path = tmp_path / wal_key(broker.replica.state.cluster, one.member, one.epoch, one.tick)
    whole = path.read_bytes()
    broken = bytearray(whole)
    broken[entry.position + entry.length - 1] ^= 1
    path.write_bytes(broken)
    assert await pipeline.driver.drain() == 1
    assert pipeline.rows("good").num_rows == 10 and pipeline.rows("bad").num_rows == 0
    assert "CRC" in pipeline.replica.state.catalog.landings[bad.topic.id].held
    path.write_bytes(whole)
    assert await pipeline.driver.drain() == 0
    assert pipeline.rows("bad").num_rows == 10
    await pipeline.stop()
    await broker.stop()


async def test_a_lost_object_holds_its_topic_and_nothing_is_skipped(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    [stream] = await broker.topic("a")
    await fill(broker, stream)
    await fill(broker, stream)
    one = broker.replica.state.streams.objects[stream.entry(0).object]
    path = tmp_path / wal_key(broker.replica.state.cluster, one.member, one.epoch, one.tick)
    aside = path.rename(tmp_path / "aside")
    assert await pipeline.driver.drain() == 1
    assert pipeline.rows("a").num_rows == 0 and not data_files(tmp_path)
    aside.rename(path)
    assert await pipeline.driver.drain() == 0
    assert pipeline.rows("a").num_rows == 20
    await pipeline.stop()
    await broker.stop()


class Crash(BaseException):
    """The process is gone at this very moment."""


@pytest.mark.parametrize("point", ["before the job", "after the files", "before the command", "after the command"])
async def test_killed_at_any_point_and_started_again_it_lands_each_record_once(tmp_path: Path, point: str) -> None:
    broker, first, log = await start_both(tmp_path)
    streams = await broker.topic("a", 2)
    await fill(broker, *streams)
    await first.driver.drain()
    await fill(broker, *streams, tag="later")
    await first.replica.catch_up()
    with pytest.raises(Crash):
        await _crash(first, point)
    await first.stop()
    second = await start_pipeline(tmp_path, log, seed=8)
    assert await second.driver.drain() == 0
    assert [one[:2] for one in values(second, "a")] == [(p, n) for p in range(2) for n in range(20)]
    await second.driver.sweep()
    files = live_files(second.store, second.replica.state.catalog.tables["streams", "a"].location)
    assert data_files(tmp_path) == {uri.removeprefix("file://") for uri in files}
    await second.stop()
    await broker.stop()


async def _crash(pipeline: TestPipeline, point: str) -> None:
    engine, replica = pipeline.driver._engine, pipeline.replica
    run, propose = engine.run, replica.propose

    def crashing_run(work: Work, tasks: Sequence[bytes]) -> list[list[bytes]]:
        if point == "before the job":
            raise Crash
        answers = run(work, tasks)
        if point == "after the files":
            raise Crash
        return answers

    async def crashing_propose(body: object) -> object:
        if point == "before the command":
            raise Crash
        await propose(body)  # type: ignore[arg-type]
        raise Crash

    engine.run = crashing_run  # type: ignore[method-assign]
    replica.propose = crashing_propose  # type: ignore[method-assign, assignment]
    await pipeline.driver.drain()


async def test_of_two_pipelines_at_once_one_wins_and_the_other_leaves_nothing_t7(tmp_path: Path) -> None:
    broker, one, log = await start_both(tmp_path)
    two = await start_pipeline(tmp_path, log, member=1_000_001, seed=9)
    streams = await broker.topic("a", 3)
    for n in range(6):
        await fill(broker, *streams, tag=f"{n}-")
        await one.replica.catch_up()
        await two.replica.catch_up()
        await asyncio.gather(one.driver.drain(), two.driver.drain())
    await one.driver.drain()
    assert [x[:2] for x in values(one, "a")] == [(p, n) for p in range(3) for n in range(60)]
    for pipeline in (one, two):
        await pipeline.membership._beat()
    await one.driver.sweep()
    location = one.replica.state.catalog.tables["streams", "a"].location
    assert data_files(tmp_path) == {uri.removeprefix("file://") for uri in live_files(one.store, location)}
    await one.stop()
    await two.stop()
    await broker.stop()


async def test_files_of_an_ended_epoch_are_never_committed_since_others_may_sweep_them_t12(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    [stream] = await broker.topic("a")
    await fill(broker, stream)
    await pipeline.replica.catch_up()
    engine = pipeline.driver._engine
    run = engine.run
    loop = asyncio.get_running_loop()

    def fenced_meanwhile(work: Work, tasks: Sequence[bytes]) -> list[list[bytes]]:
        answers = run(work, tasks)
        asyncio.run_coroutine_threadsafe(pipeline.membership.join(), loop).result()
        return answers

    engine.run = fenced_meanwhile  # type: ignore[method-assign]
    assert await pipeline.driver.drain() == 1
    assert pipeline.rows("a").num_rows == 0
    engine.run = run  # type: ignore[method-assign]
    assert await pipeline.driver.drain() == 0
    await pipeline.driver.sweep()
    location = pipeline.replica.state.catalog.tables["streams", "a"].location
    assert data_files(tmp_path) == {uri.removeprefix("file://") for uri in live_files(pipeline.store, location)}
    assert pipeline.driver.settled() == (1, 0)
    await pipeline.stop()
    await broker.stop()


async def test_a_commit_of_somebody_else_in_between_is_taken_along(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    [stream] = await broker.topic("a")
    await fill(broker, stream)
    await pipeline.driver.drain()
    await fill(broker, stream)
    await pipeline.replica.catch_up()
    plan = pipeline.lander._plan
    interfered = False

    async def interfere(table, *rest):  # type: ignore[no-untyped-def]
        nonlocal interfered
        commit = await plan(table, *rest)
        if not interfered:
            interfered = True
            metadata = table.metadata.replaced({"properties": {**table.metadata.properties, "theirs": "1"}})
            theirs = pipeline.tables.format.committer.create(metadata)
            swap = TableChange("streams", "a", metadata.uuid, table.metadata_location, theirs.metadata_location)
            assert await broker.replica.propose(CommitTables([swap])) == 1
        return commit

    pipeline.lander._plan = interfere  # type: ignore[method-assign]
    assert await pipeline.driver.drain() == 0
    assert pipeline.rows("a").num_rows == 20
    table = pipeline.tables.format.committer.load(pipeline.replica.state.catalog.tables["streams", "a"].location)
    assert table.metadata.properties["theirs"] == "1"
    await pipeline.stop()
    await broker.stop()


async def test_a_full_disk_makes_the_topic_wait_and_catch_up_by_itself(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    [stream] = await broker.topic("a")
    await fill(broker, stream)
    await pipeline.replica.catch_up()
    await pipeline.tables.make_all()
    put = pipeline.store.put

    def full(uri: str, data: bytes) -> None:
        raise Retry(f"{uri} cannot be written: [Errno 28] No space left on device")

    pipeline.store.put = full  # type: ignore[method-assign]
    assert await pipeline.driver.drain() == 1
    assert pipeline.driver.freshness.setbacks[stream.topic.id].reason.endswith("No space left on device")
    pipeline.store.put = put  # type: ignore[method-assign]
    assert await pipeline.driver.drain() == 0
    assert pipeline.rows("a").num_rows == 10
    await pipeline.stop()
    await broker.stop()


async def test_a_topic_held_by_others_lands_nothing_until_it_is_released_t2(tmp_path: Path) -> None:
    from lakestream.model.catalog.landed import HoldTopic

    broker, pipeline, _ = await start_both(tmp_path)
    [stream] = await broker.topic("a")
    await fill(broker, stream)
    await broker.replica.propose(HoldTopic(stream.topic.id, "a person said so"))
    assert await pipeline.driver.drain() == 1
    assert "a person said so" in pipeline.driver.freshness.setbacks[stream.topic.id].reason
    await broker.replica.propose(HoldTopic(stream.topic.id, ""))
    assert await pipeline.driver.drain() == 0
    await pipeline.stop()
    await broker.stop()


async def test_odd_records_become_rows_t1(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    [stream] = await broker.topic("odd")
    odd = [
        Record(offset=0, timestamp=-5, key=None, value=None),
        Record(offset=1, timestamp=2**62, key=b"", value=b"", headers=(("h", None), ("h", b""), ("", b"x"))),
        Record(offset=2, timestamp=5, key=b"k", value=b"v" * 3_000_000),
    ]
    assert await broker.append((stream, encode_batch(odd))) == [0]
    assert await pipeline.driver.drain() == 0
    rows = pipeline.rows("odd")
    assert rows["stream_key"].to_pylist() == [None, b"", b"k"]
    assert [None if value is None else len(value) for value in rows["value"].to_pylist()] == [None, 0, 3_000_000]
    await pipeline.stop()
    await broker.stop()


async def test_a_round_is_due_by_itself_and_soon(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    [stream] = await broker.topic("a")
    await configure(pipeline, "a", FRESHNESS, "300")
    running = asyncio.create_task(pipeline.driver.run())
    await fill(broker, stream)
    began = asyncio.get_running_loop().time()
    while stream.landed < 10:
        await asyncio.sleep(0.02)
        assert asyncio.get_running_loop().time() - began < 10
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await pipeline.stop()
    await broker.stop()


async def test_of_many_topics_some_are_committed_while_workers_write_files_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second job ends only when the topics of the first one are rows: one after the other it never would."""
    monkeypatch.setattr(driver_module, "WAVE_TOPICS", 2)
    waited: list[bool] = []

    class Overlapping(LocalEngine):
        def run(self, work: Work, tasks: Sequence[bytes]) -> list[list[bytes]]:
            answers = super().run(work, tasks)
            waited.append(not waited or landed.wait(30))
            return answers

    broker, pipeline, _ = await start_both(tmp_path, engine=Overlapping())
    streams = [(await broker.topic(name))[0] for name in ("a", "b", "c", "d", "e")]
    await fill(broker, *streams)
    await pipeline.replica.catch_up()
    landed, first = threading.Event(), streams[:2]

    def look() -> None:
        state = pipeline.replica.state
        if all(state.streams.by_id[stream.id].landed == 10 for stream in first):
            landed.set()

    pipeline.replica.on_fold.append(look)
    assert await pipeline.driver.drain() == 0
    assert waited == [True, True, True]
    assert all(pipeline.rows(stream.topic.name).num_rows == 10 for stream in streams)
    await pipeline.stop()
    await broker.stop()


async def test_a_burst_of_many_topics_is_expected_to_take_long_and_is_begun_at_once(tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    driver = pipeline.driver
    assert driver.expected_s(1) == driver.figures.round_s
    expected = driver.expected_s(1000)
    assert expected > driver.figures.round_s, "though all rounds before were short"
    [stream] = await broker.topic("a")
    await fill(broker, stream)
    await pipeline.replica.catch_up()
    state = pipeline.replica.state
    assert driver.freshness.due(state, 100.0, driver.expected_s(1))[0] == []
    assert driver.freshness.waiting == 1
    assert driver.freshness.due(state, 100.1, expected)[0] == [stream.topic.id]
    await pipeline.stop()
    await broker.stop()

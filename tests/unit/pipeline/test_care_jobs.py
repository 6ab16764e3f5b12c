"""Care of tables, job by job: rewriting, deleting, retention, expiry, whatever others do meanwhile."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lakestream.data.tables.files.column_ids import KEY_ID
from lakestream.data.tables.iceberg.live_files import live_files
from lakestream.data.tables.iceberg.manifests.files import NewFile
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.iceberg.reachable_files import reachable_from
from lakestream.data.tables.iceberg.summaries import CARE_KEY
from lakestream.model.batches.records import Record, encode_batch
from lakestream.model.catalog.tables import CommitTables, TableChange
from lakestream.pipeline.care.jobs import CareJobs
from lakestream.pipeline.care.plan import CareLimits
from lakestream.pipeline.care.results import NotDone
from lakestream.pipeline.landing.rounds import LocalEngine, Work
from tests.support.care_cluster import CareWorld, care_jobs, quiet, start_world
from tests.unit.pipeline.test_landing import data_files, values


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[CareWorld]:
    made = await start_world(tmp_path)
    yield made
    await made.stop()


async def filled(world: CareWorld, topic: str = "a", partitions: int = 2, rounds: int = 6) -> bytes:
    streams = await world.broker.topic(topic, partitions)
    for n in range(rounds):
        await world.land(*streams, tag=f"{n}-")
    return streams[0].topic.id


async def test_small_files_become_one_and_no_row_changes(world: CareWorld) -> None:
    topic_id = await filled(world)
    before = values(world.pipeline, "a")
    result = await world.jobs.optimize(topic_id, quiet, asked=True)
    assert (result.figures["files_before"], result.figures["files_after"], result.figures["rows"]) == (6, 1, 120)
    assert values(world.pipeline, "a") == before and len(world.files("a")) == 1
    assert world.balance("a") == world.holds("a"), "rewriting does not disturb the checker's memory (T16)"
    head = world.metadata("a").current
    assert head is not None
    summary = world.metadata("a").summary(head.snapshot_id)
    assert (summary["operation"], summary[CARE_KEY], summary["total-records"]) == ("replace", "optimize", "120")
    again = await world.jobs.optimize(topic_id, quiet, asked=True)
    assert again.text == "nothing to rewrite"


async def test_each_partition_gets_files_of_its_own_where_they_are_large_enough_t4(world: CareWorld) -> None:
    topic_id = await filled(world, partitions=3)
    jobs = care_jobs(world.pipeline, world.folder, CareLimits(partition_bytes=1))
    before = values(world.pipeline, "a")
    await jobs.optimize(topic_id, quiet, asked=True)
    assert values(world.pipeline, "a") == before
    location = world.metadata("a")
    live = live_files(location.current, lambda uris: [world.pipeline.store.get(uri) for uri in uris])
    assert sorted(span.partition for file in live.data.values() for span in file.spans or ()) == [0, 1, 2]
    assert all(file.spans is not None and len(file.spans) == 1 for file in live.data.values())


async def test_a_full_tier_is_rewritten_unasked_and_a_half_full_one_is_not(world: CareWorld) -> None:
    topic_id = await filled(world, rounds=5)
    jobs = care_jobs(world.pipeline, world.folder, CareLimits(small_files=6))
    assert (await jobs.optimize(topic_id, quiet, asked=False)).text == "nothing to rewrite"
    stream = world.broker.replica.state.streams.by_id[world.broker.replica.state.topics.by_name["a"].streams[0]]
    await world.land(stream)
    assert (await jobs.optimize(topic_id, quiet, asked=False)).figures["files_before"] == 6


async def test_a_delete_reaches_the_rows_of_the_table_and_leaves_the_tail_alone_T15(world: CareWorld) -> None:
    [stream] = await world.broker.topic("a")
    await world.land(stream, records=10)
    await world.fill(stream, records=10)
    await world.pipeline.replica.catch_up()
    topic_id = world.pipeline.replica.state.topics.by_name["a"].id
    assert (await world.jobs.delete(topic_id, "true", quiet)).figures["rows_removed"] == 10
    tail = await world.broker.records(stream, 10)
    assert [record.offset for record in tail] == list(range(10, 20))


async def test_rows_are_deleted_by_a_condition_and_their_removal_is_noted_t16(world: CareWorld) -> None:
    topic_id = await filled(world)
    result = await world.jobs.delete(topic_id, "stream_offset between 5 and 24 and stream_partition = 1", quiet)
    assert result.figures == {"rows_removed": 20, "files_removed": 3, "files_written": 3}
    left = [one[:2] for one in values(world.pipeline, "a")]
    assert left == [(0, n) for n in range(60)] + [(1, n) for n in range(60) if not 5 <= n <= 24]
    assert world.balance("a") == world.holds("a")
    landing = world.pipeline.replica.state.catalog.landings[topic_id]
    assert [(one.start, one.end, one.records) for one in landing.removed[1]] == [(5, 25, 20)]
    none = await world.jobs.delete(topic_id, "value = 'nothing like this'", quiet)
    assert none.text == "no row fulfils the condition"


@pytest.mark.parametrize("where", ["nonsense", "count(*) > 0", "true; drop table x", "read_text('x') is null"])
async def test_what_is_no_condition_deletes_nothing(world: CareWorld, where: str) -> None:
    topic_id = await filled(world, rounds=1)
    with pytest.raises(NotDone, match="no condition"):
        await world.jobs.delete(topic_id, where, quiet)
    assert world.pipeline.rows("a").num_rows == 20


async def foreign_delete(world: CareWorld, topic: str, file: str) -> None:
    await foreign_commit(world, topic, file, [], "delete")


async def foreign_commit(world: CareWorld, topic: str, file: str, new: Sequence[NewFile], operation: str) -> None:
    """What another engine does: a snapshot with other files in the place of one (or of none), through a broker."""
    key = ("streams", topic)
    await world.broker.replica.catch_up()
    found = world.broker.replica.state.catalog.tables[key]
    committer = world.pipeline.tables.format.committer
    table = committer.load(found.location)
    assert table.metadata.current_snapshot_id is not None
    now_ms = table.metadata.value("last-updated-ms")
    removed = frozenset([file] if file else [])
    commit = committer.rewrite(
        table, table.metadata.current_snapshot_id, removed, new, now_ms=now_ms, operation=operation
    )
    change = TableChange(*key, found.uuid, found.location, commit.table.metadata_location)
    assert await world.broker.replica.propose(CommitTables([change])) == 1


async def foreign_metadata(world: CareWorld, topic: str, values: Mapping[str, Any]) -> None:
    """What another engine's ALTER TABLE does."""
    found = world.pipeline.replica.state.catalog.tables["streams", topic]
    theirs = world.pipeline.tables.format.committer.create(world.metadata(topic).replaced(values))
    change = TableChange("streams", topic, found.uuid, found.location, theirs.metadata_location)
    assert await world.broker.replica.propose(CommitTables([change])) == 1
    await world.pipeline.replica.catch_up()


def interfere(world: CareWorld, jobs: CareJobs, what: Sequence[str]) -> list[int]:
    """Between the work and the commit somebody else deletes a file, once. Counts the jobs."""
    engine = world.pipeline.driver._engine
    run, change = engine.run, world.pipeline.tables.change
    counted: list[int] = []
    waiting = list(what)

    def counting(work: Work, tasks: Sequence[bytes]) -> list[list[bytes]]:
        counted.append(len(tasks))
        return run(work, tasks)

    async def late(*args, **kwargs):  # type: ignore[no-untyped-def]
        if waiting:
            await foreign_delete(world, "a", waiting.pop())
            await world.pipeline.replica.catch_up()
        return await change(*args, **kwargs)

    engine.run = counting  # type: ignore[method-assign]
    world.pipeline.tables.change = late  # type: ignore[method-assign]
    return counted


async def test_t8_rows_that_others_delete_meanwhile_do_not_come_back(world: CareWorld) -> None:
    topic_id = await filled(world)
    victim = world.files("a")[0]
    counted = interfere(world, world.jobs, [victim])
    result = await world.jobs.optimize(topic_id, quiet, asked=True)
    assert len(counted) == 2, "the first result was thrown away"
    assert result.figures["rows"] == 100
    assert world.pipeline.rows("a").num_rows == 100 and len(world.files("a")) == 1
    await world.pipeline.membership._beat()
    await world.pipeline.driver.sweep()
    live = {uri.removeprefix("file://") for uri in world.files("a")}
    kept = {uri.removeprefix("file://") for uri in _all_files(world)}
    assert live < kept == data_files(world.folder), "what was thrown away is swept, what old snapshots hold is not"


def _all_files(world: CareWorld) -> set[str]:
    location = world.pipeline.replica.state.catalog.tables["streams", "a"].location
    return {uri for uri in reachable_from(world.pipeline.store, location) if uri.endswith(".parquet")}


async def test_t8_a_delete_by_condition_is_done_again_when_others_commit_meanwhile(world: CareWorld) -> None:
    topic_id = await filled(world)
    victim = world.files("a")[-1]
    counted = interfere(world, world.jobs, [victim])
    result = await world.jobs.delete(topic_id, "stream_offset < 15", quiet)
    assert len(counted) == 2
    assert world.pipeline.rows("a").num_rows == 120 - 20 - result.figures["rows_removed"]


async def test_landing_goes_on_beside_care_and_is_taken_along(world: CareWorld) -> None:
    topic_id = await filled(world)
    [stream, *_] = [
        world.broker.replica.state.streams.by_id[one]
        for one in world.broker.replica.state.topics.by_name["a"].streams
    ]
    change = world.pipeline.tables.change
    landed = False

    async def late(*args, **kwargs):  # type: ignore[no-untyped-def]
        nonlocal landed
        if not landed:
            landed = True
            await world.land(stream, tag="between")
        return await change(*args, **kwargs)

    world.pipeline.tables.change = late  # type: ignore[method-assign]
    result = await world.jobs.optimize(topic_id, quiet, asked=True)
    assert result.figures["files_before"] == 6 and len(world.files("a")) == 2
    assert world.pipeline.rows("a").num_rows == 130 and world.balance("a") == world.holds("a")


async def test_the_snapshot_that_a_long_job_began_with_stays_until_the_job_is_over(world: CareWorld) -> None:
    """T8: without it the job could not tell what came meanwhile, and would begin again for ever."""
    topic_id = await filled(world)
    iceberg, base = world.pipeline.tables.format, world.metadata("a").current_snapshot_id
    seen: list[frozenset[int]] = []

    class Slow(LocalEngine):
        def run(self, work: Work, tasks: Sequence[bytes]) -> list[list[bytes]]:
            seen.append(iceberg.protected(topic_id, Table("", world.metadata("a"))))
            return super().run(work, tasks)

    jobs = care_jobs(world.pipeline, world.folder)
    jobs.runs.engine = Slow()
    assert (await jobs.optimize(topic_id, quiet, asked=True)).figures["files_after"] == 1
    assert base is not None and seen == [frozenset([base])]
    assert iceberg.protected(topic_id, Table("", world.metadata("a"))) == frozenset()


async def test_retention_drops_whole_files_and_rewrites_those_that_straddle_t21(world: CareWorld) -> None:
    topic_id = await filled(world)
    result = await world.jobs.retain(topic_id, {0: 27, 1: 27}, quiet)
    assert result.figures == {"rows_removed": 54, "files_removed": 3, "files_written": 1}
    assert [one[:2] for one in values(world.pipeline, "a")] == [(p, n) for p in range(2) for n in range(27, 60)]
    assert world.balance("a") == world.holds("a")
    little = await world.jobs.retain(topic_id, {0: 28, 1: 28}, quiet)
    assert little.figures == {}, "a file is not rewritten for a few rows"
    await world.jobs.retain(topic_id, {0: 60, 1: 30}, quiet)
    assert [one[:2] for one in values(world.pipeline, "a")] == [(1, n) for n in range(30, 60)]
    assert world.balance("a") == world.holds("a")


async def test_snapshots_expire_by_hand_and_their_files_go_after_a_grace(world: CareWorld) -> None:
    topic_id = await filled(world)
    await world.jobs.optimize(topic_id, quiet, asked=True)
    assert (await world.jobs.expire(topic_id, None)).text == "no snapshot is old enough"
    result = await world.jobs.expire(topic_id, 0)
    assert result.figures["snapshots_left"] == 1 and result.figures["snapshots_expired"] == 6
    assert len(data_files(world.folder)) == 7
    await world.pipeline.tables.delete_obsolete(0)
    assert len(data_files(world.folder)) == 1 and world.pipeline.rows("a").num_rows == 120


async def test_a_columns_that_somebody_added_survives_care(world: CareWorld) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from lakestream.data.tables.files.parquet import FileWriter
    from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA

    topic_id = await filled(world, rounds=3)
    tables = world.pipeline.tables
    table = await tables.table_of(topic_id)
    old = world.files("a")[0]
    rows = pq.read_table(old.removeprefix("file://"))
    added = pa.field("note", pa.string(), metadata={b"PARQUET:field_id": b"100"})
    noted = rows.append_column(added, pa.array([f"n{n}" for n in range(rows.num_rows)]))
    sink = pa.BufferOutputStream()
    writer = FileWriter(sink, extra=[added])
    for batch in pa.table(noted.columns, schema=pa.schema([*ARROW_SCHEMA, added])).to_batches():
        writer.add(batch)
    uri = f"{table.metadata.location}/data/theirs.parquet"  # type: ignore[union-attr]
    stats = writer.finish(uri)
    tables.files.store.put(uri, sink.getvalue().to_pybytes())
    base = table.metadata.current_snapshot_id  # type: ignore[union-attr]

    def prepare(table):  # type: ignore[no-untyped-def]
        return tables.format.committer.rewrite(table, base, frozenset([old]), [NewFile(stats=stats)], now_ms=1)

    await tables.change(topic_id, prepare, world.pipeline.replica.epoch)
    await world.jobs.delete(topic_id, "stream_offset = 3 and stream_partition = 0", quiet)
    await world.jobs.optimize(topic_id, quiet, asked=True, everything=True)
    files = [pq.read_table(one.removeprefix("file://")) for one in world.files("a")]
    kept = [file for file in files if "note" in file.column_names]
    assert len(files) == 2 and sum(file.num_rows for file in files) == 59
    assert [set(file["note"].to_pylist()) for file in kept] == [{f"n{n}" for n in range(20)} - {"n3"}]
    assert kept[0].schema.field("note").metadata[b"PARQUET:field_id"] == b"100"


async def test_t19_a_users_partitioning_is_applied_by_optimize(world: CareWorld) -> None:
    from pyiceberg.table import StaticTable

    from tests.support.memory_broker import batch

    streams = await world.broker.topic("a", 2)
    for n in range(4):
        for stream in streams:
            day_ms = 86_400_000 * (n % 2 + 10)
            await world.broker.append((stream, batch(*(f"{n}-{i}".encode() for i in range(10)), timestamp=day_ms)))
        await world.pipeline.replica.catch_up()
        await world.pipeline.driver.drain()
    topic_id, before = streams[0].topic.id, values(world.pipeline, "a")
    spec = {"spec-id": 1, "fields": [
        {"source-id": 3, "field-id": 1000, "name": "day", "transform": "day"},
        {"source-id": 1, "field-id": 1001, "name": "part", "transform": "bucket[2]"},
    ]}  # fmt: skip
    specs = [*world.metadata("a").value("partition-specs"), spec]
    await foreign_metadata(world, "a", {"partition-specs": specs, "default-spec-id": 1, "last-partition-id": 1001})
    result = await world.jobs.optimize(topic_id, quiet, asked=True)
    assert result.figures["files_before"] == 4 and result.figures["files_after"] >= 2
    assert values(world.pipeline, "a") == before and world.balance("a") == world.holds("a")
    location = world.pipeline.replica.state.catalog.tables["streams", "a"].location
    table = StaticTable.from_metadata(location)
    assert {row["day"].isoformat() for row in table.inspect.files()["partition"].to_pylist()} == {
        "1970-01-11", "1970-01-12",
    }  # fmt: skip
    one_day = table.scan(row_filter="stream_timestamp >= '1970-01-12T00:00:00+00:00'")
    assert len(one_day.to_arrow()) == 40 and len(list(one_day.plan_files())) < result.figures["files_after"]
    await world.land(*streams, tag="later")
    again = await world.jobs.optimize(topic_id, quiet, asked=True)
    assert again.figures["files_before"] >= 1 and world.balance("a") == world.holds("a")


@pytest.mark.parametrize(
    ("transform", "why"), [("truncate[1]", "truncate[1] of stream_key"), ("identity", "over 256 files")]
)
async def test_t19_a_partitioning_that_cannot_be_applied_is_left_out_with_the_reason(
    world: CareWorld, transform: str, why: str
) -> None:
    streams = await world.broker.topic("a", 1)
    for n in range(3):
        records = [Record(offset=i, timestamp=1000, key=b"%d" % (n * 100 + i), value=b"v") for i in range(100)]
        await world.broker.append((streams[0], encode_batch(records)))
        await world.pipeline.replica.catch_up()
        await world.pipeline.driver.drain()
    spec = {"spec-id": 1, "fields": [{"source-id": KEY_ID, "field-id": 1000, "name": "k", "transform": transform}]}
    specs = [*world.metadata("a").value("partition-specs"), spec]
    await foreign_metadata(world, "a", {"partition-specs": specs, "default-spec-id": 1, "last-partition-id": 1000})
    result = await world.jobs.optimize(streams[0].topic.id, quiet, asked=True)
    assert (result.figures["files_before"], result.figures["files_after"]) == (3, 1)
    assert "partitioning is not applied" in result.text and why in result.text
    assert world.balance("a") == world.holds("a")
    assert "nothing to rewrite" in (await world.jobs.optimize(streams[0].topic.id, quiet, asked=True)).text

"""The data source: a topic in Spark, table plus tail, as a batch and as a stream."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA
from lakestream.model.commands import AdvanceLogStart, CreateTopic, DeleteTopic
from lakestream.model.streams import Stream
from lakestream.pipeline.landing.worker import land_task
from lakestream.pipeline.spark import datasource
from lakestream.pipeline.spark.datasource import TOPIC, Asked, Lakestream, OptionError, StreamReader, for_spark, limited
from lakestream.pipeline.spark.session import Spark
from tests.support.broker_and_pipeline import TestPipeline, start_both
from tests.support.memory_broker import TestBroker, batch
from tests.support.tail_page import tail_page


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    running = Spark.start("local[2]")
    running.warm_up(land_task)
    running.session.dataSource.register(Lakestream)
    yield running
    running.stop()


@dataclass
class World:
    """A topic of 3 partitions of which 60 records each are in the table and 40 in the tail; timestamps are offsets."""

    spark: Spark
    broker: TestBroker
    pipeline: TestPipeline
    streams: list[Stream]
    address: str

    def load(self, **options: str) -> Any:
        reader = self.spark.session.read.format("lakestream").option("broker", self.address)
        return reader.options(**options).load("t")

    async def add(self, records: int) -> None:
        for stream in self.streams:
            values = [b"%d-%d" % (stream.partition, stream.next + n) for n in range(records)]
            await self.broker.append((stream, batch(*values, timestamp=stream.next)))
        await self.pipeline.replica.catch_up()


@pytest.fixture
async def world(spark: Spark, tmp_path: Path) -> AsyncIterator[World]:
    broker, pipeline, _ = await start_both(tmp_path / "data")
    streams = await broker.topic("t", 3)
    async with tail_page(broker.replica, f"file://{tmp_path / 'data'}") as address:
        made = World(spark, broker, pipeline, streams, address)
        await made.add(30)
        await made.add(30)
        assert await pipeline.driver.drain() == 0
        await made.add(20)
        await made.add(20)
        yield made
    await pipeline.stop()
    await broker.stop()


def offsets(frame: Any) -> list[tuple[int, int]]:
    return sorted((row[0], row[1]) for row in frame.select("stream_partition", "stream_offset").collect())


def every(start: int, end: int, partitions: range = range(3)) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in partitions for offset in range(start, end)]


async def test_a_batch_read_sees_table_and_tail_without_gap_or_overlap(world: World) -> None:
    frame = await asyncio.to_thread(lambda: world.load().collect())
    assert sorted((row.stream_partition, row.stream_offset) for row in frame) == every(0, 100)
    assert all(bytes(row.value) == b"%d-%d" % (row.stream_partition, row.stream_offset) for row in frame)


async def test_offsets_and_timestamps_bound_what_is_read(world: World) -> None:
    def check() -> None:
        named = world.load(startingOffsets='{"0": 55, "1": 58, "2": 99}', endingOffsets='{"0": 65, "1": 59}')
        assert offsets(named) == [*every(55, 65, range(1)), (1, 58), (2, 99)]
        assert offsets(world.load(startingOffsets="latest")) == []
        assert offsets(world.load(startingTimestamp="42")) == every(42, 100)
        assert offsets(world.load(startingTimestamp="73")) == every(73, 100)
        assert offsets(world.load(startingTimestamp="1000")) == []

    await asyncio.to_thread(check)


async def test_filters_on_partition_and_offset_are_pushed_down(world: World) -> None:
    def check() -> None:
        frame = world.load(pushFilters="true").where("stream_partition = 1 and stream_offset between 50 and 69")
        assert offsets(frame.where("value is not null")) == every(50, 70, range(1, 2))
        plan = frame._jdf.queryExecution().executedPlan().toString()
        assert "Filter" not in plan.split("BatchScan")[0]

    await asyncio.to_thread(check)


async def test_a_smaller_schema_reads_only_its_columns(world: World) -> None:
    def check() -> None:
        reader = world.spark.session.read.format("lakestream").schema("stream_offset bigint")
        assert reader.option("broker", world.address).load("t").columns == ["stream_offset"]
        assert reader.option("broker", world.address).load("t").count() == 300

    await asyncio.to_thread(check)


async def test_a_stream_goes_on_where_it_stopped_in_batches_of_the_size_asked_for(world: World, tmp_path: Path) -> None:
    def run(output: Path) -> list[int]:
        stream = world.spark.session.readStream.format("lakestream").option("broker", world.address)
        frame = stream.option("maxRecordsPerBatch", "120").load("t").select("stream_partition", "stream_offset")
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(output))
        )
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    output = tmp_path / "rows"
    assert await asyncio.to_thread(run, output) == [120, 120, 60]
    await world.add(10)
    assert await world.pipeline.driver.drain() == 0
    await world.add(5)
    assert await asyncio.to_thread(run, output) == [45]
    assert await asyncio.to_thread(lambda: offsets(world.spark.session.read.parquet(str(output)))) == every(0, 115)


async def test_a_stream_says_when_records_it_has_not_read_are_gone(world: World, tmp_path: Path) -> None:
    await world.broker.replica.propose(AdvanceLogStart([(world.streams[0].id, 70)]))
    await world.pipeline.replica.catch_up()

    def run(loss: str) -> None:
        stream = world.spark.session.readStream.format("lakestream").option("broker", world.address)
        frame = stream.option("failOnDataLoss", loss).option("startingOffsets", '{"0": 0}').load("t")
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / f"c{loss}"))
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="failOnDataLoss=false"):
        await asyncio.to_thread(run, "true")
    await asyncio.to_thread(run, "false")


async def test_a_stream_of_a_topic_that_was_made_again_fails_or_begins_anew(world: World, tmp_path: Path) -> None:
    output = tmp_path / "rows"

    def run(loss: str) -> int:
        stream = world.spark.session.readStream.format("lakestream").option("broker", world.address)
        frame = stream.option("failOnDataLoss", loss).load("t").select("stream_partition", "stream_offset")
        query = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start(str(output)).awaitTermination()
        return int(world.spark.session.read.parquet(str(output)).count())

    assert await asyncio.to_thread(run, "true") == 300
    replica = world.broker.replica
    await replica.propose(DeleteTopic(world.streams[0].topic.id))
    assert await replica.propose(CreateTopic("t", b"another id......", 3, 1, {})) == 3
    made = replica.state.topics.by_name["t"]
    for number in made.streams:
        await world.broker.append((replica.state.streams.by_id[number], batch(*[b"new"] * 5)))
    with pytest.raises(Exception, match="deleted and made again"):
        await asyncio.to_thread(run, "true")
    assert await asyncio.to_thread(run, "false") == 315


async def test_a_stream_waits_for_the_offsets_it_was_told_to_start_at(world: World) -> None:
    def asked(offset: int, **options: str) -> StreamReader:
        starting = f'{{"0": {offset}, "1": -1, "2": -1}}'
        options |= {"broker": world.address, "topic": "t", "startingOffsets": starting}
        return StreamReader(Asked.parse(options), ARROW_SCHEMA)

    def read(reader: StreamReader) -> tuple[int, int]:
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        parts = reader.partitions(start, end)
        return int(end["0"]), sum(batch.num_rows for part in parts for batch in reader.read(part))

    for options in ({}, {"maxRecordsPerBatch": "10"}):
        assert await asyncio.to_thread(read, asked(150, **options)) == (150, 0)
    assert await asyncio.to_thread(read, asked(-2)) == (100, 100)
    early = asked(150)
    start = await asyncio.to_thread(early.initialOffset)
    await world.add(60)
    end = await asyncio.to_thread(early.latestOffset, start, early.getDefaultReadLimit())
    assert (start["0"], end["0"]) == (150, 160)
    del start[TOPIC]
    assert await asyncio.to_thread(early.latestOffset, start, early.getDefaultReadLimit()) == end, "as kept before"


async def test_offsets_of_partitions_that_are_not_there_are_refused(world: World) -> None:
    for name in ("startingOffsets", "endingOffsets"):
        with pytest.raises(Exception, match="has no partition 7"):
            await asyncio.to_thread(lambda: offsets(world.load(**{name: '{"7": 3}'})))  # noqa: B023
    assert await asyncio.to_thread(lambda: offsets(world.load(endingOffsets='{"0": -1, "1": 3, "2": 0}'))) == [
        *every(0, 100, range(1)),
        *every(0, 3, range(1, 2)),
    ]


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (pa.uuid(), pa.binary(16)),
        (pa.list_(pa.field("element", pa.uuid(), False)), pa.list_(pa.field("element", pa.binary(16)))),
        (pa.struct([pa.field("u", pa.int64(), False)]), pa.struct([pa.field("u", pa.int64())])),
        (pa.map_(pa.string(), pa.field("value", pa.uuid(), False)), pa.map_(pa.string(), pa.binary(16))),
    ],
)
def test_nested_columns_have_types_that_spark_has_and_may_be_absent(given: pa.DataType, made: pa.DataType) -> None:
    assert for_spark(given) == made
    told = to_arrow_schema(from_arrow_schema(pa.schema([("x", for_spark(given))]))).field("x")
    rows = pa.RecordBatch.from_arrays([pa.nulls(2, given)], ["x"])
    assert datasource._column(rows, told).null_count == 2


def test_a_limit_is_shared_so_that_no_partition_is_left_behind() -> None:
    assert limited({"0": 0, "1": 0}, {"0": 100, "1": 3}, 10) == {"0": 7, "1": 3}
    assert limited({"0": 5}, {"0": 5, "1": 2}, 10) == {"0": 5, "1": 2}
    assert sum(limited({}, {str(n): 100 for n in range(7)}, 10).values()) == 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "which topic"),
        ({"topic": "t", "startingOffsets": "soon"}, "startingOffsets"),
        ({"topic": "t", "startingOffsets": '{"0": null}'}, "startingOffsets"),
        ({"topic": "t", "startingOffsets": '{"0": 1.9}'}, "startingOffsets"),
        ({"topic": "t", "startingOffsets": '{"0": -3}'}, "startingOffsets"),
        ({"topic": "t", "endingOffsets": '{"0": -2}'}, "endingOffsets"),
        ({"topic": "t", "endingOffsets": "earliest"}, "endingOffsets"),
        ({"topic": "t", "startingTimestamp": "today"}, "startingTimestamp"),
        ({"topic": "t", "maxRecordsPerBatch": "many"}, "maxRecordsPerBatch"),
        ({"topic": "t", "maxRecordsPerBatch": "0"}, "at least 1"),
        ({"topic": "t", "failOnDataLoss": "perhaps"}, "true or false"),
        ({"topic": "t", "startingOfsets": "latest"}, "did you mean 'startingOffsets'"),
    ],
)
def test_options_that_make_no_sense_are_refused_with_a_reason(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Asked.parse(options)


def test_a_stream_has_no_end_to_ask_for() -> None:
    with pytest.raises(OptionError, match="for batches"):
        Lakestream({"topic": "t", "endingOffsets": '{"0": 5}'}).streamReader(StructType())


async def test_columns_that_somebody_added_to_the_table_are_there_and_null_in_the_tail(world: World) -> None:
    import pyarrow.parquet as pq

    from lakestream.data.tables.files.parquet import FileWriter
    from lakestream.data.tables.iceberg.manifests.files import NewFile
    from lakestream.model.catalog.tables import CommitTables, TableChange

    committer, catalog = world.pipeline.tables.format.committer, world.broker.replica.state.catalog
    found = catalog.tables["streams", "t"]
    table = committer.load(found.location)
    fields = [*table.metadata.schema["fields"], {"id": 100, "name": "note", "required": False, "type": "string"}]
    schemas = [*table.metadata.value("schemas"), {**table.metadata.schema, "schema-id": 1, "fields": fields}]
    changed = table.metadata.replaced({"schemas": schemas, "current-schema-id": 1, "last-column-id": 100})
    table = committer.create(changed)
    [old] = committer.live_files(table).data
    rows = pq.read_table(old.removeprefix("file://")).cast(ARROW_SCHEMA)
    added = pa.field("note", pa.string(), metadata={b"PARQUET:field_id": b"100"})
    sink = pa.BufferOutputStream()
    writer = FileWriter(sink, extra=[added])
    for part in rows.append_column(added, pa.array([f"n{n}" for n in rows["stream_offset"].to_pylist()])).to_batches():
        writer.add(part)
    uri = f"{table.metadata.location}/data/theirs.parquet"
    stats = writer.finish(uri)
    world.pipeline.store.put(uri, sink.getvalue().to_pybytes())
    base = table.metadata.current_snapshot_id
    assert base is not None
    commit = committer.rewrite(table, base, frozenset([old]), [NewFile(stats=stats)], now_ms=1)
    change = TableChange("streams", "t", found.uuid, found.location, commit.table.metadata_location)
    assert await world.broker.replica.propose(CommitTables([change])) == 1

    def collected() -> list[Any]:
        frame = world.load()
        assert frame.columns[-2:] == ["value", "note"]
        return sorted(tuple(row) for row in frame.select("stream_partition", "stream_offset", "note").collect())

    got = await asyncio.to_thread(collected)
    assert got == [(p, n, f"n{n}" if n < 60 else None) for p in range(3) for n in range(100)]
    narrow = world.spark.session.read.format("lakestream").option("broker", world.address).schema("note string")
    assert await asyncio.to_thread(lambda: narrow.load("t").where("note = 'n7'").count()) == 3

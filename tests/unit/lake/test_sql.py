"""SQL over topics: a broker, a pipeline without Spark and a real HTTP port, asked by DuckDB."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestream.errors import LakestreamError, Missing, Retry
from lakestream.lake.sql import query
from lakestream.lake.sql.columns import quoted
from lakestream.lake.sql.names import parse_name
from lakestream.lake.sql.output import cells, write_arrow, write_csv, write_json
from lakestream.lake.sql.query import Answer, QueryError, answered
from lakestream.model.batches.records import Record, encode_batch
from tests.support.broker_and_pipeline import TestPipeline, start_both
from tests.support.memory_broker import TestBroker
from tests.support.tail_page import tail_page


class World:
    """Topics whose first records have landed, and whose last ones wait in the WAL."""

    def __init__(self, broker: TestBroker, pipeline: TestPipeline, folder: Path) -> None:
        self.broker, self.pipeline, self.folder = broker, pipeline, folder
        self.address = ""
        self.asked_first: Callable[[], Awaitable[None]] | None = None
        self.asks = 0

    async def add(self, topic: str, *values: bytes | None, key: bytes | None = None) -> None:
        state = self.broker.replica.state
        if topic not in state.topics.by_name:
            await self.broker.topic(topic, 2)
        streams = [state.streams.by_id[one] for one in state.topics.by_name[topic].streams]
        headers = (("kind", b"old"), ("kind", b"new"))
        for stream in streams:
            records = [
                Record(offset=at, timestamp=1000 + at, key=key, value=value, headers=headers)
                for at, value in enumerate(values)
            ]
            await self.broker.append((stream, encode_batch(records)))

    async def land(self) -> None:
        await self.pipeline.replica.catch_up()
        assert await self.pipeline.driver.drain() == 0

    async def note_ask(self) -> None:
        """A broker's answer is made, and goes out when this is done."""
        self.asks += 1
        if self.asks == 1 and self.asked_first is not None:
            await self.asked_first()

    async def ask(self, query: str) -> list[tuple[Any, ...]]:
        return await asyncio.to_thread(self.asked, query)

    def asked(self, query: str) -> list[tuple[Any, ...]]:
        with answered(self.address, query) as answer:
            rows = pa.Table.from_batches(list(answer.batches), schema=answer.schema)
        return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))

    async def written(self, query: str, write: Callable[[Answer, Any], Any]) -> bytes:
        def run() -> bytes:
            sink = io.BytesIO()
            with answered(self.address, query) as answer:
                write(answer, sink)
            return sink.getvalue()

        return await asyncio.to_thread(run)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        broker, pipeline, _ = await start_both(tmp_path / "data")
        stack.push_async_callback(broker.stop)
        stack.push_async_callback(pipeline.stop)
        made = World(broker, pipeline, tmp_path / "data")
        page = tail_page(broker.replica, f"file://{tmp_path / 'data'}", made.note_ask)
        made.address = await stack.enter_async_context(page)
        await made.add("orders", b'{"amount": 5, "city": "Ulm"}', b"plain", None)
        await made.land()
        await made.add("orders", b'{"amount": 7, "city": "Bonn"}')
        await made.add("my.dotted-topic", b"a", b"b", key=b"k")
        yield made


async def test_an_answer_has_table_and_tail_each_offset_once_C8(world: World) -> None:
    assert world.broker.replica.state.streams.by_id[1].landed == 3
    found = await world.ask("select stream_partition, stream_offset, value from orders order by 1, 2")
    assert [row[:2] for row in found] == [(partition, offset) for partition in range(2) for offset in range(4)]
    assert found[1][2] == b"plain" and found[2][2] is None and found[3][2].startswith(b'{"amount": 7')
    await world.land()
    assert await world.ask("select stream_partition, stream_offset, value from orders order by 1, 2") == found


async def test_values_are_read_as_text_and_as_json_and_headers_by_name(world: World) -> None:
    query = "select json(value)->>'$.city', text(value), header(stream_headers, 'kind') from orders where {} order by 1"
    assert (await world.ask(query.format("stream_partition = 0 and value is not null")))[0] == (
        "Bonn", '{"amount": 7, "city": "Bonn"}', b"new"
    )  # fmt: skip
    assert await world.ask("select sum((json(value)->>'$.amount')::int)::int from orders") == [(24,)]
    # What is no JSON is null, and what is no text is spelled.
    assert await world.ask("select json(value) from orders where text(value) = 'plain'") == [(None,), (None,)]
    await world.add("raw", b"\xff\x00")
    assert await world.ask("select text(value), json(value) from raw limit 1") == [("\\xFF\\x00", None)]


@pytest.mark.parametrize(
    "name", ["orders", "streams.orders", '"orders"', "ORDERS", "Streams.Orders", 'streams."orders"', "main.orders"]
)
async def test_a_topic_has_several_names(world: World, name: str) -> None:
    assert await world.ask(f"select count(*) from {name}") == [(8,)]


@pytest.mark.parametrize(
    "query",
    [
        "create temp table t (o bigint); insert into t select stream_offset from orders; select count(*) from t",
        "create temp table t (o bigint); insert into t select 1 from streams.orders; select count(*) from t",
        "create view v as select stream_offset from orders; select count(*) from v",
        """select sum(n)::bigint from (unpivot (pivot (select stream_partition as p from orders) on p using count(*))
                                       on columns(*) into name p value n)""",
    ],
)
async def test_topics_are_found_in_statements_that_are_no_plain_query(world: World, query: str) -> None:
    assert await world.ask(query) == [(8,)]


async def test_the_topics_are_listed_by_show_tables(world: World) -> None:
    assert await world.ask("show tables") == [("my.dotted-topic",), ("orders",)]
    assert await world.ask("select 1; SHOW ALL TABLES;") == [("my.dotted-topic",), ("orders",)]


async def test_names_with_dots_and_dashes_joins_and_tables_named_twice(world: World) -> None:
    assert await world.ask('select count(*) from "my.dotted-topic"') == [(4,)]
    assert await world.ask('select count(*) from my."dotted-topic"') == [(4,)]
    joined = """
        with pairs as (
            select a.stream_offset, b.value
            from orders a join "my.dotted-topic" b using (stream_partition, stream_offset)
        )
        select text(pairs.value), count(*) from pairs, orders o where o.stream_offset = pairs.stream_offset group by 1
        order by 1
    """
    assert await world.ask(joined) == [("a", 4), ("b", 4)]
    aliased = 'select count(*) from "my.dotted-topic" as d join streams.orders o on text(o.value) = text(d.value)'
    assert await world.ask(aliased) == [(0,)]
    made = "create temp table t as select d.* from streams.orders as d; select count(*) from t, orders"
    assert await world.ask(made) == [(64,)]
    assert await world.ask("select column_name from (describe orders) limit 1") == [("stream_partition",)]
    twice = "select count(*) from orders a join Orders b using (stream_partition, stream_offset)"
    assert await world.ask(twice) == [(8,)]
    assert await world.ask(twice.replace("orders a", "streams.orders a").replace("Orders", "Streams.ORDERS")) == [(8,)]


@pytest.mark.parametrize("topic", ["main", "temp"])
async def test_a_topic_may_have_the_name_of_a_schema_of_duckdb(world: World, topic: str) -> None:
    await world.add(topic, b"a")
    assert await world.ask(f"select text(value) from {topic}") == [("a",), ("a",)]


async def test_a_landing_in_the_middle_of_a_query_changes_nothing(world: World) -> None:
    """The broker has said where the records are; before DuckDB reads, the tail lands and more is produced."""

    async def landing() -> None:
        await world.add("orders", b"late")
        await world.land()

    world.asked_first = landing
    query = "select count(*), count(distinct (stream_partition, stream_offset)) from orders"
    assert await world.ask(query) == [(8, 8)]
    assert world.asks == 1 and world.broker.replica.state.streams.by_id[1].landed == 5
    assert await world.ask(query) == [(10, 10)]


async def test_what_is_gone_meanwhile_is_looked_for_again(world: World) -> None:
    """Landed and collected between the broker's answer and DuckDB's reading: the query starts over, unseen."""

    async def land_and_collect() -> None:
        await world.land()
        objects = [path for path in world.folder.rglob("wal/**/*") if path.is_file()]
        assert objects
        for path in objects:
            path.unlink()

    world.asked_first = land_and_collect
    query = "select count(*), count(distinct (stream_partition, stream_offset)), count(value) from orders"
    assert await world.ask(query) == [(8, 8, 6)]
    assert world.asks == 2


async def test_what_stays_gone_is_told(world: World) -> None:
    for path in list(world.folder.rglob("*.parquet")):
        path.unlink()
    with pytest.raises(Missing, match="run it again"):
        await world.ask("select count(*) from orders")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select * from ordres", "no topic or table 'ordres'; did you mean orders"),
        ("select * from topic", "no topic or table 'topic'; `lakestream topics list` has them all"),
        ('select * from "dotted-topic"', 'did you mean "my.dotted-topic"'),
        ("selec 1", "syntax error"),
        ("select amount from orders", 'column "amount"'),
        ("", "no statement"),
        ('select * from "no such"', "no topic or table 'no such'"),
        ("drop table orders", "a query changes no topic"),
        ("insert into orders values (1)", "a query changes no topic"),
        ("update orders set value = null", "a query changes no topic"),
        ("delete from orders", "a query changes no topic"),
        ("alter table orders add column more int", "a query changes no topic"),
        ("select 1 from orders join orders using (nothing)", "nothing"),
        ("select stream_offset / 'x' from orders", "Could not convert"),
    ],
)
async def test_an_error_says_what_to_do(world: World, query: str, said: str) -> None:
    with pytest.raises(QueryError) as error:
        await world.ask(query)
    assert said.lower() in str(error.value).lower()


async def test_a_broker_that_is_not_there_or_has_no_tables_is_told(world: World) -> None:
    async with tail_page(world.broker.replica, "file:///nowhere", tables=False) as world.address:
        with pytest.raises(LakestreamError, match="serve --tables"):
            await world.ask("select * from orders")
    world.address = "127.0.0.1:1"
    with pytest.raises(Retry):
        await world.ask("select * from orders")
    assert await world.ask("select 1") == [(1,)]


async def test_csv_has_names_text_and_json_for_lists(world: World) -> None:
    query = """select stream_offset as "offset", value, stream_headers, null as nothing, '' as empty, stream_timestamp
               from orders where stream_partition = 0 and stream_offset in (1, 2) order by 1"""
    lines = (await world.written(query, write_csv)).decode().splitlines()
    assert lines[0] == '"offset","value","stream_headers","nothing","empty","stream_timestamp"'
    headers = '"[{""key"":""kind"",""value"":""old""},{""key"":""kind"",""value"":""new""}]"'
    assert lines[1] == f'1,"plain",{headers},,"","1970-01-01 00:00:01.001+00"'
    assert lines[2] == f'2,,{headers},,"","1970-01-01 00:00:01.002+00"'


async def test_bytes_inside_lists_are_text_like_those_of_columns(world: World) -> None:
    query = """select [{'key': 'k', 'value': encode('grün')}, {'key': 'k', 'value': '\\xFF'::BLOB}, null] as headers,
                      {'a': 1, 'b': encode('ß')} as one, null::BLOB[] as nothing, [1, 2] as numbers"""
    [row] = json.loads(await world.written(query, lambda a, s: write_json(a, s, lines=False)))
    headers = [{"key": "k", "value": "grün"}, {"key": "k", "value": "\\xFF"}, None]
    assert row == {"headers": headers, "one": {"a": 1, "b": "ß"}, "nothing": None, "numbers": [1, 2]}


async def test_json_is_a_list_or_lines_also_with_two_columns_of_one_name(world: World) -> None:
    query = "select stream_offset as a, text(value) as a from orders where stream_partition = 1 order by 1"
    wanted = [
        {"a": 0, "a_2": '{"amount": 5, "city": "Ulm"}'}, {"a": 1, "a_2": "plain"}, {"a": 2, "a_2": None},
        {"a": 3, "a_2": '{"amount": 7, "city": "Bonn"}'},
    ]  # fmt: skip
    assert json.loads(await world.written(query, lambda a, s: write_json(a, s, lines=False))) == wanted
    lines = await world.written(query, lambda a, s: write_json(a, s, lines=True))
    assert [json.loads(line) for line in lines.splitlines()] == wanted
    nothing = await world.written(f"select * from ({query}) limit 0", lambda a, s: write_json(a, s, lines=False))
    assert json.loads(nothing) == []


async def test_json_has_null_for_what_is_no_number(world: World) -> None:
    query = "select 'nan'::double as a, '-inf'::float as b, [1.5::double, 'inf'::double] as c, 2.5::double as d"
    for lines in (False, True):
        text = await world.written(query, lambda a, s: write_json(a, s, lines=lines))  # noqa: B023
        row = json.loads(text, parse_constant=pytest.fail)
        assert (row if lines else row[0]) == {"a": None, "b": None, "c": [1.5, None], "d": 2.5}
    assert (await world.written(query, write_csv)).decode().splitlines()[1].startswith("nan,-inf,")


async def test_arrow_keeps_the_bytes(world: World) -> None:
    data = await world.written("select value from orders order by stream_partition, stream_offset", write_arrow)
    table = pa.ipc.open_stream(data).read_all()
    assert table["value"].to_pylist()[1:3] == [b"plain", None]


async def test_cells_for_people_are_cut_and_never_reach_the_terminal_as_controls(world: World) -> None:
    await world.add("evil", b"\x1b[31mred\r\n\x07")

    def run() -> tuple[list[list[Any]], bool]:
        with answered(world.address, "select stream_offset, value, null from evil union all from evil") as answer:
            return cells(answer, 1)

    with pytest.raises(QueryError):
        await asyncio.to_thread(run)

    def cut() -> tuple[list[list[Any]], bool]:
        with answered(world.address, "select stream_offset, value, null from evil") as answer:
            return cells(answer, 1)

    assert await asyncio.to_thread(cut) == ([[0, "\\x1B[31mred\\x0D\\n\\x07", None]], True)


async def test_an_answer_that_is_large_is_handed_out_while_it_is_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "HELD_BYTES", 1000)
    text = "select range as n, repeat('x', 100) from range(1000000), orders where stream_offset < 1"

    def run() -> int:
        with answered(world.address, text, "200MB") as answer:
            return sum(batch.num_rows for batch in answer.batches)

    assert await asyncio.to_thread(run) == 2_000_000


def test_a_memory_limit_that_is_no_size_is_refused() -> None:
    with pytest.raises(QueryError), answered("127.0.0.1:1", "select 1", "much"):
        pass


def test_names_are_taken_apart_and_quoted() -> None:
    assert parse_name('streams."n" AS x') == ("streams", "n") and parse_name("n") == ("n",)
    assert parse_name('a."b.c"') == ("a", "b.c") and parse_name('"say ""hi"""') == ('say "hi"',)
    assert quoted('say "hi"') == '"say ""hi"""'
    assert issubclass(QueryError, LakestreamError)

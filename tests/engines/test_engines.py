"""Other engines on the tables of live topics, through our REST catalog (T13, T14, C6, C7).

Each time the whole topic is replayed by a Kafka client afterwards, and `lakestream verify` is asked. One cluster and
one process of each engine serve the whole module; each test has a topic of its own. The engines live in environments
that `make environments` builds.
"""

import itertools
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

pytest.importorskip("pyspark")

from tests.engines.clients.duckdb import DuckDb
from tests.engines.clients.face import (
    ALL,
    DELETE,
    EXPIRE,
    INSERT,
    PROGRAMS,
    READ,
    REWRITE,
    TRAVEL,
    UPDATE,
    Engine,
    EngineError,
    Sql,
)
from tests.engines.clients.opening import opened
from tests.engines.clients.python import Polars, PyIceberg
from tests.engines.clients.spark import Spark
from tests.engines.clients.trino import BUCKET, CATALOG, Trino
from tests.engines.lake import Known
from tests.support.places import ROOT
from tests.support.serve_process import Cluster, eventually, serving

COUNT = 1000
REDACTED = b"redacted"
FRESHNESS = {"lakestream_table_freshness_ms": "300"}
ENGINES: list[type[Engine]] = [PyIceberg, Polars, DuckDb, Spark, Trino]
START_S = 300.0
REST_S = 0.4
"""Between two DELETEs, times their number: 24 of them take two minutes, on a machine where landing is slow."""
PAGE = ROOT / "docs" / "ENGINES.md"

Use = Callable[[type[Engine]], Engine]
Make = Callable[[], Known]


def able(*abilities: str) -> pytest.MarkDecorator:
    """For each engine that can do all of this."""
    chosen = [engine for engine in ENGINES if set(abilities) <= set(engine.abilities)]
    return pytest.mark.parametrize("kind", chosen, ids=[engine.name for engine in chosen])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serving(tmp_path_factory.mktemp("lake"), tables=True) as one:
        eventually(lambda: "event=serves child=pipeline" in one.log_text(), "the pipeline does not start", START_S, one)
        yield one


@pytest.fixture(scope="module")
def use(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Use]:
    """An engine, started when it is first asked for."""
    started: dict[type[Engine], Engine] = {}
    uri = f"http://{cluster.http[0]}/iceberg"

    def one(kind: type[Engine]) -> Engine:
        if kind not in started:
            started[kind] = opened(kind, uri, tmp_path_factory.mktemp(kind.name))
        return started[kind]

    yield one
    for engine in started.values():
        engine.close()


_numbers = itertools.count()


@pytest.fixture
def make(cluster: Cluster, request: pytest.FixtureRequest) -> Make:
    """A topic of the test's own with records that have landed."""

    def one() -> Known:
        topic = Known(cluster, f"{request.node.callspec.id.lower()}-{next(_numbers)}", **FRESHNESS)
        topic.produce(COUNT)
        return topic

    return one


@able(READ)
def test_c6_rows_and_types_are_those_of_the_topic(kind: type[Engine], use: Use, make: Make) -> None:
    engine, topic = use(kind), make()
    assert sorted(engine.rows(topic.name)) == topic.expected()
    assert engine.columns(topic.name) == engine.types
    topic.produce(100)
    assert sorted(engine.rows(topic.name)) == topic.expected()
    topic.check()


@able(TRAVEL)
def test_c6_a_table_is_read_as_it_was(kind: type[Engine], use: Use, make: Make) -> None:
    engine, topic = use(kind), make()
    before, [*_, then] = topic.expected(), engine.snapshots(topic.name)
    topic.produce(100)
    assert len(engine.rows(topic.name)) == COUNT + 100
    assert sorted(engine.rows(topic.name, then)) == before


@able(DELETE)
def test_t14_deletes_on_a_busy_topic_get_through_and_rows_are_gone_twice(
    kind: type[Engine], use: Use, make: Make
) -> None:
    """While records land all the time; C7."""
    engine, topic = use(kind), make()
    with topic.busy():
        done, first = 0, topic.landed()
        while done < 3 or topic.landed() < first + 100:
            delete_once_more_if_files_were_replaced(engine, topic.name, done % 2, 20 * done)
            topic.forget(done % 2, range(20 * done, 20 * done + 10))
            done += 1
            assert done < 25, "nothing lands while rows are deleted"
            time.sleep(done * REST_S)
    topic.await_landed()
    assert sorted(engine.rows(topic.name)) == topic.expected()
    topic.check()


def delete_once_more_if_files_were_replaced(engine: Engine, topic: str, partition: int, first: int) -> None:
    """Ten rows. Landings never get in a DELETE's way; a rewrite of small files may, and the next is far off then."""
    try:
        engine.delete(topic, partition, first, first + 9)
    except EngineError as error:
        if not re.search("(?i)missing (required files|data files)", str(error)):
            raise
        engine.delete(topic, partition, first, first + 9)


@able(UPDATE)
def test_t13_an_updated_row_keeps_its_offset_and_consumers_get_the_new_value(
    kind: type[Engine], use: Use, make: Make
) -> None:
    engine, topic = use(kind), make()
    for partition, offset in ((0, 8), (1, 8), (0, COUNT // 2 - 1)):
        engine.update(topic.name, partition, offset, REDACTED)
        topic.change(partition, offset, REDACTED)
    assert sorted(engine.rows(topic.name)) == topic.expected()
    topic.produce(10)
    topic.check()


@able(INSERT)
def test_t13_rows_are_not_inserted_and_the_error_says_why(kind: type[Engine], use: Use, make: Make) -> None:
    engine, topic = use(kind), make()
    before = engine.snapshots(topic.name)
    for offset in (5, COUNT // 2, 1_000_000):
        with pytest.raises(EngineError, match=r"rows come to a stream's table through the stream only|twice"):
            engine.insert(topic.name, 1, offset, b"smuggled")
    assert engine.snapshots(topic.name) == before
    assert sorted(engine.rows(topic.name)) == topic.expected()
    topic.check()


@able(REWRITE)
def test_t13_files_that_are_rewritten_in_another_order_give_the_same_stream(
    kind: type[Engine], use: Use, make: Make
) -> None:
    engine, topic = use(kind), make()
    topic.produce(COUNT)
    engine.delete(topic.name, 0, 100, 149)
    topic.forget(0, range(100, 150))
    before = engine.snapshots(topic.name)
    engine.rewrite(topic.name)
    assert len(engine.snapshots(topic.name)) > len(before)
    assert sorted(engine.rows(topic.name)) == topic.expected()
    topic.check()
    topic.produce(100)
    topic.check()


@able(EXPIRE)
def test_t13_snapshots_are_expired_by_others_and_the_stream_goes_on(kind: type[Engine], use: Use, make: Make) -> None:
    engine, topic = use(kind), make()
    topic.replay()
    engine.update(topic.name, 1, 3, REDACTED)
    topic.change(1, 3, REDACTED)
    engine.delete(topic.name, 1, 7, 7)
    topic.forget(1, [7])
    engine.expire(topic.name)
    assert len(engine.snapshots(topic.name)) == 1
    assert sorted(engine.rows(topic.name)) == topic.expected()
    # T16: what the expired snapshots took away may not have been noted yet.
    topic.check(provable=False)
    topic.produce(100)
    topic.check(provable=False)


@pytest.mark.parametrize("kind", [Spark], ids=["Spark"])
def test_t13_rows_deleted_and_updated_by_position_are_gone_and_changed_in_the_stream(
    kind: type[Spark], use: Use, make: Make
) -> None:
    """Merge on read, and MERGE: allowed where it updates, refused where it inserts."""
    engine, topic = use(kind), make()
    assert isinstance(engine, Spark)
    engine.merge_on_read(topic.name)
    engine.delete(topic.name, 0, 50, 59)
    topic.forget(0, range(50, 60))
    engine.merge(topic.name, 0, 70, REDACTED)
    topic.change(0, 70, REDACTED)
    with pytest.raises(EngineError, match="through the stream only"):
        engine.merge(topic.name, 0, 55, REDACTED)
    assert sorted(engine.rows(topic.name)) == topic.expected()
    topic.check()


@pytest.mark.parametrize("kind", [Spark, Trino], ids=["Spark", "Trino"])
def test_t13_truncate_is_a_delete_of_all_rows_and_the_stream_goes_on(kind: type[Engine], use: Use, make: Make) -> None:
    """C6, C7: consumers find no record below the end, and new records go on at the next offsets."""
    engine, topic = use(kind), make()
    assert isinstance(engine, Sql)
    engine.run(f"TRUNCATE TABLE {engine.table(topic.name)}")
    assert engine.rows(topic.name) == []
    topic.rows.clear()
    topic.check()
    topic.produce(100)
    assert sorted(engine.rows(topic.name)) == topic.expected()
    topic.check()


@pytest.mark.parametrize("kind", [Spark, Trino], ids=["Spark", "Trino"])
def test_a_view_over_a_stream_shows_its_rows_as_they_land(
    kind: type[Engine], use: Use, make: Make, cluster: Cluster
) -> None:
    engine, topic = use(kind), make()
    assert isinstance(engine, Sql)
    space, first = f"views_{kind.name.lower()}", COUNT // 2 - 10
    engine.run(f"CREATE SCHEMA IF NOT EXISTS lake.{space}")
    query = f"SELECT stream_partition, stream_offset, value FROM {engine.table(topic.name)} WHERE stream_offset >= "
    engine.run(f"CREATE VIEW lake.{space}.latest AS {query} {first}")

    def seen() -> list[list[Any]]:
        return sorted(engine.run(f"SELECT * FROM lake.{space}.latest"))

    def expected(at_least: int) -> list[list[Any]]:
        return [[row.partition, row.offset, row.value] for row in topic.expected() if row.offset >= at_least]

    assert seen() == expected(first) and len(seen()) == 20
    topic.produce(100)
    assert seen() == expected(first)
    engine.run(f"CREATE OR REPLACE VIEW lake.{space}.latest AS {query} {first + 5}")
    assert seen() == expected(first + 5)
    other = RestCatalog("other", uri=f"http://{cluster.http[0]}/iceberg")
    assert other.list_views(space) == [(space, "latest")]
    metadata = other.load_view((space, "latest")).metadata
    assert [one.root.dialect for one in metadata.versions[-1].representations] == [kind.name.lower()]
    assert len(metadata.versions) == 2
    engine.run(f"DROP VIEW lake.{space}.latest")
    assert not other.view_exists((space, "latest"))
    topic.check()


def blocks(engine: str, language: str) -> list[str]:
    """The snippets of an engine's section on the page."""
    [section] = [each for each in PAGE.read_text().split("\n## ") if each.split("\n")[0] == engine]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def statements(engine: str) -> list[str]:
    """The SQL of an engine's section, but for what attaches the catalog: the tests have done that."""
    lines = [re.sub(r"\s*--.*", "", line) for block in blocks(engine, "sql") for line in block.split("\n")]
    found = [statement.strip() for statement in "\n".join(lines).split(";")]
    return [statement for statement in found if statement and not re.match("INSTALL|LOAD|ATTACH", statement)]


def test_the_pages_python_runs(cluster: Cluster) -> None:
    topic = Known(cluster, "orders", **FRESHNESS)
    topic.produce(COUNT)
    [code] = blocks("PyIceberg and Polars", "python")
    exec(code.replace("127.0.0.1:8181", cluster.http[0]), {})
    topic.forget(0, [17])
    topic.check()


@pytest.mark.parametrize("kind", [DuckDb, Spark, Trino], ids=["DuckDB", "Spark", "Trino"])
def test_the_pages_sql_runs(kind: type[Engine], use: Use, cluster: Cluster) -> None:
    engine, topic = use(kind), Known(cluster, f"orders_{kind.name.lower()}", **FRESHNESS)
    assert isinstance(engine, Sql)
    topic.produce(COUNT)
    [snapshot] = engine.snapshots(topic.name)
    for statement in statements(kind.name):
        engine.run(statement.replace("orders", topic.name).replace("4694375920179268911", str(snapshot)))
    if kind is Spark:
        topic.change(0, 17, b"")
    if kind is Trino:
        topic.forget(0, range(100))
    topic.check()


def test_the_pages_settings_are_those_of_the_tests() -> None:
    [spark], [trino], [duckdb, *_] = blocks("Spark", ""), blocks("Trino", ""), blocks("DuckDB", "sql")
    program, uri = (PROGRAMS / "spark_sql.py").read_text(), "http://127.0.0.1:8181/iceberg"
    for name, value in (line.split() for line in spark.strip().split("\n")[1:-2]):
        assert f'"{name}": "{value}"' in program
    told = trino.replace(uri, "{uri}").strip().split("\n")
    assert set(told) <= set(CATALOG.split("\n"))
    bucket = re.findall(r"^  (\S+)=", PAGE.read_text(), re.MULTILINE)
    assert bucket == re.findall(r"^(\S+)=", BUCKET, re.MULTILINE)
    attached = re.search(r"ATTACH '' AS lake .*(?=;)", duckdb)
    assert attached and attached[0].replace(uri, "{uri}") in (PROGRAMS / "duckdb_sql.py").read_text()


def test_the_page_says_what_each_engine_can_do() -> None:
    lines = [line.strip("| ").split(" | ") for line in re.findall(r"^\|.*\|$", PAGE.read_text(), re.MULTILINE)]
    rows = {cells[0]: cells[1:] for cells in lines if len(cells) == 1 + len(ENGINES)}
    assert [name.split()[0] for name in rows["tested with"]] == [engine.name for engine in ENGINES]
    for ability in ALL:
        told = ["yes" if ability in engine.abilities else "no" for engine in ENGINES]
        assert [cell.split(",")[0] for cell in rows[ability]] == told, ability

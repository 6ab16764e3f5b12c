"""Daft, DataFusion and ClickHouse (chDB) on the tables of live topics, in a folder and in a bucket.

After each step the whole topic is replayed by a Kafka client, and `lakestream verify` is asked. `make engines` builds
what they run in. ClickHouse reads no folder outside its own, so its tables are in the bucket.
"""

import itertools
import re
import subprocess
import textwrap
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("pyspark")

from tests.engines.clients.face import ALL, DELETE, INSERT, READ, TRAVEL, EngineError, keys
from tests.engines.clients.wheels import ENVIRONMENT, ClickHouse, Daft, DataFusion
from tests.engines.environments import build
from tests.engines.lake import Known
from tests.engines.test_engines import FRESHNESS, PAGE, blocks
from tests.engines.test_s3_end_to_end import variables
from tests.support.lake_process import await_pipeline
from tests.support.s3_server import BUCKET, S3Server, s3_server
from tests.support.serve_process import Cluster, serving

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(build.folder(ENVIRONMENT) is None, reason="run `make engines`, which builds what it needs"),
]

Wheel = Daft | DataFusion | ClickHouse
WHEELS: list[type[Wheel]] = [Daft, DataFusion, ClickHouse]
FOLDER, IN_BUCKET = "folder", "bucket"
PLACES = [(Daft, FOLDER), (Daft, IN_BUCKET), (DataFusion, FOLDER), (DataFusion, IN_BUCKET), (ClickHouse, IN_BUCKET)]
COUNT = 1000

_numbers = itertools.count()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serving(tmp_path_factory.mktemp("lake"), tables=True) as one:
        await_pipeline(one)
        yield one


@pytest.fixture(scope="module")
def bucket(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("serve")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables(s3).items():
            patch.setenv(name, value)
        with serving(
            place, data=f"s3://{BUCKET}/streams", metadata=f"sqlite://{place}/metadata.sqlite", tables=True
        ) as one:
            await_pipeline(one)
            yield one


Open = Callable[[type[Wheel], str], tuple[Wheel, Known]]


@pytest.fixture
def open_on(request: pytest.FixtureRequest) -> Iterator[Open]:
    """An engine, and a topic of the test's own whose records have landed."""
    opened: list[Wheel] = []

    def one(kind: type[Wheel], place: str) -> tuple[Wheel, Known]:
        cluster: Cluster = request.getfixturevalue(place)
        store = request.getfixturevalue("s3") if place == IN_BUCKET else None
        topic = Known(cluster, f"{kind.name.lower()}_{next(_numbers)}", **FRESHNESS)
        topic.produce(COUNT)
        opened.append(kind(f"http://{cluster.http[0]}/iceberg", store))
        return opened[-1], topic

    yield one
    for engine in opened:
        engine.close()


def able(ability: str) -> pytest.MarkDecorator:
    chosen = [(kind, place) for kind, place in PLACES if ability in kind.abilities]
    return pytest.mark.parametrize(("kind", "place"), chosen, ids=[f"{kind.name}-{place}" for kind, place in chosen])


@able(READ)
def test_c6_rows_and_types_are_those_of_the_topic(kind: type[Wheel], place: str, open_on: Open) -> None:
    engine, topic = open_on(kind, place)
    assert sorted(engine.rows(topic.name)) == topic.expected()
    assert engine.columns(topic.name) == engine.types
    topic.produce(100)
    assert sorted(engine.rows(topic.name)) == topic.expected()


@able(TRAVEL)
def test_c6_a_table_is_read_as_it_was(kind: type[Wheel], place: str, open_on: Open) -> None:
    engine, topic = open_on(kind, place)
    assert not isinstance(engine, DataFusion)
    before, [*_, then] = topic.expected(), engine.snapshots(topic.name)
    topic.produce(100)
    assert len(engine.rows(topic.name)) == COUNT + 100
    assert sorted(engine.rows(topic.name, then)) == before


@able(INSERT)
def test_t13_rows_are_not_inserted_and_the_error_says_why(kind: type[Wheel], place: str, open_on: Open) -> None:
    engine, topic = open_on(kind, place)
    with pytest.raises(EngineError, match="rows come to a stream's table through the stream only"):
        engine.insert(topic.name, 1, 1_000_000, b"smuggled")
    assert sorted(engine.rows(topic.name)) == topic.expected()
    topic.check()


@able(DELETE)
def test_t14_deleted_rows_are_gone_in_both_views(kind: type[Wheel], place: str, open_on: Open) -> None:
    engine, topic = open_on(kind, place)
    engine.delete(topic.name, 0, 10, 19)
    topic.forget(0, range(10, 20))
    assert sorted(engine.rows(topic.name)) == topic.expected()
    topic.check()


def test_c6_rows_that_clickhouse_deleted_by_position_are_gone_for_the_others(open_on: Open) -> None:
    clickhouse, topic = open_on(ClickHouse, IN_BUCKET)
    assert isinstance(clickhouse, ClickHouse)
    clickhouse.delete(topic.name, 1, 0, 4)
    topic.forget(1, range(5))
    for kind in (Daft, DataFusion):
        engine = kind(f"http://{topic.cluster.http[0]}/iceberg", clickhouse.store)
        try:
            assert sorted(engine.rows(topic.name)) == topic.expected(), kind.name
        finally:
            engine.close()


def test_clickhouse_reads_no_folder_that_is_not_its_own(open_on: Open) -> None:
    """If this fails, ClickHouse has changed, and the page should say so."""
    engine, topic = open_on(ClickHouse, FOLDER)
    with pytest.raises(EngineError, match="is not inside"):
        engine.rows(topic.name)


def test_datafusion_does_not_take_pyicebergs_table_as_it_is(open_on: Open) -> None:
    """If this fails, PyIceberg has changed, and the page's detour is not needed any more."""
    engine, topic = open_on(DataFusion, FOLDER)
    assert isinstance(engine, DataFusion)
    with pytest.raises(EngineError, match="Incompatible libraries"):
        engine.take_as_it_is(topic.name)


@pytest.mark.parametrize(
    ("section", "environment"), [("Daft", ENVIRONMENT), ("DataFusion", ENVIRONMENT), ("DuckDB", "duckdb")]
)
def test_the_pages_python_runs(section: str, environment: str, folder: Cluster) -> None:
    topic = Known(folder, f"orders_{section.lower()}", **FRESHNESS)
    topic.produce(COUNT)
    code = "\n".join(blocks(section, "python"))
    code = code.replace("127.0.0.1:8181", folder.http[0]).replace("orders", topic.name)
    place = build.folder(environment)
    assert place is not None, "run `make engines`"
    done = subprocess.run(
        [place / "bin" / "python", "-c", code], capture_output=True, text=True, timeout=120, env=keys(None), check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_pages_sql_for_clickhouse_runs(bucket: Cluster, s3: S3Server) -> None:
    topic = Known(bucket, "orders", **FRESHNESS)
    topic.produce(COUNT)
    [sql] = blocks("ClickHouse", "sql")
    snapshot = ClickHouse(f"http://{bucket.http[0]}/iceberg", s3)
    [then] = snapshot.snapshots("orders")
    snapshot.close()
    sql = sql.replace("127.0.0.1:8181", bucket.http[0]).replace("http://127.0.0.1:8333", s3.endpoint)
    sql = sql.replace("'KEY'", f"'{s3.access_key_id}'").replace("'SECRET'", f"'{s3.secret_access_key}'")
    sql = sql.replace("4694375920179268911", str(then))
    program = f"""
        from chdb.session import Session
        session = Session()
        for statement in {[one.strip() for one in re.sub(r"--.*", "", sql).split(";") if one.strip()]!r}:
            session.query(statement)
    """
    place = build.folder(ENVIRONMENT)
    assert place is not None
    done = subprocess.run(
        [place / "bin" / "python", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120,
        env=keys(None), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    topic.forget(0, range(10))
    topic.check()


def test_the_page_says_what_each_engine_can_do() -> None:
    lines = [line.strip("| ").split(" | ") for line in re.findall(r"^\|.*\|$", PAGE.read_text(), re.MULTILINE)]
    rows = {cells[0]: cells[1:] for cells in lines if len(cells) == 1 + len(WHEELS)}
    assert [name.split()[0] for name in rows["tested with"]] == [engine.name for engine in WHEELS]
    for ability in ALL:
        told = ["yes" if ability in engine.abilities else "no" for engine in WHEELS]
        assert [cell.split(",")[0] for cell in rows[ability]] == told, ability

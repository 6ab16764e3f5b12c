"""The pipeline on a real Spark: launched without a shell, warm rounds in well under two seconds, rows as acked."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

import lakestream
from lakestream.pipeline.java import find_java
from lakestream.pipeline.rounds import JobFailed
from lakestream.pipeline.spark import Spark, _on_rows, pack_package
from lakestream.pipeline.worker import land_task
from tests.core import batch
from tests.pipeline_live import start_both


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    running = Spark.start("local[2]")
    running.warm_up(land_task)
    yield running
    running.stop()


def echo(task: bytes, attempt: int) -> Sequence[bytes]:
    return [task, str(attempt).encode()]


def die(task: bytes, attempt: int) -> Sequence[bytes]:
    if task == b"die":
        os._exit(9)
    return [task]


def test_every_task_gets_its_own_answers_and_attempts_are_never_the_same_t12(spark: Spark) -> None:
    first, again = spark.run(echo, [b"a", b"b", b"c"]), spark.run(echo, [b"a", b"b", b"c"])
    assert [one[0] for one in first] == [one[0] for one in again] == [b"a", b"b", b"c"]
    assert not {one[1] for one in first} & {one[1] for one in again}


def test_workers_run_this_python(spark: Spark) -> None:
    [[program]] = spark.run(lambda task, attempt: [sys.executable.encode()], [b""])
    assert program == sys.executable.encode()


def test_a_worker_that_dies_fails_its_job_and_spark_lives_on_t18(spark: Spark) -> None:
    with pytest.raises(JobFailed):
        spark.run(die, [b"fine", b"die"])
    assert spark.alive and spark.run(die, [b"fine"]) == [[b"fine"]]


async def test_records_land_through_spark_and_a_small_warm_round_is_quick(spark: Spark, tmp_path: Path) -> None:
    broker, pipeline, _ = await start_both(tmp_path, engine=spark)
    streams = await broker.topic("a", 3)
    took = []
    for n in range(6):
        values = [f"{n}-{i}".encode() for i in range(100)]
        await broker.append(*((stream, batch(*values)) for stream in streams))
        await pipeline.replica.catch_up()
        began = time.perf_counter()
        assert await pipeline.driver.drain() == 0
        took.append(time.perf_counter() - began)
    rows = pipeline.rows("a")
    assert rows.num_rows == 1800
    assert rows["stream_offset"].to_pylist() == [n for _ in streams for n in range(600)]
    assert min(took[2:]) < 2.0, took
    await pipeline.stop()
    await broker.stop()


def test_the_package_travels_to_executors_that_do_not_have_it_t18(tmp_path: Path) -> None:
    pack_package(tmp_path)
    shipped = cloudpickle.dumps(_on_rows(land_task, [b"", b""], "lakestream-package.zip"))
    (tmp_path / "shipped").write_bytes(shipped)
    here = str(Path(lakestream.__file__).resolve().parent.parent)
    code = (
        "import os, pickle, sys\n"
        f"sys.path[:] = [place for place in sys.path if os.path.abspath(place) != {here!r}]\n"
        "import pyarrow as pa\n"
        "from pyspark import SparkFiles\n"
        "SparkFiles._is_running_on_worker, SparkFiles._root_directory = True, os.getcwd()\n"
        "on_rows = pickle.loads(open('shipped', 'rb').read())\n"
        "assert 'lakestream' not in sys.modules\n"
        "list(on_rows(iter([pa.RecordBatch.from_arrays([pa.array([0, 1])], ['id'])])))\n"
        "assert sys.modules['lakestream.pipeline.worker'].__file__.startswith(os.getcwd())\n"
    )
    asked = [sys.executable, "-c", code]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()


TRY = (
    "from lakestream.pipeline.spark import Spark\n"
    "from lakestream.pipeline.worker import land_task\n"
    "spark = Spark.start({master!r}, {{'spark.driver.host': '127.0.0.1'}})\n"
    "spark.warm_up(land_task)\n"
    "assert spark.run(lambda task, attempt: [task + b'!'], [b'a', b'b']) == [[b'a!'], [b'b!']]\n"
    "spark.stop()\n"
)


def try_spark(master: str, environment: dict[str, str]) -> None:
    """In a process of its own: one process has one Spark."""
    asked = [sys.executable, "-c", TRY.format(master=master)]
    done = subprocess.run(asked, env={**os.environ, **environment}, capture_output=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_spark_runs_on_the_runtime_from_pypi_too() -> None:
    try_spark("local[1]", {"JAVA_HOME": str(Path(find_java({"PATH": ""}).path).parent.parent)})


@pytest.mark.long
def test_executors_of_their_own_work_too() -> None:
    try_spark("local-cluster[1,1,1024]", {})

"""The pipeline on a real Spark: launched without a shell, warm rounds in well under two seconds, rows as acked."""

import contextlib
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import psutil
from pyspark import cloudpickle

import lakestream
from lakestream.pipeline.landing.rounds import JobFailed
from lakestream.pipeline.landing.worker import land_task
from lakestream.pipeline.spark.java import find_java
from lakestream.pipeline.spark.session import Spark, _on_rows, pack_package
from lakestream.process.temporary_folders import sweep
from lakestream.process.umask import current_umask
from tests.support.broker_and_pipeline import start_both
from tests.support.memory_broker import batch
from tests.support.serve_process import eventually

PASSWORD = " s3cr3t=of\\the #test:"


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    running = Spark.start("local[2]", {"spark.lakestream.test.password": PASSWORD})
    running.warm_up(land_task)
    yield running
    running.stop()


def echo(task: bytes, attempt: int) -> Sequence[bytes]:
    return [task, str(attempt).encode()]


def die(task: bytes, attempt: int) -> Sequence[bytes]:
    if task == b"die":
        os._exit(9)
    return [task]


def hang(task: bytes, attempt: int) -> Sequence[bytes]:
    Path(task.decode()).write_text(str(os.getpid()))
    time.sleep(600)
    return []


def test_every_task_gets_its_own_answers_and_attempts_are_never_the_same_t12(spark: Spark) -> None:
    first, again = spark.run(echo, [b"a", b"b", b"c"]), spark.run(echo, [b"a", b"b", b"c"])
    assert [one[0] for one in first] == [one[0] for one in again] == [b"a", b"b", b"c"]
    assert not {one[1] for one in first} & {one[1] for one in again}


def test_workers_run_this_python(spark: Spark) -> None:
    [[program]] = spark.run(lambda task, attempt: [sys.executable.encode()], [b""])
    assert program == sys.executable.encode()


def test_a_setting_reaches_spark_as_it_is_and_shows_on_no_command_line(spark: Spark) -> None:
    context = spark.session.sparkContext
    assert context._jvm.org.apache.spark.SparkEnv.get().conf().get("spark.lakestream.test.password") == PASSWORD
    assert any(b"spark.deploy.SparkSubmit" in argv for argv in command_lines())
    assert not any(b"s3cr3t=" in argv for argv in command_lines())


def command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


def test_workers_make_files_as_private_as_the_driver_does(spark: Spark) -> None:
    before = os.umask(0o077)
    try:
        [[mask]] = spark.run(lambda task, attempt: [str(current_umask()).encode()], [b""])
    finally:
        os.umask(before)
    assert int(mask) == 0o077


def test_a_worker_that_dies_fails_its_job_and_spark_lives_on_t18(spark: Spark) -> None:
    with pytest.raises(JobFailed):
        spark.run(die, [b"fine", b"die"])
    assert spark.alive and spark.run(die, [b"fine"]) == [[b"fine"]]


def test_jobs_that_hang_are_cancelled_and_others_go_on(spark: Spark, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(spark.run, hang, [str(begun).encode()])
        eventually(lambda: begun.exists() and begun.read_text(), "the job does not begin", 60)
        assert spark.run(echo, [b"beside"])[0][0] == b"beside"
        spark.cancel(hang)
        with pytest.raises(JobFailed):
            hanging.result(timeout=60)
    worker = int(begun.read_text())
    eventually(lambda: not psutil.pid_exists(worker), "the worker goes on", 60)
    assert spark.alive and spark.run(echo, [b"after"])[0][0] == b"after"


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
    with zipfile.ZipFile(pack_package(tmp_path)) as package:
        assert {"lakestream/__init__.py", "lakestream/pipeline/landing/worker.py"} <= set(package.namelist())
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
        "assert sys.modules['lakestream.pipeline.landing.worker'].__file__.startswith(os.getcwd())\n"
    )
    asked = [sys.executable, "-c", code]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()


TRY = (
    "from lakestream.pipeline.spark.session import Spark\n"
    "from lakestream.pipeline.landing.worker import land_task\n"
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


HANG = TRY.partition("spark.stop()")[0] + "print('runs', flush=True)\nimport time\ntime.sleep(600)\n"


def test_a_pipeline_that_is_killed_leaves_nothing_that_the_next_one_does_not_sweep(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HANG.format(master="local[1]")]
    with subprocess.Popen(argv, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None and killed.stdout.readline() == b"runs\n"
        killed.kill()
    assert [path.name.rpartition("-")[0] for path in tmp_path.iterdir()] == ["lakestream-spark"]

    def swept() -> bool:
        # The JVM takes a moment to see that it is alone, and may make a file in between.
        sweep("spark", tmp_path)
        return not list(tmp_path.iterdir())

    eventually(swept, "something is left of the killed pipeline", 20.0)


def test_spark_runs_on_the_runtime_from_pypi_too() -> None:
    try_spark("local[1]", {"JAVA_HOME": str(Path(find_java({"PATH": ""}, installed="").path).parent.parent)})


@pytest.mark.long
def test_executors_of_their_own_work_too() -> None:
    try_spark("local-cluster[1,1,1024]", {})

"""Spark, ready to run our tasks: the session, and one job for each round. The only driver-side importer of pyspark.

A job is `range(n).mapInArrow(work)`: task i of n is row i, its description travels with the function, and only a few
rows of names and statistics come back. Spark schedules, workers in Python move the bytes (T18).
"""

import contextlib
import importlib
import importlib.util
import logging
import os
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import lakestream
from lakestream.pipeline.landing.rounds import JobFailed, Work
from lakestream.pipeline.spark.java import find_java
from lakestream.pipeline.spark.jvm import Jvm, SparkFailed, is_local
from lakestream.process.temporary_folders import TemporaryFolder
from lakestream.process.umask import current_umask

log = logging.getLogger(__name__)

RESULT_SCHEMA = "task int, body binary"

_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ui.retainedExecutions": "4",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1024",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.scheduler.mode": "FAIR",
}
_LOCAL_CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "lakestream.pipeline.spark.daemon",
}
"""On one machine Spark listens on loopback only, and workers are forks of a process that has loaded all modules."""


class Spark:
    """A running Spark application."""

    def __init__(self, session: Any, jvm: Jvm | None, *, ship: bool) -> None:
        self.session = session
        self.slots = max(int(session.sparkContext.defaultParallelism), 1)
        """How many tasks run at once."""
        self._jvm = jvm
        self._folder = TemporaryFolder("package") if ship else None
        self._package = ""
        if self._folder is not None:
            made = pack_package(self._folder.path)
            session.sparkContext.addFile(str(made))
            self._package = made.name

    @classmethod
    def start(cls, master: str, conf: Mapping[str, str] | None = None) -> "Spark":
        """Blocks for some seconds. Raises NoJava or SparkFailed, which say how to help."""
        settings = {**_CONF, **(_LOCAL_CONF if is_local(master) else {}), **(conf or {})}
        # The gateway logs every connection that it closes.
        logging.getLogger("py4j").setLevel(logging.WARNING)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Under spark-submit the JVM is there already, and has told us where.
        jvm = None if "PYSPARK_GATEWAY_PORT" in os.environ else Jvm.start(find_java(), master, settings)
        if jvm is not None:
            os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(jvm.port), jvm.secret
        try:
            return cls._connect(master, settings, jvm)
        except BaseException:
            if jvm is not None:
                jvm.stop()
            raise
        finally:
            if jvm is not None:
                del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]

    @classmethod
    def _connect(cls, master: str, settings: Mapping[str, str], jvm: Jvm | None) -> "Spark":
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName("lakestream").config(map=dict(settings))
        if jvm is not None:
            builder = builder.master(master)
        try:
            session = builder.getOrCreate()
        except (Py4JError, PySparkException, OSError) as error:
            said = jvm.last_words() if jvm is not None else ""
            raise SparkFailed(f"Spark did not start: {_first_line(error)} {said}") from error
        return cls(session, jvm, ship=not is_local(master))

    def run(self, work: Work, tasks: Sequence[bytes]) -> list[list[bytes]]:
        """All answers of each task. Raises JobFailed if a task did not answer at all, so that none counts."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        on_rows = _on_rows(work, list(tasks), self._package)
        # To start a Spark task takes a tenth of a second: each slot gets one, with several of our tasks in it.
        partitions = min(len(tasks), self.slots)
        self.session.sparkContext.setJobGroup(_group(work), "", interruptOnCancel=True)
        frame = self.session.range(0, len(tasks), 1, partitions).mapInArrow(on_rows, RESULT_SCHEMA)
        try:
            rows = frame.collect()
        except (Py4JError, PySparkException, OSError) as error:
            raise JobFailed(f"a Spark job failed: {_first_line(error)}") from error
        answers: list[list[bytes]] = [[] for _ in tasks]
        for task, body in rows:
            answers[task].append(bytes(body))
        return answers

    def cancel(self, work: Work) -> None:
        """Spark kills the workers of these jobs, and their `run` raises JobFailed."""
        threading.Thread(target=self._cancel, args=[_group(work)], name="cancel", daemon=True).start()

    def _cancel(self, group: str) -> None:
        from py4j.protocol import Py4JError

        try:
            self.session.sparkContext.cancelJobGroup(group)
        except (Py4JError, OSError) as error:
            log.warning("a job of Spark's could not be cancelled: %s", _first_line(error))

    def warm_up(self, work: Work) -> None:
        """Run an empty task on every slot, so that the first round finds everything loaded. Raises JobFailed."""
        self.run(work, [b""] * self.slots)

    @property
    def alive(self) -> bool:
        return self._jvm is None or self._jvm.alive

    def stop(self) -> None:
        from py4j.protocol import Py4JError
        from pyspark import SparkContext

        try:
            self.session.sparkContext.cancelAllJobs()
            self.session.stop()
        except (Py4JError, OSError) as error:
            log.info("Spark's session did not end well: %s", _first_line(error))
        if self._jvm is not None:
            self._jvm.stop()
            # PySpark keeps its connection for the next session of this process, but that JVM is gone.
            SparkContext._gateway = SparkContext._jvm = None
        if self._folder is not None:
            self._folder.remove()


def _group(work: Work) -> str:
    """The group of a job: jobs with the same work are cancelled together, and care runs one job at a time."""
    return f"{work.__module__}.{work.__qualname__}"


def _on_rows(
    work: Work, tasks: list[bytes], package: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark ships: rows with task numbers in, rows with answers out.

    It travels by value, and names the work by its module, which a worker imports, out of the shipped package if it is
    not installed there. Nothing of ours may be imported before that. Files get the permissions that the driver gives.
    """
    named = work.__module__, work.__qualname__
    carried = work if "<" in named[1] else None
    umask = current_umask()

    def on_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import SparkFiles, TaskContext

        if package and importlib.util.find_spec("lakestream") is None:
            unpacked = f"{SparkFiles.get(package)}.unpacked"
            if not os.path.isdir(unpacked):
                own = f"{unpacked}-{os.getpid()}"
                with zipfile.ZipFile(SparkFiles.get(package)) as archive:
                    archive.extractall(own)
                with contextlib.suppress(OSError):  # another worker was faster
                    os.rename(own, unpacked)
            sys.path.insert(0, unpacked)
        os.umask(umask)
        do = carried or getattr(importlib.import_module(named[0]), named[1])
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        for batch in batches:
            for task in batch.column(0).to_pylist():
                answers = list(do(tasks[task], attempt))
                numbers = pa.array([task] * len(answers), pa.int32())
                yield pa.RecordBatch.from_arrays([numbers, pa.array(answers, pa.binary())], ["task", "body"])

    return on_rows


def pack_package(folder: Path) -> Path:
    """This package as one file, for executors that do not have it. Compiled code has to lie in files: no zip import."""
    source = Path(lakestream.__file__).resolve().parent
    made = folder / "lakestream-package.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(source.rglob("*.py")):
            archive.write(path, path.relative_to(source.parent))
    return made


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]



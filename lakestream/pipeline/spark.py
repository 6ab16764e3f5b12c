"""Spark, ready to run our tasks: the session, and one job for each round. The only driver-side importer of pyspark.

A job is `range(n).mapInArrow(work)`: task i of n is row i, its description travels with the function, and only a few
rows of names and statistics come back. Spark schedules, workers in Python move the bytes (T18).
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lakestream.pipeline.java import find_java
from lakestream.pipeline.jvm import Jvm, SparkFailed, is_local

log = logging.getLogger(__name__)

RESULT_SCHEMA = "task int, body binary"
Work = Callable[[bytes], Sequence[bytes]]
"""What a worker does with one task: its description to any number of answers."""

_CONF = {
    "spark.ui.enabled": "false",
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
    "spark.python.daemon.module": "lakestream.pipeline.daemon",
}
"""On one machine nothing listens on other addresses, and workers are forks of a process that has everything loaded."""


class Spark:
    """A running Spark application."""

    def __init__(self, session: Any, jvm: Jvm | None, slots: int) -> None:
        self.session = session
        self.slots = slots
        """How many tasks run at once."""
        self._jvm = jvm

    @classmethod
    def start(cls, master: str, conf: Mapping[str, str] | None = None) -> "Spark":
        """Blocks for some seconds. Raises NoJava or SparkFailed, with what to do about it."""
        settings = {**_CONF, **(_LOCAL_CONF if is_local(master) else {}), **(conf or {})}
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
        slots = int(session.conf.get("spark.default.parallelism", "0") or 0)
        return cls(session, jvm, slots or _slots(session))

    def run(self, work: Work, tasks: Sequence[bytes]) -> list[list[bytes]]:
        """All answers of each task. Raises SparkFailed if a task did not answer at all, so that none counts."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        count = len(tasks)
        frame = self.session.range(0, count, 1, count).mapInArrow(_on_rows(work, list(tasks)), RESULT_SCHEMA)
        try:
            rows = frame.collect()
        except (Py4JError, PySparkException, OSError) as error:
            raise SparkFailed(f"a Spark job failed: {_first_line(error)}") from error
        answers: list[list[bytes]] = [[] for _ in tasks]
        for task, body in rows:
            answers[task].append(bytes(body))
        return answers

    def warm_up(self) -> None:
        """Run what every round runs, on every slot, so that the first one finds it compiled and loaded."""
        self.run(_nothing, [b""] * self.slots)

    @property
    def alive(self) -> bool:
        return self._jvm is None or self._jvm.alive

    def stop(self) -> None:
        from py4j.protocol import Py4JError

        try:
            self.session.stop()
        except (Py4JError, OSError) as error:
            log.info("Spark's session did not end well: %s", _first_line(error))
        if self._jvm is not None:
            self._jvm.stop()


def _slots(session: Any) -> int:
    return max(int(session.sparkContext.defaultParallelism), 1)


def _nothing(_: bytes) -> list[bytes]:
    return []


def _on_rows(work: Work, tasks: list[bytes]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark ships: rows with task numbers in, rows with answers out."""

    def on_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                answers = list(work(tasks[task]))
                numbers = pa.array([task] * len(answers), pa.int32())
                yield pa.RecordBatch.from_arrays([numbers, pa.array(answers, pa.binary())], ["task", "body"])

    return on_rows


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]



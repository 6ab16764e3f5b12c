"""A round on the engine: tasks go out, answers come back, and each topic is judged by itself.

A worker that dies takes its whole job with it. Then the topics are halved and tried again until the one that kills
workers is alone, so one topic's fault never fails another's round (T18).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Protocol

from lakestream.data.tables.files.file_stats import FileStats, add_digests
from lakestream.errors import LakestreamError
from lakestream.model.catalog.landed import LandedRange
from lakestream.pipeline.landing.planner import RoundLimits, TopicWork, divide
from lakestream.pipeline.landing.tasks import Answer, RoundPlaces, WrittenFiles, describe, pack_task, unpack_answer
from lakestream.pipeline.landing.worker import land_task
from lakestream.pipeline.tables.failure import Failed

log = logging.getLogger(__name__)

Work = Callable[[bytes, int], Sequence[bytes]]
"""The function that a worker runs: (description of a task, number of the attempt) -> answers."""


class JobFailed(LakestreamError):
    """The engine did not finish a job: a worker died, or the engine itself did."""


class Engine(Protocol):
    """Runs tasks: Spark, or this process where a few tasks are enough."""

    slots: int

    @property
    def alive(self) -> bool: ...

    def run(self, work: Work, tasks: Sequence[bytes]) -> list[list[bytes]]:
        """The answers of each task. Blocks; raises JobFailed if not all tasks answered."""
        ...

    def cancel(self, work: Work) -> None:
        """End the jobs that do this work; their answers are not needed any more. Does not block."""
        ...


class LocalEngine:
    """The engine without Spark: the calling thread runs the tasks. For tests, and to measure the cost of Spark."""

    slots = 1
    alive = True

    def __init__(self) -> None:
        self._attempts = count()

    def run(self, work: Work, tasks: Sequence[bytes]) -> list[list[bytes]]:
        return [list(work(task, next(self._attempts))) for task in tasks]

    def cancel(self, work: Work) -> None:
        """A thread cannot be ended: the work goes on, and its answers are dropped."""


async def run_round(
    engine: Engine,
    works: Sequence[TopicWork],
    limits: RoundLimits,
    where: RoundPlaces,
    first_task: int = 0,
) -> tuple[dict[bytes, WrittenFiles | Failed], bool]:
    """The files of each topic, or why there are none; and whether all jobs ended well (else files are left).

    Raises JobFailed if the engine is dead.
    """
    shares = divide(works, engine.slots, limits)
    tasks = [describe(first_task + n, task, where) for n, task in enumerate(shares)]
    try:
        answers = await asyncio.to_thread(engine.run, land_task, [pack_task(task) for task in tasks])
    except JobFailed as error:
        if not engine.alive:
            raise
        if len(works) == 1:
            return {works[0].topic_id: Failed(works[0].topic_id, str(error), True)}, False
        log.warning("a round of %d topics failed, trying its halves: %s", len(works), error)
        middle = len(works) // 2
        found: dict[bytes, WrittenFiles | Failed] = {}
        for half in (works[:middle], works[middle:]):
            after = first_task + len(tasks) + len(found)
            found |= (await run_round(engine, half, limits, where, after))[0]
        return found, False
    wanted = Counter(share.topic_id for task in shares for share in task)
    return judge(wanted, [unpack_answer(body) for bodies in answers for body in bodies]), True


def judge(wanted: Mapping[bytes, int], answers: Sequence[Answer]) -> dict[bytes, WrittenFiles | Failed]:
    """A topic has landed if every part of it has; its first failure counts, a lasting one before others."""
    own: dict[bytes, list[Answer]] = {topic_id: [] for topic_id in wanted}
    for answer in answers:
        own[answer.topic_id].append(answer)
    return {topic_id: _sum(topic_id, wanted[topic_id], said) for topic_id, said in own.items()}


def _sum(topic_id: bytes, parts: int, answers: Sequence[Answer]) -> WrittenFiles | Failed:
    failures = sorted((one for one in answers if isinstance(one, Failed)), key=lambda one: not one.lasting)
    landed = [one for one in answers if isinstance(one, WrittenFiles)]
    if failures:
        return failures[0]
    if len(landed) != parts:
        return Failed(topic_id, f"{parts - len(landed)} of {parts} tasks did not answer", False)
    return WrittenFiles(topic_id, [file for one in landed for file in one.files])


def ranges_of(work: TopicWork, files: Sequence[FileStats]) -> list[LandedRange] | Failed:
    """The ranges as the state notes them (T16). Failed unless every offset of each range is a row."""
    digests = add_digests(stats.digests for stats in files)
    sizes: dict[int, int] = {}
    for part in work.slices:
        sizes[part.partition] = sizes.get(part.partition, 0) + part.length
    found = []
    for one in work.ranges:
        digest = digests.get(one.partition)
        records = digest.records if digest is not None else 0
        if digest is None or records != one.end - one.start:
            problem = f"offsets {one.start} to {one.end} of partition {one.partition} gave {records} records"
            return Failed(work.topic_id, problem, True)
        size = sizes.get(one.partition, 0)
        found.append(LandedRange(one.partition, one.start, one.end, records, digest.hash, size))
    return found

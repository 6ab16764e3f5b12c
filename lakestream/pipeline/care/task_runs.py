"""The tasks of care on the engine: described, run a few at a time, and their answers judged.

Landing goes on all the while, so care takes at most half of the engine's slots.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from lakestream.data.tables.iceberg.live_files import LiveFile
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.stores.routed_store import place_of
from lakestream.errors import LakestreamError
from lakestream.pipeline.care.plan import CareLimits
from lakestream.pipeline.care.results import Hung, Lost, NotDone, Progress
from lakestream.pipeline.care.tasks import (
    Cared,
    CareFailed,
    CareFile,
    CareTask,
    Scattered,
    pack_care,
    unpack_care_answer,
)
from lakestream.pipeline.care.worker import care_task
from lakestream.pipeline.landing.rounds import Engine
from lakestream.pipeline.tables.topic_tables import TopicTables
from lakestream.stream.long_work import chunks


class CareRuns:
    """Runs tasks of all jobs of care."""

    def __init__(self, tables: TopicTables, engine: Engine, limits: CareLimits, root: str) -> None:
        self.engine = engine
        self._tables = tables
        self._limits = limits
        self._root = root

    def task(self, table: Table, number: int, mode: str, files: list[CareFile], **how: Any) -> CareTask:
        """Workers open the store that the table lies in: another catalog may have placed it elsewhere."""
        place = place_of(self._root, table.metadata_location)
        options = self._tables.catalogs.store_options() if place != self._root else {}
        return CareTask(number, place, mode, files, store_options=options, **how)

    def by_bytes(self, files: Sequence[LiveFile]) -> Iterable[list[LiveFile]]:
        some: list[LiveFile] = []
        for file in files:
            if some and sum(one.size for one in some) + file.size > self._limits.task_bytes:
                yield some
                some = []
            some.append(file)
        if some:
            yield some

    @property
    def width(self) -> int:
        """How many tasks of ours run at once: the other slots are for landing."""
        return max(self.engine.slots // 2, 1)

    async def run_all(self, tasks: Sequence[CareTask], progress: Progress, verb: str) -> list[Cared]:
        found: list[Cared] = []
        for some in chunks(tasks, self.width):
            found += await self.run(some)
            if len(found) < len(tasks):
                await progress(f"{verb} {len(found)} of {len(tasks)} parts of the table")
        return found

    async def run(self, tasks: Sequence[CareTask]) -> list[Cared]:
        """Raises NotDone if a task failed, JobFailed if the engine did."""
        try:
            answers = await asyncio.to_thread(self.engine.run, care_task, [pack_care(task) for task in tasks])
        except asyncio.CancelledError:
            self.engine.cancel(care_task)
            raise
        found: list[Cared] = []
        for bodies in answers:
            for body in bodies:
                answer = unpack_care_answer(body)
                if not isinstance(answer, Cared):
                    raise _failure(answer)
                found.append(answer)
        if len(found) != len(tasks):
            raise NotDone(f"{len(tasks) - len(found)} of {len(tasks)} tasks did not answer")
        return found


def _failure(answer: CareFailed) -> LakestreamError:
    if answer.lost:
        return Lost(answer.reason)
    if answer.scattered:
        return Scattered(answer.reason)
    return Hung(answer.reason) if answer.hung else NotDone(answer.reason)

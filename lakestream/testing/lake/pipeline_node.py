"""One simulated pipeline: the real driver, lander, rounds, sweep and caretaker, around an engine with faults.

The parts are put together as in pipeline/service.py, without Spark: tasks run in the calling thread. The faults of a
cluster of workers are drawn from the seed: a job fails after some of its files are written, a task runs twice and one
of its answers is dropped, or the engine dies and the process with it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from lakestream.data.tables.conditions.condition import Condition, check_condition
from lakestream.data.tables.iceberg.snapshot_history import SnapshotHistory
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.interfaces import Clock, CommandLog, Wal
from lakestream.metadata.membership import Timing
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.names import Warehouse, warehouse_uri
from lakestream.model.commands import Register
from lakestream.model.levels import NEWEST
from lakestream.pipeline.care.caretaker import CareSchedule, Caretaker
from lakestream.pipeline.care.jobs import CareJobs
from lakestream.pipeline.care.plan import CareLimits
from lakestream.pipeline.care.tasks import unpack_care_task
from lakestream.pipeline.care.worker import care_in, care_task
from lakestream.pipeline.landing.driver import Driver
from lakestream.pipeline.landing.freshness import Freshness, FreshnessLimits
from lakestream.pipeline.landing.lander import Lander
from lakestream.pipeline.landing.planner import RoundLimits
from lakestream.pipeline.landing.rounds import JobFailed, Work
from lakestream.pipeline.landing.sweeper import Sweeper
from lakestream.pipeline.landing.tasks import unpack_task
from lakestream.pipeline.landing.worker import land_in
from lakestream.pipeline.service import MEMBER_ID, ROLE, OneAtATime
from lakestream.pipeline.tables.iceberg_format import IcebergFormat
from lakestream.pipeline.tables.topic_tables import open_tables
from lakestream.testing.simulation.ledger import Violation
from lakestream.testing.simulation.threads import wait_for

SLOW_S = (0.3, 1.0, 3.0)
GRACE_S = 2.0
QUICK_HISTORY = SnapshotHistory(all_ms=700, tiers=((2_000, 200), (6_000, 1_000)), removed_ms=1_500)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFaults:
    """The probability of each fault of a task."""

    twice: float = 0.0
    failed: float = 0.0
    died: float = 0.0
    slow: float = 0.1
    """The probability that a task takes one of SLOW_S."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """The settings of the simulated pipelines."""

    timing: Timing
    limits: RoundLimits
    freshness_s: float = 1.0
    slots: int = 1
    members: tuple[int, ...] = (MEMBER_ID,)
    """The member id of each process: two processes with one id take it over from each other."""
    engine: EngineFaults = EngineFaults()
    care: CareLimits = field(default_factory=CareLimits)
    schedule: CareSchedule = field(default_factory=CareSchedule)
    history: SnapshotHistory = QUICK_HISTORY


class QuickDriver(Driver):
    """A driver whose minutes are seconds."""

    sweep_first_s = 1.0
    sweep_every_s = 2.5
    obsolete_grace_s = GRACE_S


class TrustingJobs(CareJobs):
    """Care jobs that check conditions in this process, without a child process."""

    def condition_problem(self, where: str) -> str:
        return check_condition(where)


@dataclass(frozen=True, slots=True)
class PipelineClasses:
    """The classes of the parts: a test that breaks a rule on purpose passes a class of its own."""

    lander: type[Lander] = Lander
    sweeper: type[Sweeper] = Sweeper
    table_format: type[IcebergFormat] = IcebergFormat
    driver: type[QuickDriver] = QuickDriver
    jobs: type[CareJobs] = TrustingJobs
    caretaker: type[Caretaker] = Caretaker


class SimEngine:
    """An Engine (pipeline/landing/rounds.py) that runs tasks in the calling thread, with the process's own link."""

    def __init__(self, store: TableStore, chance: Random, slots: int, faults: EngineFaults) -> None:
        self.slots = slots
        self.alive = True
        self.faults = faults
        self._store = store
        self._chance = chance
        self._attempts = count()

    def run(self, work: Work, tasks: Sequence[bytes]) -> list[list[bytes]]:
        return [self._run(work, task) for task in tasks]

    def cancel(self, work: Work) -> None:
        """Do nothing: the thread ends with the pipeline."""

    def _run(self, work: Work, task: bytes) -> list[bytes]:
        drawn = self._chance.random()
        answers = self._once(work, task)
        if self._chance.random() < self.faults.slow:
            pause_s = self._chance.choice(SLOW_S)
            wait_for(lambda: asyncio.sleep(pause_s))
        if drawn < self.faults.died:
            self.alive = False
        if drawn < self.faults.died + self.faults.failed:
            raise JobFailed("a worker was lost")
        if drawn < self.faults.died + self.faults.failed + self.faults.twice:
            answers = self._chance.choice((answers, self._once(work, task)))
        return answers

    def _once(self, work: Work, task: bytes) -> list[bytes]:
        if work is care_task:
            # In this process: the simulated operators' conditions are harmless, and child processes take seconds.
            return care_in(lambda: self._store, unpack_care_task(task), next(self._attempts), Condition)
        return land_in(self._store, unpack_task(task), next(self._attempts))


class PipelineNode:
    """The parts of one incarnation of a pipeline."""

    def __init__(
        self, member_id: int, command_log: CommandLog, wal: Wal, tables: TableStore, clock: Clock, random: Random,
        options: PipelineOptions, classes: PipelineClasses,
    ) -> None:  # fmt: skip
        self.replica = Replica(command_log, wal, clock, member_id)
        about = Register(b"", "", ROLE, "", 0, "", 1, NEWEST)
        self.membership = OneAtATime(self.replica, clock, random, about, options.timing)
        self.engine = SimEngine(tables, random, options.slots, options.engine)
        self.topic_tables = open_tables(
            self.replica, tables, self._warehouse, clock, random, None, options.history, classes.table_format
        )
        self.driver: QuickDriver | None = None
        self._tables = tables
        self._clock = clock
        self._random = random
        self._options = options
        self._classes = classes

    def _warehouse(self) -> Warehouse:
        return Warehouse(warehouse_uri(self._tables.root, self.replica.state.cluster))

    async def live(self) -> None:
        """Join and land until killed."""
        await self.replica.start()
        options, classes = self._options, self._classes
        freshness = Freshness(FreshnessLimits(freshness_s=options.freshness_s))
        tables, root = self.topic_tables, self._tables.root
        driver = classes.driver(
            self.replica, classes.lander(self.replica, tables), classes.sweeper(self.replica, tables), self.engine,
            self._clock, freshness, options.limits, root,
        )  # fmt: skip
        jobs = classes.jobs(tables, driver, self.engine, options.care, root)
        caretaker = classes.caretaker(
            self.replica, tables, jobs, self._clock, self._random, options.care, options.schedule
        )
        self.membership.settled = driver.settled
        await self.membership.join()
        self.driver = driver
        beating = asyncio.ensure_future(self.membership.run())
        working = asyncio.ensure_future(driver.run())
        caring = asyncio.ensure_future(caretaker.run())
        await asyncio.wait([beating, working], return_when=asyncio.FIRST_COMPLETED)
        error = working.exception() if working.done() else beating.exception()
        caring.cancel()
        dead = isinstance(error, JobFailed) and not self.engine.alive
        if error is not None and not dead:
            raise Violation(f"a pipeline died of {error!r}") from error

"""Landing in the simulator: topics become tables while faults occur and other engines use the same tables.

The states of a record, and the steps between them; between any two steps every process may crash, pause or be cut off:

    sent -> acknowledged (in a WAL object, with an entry in the state)
         -> chosen by a round -> rows of a data file without a snapshot -> manifests and metadata without a commit
         -> landed, by one command: the table's pointer and the progress move, and the entries are dropped
         -> rows of another file (a rewrite by the pipeline or an engine), or changed or deleted rows, one command each
    a file without a snapshot -> swept after its round
    a file of expired snapshots only -> deleted after a grace
    a WAL object without entries -> collected after a grace

The participants: brokers (produce, fetch from WAL and table, the catalog's commits, collector, mover, purger),
pipelines with their caretakers (one; two that take one member id from each other; two members), operators that request
care, other engines, consumers that follow the end, and consumers that begin again at the log start.

    chaos       all of them work, and so does the nemesis
    healing     all faults have ended: every acknowledged record has to land within a bounded time
    judgement   as in simulation/scenario.py, record by record; tables, digests and files as in judgement.py
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lakestream.metadata.membership import Timing
from lakestream.model.configs import TABLE_RETENTION
from lakestream.pipeline.care.caretaker import CareSchedule
from lakestream.pipeline.care.plan import CareLimits
from lakestream.pipeline.landing.planner import RoundLimits
from lakestream.pipeline.service import MEMBER_ID
from lakestream.testing.lake.cluster import LakeCluster
from lakestream.testing.lake.judgement import judge_lake
from lakestream.testing.lake.operators import Operator
from lakestream.testing.lake.other_engines import ForeignEngine
from lakestream.testing.lake.pipeline_node import PipelineClasses, PipelineOptions
from lakestream.testing.simulation.clients import Client, Consumer, IdempotentProducer, PlainProducer
from lakestream.testing.simulation.cluster import SimulatedCluster
from lakestream.testing.simulation.event_loop import SimulatedLoop, run
from lakestream.testing.simulation.ledger import Partition, Violation
from lakestream.testing.simulation.mixes import LAKE_MIXES, LakeMix, Mix
from lakestream.testing.simulation.node import Classes, NodeOptions
from lakestream.testing.simulation.scenario import HEALING_S, Scenario, no_faults_logged

CHAOS_S = (4.0, 9.0)
OTHERS_MS = 600_000
"""Longer than a run, so that orphan collection never deletes the files of a slow engine."""
CONFIGS: tuple[dict[str, str], ...] = (
    {}, {}, {},
    {"retention.ms": "2500"},
    {"retention.ms": "1500", TABLE_RETENTION: "4000"},
    {"retention.bytes": "1500", TABLE_RETENTION: "-1"},
)  # fmt: skip
MEMBERS = ((MEMBER_ID,), (MEMBER_ID,), (MEMBER_ID, MEMBER_ID), (MEMBER_ID, MEMBER_ID + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingReport:
    """The figures of a run, which show that it did some work."""

    seed: int
    mix: str
    pipelines: int
    acked: int
    landed: int
    landings: int
    rewrites: int
    deletes: int
    updates: int
    foreign_rewrites: int
    expiries: int
    care: dict[str, int]
    """Requests that were done, and commits of care, by kind."""
    kills: int
    steps: int
    seconds: float


def simulate_landing(
    seed: int, mix: str = "", classes: Classes | None = None, pipeline: PipelineClasses | None = None
) -> LandingReport:
    """Make one run. Raises Violation or SimulationError, with the seed in its note, if the contract is broken."""
    name = mix or list(LAKE_MIXES)[seed % len(LAKE_MIXES)]
    parts = classes or Classes(), pipeline or PipelineClasses()
    try:
        with no_faults_logged():
            return run(lambda loop: LandingScenario(loop, seed, name, *parts).land(), f"landing-{seed}")
    except AssertionError as error:
        again = f'python -c "from lakestream.testing.lake.scenario import *; print(simulate_landing({seed}, {name!r}))"'
        error.add_note(f"seed {seed}, mix {name!r}; again: {again}")
        raise


class LandingScenario(Scenario):
    """One run."""

    _last_link = 2
    _cluster: LakeCluster

    def __init__(self, loop: SimulatedLoop, seed: int, mix: str, classes: Classes, pipeline: PipelineClasses) -> None:
        self._lake_mix: LakeMix = LAKE_MIXES[mix]
        self._pipeline = pipeline
        super().__init__(loop, seed, mix, classes)

    def _mixes(self) -> Mapping[str, Mix]:
        return LAKE_MIXES

    def _make_cluster(self, brokers: int, options: NodeOptions, classes: Classes) -> SimulatedCluster:
        chance, mix = self._chance, self._lake_mix
        members = chance.choice(MEMBERS) if not mix.members else mix.members
        pipeline = PipelineOptions(
            timing=Timing(heartbeat_s=0.5, session_s=2.5),
            limits=RoundLimits(
                round_bytes=chance.choice((500, 1 << 20)),
                task_bytes=chance.choice((300, 1 << 20)),
                small_task_bytes=100,
                file_weight_bytes=chance.choice((50, 5000)),
                topic_slices=chance.choice((3, 1000)),
            ),
            freshness_s=chance.choice((0.1, 0.5, 1.5)),
            slots=chance.randint(1, 3),
            members=members,
            engine=mix.engine,
            care=CareLimits(
                small_files=chance.choice((3, 6)), target_bytes=chance.choice((6_000, 1 << 20)), tier_bytes=4_000,
                tier_factor=chance.choice((3, 8)), task_bytes=chance.choice((5_000, 1 << 20)),
                partition_bytes=chance.choice((3_000, 1 << 20)),
            ),
            schedule=CareSchedule(
                orphans_first_s=chance.uniform(0.5, 3.0), orphans_every_s=3.0, others_ms=OTHERS_MS, look_s=0.3,
                again_s=1.5, others_rest_s=0.2,
            ),
        )
        return LakeCluster(
            self._loop, self._seed, min(brokers, 2), self._mix.faults, replace(options, grace_ms=2_000), classes,
            pipeline, self._pipeline,
        )  # fmt: skip

    async def land(self) -> LandingReport:
        cluster, chance = self._cluster, self._chance
        for seat in cluster.all_seats:
            cluster.start(seat)
        admin = Client(cluster, "admin")
        partitions = await self._create_topic(admin, "main", chance.randint(1, 2), chance.choice(CONFIGS))
        if chance.random() < 0.4:
            partitions += await self._create_topic(admin, "second", 1, {"lakestream.table.freshness.ms": "300"})
        workers = [
            IdempotentProducer(cluster, f"idempotent-{n}", partitions, chance.randint(10, 25)).run() for n in (0, 1)
        ]
        workers.append(PlainProducer(cluster, "plain", partitions, chance.randint(5, 15)).run())
        max_bytes = chance.choice((1, 300, 1 << 20))
        readers = [Consumer(cluster, "consumer", partitions, max_bytes), Replayer(cluster, "replayer", partitions, 400)]
        expire = chance.random() < 0.5
        others = [ForeignEngine(cluster, f"other-{n}", "main", expire) for n in range(self._lake_mix.other_engines)]
        people = [Operator(cluster, f"operator-{n}", self._topics[:]) for n in range(self._lake_mix.operators)]
        work = [self._spawn(f"client-{n}", worker) for n, worker in enumerate(workers)]
        side = [self._spawn(f"reader-{n}", reader.run()) for n, reader in enumerate(readers)]
        foreign = [self._spawn(other.name, other.run()) for other in others]
        foreign += [self._spawn(one.name, one.run()) for one in people]
        other_topics = self._side_topics if chance.random() < 0.3 else self._move_log_starts
        foreign += [self._spawn("other topics", other_topics(admin, partitions))]
        nemesis = [self._spawn("nemesis", one) for one in self._nemesis()]
        await self._chaos(chance.uniform(*CHAOS_S))
        for task in nemesis:
            task.cancel()
        for other in others:
            other.stopped = True
        for one in people:
            one.stopped = True
        cluster.heal()
        await self._until_done([*work, *foreign], HEALING_S, must=True)
        await self._until_landed()
        cluster.replace_pipelines()
        await self._quiesce()
        for task in side:
            task.cancel()
        last = Operator(cluster, "the last one", [])
        await judge_lake(cluster, last, self._topics)
        self._check()
        return self._landing_report(others)

    async def _chaos(self, seconds: float) -> None:
        until = self._loop.time() + seconds
        while self._loop.time() < until:
            await asyncio.sleep(0.1)
            self._check()

    async def _move_log_starts(self, admin: Client, partitions: list[Partition]) -> None:
        chance, state = self._chance, self._cluster.auditor.state
        while chance.random() < 0.5:
            await asyncio.sleep(chance.uniform(0.5, 4.0))
            topic, partition = chance.choice(partitions)
            stream = state.streams.by_id[state.topics.by_id[topic].streams[partition]]
            before = min(stream.start + chance.randint(0, 5), stream.next)
            await admin.ask(lambda node, t=topic, p=partition, b=before: node.delete_records(t, p, b))  # type: ignore[misc]

    async def _until_landed(self) -> None:
        """Wait until every acknowledged record has landed. Raises Violation after HEALING_S."""
        deadline = self._loop.time() + HEALING_S
        streams = self._cluster.auditor.state.streams.by_id
        while waiting := [one for one in streams.values() if max(one.landed, one.start) < one.next]:
            if self._loop.time() > deadline:
                raise Violation(f"not landed {HEALING_S} s after everything was healed: {waiting}")
            await asyncio.sleep(0.2)
            self._check()

    def _landing_report(self, others: list[ForeignEngine]) -> LandingReport:
        cluster = self._cluster
        figures = [other.figures for other in others]

        def total(name: str) -> int:
            return sum(getattr(one, name) for one in figures)

        return LandingReport(
            seed=self._seed,
            mix=self._name,
            pipelines=len(cluster.pipelines),
            acked=sum(batch.acked is not None for batch in cluster.ledger.sent.values()),
            landed=sum(len(one.landed) for one in cluster.witness.watched.values()),
            landings=cluster.witness.commits["landing"],
            rewrites=cluster.witness.commits["optimize"],
            deletes=total("deletes"),
            updates=total("updates"),
            foreign_rewrites=total("rewrites"),
            expiries=total("expiries"),
            care={
                **{f"{kind} asked": count for kind, count in sorted(cluster.witness.care.done.items())},
                **{kind: cluster.witness.commits[kind] for kind in ("delete", "retention")},
            },
            kills=cluster.kills,
            steps=self._loop.steps,
            seconds=self._loop.time(),
        )


class Replayer(Consumer):
    """A consumer that begins again at the log start at random times."""

    async def _read(self, partition: Partition) -> None:
        if self.chance.random() < 0.08:
            self._positions[partition] = 0
        await super()._read(partition)

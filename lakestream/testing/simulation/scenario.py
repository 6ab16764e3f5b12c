"""A whole simulated run from one seed: the faults, the brokers, the work of the clients, and the checks at the end.

chaos       clients work while the nemesis kills, pauses and cuts off brokers, and stores are faulty
healing     all faults have ended: every client has to finish within a bounded time
judgement   every broker serves every acknowledged batch once, all states are equal, no object is missing
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from lakestream.errors import LakestreamError
from lakestream.metadata.membership import Timing
from lakestream.model.cluster_time import BEHIND_MS
from lakestream.model.groups.group import GroupState
from lakestream.model.levels import FIRST, NEWEST
from lakestream.stream.limits import AppendLimits, ReadLimits
from lakestream.testing.simulation.clients import Client, Consumer, IdempotentProducer, OffsetCommitter, PlainProducer
from lakestream.testing.simulation.cluster import SimulatedCluster
from lakestream.testing.simulation.event_loop import Process, SimulatedLoop, run
from lakestream.testing.simulation.group_clients import GroupConsumer
from lakestream.testing.simulation.judgement import judge
from lakestream.testing.simulation.ledger import Partition, Violation
from lakestream.testing.simulation.mixes import MIXES, Mix
from lakestream.testing.simulation.node import Classes, NodeOptions

CHAOS_S = 15.0
HEALING_S = 120.0
QUIET_S = 8.0
GROUP = "group_consumers"
PAUSES_S = (0.2, 1.0, 2.0, 3.5, 6.0)
CUTS_S = (0.3, 1.5, 2.2, 5.0)
"""Some are shorter and some longer than a session."""
IN_PIECES = 0.5
"""The share of runs that create and delete topics in pieces."""
_YEAR_MS = 365 * 24 * 3_600_000
JUMPS_MS = (-_YEAR_MS, -90_000, -500, 500, 90_000, _YEAR_MS)
"""Jumps of wall clocks; cluster time waits for a clock that is set back by less than BEHIND_MS."""
CONFIGS: tuple[dict[str, str], ...] = ({}, {}, {}, {"retention.bytes": "1500"}, {"retention.ms": "4000"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """The figures of a run, which show that it did some work."""

    seed: int
    mix: str
    acked: int
    unsure: int
    kills: int
    bumps: int
    commands: int
    steps: int
    seconds: float


def simulate(seed: int, mix: str = "", classes: Classes | None = None) -> SimulationReport:
    """Make one run. Raises Violation or SimulationError, with the seed in its note, if the contract is broken."""
    name = mix or list(MIXES)[seed % len(MIXES)]
    try:
        with no_faults_logged():
            return run(lambda loop: Scenario(loop, seed, name, classes or Classes()).run(), seed)
    except AssertionError as error:
        module = "lakestream.testing.simulation.scenario"
        again = f'python -c "from {module} import simulate; print(simulate({seed}, {name!r}))"'
        error.add_note(f"seed {seed}, mix {name!r}; again: {again}")
        raise


class FaultsLogged(logging.Handler):
    """Collects exceptions that our code caught and logged: in a simulation they count as faults."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.faults: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.faults.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def no_faults_logged() -> Iterator[None]:
    """Raise Violation if our code logs an exception; its log is not printed."""
    logger, handler = logging.getLogger("lakestream"), FaultsLogged()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
        if handler.faults:
            raise Violation(f"a fault was logged: {handler.faults[0]}")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class Scenario:
    """One run."""

    _last_link = 1

    def __init__(self, loop: SimulatedLoop, seed: int, mix: str, classes: Classes) -> None:
        self._loop = loop
        self._seed = seed
        self._name = mix
        self._mix = self._mixes()[mix]
        self._chance = chance = Random(f"scenario-{seed}")
        options = NodeOptions(
            timing=Timing(heartbeat_s=0.5, session_s=2.5, checkpoint_commands=chance.choice((5, 20, 80, 100_000))),
            append_limits=AppendLimits(
                write_timeout_s=3.0, uploads=chance.choice((1, 1, 3)), tick_bytes=chance.choice((500, 1 << 20))
            ),
            read_limits=ReadLimits(whole_object_bytes=chance.choice((300, 1 << 22)), chunk_bytes=400),
            cache_bytes=chance.choice((0, 2_000, 1 << 20)),
            linger_ms=chance.choice((0, 0, 30)),
        )
        self._cluster = self._make_cluster(chance.randint(1, 4), options, classes)
        if self._mix.upgrade:
            for seat in self._cluster.seats:
                seat.level = FIRST
        self._topics: list[bytes] = []
        self._tasks: list[asyncio.Task[Any]] = []

    def _mixes(self) -> Mapping[str, Mix]:
        return MIXES

    def _make_cluster(self, brokers: int, options: NodeOptions, classes: Classes) -> SimulatedCluster:
        return SimulatedCluster(self._loop, self._seed, brokers, self._mix.faults, options, classes)

    async def run(self) -> SimulationReport:
        cluster, chance = self._cluster, self._chance
        for seat in cluster.seats:
            cluster.start(seat)
        admin = Client(cluster, "admin")
        partitions = await self._create_topic(admin, "main", chance.randint(1, 3), chance.choice(CONFIGS))
        producers = [
            IdempotentProducer(cluster, f"idempotent-{n}", partitions, chance.randint(15, 50))
            for n in range(chance.randint(1, 3))
        ]
        workers: list[Coroutine[Any, Any, None]] = [producer.run() for producer in producers]
        workers.append(PlainProducer(cluster, "plain", partitions, chance.randint(5, 25)).run())
        max_bytes = chance.choice((1, 300, 1 << 20))
        followers = [Consumer(cluster, f"consumer-{n}", partitions, max_bytes).run() for n in range(2)]
        followers.append(OffsetCommitter(cluster, "group", partitions[0]).run())
        group_consumers = self._group_consumers(partitions[0][0])
        followers += [member.run() for member in group_consumers]
        work = [self._spawn(f"client-{n}", worker) for n, worker in enumerate(workers)]
        side = [self._spawn(f"follower-{n}", follower) for n, follower in enumerate(followers)]
        side += [self._spawn("side", self._side_topics(admin, partitions))]
        if Random(f"pieces-{self._seed}").random() < IN_PIECES:
            side += [self._spawn("pieces", self._bound_pieces(Client(cluster, "pieces")))]
        nemesis = [self._spawn("nemesis", one) for one in self._nemesis()]
        await self._until_done(work, CHAOS_S, must=False)
        for task in nemesis:
            task.cancel()
        cluster.heal()
        await self._until_done(work, HEALING_S, must=True)
        await self._settle(group_consumers)
        await self._quiesce()
        for task in side:
            task.cancel()
        await judge(cluster, self._topics)
        self._check()
        if (level := cluster.auditor.state.level) != NEWEST:
            raise Violation(f"the feature level is {level} at the end, though every member knows {NEWEST}")
        return self._report(sum(producer.bumps for producer in producers))

    def _group_consumers(self, topic: bytes) -> list[GroupConsumer]:
        """A group whose members share the topic's partitions; one may be static."""
        streams = self._cluster.auditor.state.topics.by_id[topic].streams
        statics = self._chance.choice((None, "static"))
        names = [(f"member-{n}", statics if n == 0 else None) for n in range(self._chance.randint(1, 3))]
        return [GroupConsumer(self._cluster, name, GROUP, streams, instance) for name, instance in names]

    async def _settle(self, group_consumers: list[GroupConsumer]) -> None:
        """Wait until the group is stable, with all of these consumers, and no other member, in one generation."""
        deadline = self._loop.time() + HEALING_S
        while True:
            group = self._cluster.auditor.state.groups.by_name.get(GROUP)
            at_rest = (
                group is not None and group.state == GroupState.STABLE and len(group.members) == len(group_consumers)
            )
            if (
                at_rest
                and group is not None
                and {member.generation for member in group_consumers} == {group.generation}
            ):
                return
            if self._loop.time() > deadline:
                generations = [one.generation for one in group_consumers]
                raise Violation(f"the group did not become stable: {group}, {generations}")
            await asyncio.sleep(0.2)
            self._check()

    def _spawn(self, name: str, worker: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = Process(name, self._loop).start(worker)
        self._tasks.append(task)
        return task

    async def _create_topic(
        self, admin: Client, name: str, partitions: int, configs: dict[str, str]
    ) -> list[Partition]:
        """Create a topic, again until it exists; the random topic id tells it from topics of the same name."""
        topic = self._chance.randbytes(16)
        while True:
            with suppress(LakestreamError):
                await admin.ask(lambda node: node.create_topic(name, topic, partitions, configs))
            if topic in self._cluster.auditor.state.topics.by_id:
                self._topics.append(topic)
                return [(topic, number) for number in range(partitions)]

    # -- chaos ------------------------------------------------------------------------------------------------------

    def _nemesis(self) -> list[Coroutine[Any, Any, None]]:
        mix, cluster, chance = self._mix, self._cluster, self._chance
        acts = (
            (mix.kill_every_s, cluster.kill),
            (mix.pause_every_s, lambda seat: cluster.pause(seat, chance.choice(PAUSES_S))),
            (
                mix.cut_every_s,
                lambda seat: cluster.cut(seat, chance.choice(CUTS_S), chance.randint(0, self._last_link)),
            ),
            (mix.jump_every_s, lambda seat: seat.clock.jump(chance.choice(JUMPS_MS))),
        )

        async def strike(every_s: float, act: Any) -> None:
            while True:
                await asyncio.sleep(chance.uniform(0.2, 2 * every_s))
                act(chance.choice(cluster.all_seats))

        return [strike(every_s, act) for every_s, act in acts if every_s]

    async def _side_topics(self, admin: Client, partitions: list[Partition]) -> None:
        """Create and delete topics during the work, and move log starts."""
        chance, cluster = self._chance, self._cluster
        for number in range(3):
            side = await self._create_topic(admin, "side", 2, {})
            producer = IdempotentProducer(cluster, f"side-{number}", side, 8)
            worker = Process("side-producer", self._loop).start(producer.run())
            self._tasks.append(worker)
            await asyncio.sleep(chance.uniform(0.5, 3.0))
            topic, partition = chance.choice(partitions)
            stream = cluster.auditor.state.topics.by_id[topic].streams[partition]
            before = cluster.auditor.state.streams.by_id[stream].next // 2
            await admin.ask(lambda node, t=topic, p=partition, b=before: node.delete_records(t, p, b))  # type: ignore[misc]
            gone = side[0][0]
            self._topics.remove(gone)
            while gone in cluster.auditor.state.topics.by_id:
                try:
                    await admin.ask(lambda node, g=gone: node.delete_topic(g))  # type: ignore[misc]
                except LakestreamError:
                    continue

    async def _bound_pieces(self, admin: Client) -> None:
        """Limit a command to one partition, so that topics of two are created and deleted in pieces."""
        while self._cluster.auditor.state.topics.bounds.piece > 1:
            with suppress(LakestreamError):
                await admin.ask(lambda node: node.bound_pieces(1))
            await asyncio.sleep(0.2)

    async def _until_done(self, work: "list[asyncio.Task[None]]", seconds: float, must: bool) -> None:
        deadline = self._loop.time() + seconds
        while not all(task.done() for task in work):
            if self._loop.time() > deadline:
                if must:
                    raise Violation(f"clients were not done {seconds} s after everything was healed")
                return
            await asyncio.sleep(0.1)
            self._check()
        self._check()

    def _check(self) -> None:
        self._cluster.check()
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _quiesce(self) -> None:
        """Wait until all requests have arrived, all brokers serve, sessions have ended, and the collector has run."""
        cluster = self._cluster
        while cluster.under_way() or len(cluster.serving()) < len(cluster.seats):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await asyncio.sleep(QUIET_S + (BEHIND_MS / 1000 if self._mix.jump_every_s else 0))
        self._check()

    def _report(self, bumps: int) -> SimulationReport:
        sent = self._cluster.ledger.sent.values()
        return SimulationReport(
            seed=self._seed,
            mix=self._name,
            acked=sum(batch.acked is not None for batch in sent),
            unsure=sum(batch.acked is None and batch.unsure > 0 for batch in sent),
            kills=self._cluster.kills,
            bumps=bumps,
            commands=len(self._cluster.auditor.history),
            steps=self._loop.steps,
            seconds=self._loop.time(),
        )

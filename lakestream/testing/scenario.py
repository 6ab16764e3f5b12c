"""From a seed to a whole simulated run: which faults, how many brokers, what clients do, and what must hold at the end.

    chaos       clients work while the nemesis kills, pauses and cuts off brokers, and stores lie
    healing     nothing goes wrong any more: everybody has to get done within a bounded time
    judgement   every broker serves every acknowledged batch once, all states are equal, nothing is missing
"""

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from lakestream.errors import LakestreamError
from lakestream.metadata.membership import Timing
from lakestream.model.wal_object import checkpoint_prefix
from lakestream.stream.limits import AppendLimits, ReadLimits
from lakestream.testing.clients import Client, Committer, Consumer, IdempotentProducer, PlainProducer
from lakestream.testing.cluster import Cluster, ClusterFaults
from lakestream.testing.faults import Faults
from lakestream.testing.ledger import Partition, Violation, object_key
from lakestream.testing.node import Classes, Node, NodeOptions
from lakestream.testing.simulation import Process, SimulatedLoop, run

CHAOS_S = 15.0
HEALING_S = 120.0
QUIET_S = 8.0
ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What goes wrong: with the stores all the time, and how often (in seconds) the nemesis acts."""

    faults: ClusterFaults
    kill_every_s: float = 0.0
    pause_every_s: float = 0.0
    cut_every_s: float = 0.0
    jump_every_s: float = 0.0


_LOSSY = Faults(refused=0.02, request_lost=0.02, answer_lost=0.05, late=0.03, slow=0.02, hint_lost=0.3)
_CRASHY = Faults(crash_before=0.004, crash_after=0.004, answer_lost=0.01)
_BAD_STORE = Faults(latency_s=(0.002, 0.1), refused=0.08, request_lost=0.04, answer_lost=0.05, late=0.05, slow=0.05)

MIXES = {
    "calm": Mix(faults=ClusterFaults()),
    "lost and late answers": Mix(faults=ClusterFaults(log=_LOSSY, wal=_LOSSY, wire_lost=0.03)),
    "crash between any two steps": Mix(faults=ClusterFaults(log=_CRASHY, wal=_CRASHY), kill_every_s=6.0),
    "paused brokers": Mix(faults=ClusterFaults(wire_lost=0.01), pause_every_s=2.0),
    "object-store errors": Mix(faults=ClusterFaults(wal=_BAD_STORE)),
    "cut off": Mix(faults=ClusterFaults(log=Faults(answer_lost=0.01)), cut_every_s=3.0),
    "everything": Mix(
        faults=ClusterFaults(
            log=Faults(refused=0.01, request_lost=0.01, answer_lost=0.03, late=0.02, slow=0.02, crash_before=0.002,
                       crash_after=0.002, hint_lost=0.2),
            wal=Faults(latency_s=(0.002, 0.05), refused=0.03, request_lost=0.02, answer_lost=0.02, late=0.02,
                       slow=0.02, crash_before=0.002, crash_after=0.002),
            wire_lost=0.02,
            skew_ms=60_000,
        ),
        kill_every_s=8.0, pause_every_s=4.0, cut_every_s=8.0, jump_every_s=5.0,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run did, so that one sees that it did something."""

    seed: int
    mix: str
    acked: int
    unsure: int
    kills: int
    bumps: int
    commands: int
    steps: int
    seconds: float


def simulate(seed: int, mix: str = "", classes: Classes | None = None) -> Report:
    """One run. Raises Violation (or SimulationError) with the seed in it if the contract is broken."""
    name = mix or list(MIXES)[seed % len(MIXES)]
    try:
        return run(lambda loop: Scenario(loop, seed, name, classes or Classes()).run(), seed)
    except AssertionError as error:
        again = f'python -c "from lakestream.testing.scenario import simulate; print(simulate({seed}, {name!r}))"'
        error.add_note(f"seed {seed}, mix {name!r}; again: {again}")
        raise


class Scenario:
    """One run."""

    def __init__(self, loop: SimulatedLoop, seed: int, mix: str, classes: Classes) -> None:
        self._loop = loop
        self._seed = seed
        self._name = mix
        self._mix = MIXES[mix]
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
        self._cluster = Cluster(loop, seed, chance.randint(1, 4), self._mix.faults, options, classes)
        self._topics: list[bytes] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> Report:
        cluster, chance = self._cluster, self._chance
        for seat in cluster.seats:
            cluster.start(seat)
        admin = Client(cluster, "admin")
        partitions = await self._create_topic(admin, "main", chance.randint(1, 3))
        producers = [
            IdempotentProducer(cluster, f"idempotent-{n}", partitions, chance.randint(15, 50))
            for n in range(chance.randint(1, 3))
        ]
        workers: list[Coroutine[Any, Any, None]] = [producer.run() for producer in producers]
        workers.append(PlainProducer(cluster, "plain", partitions, chance.randint(5, 25)).run())
        max_bytes = chance.choice((1, 300, 1 << 20))
        followers = [Consumer(cluster, f"consumer-{n}", partitions, max_bytes).run() for n in range(2)]
        followers.append(Committer(cluster, "group", partitions[0]).run())
        work = [self._spawn(f"client-{n}", worker) for n, worker in enumerate(workers)]
        side = [self._spawn(f"follower-{n}", follower) for n, follower in enumerate(followers)]
        side += [self._spawn("side", self._side_topics(admin, partitions))]
        nemesis = [self._spawn("nemesis", one) for one in self._nemesis()]
        await self._until_done(work, CHAOS_S, must=False)
        for task in nemesis:
            task.cancel()
        cluster.heal()
        await self._until_done(work, HEALING_S, must=True)
        await self._quiesce()
        for task in side:
            task.cancel()
        await self._judge(admin)
        return self._report(sum(producer.bumps for producer in producers))

    def _spawn(self, name: str, worker: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = Process(name, self._loop).start(worker)
        self._tasks.append(task)
        return task

    async def _create_topic(self, admin: Client, name: str, partitions: int) -> list[Partition]:
        """Asked again and again until it is there: a topic id tells ours from another's."""
        topic = self._chance.randbytes(16)
        while True:
            with suppress(LakestreamError):
                await admin.ask(lambda node: node.create_topic(name, topic, partitions))
            if topic in self._cluster.auditor.state.topics.by_id:
                self._topics.append(topic)
                return [(topic, number) for number in range(partitions)]

    # -- chaos ------------------------------------------------------------------------------------------------------

    def _nemesis(self) -> list[Coroutine[Any, Any, None]]:
        mix, cluster, chance = self._mix, self._cluster, self._chance
        acts = (
            (mix.kill_every_s, cluster.kill),
            (mix.pause_every_s, lambda seat: cluster.pause(seat, chance.choice((0.2, 1.0, 2.0, 3.5, 6.0)))),
            (mix.cut_every_s, lambda seat: cluster.cut(seat, chance.choice((0.3, 1.5, 2.2, 5.0)), chance.randint(0, 1))),
            (mix.jump_every_s, lambda seat: seat.clock.jump(chance.choice((-90_000, -500, 500, 90_000)))),
        )

        async def strike(every_s: float, act: Any) -> None:
            while True:
                await asyncio.sleep(chance.uniform(0.2, 2 * every_s))
                act(chance.choice(cluster.seats))

        return [strike(every_s, act) for every_s, act in acts if every_s]

    async def _side_topics(self, admin: Client, partitions: list[Partition]) -> None:
        """Topics come and go beside the work, and log starts move."""
        chance, cluster = self._chance, self._cluster
        for number in range(3):
            side = await self._create_topic(admin, "side", 2)
            producer = IdempotentProducer(cluster, f"side-{number}", side, 8)
            worker = Process("side-producer", self._loop).start(producer.run())
            self._tasks.append(worker)
            await asyncio.sleep(chance.uniform(0.5, 3.0))
            topic, partition = chance.choice(partitions)
            stream = cluster.auditor.state.topics.by_id[topic].streams[partition]
            before = cluster.auditor.state.streams.by_id[stream].next // 2
            await admin.ask(lambda node, t=topic, p=partition, b=before: node.delete_records(t, p, b))  # type: ignore[misc]
            gone = side[0][0]
            while gone in cluster.auditor.state.topics.by_id:
                try:
                    await admin.ask(lambda node, g=gone: node.delete_topic(g))  # type: ignore[misc]
                except LakestreamError:
                    continue
            self._topics.remove(gone)

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

    # -- judgement --------------------------------------------------------------------------------------------------

    async def _quiesce(self) -> None:
        """Wait until what is under way has arrived, sessions are over, and the collector has been round."""
        cluster = self._cluster
        while cluster.under_way() or len(cluster.serving()) < len(cluster.seats):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await asyncio.sleep(QUIET_S)
        self._check()

    async def _judge(self, admin: Client) -> None:
        cluster = self._cluster
        for seat in cluster.seats:
            node = seat.node
            assert node is not None and seat.process is not None
            await seat.process.start(self._read_all(node))
            cluster.auditor.check_whole(seat.process.name, node.replica.state)
        needed = cluster.auditor.referenced()
        if lost := sorted(needed.keys() - cluster.wal.keys):
            raise Violation(f"the log points to objects that are not there: {lost}")
        await self._check_leaks(needed)
        self._check()

    async def _check_leaks(self, needed: "Mapping[str, object]") -> None:
        """Nothing is left that nobody owns; dead objects may be, where cluster time stood still after a jump (L14)."""
        cluster = self._cluster
        for _ in range(ROUNDS):
            for seat in cluster.seats:
                assert seat.node is not None and seat.process is not None
                await seat.process.start(seat.node.collect())
            state = cluster.auditor.state
            notes = await cluster.log.checkpoints()
            oldest = min((note.key for note in notes), default="")
            noted = {key for key in cluster.wal.keys if key.startswith(checkpoint_prefix(state.cluster)) and key >= oldest}
            dead = {object_key(state.cluster, one) for one in state.streams.dead.values()}
            leaked = cluster.wal.keys - needed.keys() - noted
            if not leaked - dead and not (leaked and not self._mix.jump_every_s):
                return
            await asyncio.sleep(1.0)
        raise Violation(f"objects that nobody owns were not collected: {sorted(leaked)}")

    async def _read_all(self, node: Node) -> None:
        """Every offset from start to end through one broker."""
        ledger = self._cluster.ledger
        for topic in self._topics:
            for number in range(len(self._cluster.auditor.state.topics.by_id[topic].streams)):
                partition = (topic, number)
                start, end = await node.bounds(topic, number)
                bases, position = [], start
                while position < end:
                    fetched = await node.fetch(topic, number, position, 1 << 20, 0.0)
                    following = ledger.observe(partition, position, fetched.data)
                    if following == position:
                        raise Violation(f"broker {node.id} gives nothing at {position}, before the end {end}")
                    bases += [base for base in ledger.read[partition] if position <= base < following]
                    position = following
                ledger.check_whole(partition, start, end, bases, f"broker {node.id}")

    def _report(self, bumps: int) -> Report:
        sent = self._cluster.ledger.sent.values()
        return Report(
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

"""Consumers, brokers that crash and come back, and one log, on a clock of their own: what a group may never do (L30).

The safety property: the commits of a partition come from generations that never go back, and within a generation from
one member only. The liveness property: once the trouble is over, everybody is in one stable generation again.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from lakestream.errors import LakestreamError, Rejected
from lakestream.model.groups.group import GroupState
from lakestream.model.groups.membership import coordinator
from lakestream.model.groups.offsets import CommitOffsets
from lakestream.model.reasons import Reason
from lakestream.stream.groups.waiting_members import Joined
from tests.support.group_brokers import GroupBroker, GroupCluster, HandClock, rest

PARTITIONS = 4
STEP_S = 0.1
START_OVER = (Reason.UNKNOWN_GROUP_MEMBER, Reason.FENCED_INSTANCE, Reason.STALE_GENERATION)


class World:
    """Brokers, consumers and what they did."""

    def __init__(self, seed: int, cluster: GroupCluster) -> None:
        self.chance = random.Random(seed)
        self.cluster = cluster
        self.clock = HandClock()
        self.dead: dict[int, float] = {}
        self.sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self.commits: dict[int, list[tuple[int, str]]] = {partition: [] for partition in range(PARTITIONS)}

    @property
    def live(self) -> list[GroupBroker]:
        return [broker for id_, broker in self.cluster.brokers.items() if id_ not in self.dead]

    async def start(self, broker_id: int) -> GroupBroker:
        broker = await self.cluster.add(broker_id, clock=self.clock)
        self.dead.pop(broker_id, None)
        return broker

    async def sleep(self, seconds: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.clock.now + seconds, waiter))
        await waiter

    async def step(self) -> None:
        self.clock.now += STEP_S
        for broker in self.live:
            broker.groups.coordinated.tick()
        due = [waiter for at, waiter in self.sleepers if at <= self.clock.now]
        self.sleepers = [one for one in self.sleepers if one[1] not in due]
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)
        await rest(20)
        for id_, since in list(self.dead.items()):
            alive = self.live[0].replica.state.members.by_id[id_].alive
            if alive and self.clock.now - since > 3:
                await self.cluster.expire(id_, self.live[0])

    async def trouble(self) -> None:
        """Crash a broker, or bring one back, perhaps before anybody noticed that it was gone."""
        if self.dead and self.chance.random() < 0.6:
            await self.start(self.chance.choice(list(self.dead)))
        elif len(self.live) > 1:
            broker = self.chance.choice(self.live)
            self.dead[broker.replica.member_id] = self.clock.now
            await broker.groups.stop()
            await broker.replica.stop()


class Consumer:
    """Joins, syncs, beats and commits as a real one does, through whichever broker it takes for the coordinator."""

    def __init__(self, world: World, name: str, instance: str | None) -> None:
        self.world = world
        self.name = name
        self.instance = instance
        self.member_id = ""
        self.place: Joined | None = None
        self.owned: bytes = b""

    async def run(self) -> None:
        world = self.world
        while True:
            try:
                if self.place is None:
                    await self.join()
                await self.work()
                await world.sleep(world.chance.uniform(0.1, 1.0))
            except Rejected as error:
                if error.reason in START_OVER:
                    self.member_id, self.place = "", None
                elif error.reason == Reason.REBALANCING:
                    self.place = None
                await world.sleep(0.2)
            except LakestreamError:
                await world.sleep(0.2)

    async def ask(self, work: Callable[[GroupBroker], Awaitable[object]]) -> object:
        """A broker that dies takes the connection with it: its answer never comes, and the client looks further."""
        asked = self.world.chance.choice(self.world.live)
        owner = coordinator(asked.replica.state, "g")
        broker = self.world.cluster.brokers[owner if owner is not None else 0]
        if broker not in self.world.live:
            raise Rejected(Reason.COORDINATOR_UNAVAILABLE)
        answer = asyncio.ensure_future(work(broker))
        try:
            while not answer.done():
                pause = asyncio.ensure_future(self.world.sleep(STEP_S))
                await asyncio.wait([answer, pause], return_when="FIRST_COMPLETED")
                if broker not in self.world.live:
                    raise Rejected(Reason.COORDINATOR_UNAVAILABLE)
            return answer.result()
        finally:
            if answer.done() and not answer.cancelled():
                answer.exception()
            answer.cancel()

    async def join(self) -> None:
        times = {"session_ms": 6_000, "rebalance_ms": 8_000, "client_id": self.name, "instance": self.instance}
        place = await self.ask(lambda broker: broker.join(self.member_id, **times))
        assert isinstance(place, Joined)
        self.member_id = place.member_id
        shares: dict[str, list[int]] = {member_id: [] for member_id, _, _ in place.members}
        for partition in range(PARTITIONS if shares else 0):
            list(shares.values())[partition % len(shares)].append(partition)
        plan = [(member_id, bytes(share)) for member_id, share in shares.items()]
        synced = await self.ask(lambda broker: broker.sync(place, *plan, instance=self.instance))
        self.owned = synced.assignment  # type: ignore[attr-defined]
        self.place = place

    async def work(self) -> None:
        place = self.place
        assert place is not None
        if self.world.chance.random() < 0.05:
            await self.world.sleep(self.world.chance.uniform(4, 15))  # A zombie: the others went on without it.
        for partition in self.owned:
            stream = self.world.live[0].replica.state.topics.by_name["t"].streams[partition]
            body = CommitOffsets("g", place.generation, place.member_id, self.instance, [(stream, 1, -1, "")])
            assert await self.ask(lambda broker, body=body: broker.offsets.commit(body)) == [0]  # type: ignore[misc]
            self.world.commits[partition].append((place.generation, place.member_id))
        await self.ask(lambda broker: broker.beat(place, instance=self.instance))


async def live_through(seed: int) -> None:
    async with GroupCluster() as cluster:
        world = World(seed, cluster)
        for broker_id in range(3):
            await world.start(broker_id)
        await world.live[0].topic(partitions=PARTITIONS)
        consumers = [Consumer(world, f"c{number}", "s" if number == 0 else None) for number in range(3)]
        running = {one: asyncio.create_task(one.run()) for one in consumers}
        for number in range(300):
            if number % 20 == 0 and world.chance.random() < 0.7:
                await world.trouble()
            if number % 60 == 30:
                one = world.chance.choice(consumers)
                running[one].cancel()
                consumers.remove(one)
                consumers.append(Consumer(world, f"n{number}", one.instance))
                running[consumers[-1]] = asyncio.create_task(consumers[-1].run())
            await world.step()
        for broker_id in list(world.dead):
            await world.start(broker_id)
        settled = False
        for _ in range(2000):
            await world.step()
            group = world.live[0].replica.state.groups.by_name["g"]
            everybody = group.state == GroupState.STABLE and {one.member_id for one in consumers} == set(group.members)
            if everybody and all(commits and commits[-1][0] == group.generation for commits in world.commits.values()):
                settled = True
                break
        for task in running.values():
            assert not task.done() or task.cancelled(), task.exception()
            task.cancel()
        assert settled
        for partition, commits in world.commits.items():
            generations = [generation for generation, _ in commits]
            assert generations == sorted(generations), f"partition {partition} went back"
            owners: dict[int, set[str]] = {}
            for generation, member_id in commits:
                owners.setdefault(generation, set()).add(member_id)
            # A static member that restarts takes the place of its old self within the generation.
            shared = [ids for ids in owners.values() if len({one.split("-")[0] for one in ids}) > 1]
            assert not shared, f"partition {partition} had several owners at once: {shared}"


@pytest.mark.parametrize("seed", range(40))
async def test_l30_whatever_happens_a_partition_has_one_owner_in_each_generation(seed: int) -> None:
    await live_through(seed)

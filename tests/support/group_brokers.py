"""Brokers that coordinate groups, on one command log in memory, with a clock that tests move by hand."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from lakestream.data.memory import MemoryWal
from lakestream.errors import Rejected
from lakestream.interfaces import CommandLog
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.commands import CreateTopic, Expire, Register
from lakestream.model.groups.membership import coordinator
from lakestream.model.levels import NEWEST
from lakestream.model.reasons import Reason
from lakestream.settings import Settings
from lakestream.stream.groups.coordinator import GroupCoordinator
from lakestream.stream.groups.offsets import GroupOffsets
from lakestream.stream.groups.waiting_members import Joined, JoinRequest, MemberIdRequired, Synced, SyncRequest

SETTINGS = Settings(group_min_session_timeout_ms=100)


class HandClock:
    """Time stands until somebody moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


@dataclass
class GroupBroker:
    """One broker, as far as groups are concerned."""

    replica: Replica
    groups: GroupCoordinator
    offsets: GroupOffsets
    clock: HandClock
    current: list[bool] = field(default_factory=lambda: [True])

    async def pass_time(self, seconds: float, step: float = 0.1) -> None:
        """Let time pass in small steps, with the timers looking on."""
        until = self.clock.now + seconds
        while self.clock.now < until - 1e-9:
            self.clock.now = min(self.clock.now + step, until)
            self.groups.coordinated.tick()
            await rest()

    async def join(self, member_id: str = "", group: str = "g", **more: Any) -> Joined:
        """Join as a client of today does, which comes back with the id it is given."""
        try:
            return await self.groups.join(join_request(group, member_id, **more))
        except MemberIdRequired as answer:
            return await self.groups.join(join_request(group, answer.member_id, **more))

    async def sync(self, place: Joined, *assigned: tuple[str, bytes], group: str = "g", **more: Any) -> Synced:
        return await self.groups.sync(
            SyncRequest(
                group=group,
                generation=place.generation,
                member_id=place.member_id,
                instance=more.get("instance"),
                protocol_type=more.get("protocol_type"),
                protocol=more.get("protocol"),
                assignments=list(assigned),
            )
        )

    async def beat(self, place: Joined, group: str = "g", instance: str | None = None) -> None:
        await self.groups.heartbeat(group, place.generation, place.member_id, instance)

    async def topic(self, name: str = "t", partitions: int = 2) -> list[int]:
        await self.replica.propose(CreateTopic(name, name.encode().ljust(16, b"."), partitions, 1, {}))
        return self.replica.state.topics.by_name[name].streams

    def state(self, group: str = "g") -> Any:
        return self.replica.state.groups.by_name[group]


class GroupCluster:
    """Brokers on one log; `async with` stops them all."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.settings = settings
        self.store = MemoryLogStore()
        self.brokers: dict[int, GroupBroker] = {}

    async def __aenter__(self) -> "GroupCluster":
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            await broker.groups.stop()
            await broker.replica.stop()

    async def add(
        self, broker_id: int = 0, log: CommandLog | None = None, clock: HandClock | None = None
    ) -> GroupBroker:
        clock = clock or HandClock()
        replica = Replica(log or MemoryLog(self.store), MemoryWal(), clock, broker_id)
        current = [True]
        chance = Random(self.store.last * 100 + broker_id)
        groups = GroupCoordinator(replica, self.settings, clock, chance, lambda: current[0])
        broker = GroupBroker(replica, groups, GroupOffsets(replica, groups), clock, current)
        self.brokers[broker_id] = broker
        await replica.start()
        incarnation = self.store.last.to_bytes(8, "big") + bytes([broker_id])
        await replica.register(Register(incarnation, "c", "broker", "127.0.0.1", 9092 + broker_id, "", 1, NEWEST))
        return broker

    async def expire(self, broker_id: int, by: GroupBroker) -> None:
        """The other brokers take this one for dead."""
        await by.replica.catch_up()
        member = by.replica.state.members.by_id[broker_id]
        assert await by.replica.propose(Expire(member.id, member.epoch, member.heard)) is None

    async def pair(self, group: str = "g") -> tuple[GroupBroker, GroupBroker]:
        """Two brokers: the coordinator of a group, and the one that would take over."""
        one, other = await self.add(0), await self.add(1)
        await one.replica.catch_up()
        owner = coordinator(one.replica.state, group)
        return (one, other) if owner == 0 else (other, one)


def join_request(group: str, member_id: str, **more: Any) -> JoinRequest:
    values: dict[str, Any] = {
        "instance": None, "client_id": "client", "client_host": "/127.0.0.1", "session_ms": 10_000,
        "rebalance_ms": 30_000, "protocol_type": "consumer", "protocols": [("range", b"meta")],
        "needs_member_id": True, "may_skip_assignment": True, **more,
    }  # fmt: skip
    return JoinRequest(group=group, member_id=member_id, **values)


async def rest(rounds: int = 12) -> None:
    """Let everything run that can run without time passing."""
    for _ in range(rounds):
        await asyncio.sleep(0)


@contextmanager
def refuses(reason: Reason) -> Iterator[None]:
    """The block is refused for this reason."""
    with pytest.raises(Rejected) as refused:
        yield
    assert Reason(refused.value.reason) == reason

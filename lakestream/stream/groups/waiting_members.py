"""The members that wait for one group, and the timers of its members: kept only in the coordinator's memory.

All of this may be lost: the next coordinator starts from the state and gives every member a full session.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from lakestream.errors import Rejected
from lakestream.model.groups.group import (
    Group,
    GroupState,
    MemberRow,
    Protocols,
    common_protocols,
    member_problem,
    metadata_bytes,
)
from lakestream.model.reasons import Reason

LEAST_REBALANCE_S = 0.1
"""The shortest rebalance time-out, whatever members ask for: an empty rebalance is not repeated without a pause."""


class MemberIdRequired(Rejected):
    """A newcomer gets an id first, and joins with it: a lost answer then leaves no ghost in the group."""

    def __init__(self, member_id: str) -> None:
        super().__init__(Reason.MEMBER_ID_REQUIRED, "join again with this member id")
        self.member_id = member_id


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A request to become a member. The flags say what the version of the request supports."""

    group: str
    member_id: str
    instance: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: Protocols
    needs_member_id: bool
    may_skip_assignment: bool
    connected: Callable[[], bool] = lambda: True

    def row(self, member_id: str) -> MemberRow:
        return MemberRow(
            id=member_id,
            instance=self.instance,
            client_id=self.client_id,
            client_host=self.client_host,
            session_ms=self.session_ms,
            rebalance_ms=self.rebalance_ms,
            protocols=self.protocols,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A place in a generation. Only the leader gets the members: (id, instance, metadata)."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: list[tuple[str, str | None, bytes]]
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A member asks for its assignment; the leader brings all of them. A protocol is checked if there is one."""

    group: str
    generation: int
    member_id: str
    instance: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Synced:
    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(slots=True, eq=False)
class Candidate:
    """A join that waits for the generation after `after`."""

    row: MemberRow
    protocol_type: str
    after: int
    connected: Callable[[], bool]
    answer: asyncio.Future[Joined]


@dataclass(slots=True)
class Rebalance:
    """A join phase. In an empty group it waits a while, up to `limit`, for more members; else for the known ones."""

    first: bool
    due: float
    limit: float
    grew: bool = False


@dataclass(slots=True, eq=False)
class Waiter:
    """A sync that waits for the assignment of its generation."""

    generation: int
    instance: str | None
    answer: asyncio.Future[Synced]


class CoordinatedGroup:
    """The members that wait for one group, and the timers of all its members."""

    __slots__ = (
        "common", "deadlines", "generation", "join_bytes", "joins", "name", "pending", "proposing", "rebalance",
        "removing", "sync_due", "syncs", "unsynced", "wake_at",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = -1
        self.joins: dict[str, Candidate] = {}
        self.join_bytes = 0
        self.pending: dict[str, float] = {}
        self.syncs: dict[str, list[Waiter]] = {}
        self.unsynced: set[str] = set()
        self.sync_due = 0.0
        self.deadlines: dict[str, float] = {}
        self.rebalance: Rebalance | None = None
        self.common: set[str] | None = None
        self.proposing = False
        self.removing = False
        self.wake_at = 0.0
        """No timer of this group is due earlier; 0 if the time is not computed yet."""

    def rebalancing(self, group: Group | None) -> bool:
        return bool(self.joins) or (group is not None and group.state == GroupState.PREPARING)

    def idle(self, group: Group | None) -> bool:
        return not (self.joins or self.pending or self.syncs or self.proposing) and (group is None or not group.members)

    def speaks_like(self, group: Group | None, protocol_type: str) -> bool:
        """Whether the protocol type is that of the members and joining members, if there are any."""
        if group is not None and group.members:
            return protocol_type == group.protocol_type
        return protocol_type == next((one.protocol_type for one in self.joins.values()), protocol_type) != ""

    def speaks_with_all(self, group: Group | None, protocols: Protocols) -> bool:
        """Whether all members and joining members support one of these protocols."""
        if self.common is None:
            all_protocols = [one.row.protocols for one in self.joins.values()]
            if group is not None:
                all_protocols += [member.protocols for member in group.members.values()]
            if not all_protocols:
                return bool(protocols)
            self.common = common_protocols(all_protocols)
        return any(name in self.common for name, _ in protocols)

    def enrol(self, candidate: Candidate) -> None:
        member_id = candidate.row.id
        self.drop_join(member_id, Reason.REBALANCING)
        self.joins[member_id] = candidate
        self.join_bytes += metadata_bytes(candidate.row.protocols)
        if self.common is not None:
            self.common &= {name for name, _ in candidate.row.protocols}
        if self.rebalance is not None:
            self.rebalance.grew = True
        self.wake_at = 0.0

    def take(self, member_id: str) -> Candidate:
        """A candidate stops waiting."""
        candidate = self.joins.pop(member_id)
        self.join_bytes -= metadata_bytes(candidate.row.protocols)
        self.common = None
        return candidate

    def drop_join(self, member_id: str, reason: Reason) -> None:
        if member_id in self.joins:
            refuse(self.take(member_id).answer, reason)

    def await_sync(self, member_id: str, waiter: Waiter) -> None:
        self.syncs.setdefault(member_id, []).append(waiter)

        def forget(_: object) -> None:
            waiters = self.syncs.get(member_id, [])
            if waiter in waiters:
                waiters.remove(waiter)
                if not waiters:
                    del self.syncs[member_id]

        waiter.answer.add_done_callback(forget)

    def drop_syncs(self, reason: Reason) -> None:
        for waiters in self.syncs.values():
            for waiter in waiters:
                refuse(waiter.answer, reason)
        self.syncs.clear()

    def forget_join(self, member_id: str, candidate: Candidate) -> None:
        """The candidate waits no longer, for whatever cause."""
        if self.joins.get(member_id) is candidate:
            self.take(member_id)

    def let_go(self, leavers: list[str]) -> set[str]:
        """Drop leaving members that wait; returns those that did wait."""
        waited = {one for one in leavers if one in self.pending or one in self.joins}
        for member_id in leavers:
            self.pending.pop(member_id, None)
            self.drop_join(member_id, Reason.UNKNOWN_GROUP_MEMBER)
        return waited

    def give_up(self, waiting: list[str], reason: Reason) -> None:
        """The join phase failed: refuse the members that wait for it."""
        for member_id in waiting:
            self.drop_join(member_id, reason)
        self.rebalance = None

    def close(self, reason: Reason) -> None:
        """Refuse all waiting members."""
        for member_id in list(self.joins):
            self.drop_join(member_id, reason)
        self.drop_syncs(reason)

    def start_rebalance(self, group: Group | None, now: float, delay_s: float) -> Rebalance:
        """Every member may join for as long as the largest rebalance time-out among them."""
        timeouts_ms = [one.row.rebalance_ms for one in self.joins.values()]
        if group is not None:
            timeouts_ms += [member.rebalance_ms for member in group.members.values()]
        limit = now + max(max(timeouts_ms, default=0) / 1000, LEAST_REBALANCE_S)
        first = group is None or not group.members
        self.rebalance = Rebalance(first, min(now + delay_s, limit) if first else limit, limit)
        self.wake_at = 0.0
        return self.rebalance

    def join_phase_is_over(self, group: Group | None, now: float, delay_s: float) -> bool:
        """Whether the join phase is over: all expected members joined, or its time is up."""
        rebalance = self.rebalance
        assert rebalance is not None
        if not rebalance.first:
            missing = group is not None and any(member_id not in self.joins for member_id in group.members)
            return now >= rebalance.due or not (missing or self.pending)
        if now >= rebalance.due and rebalance.grew and now < rebalance.limit and delay_s:
            rebalance.grew = False
            rebalance.due = min(now + delay_s, rebalance.limit)
        return now >= rebalance.due

    def silent(self, group: Group, now: float) -> list[tuple[str, int]]:
        """Members that were not heard in time, and since which command (L13). A waiting member counts as heard."""
        late = self.unsynced if now >= self.sync_due else set()
        return [
            (one.id, one.heard)
            for one in group.members.values()
            if (one.id in late or self.deadlines.get(one.id, now + 1) <= now)
            and not (one.id in self.joins or one.id in self.syncs)
        ]

    def shift(self, seconds: float) -> None:
        """Put all timers off by a time in which no member could be heard (L13)."""
        for times in (self.deadlines, self.pending):
            for member_id in times:
                times[member_id] += seconds
        self.sync_due += seconds
        if self.rebalance is not None:
            self.rebalance.due += seconds
            self.rebalance.limit += seconds
        self.wake_at = 0.0

    def next_due(self) -> float:
        """The earliest time at which a timer may be due; heartbeats only put it off."""
        times = [*self.deadlines.values(), *self.pending.values()]
        if self.rebalance is not None:
            times.append(self.rebalance.due)
        if self.unsynced:
            times.append(self.sync_due)
        return min(times, default=float("inf"))


def answer_syncs(local: CoordinatedGroup, group: Group | None) -> None:
    """Answer the syncs that have a result, or whose generation is over."""
    for member_id, waiters in list(local.syncs.items()):
        for waiter in list(waiters):
            problem = member_problem(group, member_id, waiter.instance)
            if group is None or problem is not None:
                refuse(waiter.answer, problem or Reason.UNKNOWN_GROUP_MEMBER)
            elif waiter.generation != group.generation or group.state == GroupState.PREPARING:
                refuse(waiter.answer, Reason.REBALANCING)
            elif group.state == GroupState.STABLE and not waiter.answer.done():
                assignment = group.members[member_id].assignment
                waiter.answer.set_result(Synced(group.protocol_type, group.protocol, assignment))


def refuse(answer: asyncio.Future[Joined] | asyncio.Future[Synced], reason: Reason) -> None:
    if not answer.done():
        answer.set_exception(Rejected(reason))


def place(group: Group, member_id: str) -> Joined:
    """A member's place in the generation as it stands."""
    others = []
    if group.leader == member_id:
        others = [(one.id, one.instance, one.metadata(group.protocol)) for one in group.members.values()]
    return Joined(
        member_id=member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader,
        members=others,
    )

"""The coordinator of classic consumer groups on one broker: joins, syncs, heartbeats, leaves and the timers behind them.

It holds only who waits and whose session runs (`Room`). Everything else is proposed, decided in `apply`, and read back
from the state: `_reconcile` runs after every change of a group, whoever made it, and answers those whose wish came true.
So a coordinator that was mistaken about being one changes nothing, and the next one needs nothing from it (L30).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from lakestream.errors import Fenced, Rejected, Retry, Unknown
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.group_members import (
    MAX_GROUP_BYTES,
    MAX_MEMBER_BYTES,
    Group,
    GroupState,
    member_problem,
    metadata_bytes,
)
from lakestream.model.groups import Assign, NewGeneration, RemoveMembers, ReplaceMember, coordinator
from lakestream.model.reasons import No, Reason
from lakestream.settings import Settings
from lakestream.stream.group_room import (
    Candidate,
    Joined,
    JoinRequest,
    MemberIdRequired,
    Room,
    Synced,
    SyncRequest,
    place,
    refuse,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

TICK_S = 0.1
STALL_S = 1.0
"""A pause of the process longer than this stops the timers, as an outage does."""
LEAVE_ATTEMPTS = 5
CURRENT_ANYWAY = (Reason.MEMBER_ID_REQUIRED, Reason.REBALANCING)
"""Refusals that come from our own memory, or do no harm if they are old: they need no look at the log (L6)."""


class GroupCoordinator:
    """`is_current` tells whether this broker's own heartbeats fold: without it no session may run out (L13)."""

    def __init__(
        self, replica: Replica, settings: Settings, clock: Clock, random: Random, is_current: Callable[[], bool]
    ) -> None:
        self._replica = replica
        self._settings = settings
        self._clock = clock
        self._random = random
        self._is_current = is_current
        self._delay_s = settings.group_initial_rebalance_delay_ms / 1000
        self._rooms: dict[str, Room] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._groups = replica.state.groups
        self._changes = self._groups.changes
        self._brokers: list[tuple[int, int]] = []
        self._last_tick = clock.monotonic()
        self._stopped = False
        replica.on_fold.append(self._folded)

    async def run(self) -> None:
        """Keep the timers until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    async def stop(self) -> None:
        """Send those who wait to the next coordinator, and propose nothing more."""
        self._stopped = True
        for room in self._rooms.values():
            room.close(Reason.NOT_COORDINATOR)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- what members ask ---------------------------------------------------------------------------------------------

    async def join(self, request: JoinRequest) -> Joined:
        """Waits until the join phase is over. Raises MemberIdRequired, Rejected, Retry, Fenced, Unknown."""
        settings = self._settings
        check_group_id(request.group)
        if not settings.group_min_session_timeout_ms <= request.session_ms <= settings.group_max_session_timeout_ms:
            raise Rejected(Reason.INVALID_SESSION_TIMEOUT)
        decided = await self.firmly(lambda: self._decide_join(request))
        if isinstance(decided, ReplaceMember):
            decided = await self._replace(request, decided)
        if isinstance(decided, Joined):
            return decided
        return await decided.answer

    async def sync(self, request: SyncRequest) -> Synced:
        """Waits for the leader's assignment. Raises as join does."""
        check_group_id(request.group)
        decided = await self.firmly(lambda: self._decide_sync(request))
        if isinstance(decided, Synced):
            return decided
        group = self.group(request.group)
        if group is not None and group.leader == request.member_id and group.state == GroupState.COMPLETING:
            try:
                body = Assign(request.group, request.generation, request.member_id, request.assignments)
                outcome = await self._replica.propose(body)
            except BaseException:
                decided.cancel()
                raise
            # A stale premise means that an earlier try of this very leader got through: the answer is on its way.
            if isinstance(outcome, No) and outcome.reason != Reason.STALE_PREMISE:
                decided.cancel()
                raise Rejected(outcome.reason, outcome.message)
        return await decided

    async def heartbeat(self, name: str, generation: int, member_id: str, instance: str | None) -> None:
        """Raises Rejected: with REBALANCING the member has to join again."""
        check_group_id(name)
        await self.firmly(lambda: self._beat(name, generation, member_id, instance))

    async def leave(self, name: str, leavers: list[tuple[str, str | None]]) -> list[int]:
        """For each (member id, instance) 0 or the reason why it could not leave."""
        check_group_id(name)
        for _ in range(LEAVE_ATTEMPTS):
            await self.firmly(lambda: self.check_coordinates(name))
            plan = self._plan_leave(name, leavers)
            if any(isinstance(one, Reason) for one in plan):
                await self._replica.catch_up()
                plan = self._plan_leave(name, leavers)
            results = await self._leave(name, plan)
            if results is not None:
                return results
        raise Retry("the group changes all the time")

    def renew(self, name: str, member_id: str) -> None:
        """A member was heard: its session begins again."""
        room, group = self._rooms.get(name), self.group(name)
        if room is not None and group is not None and member_id in group.members:
            room.deadlines[member_id] = self._clock.monotonic() + group.members[member_id].session_ms / 1000

    def is_rebalancing(self, name: str) -> bool:
        room = self._rooms.get(name)
        return room is not None and room.rebalancing(self.group(name))

    # -- deciding -----------------------------------------------------------------------------------------------------

    def group(self, name: str) -> Group | None:
        return self._replica.state.groups.by_name.get(name)

    def coordinates(self, name: str) -> bool:
        replica = self._replica
        return bool(replica.epoch) and not self._stopped and coordinator(replica.state, name) == replica.member_id

    def check_coordinates(self, name: str) -> None:
        if not self.coordinates(name):
            raise Rejected(Reason.NOT_COORDINATOR)

    async def firmly(self, decide: Callable[[], T]) -> T:
        """Decide from the state at hand; a no is looked at again after folding to the end of the log (L6)."""
        try:
            return decide()
        except Rejected as no:
            if no.reason in CURRENT_ANYWAY:
                raise
        await self._replica.catch_up()
        return decide()

    def _room(self, name: str) -> Room:
        room = self._rooms.get(name)
        if room is None:
            room = self._rooms[name] = Room(name)
            self._reconcile(room)
        return room

    def _decide_join(self, request: JoinRequest) -> Joined | Candidate | ReplaceMember:
        self.check_coordinates(request.group)
        room, group, member_id = self._room(request.group), self.group(request.group), request.member_id
        waits = member_id in room.pending or member_id in room.joins
        if member_id and group is None and not waits:
            raise Rejected(Reason.UNKNOWN_GROUP_MEMBER)
        self._check_size(room, group, request)
        there = group.protocol_type if group is not None and group.members else next(
            (one.protocol_type for one in room.joins.values()), request.protocol_type
        )  # fmt: skip
        if request.protocol_type != there or not there or not room.speaks_with_all(group, request.protocols):
            raise Rejected(Reason.INCONSISTENT_PROTOCOL)
        if not member_id:
            return self._newcomer(room, group, request)
        if waits and (group is None or member_id not in group.members):
            room.pending.pop(member_id, None)
            return self._enrol(room, request, member_id)
        if problem := member_problem(group, member_id, request.instance):
            raise Rejected(problem)
        assert group is not None
        leads_anew = group.state == GroupState.STABLE and group.leader == member_id
        if room.rebalancing(group) or leads_anew or group.members[member_id].protocols != request.protocols:
            return self._enrol(room, request, member_id)
        self.renew(room.name, member_id)
        return place(group, member_id)

    def _check_size(self, room: Room, group: Group | None, request: JoinRequest) -> None:
        size, limit = metadata_bytes(request.protocols), self._settings.group_max_size
        if size > MAX_MEMBER_BYTES or size + room.join_bytes > MAX_GROUP_BYTES:
            raise Rejected(Reason.GROUP_FULL, "the members' metadata is too large")
        if request.member_id in room.joins or len(room.pending) >= limit and request.member_id in room.pending:
            return
        known = group is not None and request.member_id in group.members
        many = len(room.joins) if room.rebalancing(group) else 0 if known or group is None else len(group.members)
        if many >= limit or len(room.pending) >= limit:
            raise Rejected(Reason.GROUP_FULL)

    def _newcomer(self, room: Room, group: Group | None, request: JoinRequest) -> Candidate | ReplaceMember:
        unique = f"{self._random.getrandbits(128):032x}"
        if request.instance is None:
            member_id = f"{request.client_id}-{unique}"
            if request.needs_member_id:
                room.pending[member_id] = self._clock.monotonic() + request.session_ms / 1000
                room.wake_at = 0.0
                raise MemberIdRequired(member_id)
            return self._enrol(room, request, member_id)
        member_id = f"{request.instance}-{unique}"
        if group is not None and request.instance in group.statics:
            return ReplaceMember(group.name, group.statics[request.instance], request.row(member_id))
        for one in list(room.joins.values()):
            if one.row.instance == request.instance:
                room.drop_join(one.row.id, Reason.FENCED_INSTANCE)
        return self._enrol(room, request, member_id)

    def _enrol(self, room: Room, request: JoinRequest, member_id: str) -> Candidate:
        group = self.group(room.name)
        after = group.generation if group is not None else 0
        answer: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        candidate = Candidate(request.row(member_id), request.protocol_type, after, request.connected, answer)
        answer.add_done_callback(lambda _: room.joins.get(member_id) is candidate and room.take(member_id))
        room.enrol(candidate)
        room.drop_syncs(Reason.REBALANCING)
        self._advance(room)
        return candidate

    async def _replace(self, request: JoinRequest, body: ReplaceMember) -> Joined | Candidate:
        """A static member is back: it carries on with what it had, unless the group rebalances anyway."""
        group = self.group(body.group)
        led = group is not None and group.leader == body.old
        outcome = await self._replica.propose(body)
        if isinstance(outcome, No):
            raise Rejected(outcome.reason, outcome.message)
        self.check_coordinates(body.group)
        room, group, member_id = self._room(body.group), self.group(body.group), body.new.id
        if group is None or member_id not in group.members:
            raise Rejected(Reason.UNKNOWN_GROUP_MEMBER)
        if room.rebalancing(group) or group.state != GroupState.STABLE:
            return self._enrol(room, request, member_id)
        found = place(group, member_id)
        if request.may_skip_assignment:
            skips = group.leader == member_id
            return Joined(**{**fields_of(found), "skip_assignment": skips})
        # An older client would take itself for the leader and assign anew, so it is told its former name, as by Kafka.
        return Joined(**{**fields_of(found), "leader": body.old if led else found.leader, "members": []})

    def _decide_sync(self, request: SyncRequest) -> Synced | asyncio.Future[Synced]:
        room, group = self._present(request.group, request.generation, request.member_id, request.instance)
        for given, right in ((request.protocol_type, group.protocol_type), (request.protocol, group.protocol)):
            if given is not None and given != right:
                raise Rejected(Reason.INCONSISTENT_PROTOCOL)
        if room.rebalancing(group):
            raise Rejected(Reason.REBALANCING)
        room.unsynced.discard(request.member_id)
        self.renew(room.name, request.member_id)
        if group.state == GroupState.STABLE:
            return Synced(group.protocol_type, group.protocol, group.members[request.member_id].assignment)
        answer: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        room.syncs.setdefault(request.member_id, []).append((request.generation, answer))
        return answer

    def _beat(self, name: str, generation: int, member_id: str, instance: str | None) -> None:
        room, group = self._present(name, generation, member_id, instance)
        self.renew(name, member_id)
        if room.rebalancing(group):
            raise Rejected(Reason.REBALANCING)

    def _present(self, name: str, generation: int, member_id: str, instance: str | None) -> tuple[Room, Group]:
        self.check_coordinates(name)
        group = self.group(name)
        if problem := member_problem(group, member_id, instance):
            raise Rejected(problem)
        assert group is not None
        if group.generation != generation:
            raise Rejected(Reason.STALE_GENERATION)
        return self._room(name), group

    # -- leaving ------------------------------------------------------------------------------------------------------

    def _plan_leave(self, name: str, leavers: list[tuple[str, str | None]]) -> list[str | Reason]:
        """Which members go; a static one may be named by its instance alone."""
        room, group = self._rooms.get(name), self.group(name)
        plan: list[str | Reason] = []
        for member_id, instance in leavers:
            if not member_id:
                owner = group.statics.get(instance) if group is not None and instance is not None else None
                plan.append(owner or Reason.UNKNOWN_GROUP_MEMBER)
            elif room is not None and (member_id in room.pending or member_id in room.joins):
                plan.append(member_id)
            else:
                plan.append(member_problem(group, member_id, instance) or member_id)
        return plan

    async def _leave(self, name: str, plan: list[str | Reason]) -> list[int] | None:
        group, gone = self.group(name), set()
        going = list(dict.fromkeys(one for one in plan if isinstance(one, str) and group and one in group.members))
        if group is not None and going:
            body = RemoveMembers(name, group.generation, [(member_id, 0) for member_id in going])
            outcome = await self._replica.propose(body)
            if isinstance(outcome, No):
                if outcome.reason == Reason.STALE_GENERATION:
                    return None
                raise Rejected(outcome.reason, outcome.message)
            gone = {member_id for member_id, went in zip(going, outcome, strict=True) if went}
        room = self._rooms.get(name)
        if room is not None:
            for one in plan:
                if isinstance(one, str):
                    if room.pending.pop(one, None) is not None or one in room.joins:
                        gone.add(one)
                    room.drop_join(one, Reason.UNKNOWN_GROUP_MEMBER)
            self._reconcile(room)
        return [
            int(one) if isinstance(one, Reason) else 0 if one in gone else int(Reason.UNKNOWN_GROUP_MEMBER) for one in plan
        ]

    # -- following the state ------------------------------------------------------------------------------------------

    def _folded(self) -> None:
        groups = self._replica.state.groups
        new, self._changes = groups.changes - self._changes, groups.changes
        if groups is not self._groups:
            self._groups, names = groups, list(self._rooms)
        elif not new:
            return
        else:
            names = list(groups.recent)[-new:] if new <= len(groups.recent) else list(self._rooms)
        for name in dict.fromkeys(names):
            if name in self._rooms:
                self._reconcile(self._rooms[name])

    def _reconcile(self, room: Room) -> None:
        """Bring what we remember in line with the state, and answer whom it answers."""
        if not self.coordinates(room.name):
            room.close(Reason.NOT_COORDINATOR)
            self._rooms.pop(room.name, None)
            return
        group, now = self.group(room.name), self._clock.monotonic()
        members = group.members if group is not None else {}
        for member_id in [one for one in room.deadlines if one not in members]:
            del room.deadlines[member_id]
        for member_id, member in members.items():
            room.deadlines.setdefault(member_id, now + member.session_ms / 1000)
        generation = group.generation if group is not None else 0
        if room.generation != generation:
            room.generation, room.rebalance = generation, None
            room.unsynced = set(members) if group is not None and group.state == GroupState.COMPLETING else set()
            room.sync_due = now + max((member.rebalance_ms for member in members.values()), default=0) / 1000
        room.unsynced.intersection_update(members)
        room.common, room.wake_at = None, 0.0
        if group is not None:
            self._answer_joins(room, group)
        answer_syncs(room, group)
        self._advance(room)

    def _answer_joins(self, room: Room, group: Group) -> None:
        for member_id, candidate in list(room.joins.items()):
            member = group.members.get(member_id)
            if group.generation == candidate.after:
                continue
            if member is None or member.protocols != candidate.row.protocols:
                candidate.after = group.generation  # It came too late for this generation: it wants the next.
                continue
            room.take(member_id)
            self.renew(room.name, member_id)
            if not candidate.answer.done():
                candidate.answer.set_result(place(group, member_id))

    def _advance(self, room: Room) -> None:
        """Start a join phase if one is wanted, end it if it is over."""
        group, now = self.group(room.name), self._clock.monotonic()
        if room.proposing or self._stopped:
            return
        if not room.rebalancing(group):
            room.rebalance = None
            return
        if room.rebalance is None:
            room.start_rebalance(group, now, self._delay_s)
        if room.has_everybody(group, now, self._delay_s):
            room.proposing = True
            self._spawn(self._end_join_phase(room))

    async def _end_join_phase(self, room: Room) -> None:
        waiting = list(room.joins)
        try:
            body = self._next_step(room)
            outcome = await self._replica.propose(body) if body is not None else None
            if isinstance(outcome, No) and outcome.reason not in (
                Reason.STALE_PREMISE, Reason.STALE_GENERATION, Reason.UNKNOWN_GROUP, Reason.NOT_COORDINATOR
            ):  # fmt: skip
                log.warning("group %r cannot begin a generation: %s", room.name, outcome.message)
                self._give_up(room, waiting, Reason(outcome.reason))
        except (Retry, Unknown, Fenced) as error:
            log.warning("group %r could not begin a generation: %s", room.name, error)
            self._give_up(room, waiting, Reason.COORDINATOR_UNAVAILABLE)
        finally:
            room.proposing = False
        if self._rooms.get(room.name) is room:
            self._reconcile(room)

    def _give_up(self, room: Room, waiting: list[str], reason: Reason) -> None:
        for member_id in waiting:
            room.drop_join(member_id, reason)
        room.rebalance = None

    def _next_step(self, room: Room) -> NewGeneration | RemoveMembers | None:
        """What ends this join phase: a new generation, or without anybody in it the end of those who did not come."""
        group = self.group(room.name)
        members = group.members if group is not None else {}
        for member_id, candidate in list(room.joins.items()):
            if member_id not in members and not candidate.connected():
                room.drop_join(member_id, Reason.UNKNOWN_GROUP_MEMBER)
        kept = [one.id for one in members.values() if one.instance is not None and one.id not in room.joins]
        if room.joins:
            rows = [candidate.row for candidate in room.joins.values()]
            protocol_type = next(iter(room.joins.values())).protocol_type
            generation, changed = (group.generation, group.changed) if group is not None else (0, 0)
            return NewGeneration(room.name, generation, changed, protocol_type, rows, kept)
        room.rebalance = None
        gone = [(one.id, 0) for one in members.values() if one.instance is None]
        return RemoveMembers(room.name, group.generation, gone) if group is not None and gone else None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- timers -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Look at all timers; called several times a second."""
        now = self._clock.monotonic()
        if not self._is_current():
            return
        passed, self._last_tick = now - self._last_tick, now
        if passed > STALL_S:
            for room in self._rooms.values():
                room.shift(passed)
        self._look_around()
        for room in list(self._rooms.values()):
            if now >= room.wake_at:
                self._mind(room, now)

    def _look_around(self) -> None:
        """When brokers come or go groups move: let go of those that left us, take over those that came."""
        brokers = [(broker.id, broker.epoch) for broker in self._replica.state.members.brokers()]
        if brokers == self._brokers:
            return
        self._brokers = brokers
        for room in list(self._rooms.values()):
            room.deadlines.clear()
            self._reconcile(room)
        for group in list(self._replica.state.groups.by_name.values()):
            if group.members and group.name not in self._rooms and self.coordinates(group.name):
                self._room(group.name)

    def _mind(self, room: Room, now: float) -> None:
        group = self.group(room.name)
        for member_id in [one for one, due in room.pending.items() if due <= now]:
            del room.pending[member_id]
        self._advance(room)
        if room.idle(group):
            del self._rooms[room.name]
            return
        if group is not None and not room.removing:
            late = room.unsynced if now >= room.sync_due else set()
            silent = [
                (one.id, one.heard)
                for one in group.members.values()
                if (room.deadlines.get(one.id, now + 1) <= now or one.id in late)
                and not (one.id in room.joins or one.id in room.syncs)
            ]
            if silent:
                room.removing = True
                self._spawn(self._expire(room, RemoveMembers(room.name, group.generation, silent)))
        room.wake_at = max(room.next_due(), now + TICK_S)

    async def _expire(self, room: Room, body: RemoveMembers) -> None:
        try:
            outcome = await self._replica.propose(body)
            log.info("group %r: members %s were not heard in time: %s", room.name, body.members, outcome)
        except (Retry, Unknown, Fenced) as error:
            log.warning("group %r: an expiry did not get through: %s", room.name, error)
        finally:
            room.removing = False
            room.wake_at = 0.0


def answer_syncs(room: Room, group: Group | None) -> None:
    """Answer the syncs that wait for no longer, one way or the other."""
    for member_id, waiters in list(room.syncs.items()):
        member = group.members.get(member_id) if group is not None else None
        if group is None or member is None:
            reason = Reason.UNKNOWN_GROUP_MEMBER
        elif any(generation != group.generation for generation, _ in waiters) or group.state == GroupState.PREPARING:
            reason = Reason.REBALANCING
        elif group.state == GroupState.COMPLETING:
            continue
        else:
            for _, answer in room.syncs.pop(member_id):
                if not answer.done():
                    answer.set_result(Synced(group.protocol_type, group.protocol, member.assignment))
            continue
        for _, answer in room.syncs.pop(member_id):
            refuse(answer, reason)


def fields_of(joined: Joined) -> dict[str, Any]:
    return {name: getattr(joined, name) for name in Joined.__slots__}


def check_group_id(name: str) -> None:
    if not name:
        raise Rejected(Reason.INVALID_GROUP_ID)


__all__ = ["GroupCoordinator", "MemberIdRequired"]

"""The coordinator of classic consumer groups on one broker: the requests of members, judged as Kafka does.

    newcomer  --join-->  gets an id, joins with it, waits for the join phase to end  --sync-->  waits for the assignment
    member    --heartbeat-->  lives on, or has to join again

Judging reads the state and what this broker keeps of the group; each change is proposed and decided in `apply` (L30).
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from lakestream.errors import Rejected, Retry
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.groups.group import (
    MAX_GROUP_BYTES,
    MAX_MEMBER_BYTES,
    Group,
    GroupState,
    member_problem,
    metadata_bytes,
)
from lakestream.model.groups.membership import Assign, RemoveMembers, ReplaceMember
from lakestream.model.reasons import No, Reason
from lakestream.model.state import Outcome
from lakestream.settings import Settings
from lakestream.stream.groups.coordinated_groups import TICK_S, CoordinatedGroups
from lakestream.stream.groups.waiting_members import (
    Candidate,
    CoordinatedGroup,
    Joined,
    JoinRequest,
    MemberIdRequired,
    Synced,
    SyncRequest,
    Waiter,
    place,
)

T = TypeVar("T")

LEAVE_ATTEMPTS = 5
CURRENT_ANYWAY = (Reason.MEMBER_ID_REQUIRED, Reason.REBALANCING)
"""Refusals from this broker's own memory, or harmless if outdated: no look at the log is needed (L6)."""


class GroupCoordinator:
    """`is_current`: whether this broker's own heartbeats fold. While they do not, no session runs out (L13).

    Every call raises Rejected for a definite no, Retry or Fenced if nothing happened, else Unknown.
    """

    def __init__(
        self, replica: Replica, settings: Settings, clock: Clock, random: Random, is_current: Callable[[], bool]
    ) -> None:
        self._replica = replica
        self._settings = settings
        self._clock = clock
        self._random = random
        delay_s = settings.group_initial_rebalance_delay_ms / 1000
        self.coordinated = CoordinatedGroups(replica, clock, delay_s, is_current)

    async def run(self) -> None:
        """Keep the timers until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.coordinated.tick()

    async def stop(self) -> None:
        """Send waiting members to the next coordinator; from now on this broker coordinates nothing."""
        await self.coordinated.stop()

    async def join(self, request: JoinRequest) -> Joined:
        """Waits until the join phase is over. Raises MemberIdRequired if the newcomer has to come back with an id."""
        settings = self._settings
        check_group_id(request.group)
        if not settings.group_min_session_timeout_ms <= request.session_ms <= settings.group_max_session_timeout_ms:
            raise Rejected(Reason.INVALID_SESSION_TIMEOUT)
        decided = await self.decide_current(lambda: self._decide_join(request))
        if isinstance(decided, ReplaceMember):
            decided = await self._replace(request, decided)
        if isinstance(decided, Joined):
            return decided
        return await decided.answer

    async def sync(self, request: SyncRequest) -> Synced:
        """Waits for the leader's assignment."""
        check_group_id(request.group)
        decided = await self.decide_current(lambda: self._decide_sync(request))
        if isinstance(decided, Synced):
            return decided
        group = self.coordinated.group(request.group)
        if group is None or group.leader != request.member_id:
            return await decided
        body = Assign(request.group, request.generation, request.member_id, request.assignments)
        try:
            outcome = await self._replica.propose(body)
            # A stale premise means that an earlier try of this very leader got through: the answer is on its way.
            if not (isinstance(outcome, No) and outcome.reason == Reason.STALE_PREMISE):
                agreed(outcome)
            return await decided
        finally:
            forget(decided)

    async def heartbeat(self, name: str, generation: int, member_id: str, instance: str | None) -> None:
        """Raises Rejected; with REBALANCING as the reason the member has to join again."""
        check_group_id(name)
        await self.decide_current(lambda: self._renew_session(name, generation, member_id, instance))

    async def leave(self, name: str, leavers: list[tuple[str, str | None]]) -> list[int]:
        """For each (member id, instance) 0 or the reason why it could not leave."""
        check_group_id(name)
        for _ in range(LEAVE_ATTEMPTS):
            await self.decide_current(lambda: self.check_coordinates(name))
            plan = self._plan_leave(name, leavers)
            if any(isinstance(one, Reason) for one in plan):
                await self._replica.catch_up()
                plan = self._plan_leave(name, leavers)
            results = await self._leave(name, plan)
            if results is not None:
                return results
        raise Retry("the group changes all the time")

    def check_coordinates(self, name: str) -> None:
        if not self.coordinated.coordinates(name):
            raise Rejected(Reason.NOT_COORDINATOR)

    async def decide_current(self, decide: Callable[[], T]) -> T:
        """Decide from the state at hand, and once more after folding to the end of the log if that was a no (L6)."""
        try:
            return decide()
        except Rejected as no:
            if no.reason in CURRENT_ANYWAY:
                raise
        await self._replica.catch_up()
        return decide()

    # -- joining ------------------------------------------------------------------------------------------------------

    def _decide_join(self, request: JoinRequest) -> Joined | Candidate | ReplaceMember:
        self.check_coordinates(request.group)
        local, group = self.coordinated.enter(request.group), self.coordinated.group(request.group)
        member_id = request.member_id
        waits = member_id in local.pending or member_id in local.joins
        if member_id and group is None and not waits:
            raise Rejected(Reason.UNKNOWN_GROUP_MEMBER)
        self._check_size(local, group, request)
        if not local.speaks_like(group, request.protocol_type) or not local.speaks_with_all(group, request.protocols):
            raise Rejected(Reason.INCONSISTENT_PROTOCOL)
        if not member_id:
            return self._newcomer(local, group, request)
        if waits and (group is None or member_id not in group.members):
            local.pending.pop(member_id, None)
            return self._enrol(local, request, member_id)
        if problem := member_problem(group, member_id, request.instance):
            raise Rejected(problem)
        assert group is not None
        leads_anew = group.state == GroupState.STABLE and group.leader == member_id
        if local.rebalancing(group) or leads_anew or group.members[member_id].protocols != request.protocols:
            return self._enrol(local, request, member_id)
        self.coordinated.renew(local.name, member_id)
        return place(group, member_id)

    def _check_size(self, local: CoordinatedGroup, group: Group | None, request: JoinRequest) -> None:
        size, limit, member_id = metadata_bytes(request.protocols), self._settings.group_max_size, request.member_id
        if size > MAX_MEMBER_BYTES or size + local.join_bytes > MAX_GROUP_BYTES:
            raise Rejected(Reason.GROUP_FULL, "the members' metadata is too large")
        rebalancing, members = local.rebalancing(group), group.members if group is not None else {}
        if member_id in local.joins or (member_id in members and not rebalancing):
            return
        if len(local.joins if rebalancing else members) >= limit or (not member_id and len(local.pending) >= limit):
            raise Rejected(Reason.GROUP_FULL)

    def _newcomer(
        self, local: CoordinatedGroup, group: Group | None, request: JoinRequest
    ) -> Candidate | ReplaceMember:
        unique = f"{self._random.getrandbits(128):032x}"
        if request.instance is None:
            member_id = f"{request.client_id}-{unique}"
            if request.needs_member_id:
                local.pending[member_id] = self._clock.monotonic() + request.session_ms / 1000
                local.wake_at = 0.0
                raise MemberIdRequired(member_id)
            return self._enrol(local, request, member_id)
        member_id = f"{request.instance}-{unique}"
        if group is not None and request.instance in group.statics:
            return ReplaceMember(group.name, group.statics[request.instance], request.row(member_id))
        for one in list(local.joins.values()):
            if one.row.instance == request.instance:
                local.drop_join(one.row.id, Reason.FENCED_INSTANCE)
        return self._enrol(local, request, member_id)

    def _enrol(self, local: CoordinatedGroup, request: JoinRequest, member_id: str) -> Candidate:
        group = self.coordinated.group(local.name)
        candidate = Candidate(
            row=request.row(member_id),
            protocol_type=request.protocol_type,
            after=group.generation if group is not None else 0,
            connected=request.connected,
            answer=asyncio.get_running_loop().create_future(),
        )
        self.coordinated.enrol(local, candidate)
        return candidate

    async def _replace(self, request: JoinRequest, body: ReplaceMember) -> Joined | Candidate:
        """A static member is back and keeps its assignment, unless the group rebalances anyway."""
        group = self.coordinated.group(body.group)
        led = group is not None and group.leader == body.old
        agreed(await self._replica.propose(body))
        self.check_coordinates(body.group)
        local, group, member_id = self.coordinated.enter(body.group), self.coordinated.group(body.group), body.new.id
        if group is None or member_id not in group.members:
            raise Rejected(Reason.UNKNOWN_GROUP_MEMBER)
        if local.rebalancing(group) or group.state != GroupState.STABLE:
            return self._enrol(local, request, member_id)
        found = place(group, member_id)
        if request.may_skip_assignment:
            return replace(found, skip_assignment=group.leader == member_id)
        # An older client would take itself for the leader and assign again: as in Kafka it gets its old id as leader.
        return replace(found, leader=body.old if led else found.leader, members=[])

    # -- syncing, beating ---------------------------------------------------------------------------------------------

    def _decide_sync(self, request: SyncRequest) -> Synced | asyncio.Future[Synced]:
        local, group = self._present(request.group, request.generation, request.member_id, request.instance)
        for given, right in ((request.protocol_type, group.protocol_type), (request.protocol, group.protocol)):
            if given is not None and given != right:
                raise Rejected(Reason.INCONSISTENT_PROTOCOL)
        if local.rebalancing(group):
            raise Rejected(Reason.REBALANCING)
        local.unsynced.discard(request.member_id)
        self.coordinated.renew(local.name, request.member_id)
        if group.state == GroupState.STABLE:
            return Synced(group.protocol_type, group.protocol, group.members[request.member_id].assignment)
        answer: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        local.await_sync(request.member_id, Waiter(request.generation, request.instance, answer))
        return answer

    def _renew_session(self, name: str, generation: int, member_id: str, instance: str | None) -> None:
        local, group = self._present(name, generation, member_id, instance)
        self.coordinated.renew(name, member_id)
        if local.rebalancing(group):
            raise Rejected(Reason.REBALANCING)

    def _present(
        self, name: str, generation: int, member_id: str, instance: str | None
    ) -> tuple[CoordinatedGroup, Group]:
        self.check_coordinates(name)
        group = self.coordinated.group(name)
        problem = member_problem(group, member_id, instance)
        if group is None or problem is not None:
            raise Rejected(problem or Reason.UNKNOWN_GROUP_MEMBER)
        if group.generation != generation:
            raise Rejected(Reason.STALE_GENERATION)
        return self.coordinated.enter(name), group

    # -- leaving ------------------------------------------------------------------------------------------------------

    def _plan_leave(self, name: str, leavers: list[tuple[str, str | None]]) -> list[str | Reason]:
        """The leaving members. A static member may be named by its instance alone; a repeated name has left before."""
        local, group = self.coordinated.get(name), self.coordinated.group(name)
        plan: list[str | Reason] = []
        for member_id, instance in leavers:
            if not member_id:
                plan.append(_owner(local, group, instance) or Reason.UNKNOWN_GROUP_MEMBER)
            elif local is not None and (member_id in local.pending or member_id in local.joins):
                plan.append(member_id)
            else:
                plan.append(member_problem(group, member_id, instance) or member_id)
        going: set[str] = set()
        for index, one in enumerate(plan):
            if isinstance(one, str):
                plan[index] = Reason.UNKNOWN_GROUP_MEMBER if one in going else one
                going.add(one)
        return plan

    async def _leave(self, name: str, plan: list[str | Reason]) -> list[int] | None:
        """Carry out the plan; returns None if the group has changed meanwhile."""
        group, gone = self.coordinated.group(name), set()
        members = group.members if group is not None else {}
        going = [one for one in plan if isinstance(one, str) and one in members]
        if group is not None and going:
            body = RemoveMembers(name, group.generation, [(member_id, 0) for member_id in going])
            outcome = await self._replica.propose(body)
            if isinstance(outcome, No) and outcome.reason in (Reason.STALE_GENERATION, Reason.UNKNOWN_GROUP):
                return None
            gone = {member_id for member_id, went in zip(going, agreed(outcome), strict=True) if went}
        local = self.coordinated.get(name)
        if local is not None:
            gone |= local.let_go([one for one in plan if isinstance(one, str)])
            self.coordinated.reconcile(local)
        return [int(left_problem(one, gone)) for one in plan]


def agreed(outcome: Outcome) -> Any:
    """The outcome of `apply`. Raises Rejected if `apply` refused the command."""
    if isinstance(outcome, No):
        raise Rejected(outcome.reason, outcome.message)
    return outcome


def _owner(local: CoordinatedGroup | None, group: Group | None, instance: str | None) -> str | None:
    """The id of the member, or of the joining member, with this instance."""
    if instance is None:
        return None
    if group is not None and instance in group.statics:
        return group.statics[instance]
    joins = local.joins.values() if local is not None else ()
    return next((one.row.id for one in joins if one.row.instance == instance), None)


def left_problem(planned: str | Reason, gone: set[str]) -> int:
    if isinstance(planned, Reason):
        return planned
    return 0 if planned in gone else Reason.UNKNOWN_GROUP_MEMBER


def forget(answer: asyncio.Future[Synced]) -> None:
    """Drop an answer that has no reader: asyncio would log its exception as never retrieved."""
    if not answer.cancel() and not answer.cancelled():
        answer.exception()


def check_group_id(name: str) -> None:
    if not name:
        raise Rejected(Reason.INVALID_GROUP_ID)

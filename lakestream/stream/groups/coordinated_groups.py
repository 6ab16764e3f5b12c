"""All groups that this broker coordinates: following their state, ending their join phases, and their timers.

`reconcile` runs after every change of a group, by any broker, and answers the requests that came true in the state.
Changes are proposed and decided in `apply`, so a broker that wrongly takes itself for the coordinator changes nothing,
and the next coordinator needs nothing from it (L30).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from lakestream.errors import Fenced, Retry, Unknown
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.groups.group import Group, GroupState
from lakestream.model.groups.membership import NewGeneration, RemoveMembers, coordinator
from lakestream.model.reasons import No, Reason
from lakestream.stream.groups.waiting_members import Candidate, CoordinatedGroup, answer_syncs, place

log = logging.getLogger(__name__)

TICK_S = 0.1
STALL_S = 1.0
"""A pause of the process longer than this stops the timers, as an outage does."""
TRY_AGAIN = (Reason.STALE_PREMISE, Reason.STALE_GENERATION, Reason.UNKNOWN_GROUP, Reason.NOT_COORDINATOR)
"""The group has changed meanwhile: look at the state again."""


class CoordinatedGroups:
    """The groups that this broker coordinates. `is_current`: whether this broker's own heartbeats fold (L13)."""

    def __init__(self, replica: Replica, clock: Clock, delay_s: float, is_current: Callable[[], bool]) -> None:
        self._replica = replica
        self._clock = clock
        self._delay_s = delay_s
        self._is_current = is_current
        self._coordinated: dict[str, CoordinatedGroup] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._groups = replica.state.groups
        self._changes = self._groups.changes
        self._brokers: list[tuple[int, int]] = []
        self._last_tick = clock.monotonic()
        self._stopped = False
        replica.on_fold.append(self._folded)

    async def stop(self) -> None:
        """Send waiting members to the next coordinator, and propose nothing more."""
        self._stopped = True
        for local in self._coordinated.values():
            local.close(Reason.NOT_COORDINATOR)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def coordinates(self, name: str) -> bool:
        replica = self._replica
        return bool(replica.epoch) and not self._stopped and coordinator(replica.state, name) == replica.member_id

    def group(self, name: str) -> Group | None:
        return self._replica.state.groups.by_name.get(name)

    def get(self, name: str) -> CoordinatedGroup | None:
        return self._coordinated.get(name)

    def joining(self) -> list[str]:
        """The groups that have joining members."""
        return [name for name, local in self._coordinated.items() if local.joins]

    def enter(self, name: str) -> CoordinatedGroup:
        """The entry of a group that this broker coordinates. A new one gives every member a full session."""
        local = self._coordinated.get(name)
        if local is None:
            local = self._coordinated[name] = CoordinatedGroup(name)
            self.reconcile(local)
        return local

    def renew(self, name: str, member_id: str) -> None:
        """A member was heard: its session begins again."""
        local, group = self._coordinated.get(name), self.group(name)
        if local is not None and group is not None and member_id in group.members:
            local.deadlines[member_id] = self._clock.monotonic() + group.members[member_id].session_ms / 1000

    def enrol(self, local: CoordinatedGroup, candidate: Candidate) -> None:
        """Add a joining member, and begin a rebalance unless one is under way."""
        member_id = candidate.row.id
        local.enrol(candidate)
        candidate.answer.add_done_callback(lambda _: local.forget_join(member_id, candidate))
        local.drop_syncs(Reason.REBALANCING)
        self._advance(local)

    # -- following the state ------------------------------------------------------------------------------------------

    def _folded(self) -> None:
        groups = self._replica.state.groups
        new, self._changes = groups.changes - self._changes, groups.changes
        if groups is not self._groups:
            self._groups, names = groups, list(self._coordinated)
        elif not new:
            return
        else:
            names = list(groups.recent)[-new:] if new <= len(groups.recent) else list(self._coordinated)
        for name in dict.fromkeys(names):
            if name in self._coordinated:
                self.reconcile(self._coordinated[name])

    def reconcile(self, local: CoordinatedGroup) -> None:
        """Bring the waiting members in line with the state, and answer those whose request came true."""
        if not self.coordinates(local.name):
            local.close(Reason.NOT_COORDINATOR)
            self._coordinated.pop(local.name, None)
            return
        group, now = self.group(local.name), self._clock.monotonic()
        members = group.members if group is not None else {}
        for member_id in [one for one in local.deadlines if one not in members]:
            del local.deadlines[member_id]
        for member_id, member in members.items():
            local.deadlines.setdefault(member_id, now + member.session_ms / 1000)
        generation = group.generation if group is not None else 0
        if local.generation != generation:
            local.generation, local.rebalance = generation, None
            local.unsynced = set(members) if group is not None and group.state == GroupState.COMPLETING else set()
            local.sync_due = now + max((member.rebalance_ms for member in members.values()), default=0) / 1000
        local.unsynced.intersection_update(members)
        local.common, local.wake_at = None, 0.0
        if group is not None:
            self._answer_joins(local, group)
        answer_syncs(local, group)
        self._advance(local)

    def _answer_joins(self, local: CoordinatedGroup, group: Group) -> None:
        for member_id, candidate in list(local.joins.items()):
            row, member = candidate.row, group.members.get(member_id)
            if row.instance is not None and group.statics.get(row.instance, member_id) != member_id:
                local.drop_join(member_id, Reason.FENCED_INSTANCE)
            elif group.generation == candidate.after:
                continue
            elif member is None or member.protocols != row.protocols:
                candidate.after = group.generation  # It came too late for this generation and waits for the next.
            else:
                local.take(member_id)
                self.renew(local.name, member_id)
                if not candidate.answer.done():
                    candidate.answer.set_result(place(group, member_id))

    # -- the join phase -----------------------------------------------------------------------------------------------

    def _advance(self, local: CoordinatedGroup) -> None:
        """Start a join phase if members want one, and end it if it is over."""
        group, now = self.group(local.name), self._clock.monotonic()
        if local.proposing or self._stopped:
            return
        if not local.rebalancing(group):
            local.rebalance = None
            return
        if local.rebalance is None:
            local.start_rebalance(group, now, self._delay_s)
        if local.join_phase_is_over(group, now, self._delay_s):
            local.proposing = True
            self._spawn(self._end_join_phase(local))

    async def _end_join_phase(self, local: CoordinatedGroup) -> None:
        waiting = list(local.joins)
        try:
            body = self._next_step(local)
            outcome = await self._replica.propose(body) if body is not None else None
            if isinstance(outcome, No) and outcome.reason not in TRY_AGAIN:
                log.warning("group %r cannot begin a generation: %s", local.name, outcome.message)
                local.give_up(waiting, Reason(outcome.reason))
        except (Retry, Unknown, Fenced) as error:
            log.warning("group %r could not begin a generation: %s", local.name, error)
            local.give_up(waiting, Reason.COORDINATOR_UNAVAILABLE)
        finally:
            local.proposing = False
        if self._coordinated.get(local.name) is local:
            self.reconcile(local)

    def _next_step(self, local: CoordinatedGroup) -> NewGeneration | RemoveMembers | None:
        """The command that ends this join phase: a new generation, or the removal of all members if none joined."""
        group = self.group(local.name)
        members = group.members if group is not None else {}
        for member_id, candidate in list(local.joins.items()):
            if member_id not in members and not candidate.connected():
                local.drop_join(member_id, Reason.UNKNOWN_GROUP_MEMBER)
        kept = [one.id for one in members.values() if one.instance is not None and one.id not in local.joins]
        if local.joins:
            rows = [candidate.row for candidate in local.joins.values()]
            protocol_type = next(iter(local.joins.values())).protocol_type
            generation, changed = (group.generation, group.changed) if group is not None else (0, 0)
            return NewGeneration(local.name, generation, changed, protocol_type, rows, kept)
        local.rebalance = None
        gone = [(one.id, 0) for one in members.values() if one.instance is None]
        return RemoveMembers(local.name, group.generation, gone) if group is not None and gone else None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- timers -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Look at all timers; called several times a second."""
        self._follow_brokers()
        if not self._is_current():
            return
        now = self._clock.monotonic()
        passed, self._last_tick = now - self._last_tick, now
        if passed > STALL_S:
            for local in self._coordinated.values():
                local.shift(passed)
        for local in list(self._coordinated.values()):
            if now >= local.wake_at:
                self._check_timers(local, now)

    def _follow_brokers(self) -> None:
        """Groups move when brokers come or go: release those that moved away, take over those that moved here."""
        brokers = [(broker.id, broker.epoch) for broker in self._replica.state.members.brokers()]
        if brokers == self._brokers:
            return
        self._brokers = brokers
        for local in list(self._coordinated.values()):
            local.deadlines.clear()
            self.reconcile(local)
        for group in list(self._replica.state.groups.by_name.values()):
            if group.members and group.name not in self._coordinated and self.coordinates(group.name):
                log.info("coordinating group %r from generation %d on", group.name, group.generation)
                self.enter(group.name)

    def _check_timers(self, local: CoordinatedGroup, now: float) -> None:
        group = self.group(local.name)
        for member_id in [one for one, due in local.pending.items() if due <= now]:
            del local.pending[member_id]
        self._advance(local)
        if local.idle(group):
            del self._coordinated[local.name]
            return
        silent = local.silent(group, now) if group is not None and not local.removing else []
        if group is not None and silent:
            local.removing = True
            self._spawn(self._expire(local, RemoveMembers(local.name, group.generation, silent)))
        local.wake_at = local.next_due()

    async def _expire(self, local: CoordinatedGroup, body: RemoveMembers) -> None:
        try:
            outcome = await self._replica.propose(body)
            log.info("group %r: members %s were not heard in time: %s", local.name, body.members, outcome)
        except (Retry, Unknown, Fenced) as error:
            log.warning("group %r: an expiry did not get through: %s", local.name, error)
        finally:
            local.removing = False
            local.wake_at = 0.0

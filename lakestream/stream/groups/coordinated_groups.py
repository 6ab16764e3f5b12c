"""All groups that this broker coordinates: following their state, ending their join phases, and their timers.

`reconcile` runs after every change of a group, whoever made it, and answers those whose wish came true in the state.
What has to change is proposed and decided in `apply`, so a broker that is mistaken about being the coordinator changes
nothing, and the next one needs nothing from it (L30).
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
from lakestream.stream.groups.waiting_members import Candidate, Room, answer_syncs, place

log = logging.getLogger(__name__)

TICK_S = 0.1
STALL_S = 1.0
"""A pause of the process longer than this stops the timers, as an outage does."""
TRY_AGAIN = (Reason.STALE_PREMISE, Reason.STALE_GENERATION, Reason.UNKNOWN_GROUP, Reason.NOT_COORDINATOR)
"""The group is not what we took it for: look at the state again."""


class GroupRooms:
    """The rooms by the names of their groups. `is_current`: whether this broker's own heartbeats fold (L13)."""

    def __init__(self, replica: Replica, clock: Clock, delay_s: float, is_current: Callable[[], bool]) -> None:
        self._replica = replica
        self._clock = clock
        self._delay_s = delay_s
        self._is_current = is_current
        self._rooms: dict[str, Room] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._groups = replica.state.groups
        self._changes = self._groups.changes
        self._brokers: list[tuple[int, int]] = []
        self._last_tick = clock.monotonic()
        self._stopped = False
        replica.on_fold.append(self._folded)

    async def stop(self) -> None:
        """Send those who wait to the next coordinator, and propose nothing more."""
        self._stopped = True
        for room in self._rooms.values():
            room.close(Reason.NOT_COORDINATOR)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def coordinates(self, name: str) -> bool:
        replica = self._replica
        return bool(replica.epoch) and not self._stopped and coordinator(replica.state, name) == replica.member_id

    def group(self, name: str) -> Group | None:
        return self._replica.state.groups.by_name.get(name)

    def get(self, name: str) -> Room | None:
        return self._rooms.get(name)

    def joining(self) -> list[str]:
        """The groups that somebody wants to join."""
        return [name for name, room in self._rooms.items() if room.joins]

    def enter(self, name: str) -> Room:
        """The room of a group that we coordinate. A new one starts from the state, with full sessions for all."""
        room = self._rooms.get(name)
        if room is None:
            room = self._rooms[name] = Room(name)
            self.reconcile(room)
        return room

    def renew(self, name: str, member_id: str) -> None:
        """A member was heard: its session begins again."""
        room, group = self._rooms.get(name), self.group(name)
        if room is not None and group is not None and member_id in group.members:
            room.deadlines[member_id] = self._clock.monotonic() + group.members[member_id].session_ms / 1000

    def enrol(self, room: Room, candidate: Candidate) -> None:
        """Somebody joins, and with it begins a rebalance, unless there is one."""
        member_id = candidate.row.id
        room.enrol(candidate)
        candidate.answer.add_done_callback(lambda _: room.forget_join(member_id, candidate))
        room.drop_syncs(Reason.REBALANCING)
        self._advance(room)

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
                self.reconcile(self._rooms[name])

    def reconcile(self, room: Room) -> None:
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
            row, member = candidate.row, group.members.get(member_id)
            if row.instance is not None and group.statics.get(row.instance, member_id) != member_id:
                room.drop_join(member_id, Reason.FENCED_INSTANCE)
            elif group.generation == candidate.after:
                continue
            elif member is None or member.protocols != row.protocols:
                candidate.after = group.generation  # It came too late for this generation: it wants the next.
            else:
                room.take(member_id)
                self.renew(room.name, member_id)
                if not candidate.answer.done():
                    candidate.answer.set_result(place(group, member_id))

    # -- the join phase -----------------------------------------------------------------------------------------------

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
            if isinstance(outcome, No) and outcome.reason not in TRY_AGAIN:
                log.warning("group %r cannot begin a generation: %s", room.name, outcome.message)
                room.give_up(waiting, Reason(outcome.reason))
        except (Retry, Unknown, Fenced) as error:
            log.warning("group %r could not begin a generation: %s", room.name, error)
            room.give_up(waiting, Reason.COORDINATOR_UNAVAILABLE)
        finally:
            room.proposing = False
        if self._rooms.get(room.name) is room:
            self.reconcile(room)

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
        self._look_around()
        if not self._is_current():
            return
        now = self._clock.monotonic()
        passed, self._last_tick = now - self._last_tick, now
        if passed > STALL_S:
            for room in self._rooms.values():
                room.shift(passed)
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
            self.reconcile(room)
        for group in list(self._replica.state.groups.by_name.values()):
            if group.members and group.name not in self._rooms and self.coordinates(group.name):
                log.info("coordinating group %r from generation %d on", group.name, group.generation)
                self.enter(group.name)

    def _mind(self, room: Room, now: float) -> None:
        group = self.group(room.name)
        for member_id in [one for one, due in room.pending.items() if due <= now]:
            del room.pending[member_id]
        self._advance(room)
        if room.idle(group):
            del self._rooms[room.name]
            return
        silent = room.silent(group, now) if group is not None and not room.removing else []
        if group is not None and silent:
            room.removing = True
            self._spawn(self._expire(room, RemoveMembers(room.name, group.generation, silent)))
        room.wake_at = room.next_due()

    async def _expire(self, room: Room, body: RemoveMembers) -> None:
        try:
            outcome = await self._replica.propose(body)
            log.info("group %r: members %s were not heard in time: %s", room.name, body.members, outcome)
        except (Retry, Unknown, Fenced) as error:
            log.warning("group %r: an expiry did not get through: %s", room.name, error)
        finally:
            room.removing = False
            room.wake_at = 0.0

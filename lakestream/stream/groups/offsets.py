"""Committed offsets, and groups as operators see them: commit, fetch, delete, describe, list."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from lakestream.errors import Rejected
from lakestream.metadata.replica import Replica
from lakestream.model.groups.group import CommittedOffset, Group, GroupState, MemberRow
from lakestream.model.groups.membership import DeleteGroup
from lakestream.model.groups.offsets import CommitOffsets, DeleteOffsets
from lakestream.model.levels import BOUNDED
from lakestream.model.reasons import Reason
from lakestream.stream.groups.coordinator import GroupCoordinator, agreed
from lakestream.stream.long_work import chunks

GROUPS_AT_ONCE = 500
MAX_COMMIT_BYTES = 1 << 20
ROW_BYTES = 32
"""About the size of an offset in a command, without its note."""


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A group as operators see it; `state` includes a rebalance that only its coordinator knows of.

    Before its first generation a group has only newcomers.
    """

    group: Group
    state: GroupState
    protocol_type: str
    newcomers: list[MemberRow]
    """Joining members that are not in the group yet."""


class GroupOffsets:
    """Only a group's coordinator answers: a commit counts as a sign of life, and every answer shows the same rebalance.

    Every call raises Rejected for a definite no, Retry or Fenced if nothing happened, else Unknown.
    """

    def __init__(self, replica: Replica, coordinator: GroupCoordinator) -> None:
        self._replica = replica
        self._coordinator = coordinator

    async def commit(self, body: CommitOffsets) -> list[int]:
        """For each offset 0 or the reason why it was refused."""
        if sum(ROW_BYTES + len(note) for _, _, _, note in body.offsets) > MAX_COMMIT_BYTES:
            raise Rejected(Reason.COMMIT_TOO_LARGE)
        await self._coordinator.decide_current(lambda: self._check_commit(body))
        results: list[int] = agreed(await self._replica.propose(self._told(body)))
        self._coordinator.coordinated.renew(body.group, body.member)
        return results

    def _check_commit(self, body: CommitOffsets) -> None:
        """Raises Rejected while members join an empty group: the state would accept the commit, not knowing them."""
        self._coordinator.check_coordinates(body.group)
        local, group = self._coordinator.coordinated.get(body.group), self._coordinator.coordinated.group(body.group)
        if body.generation < 0 and local is not None and local.joins and (group is None or not group.members):
            joins = body.member in local.joins
            raise Rejected(Reason.STALE_GENERATION if joins else Reason.UNKNOWN_GROUP_MEMBER)

    def _told(self, body: CommitOffsets) -> CommitOffsets:
        """Marks a commit while members join, since the state does not know them, if all brokers know the mark (L3)."""
        local = self._coordinator.coordinated.get(body.group)
        joining = local is not None and bool(local.joins) and self._replica.state.level >= BOUNDED
        return replace(body, joining=True) if joining else body

    async def fetch(self, name: str) -> dict[int, CommittedOffset]:
        """The committed offsets by stream; empty for an unknown group. Always current (L6)."""
        await self._replica.catch_up()
        self._coordinator.check_coordinates(name)
        group = self._replica.state.groups.by_name.get(name)
        return group.offsets if group is not None else {}

    async def delete_offsets(self, body: DeleteOffsets) -> list[int]:
        await self._coordinator.decide_current(lambda: self._coordinator.check_coordinates(body.group))
        results: list[int] = agreed(await self._replica.propose(body))
        return results

    async def delete_group(self, name: str) -> None:
        await self._coordinator.decide_current(lambda: self._coordinator.check_coordinates(name))
        local = self._coordinator.coordinated.get(name)
        if local is not None and local.joins:
            raise Rejected(Reason.GROUP_NOT_EMPTY)
        agreed(await self._replica.propose(DeleteGroup(name)))

    async def describe(self, name: str) -> SeenGroup:
        return await self._coordinator.decide_current(lambda: self._seen(name))

    async def list(self) -> list[SeenGroup]:
        """The groups that this broker coordinates; a client asks all brokers. Yields to the event loop."""
        await self._replica.catch_up()
        coordinated = self._coordinator.coordinated
        names = dict.fromkeys([*self._replica.state.groups.by_name, *coordinated.joining()])
        found: list[SeenGroup] = []
        for some in chunks(list(names), GROUPS_AT_ONCE):
            for name in some:
                with suppress(Rejected):  # the group moved or was deleted meanwhile
                    found += [self._seen(name)] if coordinated.coordinates(name) else []
            if len(some) == GROUPS_AT_ONCE:
                await asyncio.sleep(0)
        return found

    def _seen(self, name: str) -> SeenGroup:
        self._coordinator.check_coordinates(name)
        group, local = self._replica.state.groups.by_name.get(name), self._coordinator.coordinated.get(name)
        joins = local.joins if local is not None else {}
        if group is None and not joins:
            raise Rejected(Reason.UNKNOWN_GROUP, f"Group {name} not found.")
        group = group or Group(name, 0)
        if local is None or not local.rebalancing(group):
            return SeenGroup(group, group.state, group.protocol_type, [])
        newcomers = [one for one in joins.values() if one.row.id not in group.members]
        protocol_type = newcomers[0].protocol_type if newcomers and not group.members else group.protocol_type
        return SeenGroup(group, GroupState.PREPARING, protocol_type, [one.row for one in newcomers])

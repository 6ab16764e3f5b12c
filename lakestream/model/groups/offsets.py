"""Committed offsets: how far a group has come in each stream.

They are kept by stream id, so those of a deleted topic go with it and a new topic of the same name starts without any
(L25). A commit names the generation and the member that it comes from; one of a generation that is over is refused,
however late it arrives and whichever broker brings it (L30).
"""

from typing import TYPE_CHECKING, ClassVar

from lakestream.model.commands import Body
from lakestream.model.configs import LONG_MAX
from lakestream.model.groups.group import (
    CONSUMER,
    CommittedOffset,
    Group,
    GroupState,
    group_topics,
    member_problem,
    note_size,
)
from lakestream.model.levels import BOUNDED, FIRST
from lakestream.model.members import Member
from lakestream.model.reasons import No, Reason

if TYPE_CHECKING:
    from lakestream.model.state import State

CommitRow = tuple[int, int, int, str]
"""Stream, offset, leader epoch, the client's note."""


class CommitOffsets(Body, frozen=True, array_like=True):
    """Remember offsets for a group; with generation -1 for one whose consumers assign partitions to themselves.

    `joining`: a member waits to join. The members then go through another join phase, and the group takes their commits
    although it has no assignment yet, as in Kafka. Older commands lack the field.
    """

    KIND: ClassVar[int] = 24
    group: str
    generation: int
    member: str
    instance: str | None
    offsets: list[CommitRow]
    retention_ms: int = -1
    joining: bool = False

    def needed_level(self) -> int:
        return BOUNDED if self.joining else FIRST


class DeleteOffsets(Body, frozen=True, array_like=True):
    """Forget a group's offsets in these streams."""

    KIND: ClassVar[int] = 25
    group: str
    streams: list[int]


class ExpireOffsets(Body, frozen=True, array_like=True):
    """Forget offsets that were not used since this cluster time, and empty groups without offsets."""

    KIND: ClassVar[int] = 27
    before_ms: int


class ExpireGroups(Body, frozen=True, array_like=True):
    """Like ExpireOffsets, for the groups that the proposer found to have something to expire."""

    KIND: ClassVar[int] = 57
    LEVEL: ClassVar[int] = BOUNDED
    before_ms: int
    groups: list[str]


def commit(state: "State", member: Member, body: CommitOffsets) -> list[int] | No:
    """For each offset 0, or the reason why it is not kept."""
    group = state.groups.by_name.get(body.group)
    joining = body.joining and state.level >= BOUNDED
    if problem := commit_problem(group, body, joining):
        return No(problem, f"group {body.group!r} takes no commit of generation {body.generation} from {body.member!r}")
    streams = state.streams.by_id
    if group is not None and body.member in group.members:
        group.members[body.member].heard = state.sequence
    now = state.members.time_ms
    expire = min(now + body.retention_ms, LONG_MAX) if body.retention_ms >= 0 else 0
    results = []
    for stream, offset, leader_epoch, note in body.offsets:
        if stream not in streams:
            results.append(int(Reason.UNKNOWN_STREAM))
            continue
        if problem := offset_problem(state, group, stream, note):
            results.append(int(problem))
            continue
        if group is None:
            group = state.groups.by_name[body.group] = Group(body.group, state.sequence)
            state.groups.touch(body.group)
        state.groups.keep(group, stream, CommittedOffset(offset, leader_epoch, note, now, expire))
        results.append(0)
    return results


def groups_problem(state: "State") -> No | None:
    """Why the cluster takes no further group, or nothing (L20)."""
    have, limit = len(state.groups.by_name), state.topics.bounds.groups
    if have < limit:
        return None
    return No(Reason.TOO_MANY_GROUPS, f"the cluster has {have} groups, and lakestream.max.groups is {limit}")


def offset_problem(state: "State", group: Group | None, stream: int, note: str) -> Reason | None:
    """Why the cluster does not keep this offset (L20). One that is known already may move on, whatever the limits."""
    bounds, groups = state.topics.bounds, state.groups
    if group is None and len(groups.by_name) >= bounds.groups:
        return Reason.TOO_MANY_GROUPS
    before = group.offsets.get(stream) if group is not None else None
    if before is None and groups.offsets >= bounds.offsets:
        return Reason.TOO_MANY_OFFSETS
    growth = note_size(note) - (note_size(before.note) if before is not None else 0) if note else 0
    return Reason.TOO_MANY_NOTES if growth > 0 and groups.note_bytes + growth > bounds.note_bytes else None


def commit_problem(group: Group | None, body: CommitOffsets, joining: bool) -> Reason | None:
    """As Kafka judges it: a group with members takes commits only from them, in their generation.

    Between a join phase and the assignment it takes none, unless a member joins, which begins the next join phase.
    """
    if group is None:
        return Reason.STALE_GENERATION if body.generation >= 0 else None
    if body.generation < 0 and group.state == GroupState.EMPTY:
        return None
    if body.generation < 0 and not body.member and body.instance is None:
        return Reason.UNKNOWN_GROUP_MEMBER
    if problem := member_problem(group, body.member, body.instance):
        return problem
    if body.generation != group.generation:
        return Reason.STALE_GENERATION
    return Reason.REBALANCING if group.state == GroupState.COMPLETING and not joining else None


def delete(state: "State", member: Member, body: DeleteOffsets) -> list[int] | No:
    """For each stream 0, or the reason why its offset stays: consumers of the group still read that topic."""
    group = state.groups.by_name.get(body.group)
    if group is None:
        return No(Reason.UNKNOWN_GROUP, f"there is no group {body.group!r}")
    if group.members and group.protocol_type != CONSUMER:
        return No(Reason.GROUP_NOT_EMPTY, "the group has members")
    results = []
    read = group_topics(group)
    for stream_id in body.streams:
        stream = state.streams.by_id.get(stream_id)
        if stream is not None and (read is None or stream.topic.name in read):
            results.append(int(Reason.GROUP_SUBSCRIBED))
            continue
        state.groups.drop(group, stream_id)
        results.append(0)
    return results


def expire(state: "State", member: Member, body: ExpireOffsets) -> list[int]:
    """How many offsets and how many groups went."""
    offsets, groups = overdue(state, body.before_ms)
    for name, stream in offsets:
        state.groups.drop(state.groups.by_name[name], stream)
    for name in groups:
        state.groups.remove(state.groups.by_name[name])
    return [len(offsets), len(groups)]


def expire_groups(state: "State", member: Member, body: ExpireGroups) -> list[int]:
    """How many offsets and how many groups went."""
    offsets = groups = 0
    for name in body.groups:
        group = state.groups.by_name.get(name)
        if group is None:
            continue
        old = old_offsets(state, group, body.before_ms)
        offsets += len(old)
        for stream in old:
            state.groups.drop(group, stream)
        if not group.members and not group.offsets:
            groups += 1
            state.groups.remove(group)
    return [offsets, groups]


def overdue_offsets(state: "State", group: Group, before_ms: int) -> int:
    """How many offsets of a group an expiry would take; 1 for a group that is empty in every sense."""
    old = old_offsets(state, group, before_ms)
    return len(old) or (not group.members and not group.offsets)


def overdue(state: "State", before_ms: int) -> tuple[list[tuple[str, int]], list[str]]:
    """What an expiry would take: offsets as (group, stream), and groups that are empty in every sense."""
    offsets: list[tuple[str, int]] = []
    groups = []
    for group in state.groups.by_name.values():
        old = old_offsets(state, group, before_ms)
        offsets += [(group.name, stream) for stream in old]
        if not group.members and len(old) == len(group.offsets):
            groups.append(group.name)
    return offsets, groups


def old_offsets(state: "State", group: Group, before_ms: int) -> list[int]:
    """An empty group's offsets age from when it became empty, those of self-assigned consumers from their commit."""
    now = state.members.time_ms
    emptied_ms = 0 if group.members else group.emptied_ms
    old = [
        stream
        for stream, commit in group.offsets.items()
        if (commit.expire_ms <= now if commit.expire_ms else max(commit.time_ms, emptied_ms) < before_ms)
    ]
    if not group.members or not old:
        return old
    unread = group.state == GroupState.STABLE and group.protocol_type == CONSUMER
    read = group_topics(group) if unread else None
    streams = state.streams.by_id
    return [
        stream
        for stream in old
        if group.offsets[stream].expire_ms or stream not in streams
        or (read is not None and streams[stream].topic.name not in read)
    ]  # fmt: skip


RULES = ((CommitOffsets, commit), (DeleteOffsets, delete), (ExpireOffsets, expire), (ExpireGroups, expire_groups))

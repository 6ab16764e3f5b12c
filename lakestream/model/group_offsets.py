"""Committed offsets: how far a group has come in each stream.

They are kept by stream id, so those of a deleted topic go with it and a new topic of the same name starts without any
(L25). A commit names the generation and the member that it comes from; one of a generation that is over is refused,
however late it arrives and whichever broker brings it (L30).
"""

from typing import TYPE_CHECKING, ClassVar

from lakestream.model.commands import Body
from lakestream.model.configs import LONG_MAX
from lakestream.model.group_members import CONSUMER, Commit, Group, GroupState, group_topics, member_problem
from lakestream.model.members import Member
from lakestream.model.reasons import No, Reason

if TYPE_CHECKING:
    from lakestream.model.state import State

CommitRow = tuple[int, int, int, str]
"""Stream, offset, leader epoch, the client's note."""


class CommitOffsets(Body, frozen=True, array_like=True):
    """Remember offsets for a group; with generation -1 for one whose consumers assign partitions to themselves."""

    KIND: ClassVar[int] = 24
    group: str
    generation: int
    member: str
    instance: str | None
    offsets: list[CommitRow]
    retention_ms: int = -1


class DeleteOffsets(Body, frozen=True, array_like=True):
    """Forget a group's offsets in these streams."""

    KIND: ClassVar[int] = 25
    group: str
    streams: list[int]


class ExpireOffsets(Body, frozen=True, array_like=True):
    """Forget what nobody used since this cluster time, and the empty groups that have nothing left."""

    KIND: ClassVar[int] = 27
    before_ms: int


def commit(state: "State", member: Member, body: CommitOffsets) -> list[int] | No:
    """For each offset 0, or the reason why it is not kept."""
    group = state.groups.by_name.get(body.group)
    if problem := commit_problem(group, body):
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
        if group is None:
            group = state.groups.by_name[body.group] = Group(body.group, state.sequence)
            state.groups.touch(body.group)
        group.offsets[stream] = Commit(offset, leader_epoch, note, now, expire)
        results.append(0)
    return results


def commit_problem(group: Group | None, body: CommitOffsets) -> Reason | None:
    """As Kafka judges it: a group with members takes commits only from them, in their generation."""
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
    return Reason.REBALANCING if group.state == GroupState.COMPLETING else None


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
        group.offsets.pop(stream_id, None)
        results.append(0)
    return results


def expire(state: "State", member: Member, body: ExpireOffsets) -> list[int]:
    """How many offsets and how many groups went."""
    offsets, groups = overdue(state, body.before_ms)
    for name, stream in offsets:
        del state.groups.by_name[name].offsets[stream]
    for name in groups:
        del state.groups.by_name[name]
        state.groups.touch(name)
    return [len(offsets), len(groups)]


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
        if group.offsets[stream].expire_ms or (read is not None and streams[stream].topic.name not in read)
    ]


RULES = ((CommitOffsets, commit), (DeleteOffsets, delete), (ExpireOffsets, expire))

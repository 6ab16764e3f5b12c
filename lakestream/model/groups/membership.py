"""Consumer groups: which broker coordinates a group, and the rules of its membership (L30).

The coordinator is a function of the state, so every broker knows it and no broker has to be told. What two of them
could disagree on is decided here: generations, members, assignments, and in offsets.py the committed offsets.
Every command about members names the group as its proposer saw it, and is refused if that has changed.
"""

import zlib
from collections import deque
from collections.abc import Set
from typing import TYPE_CHECKING, Any, ClassVar

from lakestream.model.commands import Body
from lakestream.model.groups import offsets
from lakestream.model.groups.group import (
    MAX_GROUP_BYTES,
    CommittedOffset,
    Group,
    GroupMember,
    GroupState,
    MemberRow,
    metadata_bytes,
    note_size,
    select_protocol,
)
from lakestream.model.members import Member
from lakestream.model.reasons import No, Reason

if TYPE_CHECKING:
    from lakestream.model.state import State

RECENT_CHANGES = 4096


class NewGeneration(Body, frozen=True, array_like=True):
    """The join phase ended: these members joined, and these static ones are kept although they did not.

    Holds if the group still has this generation and was last changed by the command `changed` (0: there was no group).
    """

    KIND: ClassVar[int] = 20
    group: str
    generation: int
    changed: int
    protocol_type: str
    joined: list[MemberRow]
    kept: list[str]


class Assign(Body, frozen=True, array_like=True):
    """The leader's assignments for this generation; a member that it does not name gets nothing."""

    KIND: ClassVar[int] = 21
    group: str
    generation: int
    leader: str
    assignments: list[tuple[str, bytes]]


class RemoveMembers(Body, frozen=True, array_like=True):
    """These members leave the generation; those with a sequence because they were not heard since then (L13)."""

    KIND: ClassVar[int] = 22
    group: str
    generation: int
    members: list[tuple[str, int]]


class ReplaceMember(Body, frozen=True, array_like=True):
    """A static member came back under a new id: it takes the place of the old one, which is fenced from now on."""

    KIND: ClassVar[int] = 23
    group: str
    old: str
    new: MemberRow


class DeleteGroup(Body, frozen=True, array_like=True):
    """Forget an empty group and its offsets."""

    KIND: ClassVar[int] = 26
    group: str


class Groups:
    """All groups, by name. `changes` and `recent` tell a reader which groups changed; they are no part of the state.

    `offsets` and `note_bytes` count what all groups have committed.
    """

    __slots__ = ("by_name", "changes", "note_bytes", "offsets", "recent")

    def __init__(self) -> None:
        self.by_name: dict[str, Group] = {}
        self.offsets = 0
        self.note_bytes = 0
        self.changes = 0
        self.recent: deque[str] = deque(maxlen=RECENT_CHANGES)

    def touch(self, name: str) -> None:
        self.changes += 1
        self.recent.append(name)

    def keep(self, group: Group, stream: int, commit: CommittedOffset) -> None:
        """Remember a committed offset in place of the one before."""
        before = group.offsets.get(stream)
        self.offsets += before is None
        self.note_bytes += note_size(commit.note) - (note_size(before.note) if before is not None else 0)
        group.offsets[stream] = commit

    def drop(self, group: Group, stream: int) -> None:
        """Forget a committed offset, if there is one."""
        before = group.offsets.pop(stream, None)
        if before is not None:
            self.offsets -= 1
            self.note_bytes -= note_size(before.note)

    def remove(self, group: Group) -> None:
        """Forget a group and its offsets."""
        for stream in list(group.offsets):
            self.drop(group, stream)
        del self.by_name[group.name]
        self.touch(group.name)

    def forget_streams(self, streams: Set[int]) -> None:
        """Forget the offsets that were committed for a deleted topic (L25)."""
        for group in self.by_name.values():
            self.forget_streams_of(group, streams)

    def forget_streams_of(self, group: Group, streams: Set[int]) -> None:
        for stream in streams & group.offsets.keys():
            self.drop(group, stream)

    def dump(self) -> list[Any]:
        return [group.dump() for group in self.by_name.values()]

    @classmethod
    def load(cls, fields: list[Any]) -> "Groups":
        groups = cls()
        for one in fields:
            group = Group.load(one)
            groups.by_name[group.name] = group
            groups.offsets += len(group.offsets)
            groups.note_bytes += sum(note_size(commit.note) for commit in group.offsets.values() if commit.note)
        return groups


def coordinator(state: "State", group: str) -> int | None:
    """The broker that coordinates a group: of the live ones that with the highest weight, so few groups ever move."""
    name = group.encode()
    return max((broker.id for broker in state.members.brokers()), key=lambda broker: weight(name, broker), default=None)


def weight(name: bytes, broker: int) -> tuple[int, int]:
    # A CRC is linear: without the mixing, the order of two brokers would hang on a single bit of the name.
    mixed = zlib.crc32(name, zlib.crc32(broker.to_bytes(4, "big")))
    mixed = (mixed ^ (mixed >> 16)) * 0x85EBCA6B & 0xFFFFFFFF
    mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35 & 0xFFFFFFFF
    return mixed ^ (mixed >> 16), broker


def new_generation(state: "State", member: Member, body: NewGeneration) -> int | No:
    """The number of the generation. The leader stays if it joined again, else the first that joined leads."""
    group = state.groups.by_name.get(body.group)
    if coordinator(state, body.group) != member.id:
        return NOT_COORDINATOR
    if (body.generation, body.changed) != ((group.generation, group.changed) if group else (0, 0)):
        return No(Reason.STALE_PREMISE, "the group has changed")
    if not body.joined or not body.protocol_type:
        return No(Reason.INVALID_REQUEST, "a generation needs members and a protocol type")
    members = [GroupMember(row, state.sequence) for row in body.joined]
    for kept in body.kept:
        if group is None or kept not in group.members:
            return No(Reason.UNKNOWN_GROUP_MEMBER, f"{kept} cannot be kept: it is no member")
        members.append(group.members[kept])
    instances = [one.instance for one in members if one.instance is not None]
    if len({one.id for one in members}) < len(members) or len(set(instances)) < len(instances):
        return No(Reason.INVALID_REQUEST, "a member is named twice")
    if sum(metadata_bytes(one.protocols) for one in members) > MAX_GROUP_BYTES:
        return No(Reason.GROUP_FULL, "the members' metadata is too large")
    protocol = select_protocol([one.protocols for one in members])
    if protocol is None:
        return No(Reason.INCONSISTENT_PROTOCOL, "the members have no protocol in common")
    if group is None:
        if full := offsets.groups_problem(state):
            return full
        group = state.groups.by_name[body.group] = Group(body.group, state.sequence)
    for one in members:
        one.assignment = b""
    group.seat(members)
    group.generation += 1
    group.protocol_type, group.protocol = body.protocol_type, protocol
    if group.leader not in {row.id for row in body.joined}:
        group.leader = body.joined[0].id
    settle(state, group, GroupState.COMPLETING)
    return group.generation


def assign(state: "State", member: Member, body: Assign) -> int | No:
    group = state.groups.by_name.get(body.group)
    if problem := premise(state, member, group, body.group, body.generation):
        return problem
    assert group is not None
    if body.leader != group.leader or body.leader not in group.members:
        return No(Reason.UNKNOWN_GROUP_MEMBER, "only the leader assigns")
    if group.state != GroupState.COMPLETING:
        return No(Reason.REBALANCING if group.state == GroupState.PREPARING else Reason.STALE_PREMISE, "not awaited")
    carried = sum(metadata_bytes(one.protocols) for one in group.members.values())
    if carried + sum(len(assignment) for _, assignment in body.assignments) > 2 * MAX_GROUP_BYTES:
        return No(Reason.GROUP_FULL, "the assignment is too large")
    for member_id, assignment in body.assignments:
        if member_id in group.members:
            group.members[member_id].assignment = assignment
    group.members[body.leader].heard = state.sequence
    settle(state, group, GroupState.STABLE)
    return group.generation


def remove_members(state: "State", member: Member, body: RemoveMembers) -> list[int] | No:
    """For each member 1 if it was removed, 0 if it was gone already or was heard since."""
    group = state.groups.by_name.get(body.group)
    if problem := premise(state, member, group, body.group, body.generation):
        return problem
    assert group is not None
    members, results = dict(group.members), []
    for member_id, heard in body.members:
        one = members.get(member_id)
        goes = one is not None and heard in (0, one.heard)
        if goes:
            del members[member_id]
        results.append(int(goes))
    if len(members) < len(group.members):
        shrink(state, group, members)
    return results


def shrink(state: "State", group: Group, members: dict[str, GroupMember]) -> None:
    """Go on with fewer members: they rebalance; without members the group is empty, in a new generation."""
    group.seat(members.values())
    if group.leader not in members:
        group.leader = ""
    if members:
        settle(state, group, GroupState.PREPARING)
        return
    group.generation += 1
    group.protocol = ""
    group.emptied_ms = state.members.time_ms
    settle(state, group, GroupState.EMPTY)


def replace_member(state: "State", member: Member, body: ReplaceMember) -> int | No:
    """The generation. A stable group stays so if the newcomer changes nothing about its protocol."""
    group = state.groups.by_name.get(body.group)
    if coordinator(state, body.group) != member.id:
        return NOT_COORDINATOR
    instance = body.new.instance
    if group is None or instance is None or instance not in group.statics:
        return No(Reason.UNKNOWN_GROUP_MEMBER, "there is no such static member")
    if group.statics[instance] != body.old or body.new.id in group.members:
        return No(Reason.FENCED_INSTANCE, "another one took its place")
    newcomer = GroupMember(body.new, state.sequence)
    seats = [newcomer if one.id == body.old else one for one in group.members.values()]
    if sum(metadata_bytes(one.protocols) for one in seats) > MAX_GROUP_BYTES:
        return No(Reason.GROUP_FULL, "the members' metadata is too large")
    protocol = select_protocol([one.protocols for one in seats])
    if protocol is None:
        return No(Reason.INCONSISTENT_PROTOCOL, "the members have no protocol in common")
    newcomer.assignment = group.members[body.old].assignment
    group.seat(seats)
    if group.leader == body.old:
        group.leader = body.new.id
    stays = group.state == GroupState.STABLE and protocol == group.protocol
    settle(state, group, GroupState.STABLE if stays else GroupState.PREPARING)
    return group.generation


def delete_group(state: "State", member: Member, body: DeleteGroup) -> No | None:
    group = state.groups.by_name.get(body.group)
    if group is None:
        return No(Reason.UNKNOWN_GROUP, f"there is no group {body.group!r}")
    if group.members:
        return No(Reason.GROUP_NOT_EMPTY, "the group has members")
    state.groups.remove(group)
    return None


NOT_COORDINATOR = No(Reason.NOT_COORDINATOR, "another broker coordinates this group")


def premise(state: "State", member: Member, group: Group | None, name: str, generation: int) -> No | None:
    """Only the coordinator speaks for the group, and only about the generation that there is."""
    if coordinator(state, name) != member.id:
        return NOT_COORDINATOR
    if group is None:
        return No(Reason.UNKNOWN_GROUP, f"there is no group {name!r}")
    if group.generation != generation:
        return No(Reason.STALE_GENERATION, f"the group is in generation {group.generation}")
    return None


def settle(state: "State", group: Group, to: GroupState) -> None:
    group.state = to
    group.changed = state.sequence
    state.groups.touch(group.name)


RULES = (
    (NewGeneration, new_generation),
    (Assign, assign),
    (RemoveMembers, remove_members),
    (ReplaceMember, replace_member),
    (DeleteGroup, delete_group),
)

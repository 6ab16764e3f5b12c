"""One consumer group: its generation, its members and what each of them may do (L30).

    EMPTY        the group has no members; its offsets stay, and simple consumers may commit
    PREPARING    a member has left, and the rest has to join again (a rebalance for new members only is not stored: the
                 coordinator keeps it in memory until it ends with a new generation)
    COMPLETING   a generation was made, and its leader has not sent the assignments yet
    STABLE       every member has an assignment
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

from lakestream.model.reasons import Reason
from lakestream.model.stored import row_of

CONSUMER = "consumer"
"""The protocol type of consumers: its subscriptions can be read."""
MAX_MEMBER_BYTES = 1 << 20
MAX_GROUP_BYTES = 4 << 20
"""How much metadata one member, and all of a group, may carry: the state and its commands are bounded."""

Protocols = list[tuple[str, bytes]]
"""The protocols of a member, best first, with its metadata for each."""


class GroupState(IntEnum):
    """Stored; numbers are never changed."""

    EMPTY = 0
    PREPARING = 1
    COMPLETING = 2
    STABLE = 3


class MemberRow(NamedTuple):
    """A member as it joins, in a command. Without `instance` it is a dynamic one."""

    id: str
    instance: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: Protocols


class CommittedOffset(NamedTuple):
    """A committed offset; `expire_ms` is the cluster time at which it goes whatever the group does, if not 0."""

    offset: int
    leader_epoch: int
    note: str
    time_ms: int
    expire_ms: int


def note_size(note: str) -> int:
    """The bytes of a client's note, as UTF-8."""
    return len(note) if note.isascii() else len(note.encode())


class GroupMember:
    """A member of the current generation; `heard` is the last command that was proposed for it (L13)."""

    __slots__ = (
        "assignment", "client_host", "client_id", "heard", "id", "instance", "protocols", "rebalance_ms", "session_ms",
    )  # fmt: skip

    def __init__(self, row: MemberRow, heard: int) -> None:
        self.id = row.id
        self.instance = row.instance
        self.client_id = row.client_id
        self.client_host = row.client_host
        self.session_ms = row.session_ms
        self.rebalance_ms = row.rebalance_ms
        self.protocols = row.protocols
        self.assignment = b""
        self.heard = heard

    def __repr__(self) -> str:
        return f"<GroupMember {self.id} heard={self.heard}>"

    def row(self) -> MemberRow:
        return MemberRow(
            self.id, self.instance, self.client_id, self.client_host, self.session_ms, self.rebalance_ms, self.protocols
        )

    def metadata(self, protocol: str) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def dump(self) -> list[Any]:
        return [self.row(), self.assignment, self.heard]

    @classmethod
    def load(cls, fields: list[Any]) -> "GroupMember":
        row = row_of(MemberRow, fields[0])
        member = cls(row._replace(protocols=[(name, metadata) for name, metadata in row.protocols]), fields[2])
        member.assignment = fields[1]
        return member


class Group:
    """One group. `changed` is the sequence of the last command that touched more than its offsets."""

    __slots__ = (
        "changed", "emptied_ms", "generation", "leader", "members", "name", "offsets", "protocol", "protocol_type",
        "state", "statics",
    )  # fmt: skip

    def __init__(self, name: str, changed: int) -> None:
        self.name = name
        self.changed = changed
        self.generation = 0
        self.state = GroupState.EMPTY
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, GroupMember] = {}
        self.statics: dict[str, str] = {}
        self.offsets: dict[int, CommittedOffset] = {}
        self.emptied_ms = 0

    def __repr__(self) -> str:
        return f"<Group {self.name} {self.state.name} generation={self.generation} members={len(self.members)}>"

    def seat(self, members: Iterable[GroupMember]) -> None:
        """These are the members now."""
        self.members = {member.id: member for member in members}
        self.statics = {member.instance: member.id for member in self.members.values() if member.instance is not None}

    def dump(self) -> list[Any]:
        return [
            self.name, self.changed, self.generation, int(self.state), self.protocol_type, self.protocol, self.leader,
            self.emptied_ms, [member.dump() for member in self.members.values()], list(self.offsets.items()),
        ]  # fmt: skip

    @classmethod
    def load(cls, fields: list[Any]) -> "Group":
        group = cls(fields[0], fields[1])
        group.generation, group.state = fields[2], GroupState(fields[3])
        group.protocol_type, group.protocol, group.leader, group.emptied_ms = fields[4:8]
        group.seat(map(GroupMember.load, fields[8]))
        group.offsets = {stream: row_of(CommittedOffset, commit) for stream, commit in fields[9]}
        return group


def member_problem(group: Group | None, member_id: str, instance: str | None) -> Reason | None:
    """Why a request cannot act for this member, by Kafka's rules."""
    if group is None:
        return Reason.UNKNOWN_GROUP_MEMBER
    if instance is not None:
        owner = group.statics.get(instance)
        if owner is None:
            return Reason.UNKNOWN_GROUP_MEMBER
        if owner != member_id:
            return Reason.FENCED_INSTANCE
    return None if member_id in group.members else Reason.UNKNOWN_GROUP_MEMBER


def common_protocols(members: Iterable[Protocols]) -> set[str]:
    """The protocols that all members know."""
    sets = [{name for name, _ in protocols} for protocols in members]
    return set.intersection(*sets) if sets else set()


def select_protocol(members: list[Protocols]) -> str | None:
    """The protocol with the most votes: each member votes for its first one that all members know."""
    common = common_protocols(members)
    votes: dict[str, int] = {}
    for protocols in members:
        choice = next((name for name, _ in protocols if name in common), None)
        if choice is not None:
            votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=votes.__getitem__) if votes else None


def metadata_bytes(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def group_topics(group: Group) -> set[str] | None:
    """The topics that a group of consumers reads; None if they are unknown, which counts as all (as in Kafka).

    Parses the subscription of every member: call it once, not for each topic.
    """
    read: set[str] = set()
    if group.protocol_type != CONSUMER:
        return read
    for member in group.members.values():
        topics = subscribed_topics(member.metadata(group.protocol)) if group.protocol else None
        if topics is None:
            return None
        read |= topics
    return read


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """The topics in a consumer's subscription (version i16, then an array of strings), or None if it is none."""
    try:
        version, count = struct.unpack_from(">hi", metadata)
        if version < 0 or not 0 <= count <= len(metadata):
            return None
        topics, position = set(), 6
        for _ in range(count):
            (size,) = struct.unpack_from(">h", metadata, position)
            position += 2
            if size < 0 or position + size > len(metadata):
                return None
            topics.add(metadata[position : position + size].decode())
            position += size
    except (struct.error, UnicodeDecodeError):
        return None
    return topics

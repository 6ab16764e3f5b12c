"""Members: the brokers and pipelines that propose commands, their epochs, and the cluster's time.

An epoch begins with `Register` and ends by `Leave`, by `Expire`, or by a newer incarnation of the same member, which
takes its id at once. Epochs are numbered over the whole cluster, so an epoch names one registration for good.

    Register(new incarnation)  -> a new epoch; a previous one of this member ends
    Register(live incarnation) -> the same epoch again: the answer was lost (L1)
    Register(past incarnation) -> refused: a newer incarnation has its id
"""

from typing import TYPE_CHECKING, Any

from lakestream.model.bounds import settle_bounds
from lakestream.model.cluster_time import agreed_time, follow_clock
from lakestream.model.commands import Expire, Heartbeat, Leave, Noop, RaiseLevel, Register
from lakestream.model.levels import BOUNDED
from lakestream.model.reasons import No, Reason

if TYPE_CHECKING:
    from lakestream.model.state import State

PAST_INCARNATIONS_KEPT = 8


class Member:
    """One member; `alive` tells whether its newest epoch still lives."""

    __slots__ = (
        "ahead", "alive", "clock_ms", "digest", "digest_sequence", "epoch", "heard", "host", "http", "id",
        "incarnation", "last_n", "level", "move", "past_incarnations", "pid", "port", "rack", "role", "tick", "time_ms",
    )  # fmt: skip

    def __init__(self, member_id: int) -> None:
        self.id = member_id
        self.epoch = 0
        self.incarnation = b""
        self.past_incarnations: list[bytes] = []
        self.alive = False
        self.last_n = 0
        self.heard = 0
        self.tick = 0
        self.move = 0
        self.clock_ms = 0
        """Its wall clock at its last heartbeat; 0 if this epoch had none."""
        self.time_ms = 0
        """The cluster time that it votes for (cluster_time.py)."""
        self.ahead = 0
        """For how many heartbeats in a row its clock was far ahead of cluster time."""
        self.digest = 0
        self.digest_sequence = 0
        self.role = ""
        self.host = ""
        self.port = 0
        self.http = ""
        self.pid = 0
        self.level = 0
        self.rack = ""

    def __repr__(self) -> str:
        return f"<Member {self.id} {self.role} epoch={self.epoch} {'alive' if self.alive else 'gone'}>"

    def dump(self, level: int) -> list[Any]:
        names = STORED if level >= BOUNDED else STORED[:STORED_FIRST]
        return [getattr(self, name) for name in names]

    @classmethod
    def load(cls, fields: list[Any]) -> "Member":
        """Fields that an older checkpoint does not have keep their defaults; those of a newer one are left out."""
        member = cls(0)
        for name, value in zip(STORED, fields, strict=False):
            setattr(member, name, value)
        return member


STORED = (
    "alive", "clock_ms", "digest", "digest_sequence", "epoch", "heard", "host", "http", "id", "incarnation",
    "last_n", "level", "move", "past_incarnations", "pid", "port", "rack", "role", "tick",
    "time_ms", "ahead",
)  # fmt: skip
"""The fields of a member in a checkpoint, in their order for good: later ones are added at the end."""
STORED_FIRST = 19
"""So many of them are stored at the first level."""


class Members:
    """All members ever registered, by id, and what is derived from the live ones."""

    __slots__ = ("by_id", "next_epoch", "time_ms")

    def __init__(self) -> None:
        self.by_id: dict[int, Member] = {}
        self.next_epoch = 1
        self.time_ms = 0

    def live(self) -> list[Member]:
        return sorted((member for member in self.by_id.values() if member.alive), key=lambda member: member.id)

    def brokers(self) -> list[Member]:
        return [member for member in self.live() if member.role == "broker"]

    def settle_time_first(self) -> None:
        """The rule of the first level: the lower median of the live members' clocks, and never back (L14)."""
        clocks = sorted(member.clock_ms for member in self.by_id.values() if member.alive and member.clock_ms)
        if clocks:
            self.time_ms = max(self.time_ms, clocks[(len(clocks) - 1) // 2])

    def settle_time(self) -> None:
        """Cluster time is what the live members' votes agree on, and never goes back (L14)."""
        voters = self.brokers() or self.live()
        agreed = agreed_time([(member.host, member.time_ms) for member in voters if member.time_ms])
        self.time_ms = max(self.time_ms, agreed)

    def dump(self, level: int) -> list[Any]:
        return [self.next_epoch, self.time_ms, [member.dump(level) for member in self.by_id.values()]]

    @classmethod
    def load(cls, fields: list[Any]) -> "Members":
        members = cls()
        members.next_epoch, members.time_ms = fields[0], fields[1]
        for one in fields[2]:
            member = Member.load(one)
            members.by_id[member.id] = member
        return members


def register(state: "State", member_id: int, body: Register) -> int | No:
    """The epoch of this incarnation. Not judged by identity: it is what makes one."""
    if body.level < state.level:
        text = f"the cluster is at feature level {state.level}, this member knows {body.level}"
        return No(Reason.LEVEL_UNSUPPORTED, text)
    if state.cluster and body.cluster and body.cluster != state.cluster:
        return No(Reason.OTHER_CLUSTER, f"this log belongs to cluster {state.cluster}, not {body.cluster}")
    if not state.cluster and not body.cluster:
        return No(Reason.INVALID_REQUEST, "the first registration has to bring a cluster id")
    members = state.members
    member = members.by_id.get(member_id)
    if member is not None and body.incarnation == member.incarnation and member.alive:
        return member.epoch
    if member is not None and (body.incarnation == member.incarnation or body.incarnation in member.past_incarnations):
        return No(Reason.OLD_INCARNATION, "this incarnation's epoch has ended")
    if not state.cluster:
        state.cluster = body.cluster
    if member is None:
        member = members.by_id[member_id] = Member(member_id)
    else:
        member.past_incarnations = [*member.past_incarnations, member.incarnation][-PAST_INCARNATIONS_KEPT:]
    member.incarnation = body.incarnation
    member.epoch = members.next_epoch
    members.next_epoch += 1
    member.alive, member.last_n, member.tick, member.move = True, 0, 0, 0
    member.heard = state.sequence
    member.clock_ms = member.time_ms = member.ahead = 0
    member.role, member.rack, member.level = body.role, body.rack, body.level
    member.host, member.port, member.http, member.pid = body.host, body.port, body.http, body.pid
    return member.epoch


def noop(state: "State", member: Member, body: Noop) -> None:
    settle(member, body)


def heartbeat(state: "State", member: Member, body: Heartbeat) -> None:
    settle(member, body)
    members, before_ms = state.members, member.clock_ms
    member.clock_ms = max(body.wall_ms, 0)
    member.digest_sequence, member.digest = body.sequence, body.digest
    if state.level < BOUNDED:
        members.settle_time_first()
    else:
        member.time_ms, member.ahead = follow_clock(
            members.time_ms, member.time_ms, member.ahead, before_ms, member.clock_ms
        )
        members.settle_time()


def settle(member: Member, body: Noop | Heartbeat) -> None:
    member.tick = max(member.tick, body.tick)
    member.move = max(member.move, body.move)


def expire(state: "State", member: Member, body: Expire) -> No | None:
    target = state.members.by_id.get(body.member)
    if target is None or not target.alive or target.epoch != body.epoch:
        return No(Reason.UNKNOWN_MEMBER, "that epoch has ended already")
    if target.heard != body.heard:
        return No(Reason.STALE_PREMISE, "it was heard since")
    target.alive = False
    return None


def leave(state: "State", member: Member, body: Leave) -> None:
    member.alive = False


def raise_level(state: "State", member: Member, body: RaiseLevel) -> int | No:
    if body.level <= state.level:
        return state.level
    behind = [one.id for one in state.members.live() if one.level < body.level]
    if behind:
        return No(Reason.LEVEL_UNSUPPORTED, f"members {behind} do not know level {body.level}")
    state.level = body.level
    settle_bounds(state)
    return state.level


RULES = ((Noop, noop), (Heartbeat, heartbeat), (Expire, expire), (Leave, leave), (RaiseLevel, raise_level))

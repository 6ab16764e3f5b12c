"""The whole state, and `apply`: the one pure function that every member folds every command through.

`apply` is deterministic: no clock, no chance, no environment, no iteration over unordered things; time is data in
commands. It decides first and mutates then. A refused command changes only the proposer's number and the digest of
outcomes. A command that is not in turn (an ended epoch, another number) changes nothing at all (L1, L2).
"""

import struct
import zlib
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from lakestream.errors import Corrupt, Halted
from lakestream.model import members, pieces, producers, streams, topics
from lakestream.model.append_times import AppendTimes
from lakestream.model.bounds import settle_bounds
from lakestream.model.catalog import care, landed, namespaces, rebinding, tables, views
from lakestream.model.catalog.care import Care
from lakestream.model.catalog.tables import Catalog
from lakestream.model.commands import APPEND, ENVELOPE, Body, Register
from lakestream.model.groups import membership, offsets
from lakestream.model.groups.membership import Groups
from lakestream.model.levels import BOUNDED, FIRST, NEWEST
from lakestream.model.members import Member, Members
from lakestream.model.producers import NO_LIMITS, Producers
from lakestream.model.reasons import NOT_IN_TURN, No, Reason
from lakestream.model.stamped_append import STAMPED_APPEND, append_stamped
from lakestream.model.streams import Streams
from lakestream.model.topics import Topics
from lakestream.model.unpacking import free, unpack

Outcome = Any
"""A list of results for `Append`; else what the rule says, a No, or NOT_IN_TURN."""
Rule = Callable[["State", Member, Any], Outcome]

FAMILIES: tuple[Any, ...] = (
    members, topics, pieces, streams, producers, membership, offsets,
    namespaces, tables, landed, views, rebinding, care,
)  # fmt: skip
"""The modules with the commands: `RULES` of each lists bodies and what is done with them."""
PACKED_RULES: dict[int, tuple[int, Rule]] = {
    APPEND: (FIRST, streams.append),
    STAMPED_APPEND: (BOUNDED, append_stamped),
}
"""Commands with packed bodies: their levels, and what is done with them."""
_RULES: dict[int, tuple[int, msgspec.msgpack.Decoder[Any], Rule]] = {
    body.KIND: (body.LEVEL, msgspec.msgpack.Decoder(body), rule) for family in FAMILIES for body, rule in family.RULES
}
_REGISTER = msgspec.msgpack.Decoder(Register)

CHECKPOINT = struct.Struct("<4sBxxxI")
CHECKPOINT_MAGIC = b"LKSC"
CHECKPOINT_VERSION = 1
MOVED_MAX = 100_000
"""Most names in `State.moved`: a member without clients, such as a standby pipeline, never empties the list."""
CHECKED_AT_ONCE = 4 * 1024 * 1024


class State:
    """What all members agree on after folding the commands up to `sequence`."""

    __slots__ = (
        "all_moved", "care", "catalog", "cluster", "digest", "groups", "level", "members", "moved", "producers",
        "sequence", "streams", "topics",
    )  # fmt: skip

    def __init__(self) -> None:
        self.sequence = 0
        self.digest = 0
        self.level = FIRST
        self.cluster = ""
        self.members = Members()
        self.topics = Topics()
        self.streams = Streams()
        self.producers = Producers()
        self.groups = Groups()
        self.catalog = Catalog()
        self.care = Care()
        self.moved: list[int] = []
        """Streams whose end moved since this list was last emptied: for waking readers, not part of the state."""
        self.all_moved = False
        """More streams moved than `moved` may name: its reader has to look at all streams."""


def apply(state: State, sequence: int, command: bytes) -> Outcome:
    """Fold one command. Raises Halted if this code cannot know what it means (L3)."""
    assert sequence == state.sequence + 1, "commands are folded in order, each once"
    if len(command) < ENVELOPE.size:
        state.sequence = sequence
        return NOT_IN_TURN
    level, kind, member_id, epoch, n = ENVELOPE.unpack_from(command)
    if level <= state.level and kind not in _RULES and kind not in PACKED_RULES and kind != Register.KIND:
        raise Halted(f"command {sequence} is of kind {kind} (level {level}), which this version does not know; upgrade")
    state.sequence = sequence
    if kind == Register.KIND and level <= state.level:
        outcome = _register(state, member_id, command)
    else:
        member = state.members.by_id.get(member_id)
        if member is None or not member.alive or member.epoch != epoch or n != member.last_n + 1:
            return NOT_IN_TURN
        member.last_n = n
        member.heard = sequence
        outcome = _judge(state, member, level, kind, command)
    state.digest = zlib.crc32(_digestible(outcome), state.digest)
    if len(state.moved) > MOVED_MAX:
        state.all_moved = True
        state.moved.clear()
    return outcome


def _register(state: State, member_id: int, command: bytes) -> Outcome:
    try:
        body = _REGISTER.decode(memoryview(command)[ENVELOPE.size :])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return No(Reason.MALFORMED, str(error))
    return members.register(state, member_id, body)


def _judge(state: State, member: Member, level: int, kind: int, command: bytes) -> Outcome:
    payload = memoryview(command)[ENVELOPE.size :]
    if level > state.level:
        return _too_new(level)
    if kind in PACKED_RULES:
        needed, rule = PACKED_RULES[kind]
        return rule(state, member, payload) if needed <= state.level else _too_new(needed)
    needed, decoder, rule = _RULES[kind]
    if needed > state.level:
        return _too_new(needed)
    try:
        body: Body = decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return No(Reason.MALFORMED, str(error))
    return rule(state, member, body)


def _too_new(level: int) -> No:
    return No(Reason.NEWER_LEVEL, f"feature level {level} is not in use yet: some live members do not know it")


def check_level(state: State, known: int) -> None:
    """Raises Halted if the state is at a level above `known` (L3)."""
    if state.level > known:
        raise Halted(f"the cluster is at feature level {state.level}, this version knows levels up to {known}; upgrade")


def _digestible(outcome: Outcome) -> bytes:
    if type(outcome) is list and outcome and type(outcome[0]) is int:
        return array("q", outcome).tobytes()
    if isinstance(outcome, No):
        return bytes((0xFF, outcome.reason))
    return msgspec.msgpack.encode(outcome)


def dump(state: State) -> bytes:
    """The state as the bytes of a checkpoint; equal states give equal bytes."""
    doomed = [stream for one in state.topics.doomed.values() for stream in one.streams]
    later = [state.streams.append_times.dump()] if state.level >= BOUNDED else []
    body = msgspec.msgpack.encode(
        [
            state.sequence, state.digest, state.level, state.cluster, state.members.dump(state.level),
            state.topics.dump(state.level), state.streams.dump(doomed, state.level), state.producers.dump(),
            state.groups.dump(), state.catalog.dump(state.level), state.care.dump(), *later,
        ]
    )  # fmt: skip
    return CHECKPOINT.pack(CHECKPOINT_MAGIC, CHECKPOINT_VERSION, crc32c(body)) + body


def load(checkpoint: bytes | bytearray | memoryview, known: int = NEWEST) -> State:
    """The state of a checkpoint. Fields beyond those that this code knows are left out.

    Works in small steps: called in a thread, it never holds the interpreter for long, however large the state is.
    Raises Corrupt if these are not the bytes that were written, Halted if the state's level is above `known`.
    """
    if len(checkpoint) < CHECKPOINT.size:
        raise Corrupt("a checkpoint was cut short")
    magic, version, checksum = CHECKPOINT.unpack_from(checkpoint)
    body = memoryview(checkpoint)[CHECKPOINT.size :]
    if magic != CHECKPOINT_MAGIC or _checksum(body) != checksum:
        raise Corrupt("a checkpoint's checksum is wrong")
    if version != CHECKPOINT_VERSION:
        raise Halted(f"checkpoint version {version} is newer than this code; upgrade")
    fields = unpack(body)
    state = State()
    state.sequence, state.digest, state.level, state.cluster = fields[:4]
    check_level(state, known)
    state.members = Members.load(fields[4])
    state.topics = Topics.load(fields[5])
    state.streams = Streams.load(fields[6], state.topics)
    state.producers = Producers.load(fields[7])
    state.groups = Groups.load(fields[8])
    state.catalog = Catalog.load(fields[9]) if len(fields) > 9 else Catalog()
    state.care = Care.load(fields[10]) if len(fields) > 10 else Care()
    if state.level >= BOUNDED:  # the producers are in order since the level was raised
        state.producers.limits = NO_LIMITS
    settle_bounds(state)
    if len(fields) > 11:
        state.streams.append_times = AppendTimes.load(fields[11])
    free(fields)
    return state


def _checksum(body: memoryview) -> int:
    checksum = 0
    for start in range(0, len(body), CHECKED_AT_ONCE):
        checksum = crc32c(body[start : start + CHECKED_AT_ONCE], checksum)
    return checksum

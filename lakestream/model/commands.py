"""The commands of the log, and how a command is encoded.

A command is an envelope (feature level, kind, and its proposer: member, epoch, n) and a body. Bodies are arrays of
fields in a fixed order (msgpack); a later version may only add fields with defaults at the end. `Append`, the hot
one, has a packed body, see `model/append_rows.py`. The format page is docs/formats/commands.md.
"""

import struct
from typing import ClassVar, NamedTuple

import msgspec

from lakestream.model.bounds import CONFIGS as BOUND_CONFIGS
from lakestream.model.levels import BOUNDED, FIRST

ENVELOPE = struct.Struct("<BBIQQ")

APPEND = 10
"""The kind of the hot command; kinds of the others stand in their bodies. Numbers are never reused."""


class Envelope(NamedTuple):
    """The proposer and the kind of a command. `n` counts the proposals of an epoch, from 1, without gaps (L1)."""

    level: int
    kind: int
    member: int
    epoch: int
    n: int


class Body(msgspec.Struct, frozen=True, array_like=True):
    """Base of all cold command bodies."""

    KIND: ClassVar[int] = 0
    LEVEL: ClassVar[int] = FIRST
    """The feature level that brought the command."""

    def needed_level(self) -> int:
        """The level that this very command needs: a body that uses a later field overrides this."""
        return self.LEVEL


class Register(Body, frozen=True, array_like=True):
    """Become a live member; `cluster` is taken as the cluster's id if this is the very first command (L4)."""

    KIND: ClassVar[int] = 1
    incarnation: bytes
    cluster: str
    role: str
    host: str
    port: int
    http: str
    pid: int
    level: int
    rack: str = ""


class Noop(Body, frozen=True, array_like=True):
    """Fill a number whose proposal was given up (L1); ticks and moves up to these numbers are settled (L22)."""

    KIND: ClassVar[int] = 2
    tick: int = 0
    move: int = 0


class Heartbeat(Body, frozen=True, array_like=True):
    """The member is alive: its wall clock, and the digest of its outcomes up to `sequence` (L10, L14)."""

    KIND: ClassVar[int] = 3
    wall_ms: int
    sequence: int
    digest: int
    tick: int
    move: int = 0


class Expire(Body, frozen=True, array_like=True):
    """End the epoch of a member that was not heard since sequence `heard`, if that still holds (L13)."""

    KIND: ClassVar[int] = 4
    member: int
    epoch: int
    heard: int


class Leave(Body, frozen=True, array_like=True):
    """The proposer ends its own epoch: a drained stop."""

    KIND: ClassVar[int] = 5


class RaiseLevel(Body, frozen=True, array_like=True):
    """Use commands of a newer level from now on; needs the support of all live members (L3)."""

    KIND: ClassVar[int] = 6
    level: int


class CreateTopic(Body, frozen=True, array_like=True):
    """A new topic with its streams. Names of deleted topics may come back, ids never do (L25)."""

    KIND: ClassVar[int] = 11
    name: str
    topic_id: bytes
    partitions: int
    replication: int
    configs: dict[str, str]


class DeleteTopic(Body, frozen=True, array_like=True):
    """The topic goes, with its entries, producers' memory and committed offsets (L25).

    `again`: its producers may go on in a topic of its name where they are (producers.py). Older commands do not say so.
    """

    KIND: ClassVar[int] = 12
    topic_id: bytes
    again: bool = False


class CreatePartitions(Body, frozen=True, array_like=True):
    """Grow a topic to `total` partitions."""

    KIND: ClassVar[int] = 13
    topic_id: bytes
    total: int


class AlterConfigs(Body, frozen=True, array_like=True):
    """Set (or with None: unset) configs of a topic, or with an empty id those of the whole cluster."""

    KIND: ClassVar[int] = 14
    topic_id: bytes
    changes: list[tuple[str, str | None]]

    def needed_level(self) -> int:
        return BOUNDED if any(name in BOUND_CONFIGS for name, _ in self.changes) else FIRST


class AllocateProducerId(Body, frozen=True, array_like=True):
    """Ask for an unused producer id."""

    KIND: ClassVar[int] = 15


class ExpireProducers(Body, frozen=True, array_like=True):
    """Forget the producer ids that were last used before this cluster time, whole ids only (L18)."""

    KIND: ClassVar[int] = 16
    before_ms: int


class AdvanceLogStart(Body, frozen=True, array_like=True):
    """Move log starts (retention, DeleteRecords): (stream, first offset to keep) (L24)."""

    KIND: ClassVar[int] = 17
    starts: list[tuple[int, int]]


class MovedSlice(NamedTuple):
    """One contiguous range of a stream, in a merged object."""

    stream: int
    base: int
    records: int
    position: int
    length: int
    max_timestamp: int


class ReplaceEntries(Body, frozen=True, array_like=True):
    """Serve these ranges from merged object number `move` instead of the entries that cover them now (L20)."""

    KIND: ClassVar[int] = 18
    move: int
    size: int
    time_ms: int
    slices: list[MovedSlice]


class Collected(Body, frozen=True, array_like=True):
    """These dead objects' bytes are deleted: forget their names (L23)."""

    KIND: ClassVar[int] = 19
    objects: list[int]


def encode(level: int, kind: int, member: int, epoch: int, n: int, payload: bytes) -> bytes:
    return ENVELOPE.pack(level, kind, member, epoch, n) + payload


def pack(body: Body) -> bytes:
    return msgspec.msgpack.encode(body)


def envelope_of(command: bytes) -> Envelope | None:
    """The envelope, or None if the bytes are too short to have one."""
    if len(command) < ENVELOPE.size:
        return None
    return Envelope._make(ENVELOPE.unpack_from(command))

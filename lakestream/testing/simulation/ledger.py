"""The checkers of simulations: whether the answers to clients and the batches that readers got keep the contract.

There are two witnesses. The ledger is on the clients' side: it knows every batch that was sent, the answer to each
attempt, and every batch that was ever read. The auditor is at the stores: it folds each command as soon as it is in the
log, so it always knows the true state, and compares the brokers' states with it. A breach of the contract becomes a
`Violation` at the moment at which it shows.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from lakestream.data.memory import MemoryWal
from lakestream.interfaces import Appended
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.batches.wal_object import merged_key, wal_key
from lakestream.model.commands import ENVELOPE
from lakestream.model.groups.offsets import CommitOffsets
from lakestream.model.reasons import No, NotInTurn
from lakestream.model.state import Outcome, State, apply, dump, load
from lakestream.model.streams import MERGED, WalObject

Partition = tuple[bytes, int]
"""A topic's id and the number of one of its partitions."""

_FRAME = struct.Struct(">qi")
_DELTA = struct.Struct(">i")
STAMPED_BYTES = 16
"""Base offset, length and leader epoch, which brokers stamp; the rest of a batch never changes."""


class Violation(AssertionError):
    """The contract is broken."""


@dataclass(slots=True, eq=False)
class Sent:
    """One batch of a client, through all its attempts."""

    partition: Partition
    raw: bytes
    count: int
    unsure: int = 0
    """Attempts without an answer: any of them may have put the batch into the log."""
    acked: int | None = None
    seen: int | None = None


@dataclass(slots=True)
class BatchLedger:
    """The batches that clients sent and read, with the answers that they got."""

    sent: dict[bytes, Sent] = field(default_factory=dict)
    read: dict[Partition, dict[int, bytes]] = field(default_factory=dict)
    ends: dict[Partition, int] = field(default_factory=dict)
    """The highest end of an acknowledged batch: no broker may report a lower end of the log afterwards."""

    def send(self, partition: Partition, raw: bytes) -> Sent:
        batch = Sent(partition, raw, _DELTA.unpack_from(raw, 23)[0] + 1)
        if self.sent.setdefault(raw[STAMPED_BYTES:], batch) is not batch:
            raise ValueError("two batches of a workload have to differ")
        return batch

    def ack(self, batch: Sent, offset: int) -> None:
        if batch.acked is not None and batch.acked != offset:
            raise Violation(f"a batch was acknowledged at {batch.acked}, and again at {offset} ({describe(batch)})")
        if batch.seen is not None and batch.seen != offset:
            raise Violation(f"a batch was read at {batch.seen}, but acknowledged at {offset} ({describe(batch)})")
        batch.acked = offset
        self.ends[batch.partition] = max(self.ends.get(batch.partition, 0), offset + batch.count)

    def observe(self, partition: Partition, position: int, data: bytes, sequence: int = 0) -> int:
        """Check batches that were fetched at `position`; returns the position after them.

        `sequence`: the last command that the broker had folded when it began to read.
        """
        at = 0
        while at < len(data):
            base, length = _FRAME.unpack_from(data, at)
            raw = data[at : at + 12 + length]
            at += 12 + length
            end = base + _DELTA.unpack_from(raw, 23)[0] + 1
            if not base <= position < end:
                raise Violation(f"asked for offset {position}, got the batch [{base}, {end})")
            self._observe_batch(partition, base, raw)
            position = end
        return position

    def _observe_batch(self, partition: Partition, base: int, raw: bytes) -> None:
        known = self.read.setdefault(partition, {})
        if known.setdefault(base, raw) != raw:
            raise Violation(f"two readers got different bytes at offset {base}")
        batch = self.sent.get(raw[STAMPED_BYTES:])
        if batch is None:
            raise Violation(f"the bytes at offset {base} are not what any client sent")
        if batch.partition != partition:
            raise Violation(f"a batch shows up in a partition that it was not sent to ({describe(batch)})")
        if batch.seen is not None and batch.seen != base:
            raise Violation(f"a batch is doubled: at {batch.seen} and at {base} ({describe(batch)})")
        if batch.acked is not None and batch.acked != base:
            raise Violation(f"a batch acknowledged at {batch.acked} lies at {base} ({describe(batch)})")
        batch.seen = base

    def check_whole(self, partition: Partition, start: int, end: int, bases: Sequence[int], reader: str) -> None:
        """At the end: one broker serves every acknowledged batch, and no batch whose attempts were all refused."""
        served = set(bases)
        for batch in self.sent.values():
            if batch.partition != partition:
                continue
            if batch.acked is not None and batch.acked >= start and not self._is_served(batch, served, end):
                raise Violation(
                    f"an acknowledged batch is lost for {reader} ({describe(batch)}; log is [{start}, {end}))"
                )
            if batch.acked is None and not batch.unsure and batch.seen is not None:
                raise Violation(f"a batch that was refused each time is in the log at {batch.seen} ({describe(batch)})")

    def _is_served(self, batch: Sent, served: set[int], end: int) -> bool:
        return batch.acked in served


def describe(batch: Sent) -> str:
    pid, epoch, sequence = struct.unpack_from(">qhi", batch.raw, 43)
    return f"partition {batch.partition[1]}, producer {pid}, epoch {epoch}, sequence {sequence}, {batch.count} records"


class Auditor:
    """Folds every command at the store itself, and compares brokers' states with this true state."""

    def __init__(self, report: Callable[[Violation], None]) -> None:
        self.state = State()
        self.history: list[bytes] = []
        self._digests = [0]
        self._generations: dict[str, int] = {}
        self._owners: dict[tuple[str, int, int], tuple[str, str | None]] = {}
        self._report = report
        self.watchers: list[Callable[[int, bytes, Outcome], None]] = []

    def fold(self, commands: Sequence[bytes]) -> None:
        for command in commands:
            self.history.append(command)
            outcome = apply(self.state, len(self.history), command)
            self._digests.append(self.state.digest)
            self._watch_commits(command, outcome)
            for watch in self.watchers:
                watch(len(self.history), command, outcome)
        self.state.moved.clear()

    def _watch_commits(self, command: bytes, outcome: Outcome) -> None:
        """Committed offsets never go back to an older generation; within one, a partition has one owner (L30)."""
        if command[1] != CommitOffsets.KIND or isinstance(outcome, No | NotInTurn):
            return
        body = _COMMIT.decode(command[ENVELOPE.size :])
        newest = self._generations.get(body.group, -1)
        if 0 <= body.generation < newest:
            self._report(Violation(f"a commit of generation {body.generation} was taken after one of {newest}"))
        self._generations[body.group] = max(newest, body.generation)
        for stream, *_ in body.offsets if body.generation >= 0 else ():
            owner = self._owners.setdefault((body.group, body.generation, stream), (body.member, body.instance))
            if owner[0] != body.member and (owner[1] is None or owner[1] != body.instance):
                self._report(Violation(f"stream {stream} had two owners in generation {body.generation}"))

    def compare(self, name: str, replica: Replica) -> None:
        """Report a violation unless this broker has the same outcomes for the same commands."""
        state = replica.state
        if state.sequence >= len(self._digests) or state.digest != self._digests[state.sequence]:
            self._report(Violation(f"{name} folded the commands up to {state.sequence} to other outcomes"))

    def check_whole(self, name: str, state: State) -> None:
        """Raise Violation unless the state equals the true one byte by byte, and after a checkpoint's round trip."""
        true = self.state
        if state.sequence != true.sequence:
            true = State()
            for sequence, command in enumerate(self.history[: state.sequence], 1):
                apply(true, sequence, command)
        stored = dump(state)
        if stored != dump(true):
            raise Violation(f"{name} holds another state at {state.sequence} than the log gives")
        if dump(load(stored)) != stored:
            raise Violation("a state is not the same after a round trip through its checkpoint")

    def referenced(self) -> dict[str, WalObject]:
        """The objects that entries point to, by key."""
        return {object_key(self.state.cluster, one): one for one in self.state.streams.objects.values()}


def object_key(cluster: str, one: WalObject) -> str:
    named = merged_key if one.kind == MERGED else wal_key
    return named(cluster, one.member, one.epoch, one.tick)


class AuditedLog(MemoryLog):
    """The command log of a simulation: the auditor folds each command as soon as it is appended."""

    def __init__(self, auditor: Auditor) -> None:
        super().__init__(MemoryLogStore())
        self._auditor = auditor

    async def append(self, commands: Sequence[bytes], after: int) -> Appended:
        appended = await super().append(commands, after)
        self._auditor.fold(commands)
        return appended


class AuditedWal(MemoryWal):
    """The object store of a simulation: to delete an object that entries point to is a violation."""

    def __init__(self, auditor: Auditor, report: Callable[[Violation], None]) -> None:
        super().__init__()
        self._auditor = auditor
        self._report = report

    @property
    def keys(self) -> set[str]:
        return set(self._objects)

    async def delete(self, keys: Sequence[str]) -> None:
        needed = self._auditor.referenced()
        for key in keys:
            if key in needed:
                self._report(Violation(f"{key} was deleted, but entries point to it"))
        await super().delete(keys)


_COMMIT = msgspec.msgpack.Decoder(CommitOffsets)

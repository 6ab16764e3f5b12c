"""The collector: deletes WAL objects and checkpoints that nobody can need any more.

It lists first, then folds to the end of the command log, and only then judges (L22). What the judge calls garbage stays
garbage whatever is folded later, so it does no harm if two brokers collect at once, or if one stops half way:

    dead        its last entry went, and readers on an older state had their time (L23)
    orphaned    no entry was ever made, and none can be: its number is settled, or its epoch is over
    outdated    a checkpoint older than both that are noted
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lakestream.errors import Halted
from lakestream.interfaces import CheckpointNote, CommandLog, StoredObject, Wal
from lakestream.metadata.older_log import Traces, contradiction
from lakestream.metadata.replica import Replica
from lakestream.model.commands import Collected
from lakestream.model.reasons import No
from lakestream.model.state import State
from lakestream.model.streams import MERGED, TICK
from lakestream.model.wal_object import (
    ObjectName,
    checkpoint_prefix,
    merged_prefix,
    parse_checkpoint_key,
    parse_merged_key,
    parse_wal_key,
    wal_prefix,
)
from lakestream.stream.cache import Cache
from lakestream.stream.reader import key_of

log = logging.getLogger(__name__)

T = TypeVar("T")

DELETED_AT_ONCE = 1000
"""Objects of one delete, and names of one `Collected`."""

_KINDS = ((TICK, wal_prefix, parse_wal_key), (MERGED, merged_prefix, parse_merged_key))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to delete: dead objects as (number, key), and the keys of what the state does not know."""

    dead: list[tuple[int, str]]
    strays: list[str]


class Collector:
    """Keeps the bucket clean. Only the live broker with the lowest id works, so that nothing is listed twice."""

    def __init__(self, replica: Replica, command_log: CommandLog, wal: Wal, cache: Cache, grace_ms: int) -> None:
        self._replica = replica
        self._log = command_log
        self._wal = wal
        self._cache = cache
        self._grace_ms = grace_ms
        self.collected = 0
        self.emptied: Callable[[], Awaitable[object]] | None = None
        """Called when the last cached bytes went: then nobody produces or reads the tail."""

    async def collect(self) -> int:
        """One round; how many objects were deleted. Raises Retry, Unknown or Fenced: the next round goes on."""
        state = self._replica.state
        if not is_first_broker(state, self._replica.member_id):
            return 0
        listing: list[StoredObject] = []
        for prefix_of in (wal_prefix, merged_prefix, checkpoint_prefix):
            listing += await self._wal.list(prefix_of(state.cluster))
        notes = await self._log.checkpoints()
        await self._replica.catch_up()
        if proof := restored(listing, self._replica.state):
            self._replica.halt(Halted(proof))
            return 0
        verdict = judge([one.key for one in listing], self._replica.state, notes, self._grace_ms)
        for strays in _chunks(verdict.strays):
            await self._wal.delete(strays)
        for dead in _chunks(verdict.dead):
            await self._bury(dead)
        deleted = len(verdict.strays) + len(verdict.dead)
        self.collected += deleted
        if deleted:
            log.info("collected %d dead and %d stray objects", len(verdict.dead), len(verdict.strays))
        return deleted

    async def let_go(self) -> int:
        """Drop what is cached of dead objects, which nobody can ask for any more; how many bytes."""
        before = self._cache.size_bytes
        if before:
            self._cache.forget(self._replica.state.streams.dead)
            if not self._cache.size_bytes and self.emptied is not None:
                await self.emptied()
        return before - self._cache.size_bytes

    async def _bury(self, dead: Sequence[tuple[int, str]]) -> None:
        """Bytes first, then the names: a crash between them only means to delete again what is gone."""
        await self._wal.delete([key for _, key in dead])
        outcome = await self._replica.propose(Collected([number for number, _ in dead]))
        if isinstance(outcome, No):
            log.error("the names of collected objects were not forgotten: %s", outcome.message)
        self._cache.forget({number for number, _ in dead})


def restored(listing: Sequence[StoredObject], state: State) -> str:
    """Why nothing may be judged by this state: objects of an epoch that it has never given (L5)."""
    parsed = ((parse(one.key), one.key) for one in listing for _, _, parse in _KINDS)
    return contradiction(Traces(epochs={name.epoch: key for name, key in parsed if name is not None}), state)


def is_first_broker(state: State, member_id: int) -> bool:
    """Whether this is the live broker with the lowest id, which does what one broker is enough for."""
    brokers = state.members.brokers()
    return bool(brokers) and brokers[0].id == member_id


def judge(keys: Sequence[str], state: State, notes: Sequence[CheckpointNote], grace_ms: int) -> Verdict:
    """What of a listing, made before the state was folded, is garbage. Names that are not ours are left alone."""
    now_ms = state.members.time_ms
    dead = [
        (one.number, key_of(state.cluster, one))
        for one in state.streams.dead.values()
        if one.dead_ms + grace_ms <= now_ms
    ]
    known = {
        (one.kind, one.member, one.epoch, one.tick)
        for objects in (state.streams.objects, state.streams.dead)
        for one in objects.values()
    }
    strays = []
    for key in keys:
        for kind, prefix_of, parse in _KINDS:
            if key.startswith(prefix_of(state.cluster)):
                name = parse(key)
                if name and (kind, *name[1:]) not in known and is_settled(state, kind, name):
                    strays.append(key)
    return Verdict(dead, strays + outdated_checkpoints(keys, state.cluster, notes))


def is_settled(state: State, kind: int, name: ObjectName) -> bool:
    """Whether no command can refer to this object any more (L22)."""
    if name.epoch >= state.members.next_epoch:
        return False
    member = state.members.by_id.get(name.member)
    if member is None or not member.alive or member.epoch != name.epoch:
        return True
    return name.number <= (member.tick if kind == TICK else member.move)


def outdated_checkpoints(keys: Sequence[str], cluster: str, notes: Sequence[CheckpointNote]) -> list[str]:
    """Those older than every noted one: notes only ever get newer, so none of them will be noted again."""
    if not notes:
        return []
    noted = {note.key for note in notes}
    oldest = min(note.sequence for note in notes)
    outdated = []
    for key in keys:
        name = parse_checkpoint_key(key) if key.startswith(checkpoint_prefix(cluster)) else None
        if name is not None and name.number < oldest and key not in noted:
            outdated.append(key)
    return outdated


def _chunks(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start : start + DELETED_AT_ONCE] for start in range(0, len(items), DELETED_AT_ONCE)]

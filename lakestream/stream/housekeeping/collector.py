"""The collector: deletes WAL objects and checkpoints that no reader can need any more.

A round lists the objects, folds to the end of the command log, and only then judges (L22). An object that is garbage
stays garbage whatever commands follow, so two brokers may collect at once, and a broker may stop half way:

    dead        its last entry is gone, and the grace for readers on an older state is over (L23)
    orphaned    it has no entry and can get none: its tick or move is settled, or its epoch has ended
    outdated    it is a checkpoint older than both noted ones
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from lakestream.errors import Halted
from lakestream.interfaces import CheckpointNote, CommandLog, Wal
from lakestream.metadata.older_log import Traces, contradiction
from lakestream.metadata.replica import Replica
from lakestream.model.batches.wal_object import (
    ObjectName,
    checkpoint_prefix,
    merged_prefix,
    parse_checkpoint_key,
    parse_merged_key,
    parse_wal_key,
    wal_prefix,
)
from lakestream.model.commands import Collected
from lakestream.model.reasons import No
from lakestream.model.state import State
from lakestream.model.streams import MERGED, TICK
from lakestream.stream.cache import Cache
from lakestream.stream.long_work import Steps, chunks, run_in_steps
from lakestream.stream.reader import key_of

log = logging.getLogger(__name__)

OBJECTS_PER_STEP = 1000
"""How many objects one step judges, one delete removes, and one `Collected` names."""

_OBJECT_KINDS = ((TICK, wal_prefix, parse_wal_key), (MERGED, merged_prefix, parse_merged_key))


ListedObject = tuple[int, ObjectName, str]
"""Kind, name and key of an object."""


@dataclass(frozen=True, slots=True)
class StoredObjects:
    """The cluster's objects in the store, by a listing of their keys."""

    objects: list[ListedObject]
    checkpoints: list[str]
    epochs: dict[int, str]
    """The epochs of the objects' writers, each with the key of one object."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """What to delete: dead objects as (number, key); the keys of orphaned objects and outdated checkpoints."""

    dead: list[tuple[int, str]]
    orphans: list[str]


class Collector:
    """Deletes garbage from the WAL. Only the live broker with the lowest id does, so that objects are listed once."""

    def __init__(self, replica: Replica, command_log: CommandLog, wal: Wal, cache: Cache, grace_ms: int) -> None:
        self._replica = replica
        self._log = command_log
        self._wal = wal
        self._cache = cache
        self._grace_ms = grace_ms
        self._dropped_ms = 0
        self.collected = 0
        self.on_cache_empty: Callable[[], Awaitable[object]] | None = None
        """Called when the cache has become empty: at such a time no client produces or reads the tail."""

    async def collect(self) -> int:
        """Run one round; returns how many objects it deleted.

        Raises Retry, Unknown or Fenced; the next round deletes the rest.
        """
        state = self._replica.state
        if not is_first_broker(state, self._replica.member_id):
            return 0
        keys: list[str] = []
        for prefix_of in (wal_prefix, merged_prefix, checkpoint_prefix):
            keys += [one.key for one in await self._wal.list(prefix_of(state.cluster))]
        stored = await run_in_steps(read_names(keys, state.cluster))
        notes = await self._log.checkpoints()
        await self._replica.catch_up()
        if proof := contradiction(Traces(epochs=stored.epochs), self._replica.state):
            self._replica.halt(Halted(proof))  # a state that the objects contradict must not judge them (L5)
            return 0
        garbage = await run_in_steps(judge(stored, self._replica.state, notes, self._grace_ms))
        for orphans in chunks(garbage.orphans, OBJECTS_PER_STEP):
            await self._wal.delete(orphans)
        for dead in chunks(garbage.dead, OBJECTS_PER_STEP):
            await self._delete_dead(dead)
        deleted = len(garbage.orphans) + len(garbage.dead)
        self.collected += deleted
        if deleted:
            log.info("collected %d dead and %d orphaned objects", len(garbage.dead), len(garbage.orphans))
        return deleted

    async def drop_dead_from_cache(self) -> int:
        """Drop dead objects from the cache, since no fetch can ask for them any more; returns how many bytes."""
        before = self._cache.size_bytes
        if before:
            dead, since_ms = self._replica.state.streams.dead, self._dropped_ms
            self._dropped_ms = self._replica.state.members.time_ms
            recent = itertools.takewhile(lambda one: one.dead_ms >= since_ms, reversed(dead.values()))
            for some in chunks([one.number for one in recent], OBJECTS_PER_STEP):
                self._cache.forget(some)
                await asyncio.sleep(0)
            if not self._cache.size_bytes and self.on_cache_empty is not None:
                await self.on_cache_empty()
        return before - self._cache.size_bytes

    async def _delete_dead(self, dead: Sequence[tuple[int, str]]) -> None:
        """Delete the objects, then their names in the state: after a crash in between they are deleted again."""
        await self._wal.delete([key for _, key in dead])
        outcome = await self._replica.propose(Collected([number for number, _ in dead]))
        if isinstance(outcome, No):
            log.error("the names of collected objects were not forgotten: %s", outcome.message)
        self._cache.forget({number for number, _ in dead})


def read_names(keys: Sequence[str], cluster: str) -> Steps[StoredObjects]:
    """Sort the keys of a listing by what they name. Keys of another form are left out, so they are never deleted."""
    stored = StoredObjects([], [], {})
    for some in chunks(keys, OBJECTS_PER_STEP):
        for key in some:
            for kind, prefix_of, parse in _OBJECT_KINDS:
                if key.startswith(prefix_of(cluster)) and (name := parse(key)) is not None:
                    stored.objects.append((kind, name, key))
                    stored.epochs[name.epoch] = key
            if key.startswith(checkpoint_prefix(cluster)):
                stored.checkpoints.append(key)
        yield
    return stored


def is_first_broker(state: State, member_id: int) -> bool:
    """Whether this is the live broker with the lowest id, which does the work that one broker does for all."""
    brokers = state.members.brokers()
    return bool(brokers) and brokers[0].id == member_id


def judge(stored: StoredObjects, state: State, notes: Sequence[CheckpointNote], grace_ms: int) -> Steps[Garbage]:
    """Find the garbage among objects that were listed before the state was folded.

    The state moves on between two steps, so the order matters: settled objects are chosen before the known names are
    gathered. The entry of a settled object is in the state by then, and stays there until the object is collected.
    """
    dead: list[tuple[int, str]] = []
    for some in chunks(list(state.streams.dead.values()), OBJECTS_PER_STEP):
        now_ms = state.members.time_ms
        dead += [(one.number, key_of(state.cluster, one)) for one in some if one.dead_ms + grace_ms <= now_ms]
        yield
    settled: list[ListedObject] = []
    for names in chunks(stored.objects, OBJECTS_PER_STEP):
        settled += [(kind, name, key) for kind, name, key in names if is_settled(state, kind, name)]
        yield
    known: set[tuple[int, int, int, int]] = set()
    for some in chunks([*state.streams.objects.values(), *state.streams.dead.values()], OBJECTS_PER_STEP):
        known.update((one.kind, one.member, one.epoch, one.tick) for one in some)
        yield
    orphans = [key for kind, name, key in settled if (kind, *name[1:]) not in known]
    return Garbage(dead, orphans + outdated_checkpoints(stored.checkpoints, notes))


def is_settled(state: State, kind: int, name: ObjectName) -> bool:
    """Whether no later command can refer to this object (L22)."""
    if name.epoch >= state.members.next_epoch:
        return False
    member = state.members.by_id.get(name.member)
    if member is None or not member.alive or member.epoch != name.epoch:
        return True
    return name.number <= (member.tick if kind == TICK else member.move)


def outdated_checkpoints(keys: Sequence[str], notes: Sequence[CheckpointNote]) -> list[str]:
    """The checkpoints older than every noted one: a later note is always newer, so none of them is noted again."""
    if not notes:
        return []
    noted = {note.key for note in notes}
    oldest = min(note.sequence for note in notes)
    outdated = []
    for key in keys:
        name = parse_checkpoint_key(key)
        if name is not None and name.number < oldest and key not in noted:
            outdated.append(key)
    return outdated

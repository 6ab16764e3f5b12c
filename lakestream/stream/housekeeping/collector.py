"""The collector: deletes WAL objects and checkpoints that nobody can need any more.

It lists first, then folds to the end of the command log, and only then judges (L22). What the judge calls garbage stays
garbage whatever is folded later, so it does no harm if two brokers collect at once, or if one stops half way:

    dead        its last entry went, and readers on an older state had their time (L23)
    orphaned    no entry was ever made, and none can be: its number is settled, or its epoch is over
    outdated    a checkpoint older than both that are noted
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

AT_ONCE = 1000
"""Objects that are looked at before others have their turn; those of one delete, and names of one `Collected`."""

_KINDS = ((TICK, wal_prefix, parse_wal_key), (MERGED, merged_prefix, parse_merged_key))


Listed = tuple[int, ObjectName, str]
"""Kind, name and key of an object."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What is in the store under names of ours."""

    objects: list[Listed]
    checkpoints: list[str]
    epochs: dict[int, str]
    """In which objects were written, with the key of one."""


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
        self._let_go_ms = 0
        self.collected = 0
        self.emptied: Callable[[], Awaitable[object]] | None = None
        """Called when the last cached bytes went: then nobody produces or reads the tail."""

    async def collect(self) -> int:
        """One round; how many objects were deleted. Raises Retry, Unknown or Fenced: the next round goes on."""
        state = self._replica.state
        if not is_first_broker(state, self._replica.member_id):
            return 0
        keys: list[str] = []
        for prefix_of in (wal_prefix, merged_prefix, checkpoint_prefix):
            keys += [one.key for one in await self._wal.list(prefix_of(state.cluster))]
        listing = await run_in_steps(read_names(keys, state.cluster))
        notes = await self._log.checkpoints()
        await self._replica.catch_up()
        if proof := contradiction(Traces(epochs=listing.epochs), self._replica.state):
            self._replica.halt(Halted(proof))  # nothing may be judged by this state (L5)
            return 0
        verdict = await run_in_steps(judge(listing, self._replica.state, notes, self._grace_ms))
        for strays in chunks(verdict.strays, AT_ONCE):
            await self._wal.delete(strays)
        for dead in chunks(verdict.dead, AT_ONCE):
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
            dead, since_ms = self._replica.state.streams.dead, self._let_go_ms
            self._let_go_ms = self._replica.state.members.time_ms
            recent = itertools.takewhile(lambda one: one.dead_ms >= since_ms, reversed(dead.values()))
            for some in chunks([one.number for one in recent], AT_ONCE):
                self._cache.forget(some)
                await asyncio.sleep(0)
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


def read_names(keys: Sequence[str], cluster: str) -> Steps[Listing]:
    """What the keys of a listing say; names that are not ours are left alone."""
    listing = Listing([], [], {})
    for some in chunks(keys, AT_ONCE):
        for key in some:
            for kind, prefix_of, parse in _KINDS:
                if key.startswith(prefix_of(cluster)) and (name := parse(key)) is not None:
                    listing.objects.append((kind, name, key))
                    listing.epochs[name.epoch] = key
            if key.startswith(checkpoint_prefix(cluster)):
                listing.checkpoints.append(key)
        yield
    return listing


def is_first_broker(state: State, member_id: int) -> bool:
    """Whether this is the live broker with the lowest id, which does what one broker is enough for."""
    brokers = state.members.brokers()
    return bool(brokers) and brokers[0].id == member_id


def judge(listing: Listing, state: State, notes: Sequence[CheckpointNote], grace_ms: int) -> Steps[Verdict]:
    """What of a listing, made before the state was folded, is garbage.

    Others have their turn meanwhile, and the state moves on. So who is settled is asked first: whatever was committed
    of it is known by then, and still is when the known names are gathered, unless somebody collected it.
    """
    dead: list[tuple[int, str]] = []
    for some in chunks(list(state.streams.dead.values()), AT_ONCE):
        now_ms = state.members.time_ms
        dead += [(one.number, key_of(state.cluster, one)) for one in some if one.dead_ms + grace_ms <= now_ms]
        yield
    settled: list[Listed] = []
    for names in chunks(listing.objects, AT_ONCE):
        settled += [(kind, name, key) for kind, name, key in names if is_settled(state, kind, name)]
        yield
    known: set[tuple[int, int, int, int]] = set()
    for some in chunks([*state.streams.objects.values(), *state.streams.dead.values()], AT_ONCE):
        known.update((one.kind, one.member, one.epoch, one.tick) for one in some)
        yield
    strays = [key for kind, name, key in settled if (kind, *name[1:]) not in known]
    return Verdict(dead, strays + outdated_checkpoints(listing.checkpoints, notes))


def is_settled(state: State, kind: int, name: ObjectName) -> bool:
    """Whether no command can refer to this object any more (L22)."""
    if name.epoch >= state.members.next_epoch:
        return False
    member = state.members.by_id.get(name.member)
    if member is None or not member.alive or member.epoch != name.epoch:
        return True
    return name.number <= (member.tick if kind == TICK else member.move)


def outdated_checkpoints(keys: Sequence[str], notes: Sequence[CheckpointNote]) -> list[str]:
    """Those older than every noted one: notes only ever get newer, so none of them will be noted again."""
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

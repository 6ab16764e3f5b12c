"""The mover: copies old slices into merged objects, so that the state stays small and dead bytes can be deleted.

    choose windows (merging.py) -> read their bytes -> stamp true offsets, check, index -> Wal.put -> ReplaceEntries

An offset keeps its record; only the place of the bytes changes. If a stream has changed meanwhile (its topic was
deleted, its log start moved into the window), the command leaves that stream's entries as they are, and the collector
deletes objects without entries. Rendezvous hashing gives each topic to one broker; if two brokers move the same topic,
only work is wasted.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from lakestream.errors import Corrupt, Exists, Fenced, Missing, Retry, Unknown
from lakestream.interfaces import Wal
from lakestream.metadata.replica import Replica
from lakestream.model.batches.wal_object import HEADER_BYTES, BatchMark, MergedSlice, header, merged_key, merged_tail
from lakestream.model.commands import MovedSlice, ReplaceEntries
from lakestream.model.placement import leader_of
from lakestream.model.reasons import No
from lakestream.model.streams import MERGED, Stream, WalObject
from lakestream.model.topics import Topic
from lakestream.stream.cache import Cache
from lakestream.stream.housekeeping.merged_body import BATCHES_AT_ONCE, BadSource, Copy, finish_batches, reads_of
from lakestream.stream.housekeeping.merging import (
    Effort,
    Merge,
    MergeWindow,
    MoveLimits,
    WindowBounds,
    bounds_for,
    dead_window,
    effort_for,
    first_below,
    is_mostly_dead,
    many_window,
)
from lakestream.stream.long_work import chunks
from lakestream.stream.reader import key_of
from lakestream.stream.rules import TopicRules

log = logging.getLogger(__name__)

STREAMS_AT_ONCE = 16
OBJECTS_AT_ONCE = 2000
REMEMBERED_MAX = 100_000


class Mover:
    """Writes one merged object at a time."""

    def __init__(
        self, replica: Replica, wal: Wal, cache: Cache, rules_of: Callable[[Topic], TopicRules], limits: MoveLimits
    ) -> None:
        self._replica = replica
        self._wal = wal
        self._cache = cache
        self._rules_of = rules_of
        self._configured_limits = self._limits = limits
        self._last = 0
        self._settled = 0
        self._dead_first = False
        self._next_dead_search_ms = 0
        self._bad: set[int] = set()
        self._full: dict[tuple[int, int], int] = {}
        self._brokers: list[int] = []
        self._owned: dict[bytes, bool] = {}
        self._steps = 0
        self.merged_bytes = 0
        self.moved_objects = 0

    def settled(self) -> int:
        """The last move that is committed or given up (L22)."""
        return self._settled

    @property
    def state_is_filling(self) -> bool:
        """Whether the state is half full, or a topic's share of it: then the mover does not pause."""
        streams = self._replica.state.streams
        topics = self._replica.state.topics.by_id
        if streams.entries * 2 > streams.limit:
            return True
        return any(one.entries * 2 > streams.share(one, len(topics)) for one in topics.values() if one.entries)

    async def step(self) -> int:
        """Do one merge; returns how many bytes it wrote, 0 if no merge is worth it or the merge failed."""
        if not self._replica.epoch or not self._replica.state.members.time_ms:
            return 0
        self._dead_first = not self._dead_first
        plans = (self._plan_dead, self._plan_many) if self._dead_first else (self._plan_many, self._plan_dead)
        self._limits = self._configured_limits
        if self._replica.state.streams.entries <= self._limits.small_entries:
            smaller = min(self._limits.merge_bytes, self._limits.small_bytes)
            self._limits = replace(self._limits, merge_bytes=smaller)
        for plan in plans:
            merge = Merge(self._limits)
            await plan(merge)
            if merge.windows:
                return await self._write_merge(merge)
        return 0

    def _own_topics(self) -> list[Topic]:
        """The topics that this broker moves, those with the most entries first."""
        state = self._replica.state
        brokers = [member.id for member in state.members.brokers()]
        if brokers != self._brokers or len(self._owned) >= REMEMBERED_MAX:
            self._brokers, self._owned = brokers, {}
        for topic_id in state.topics.by_id.keys() - self._owned.keys():
            self._owned[topic_id] = leader_of(brokers, topic_id, 0) == self._replica.member_id
        own = [topic for topic in state.topics.by_id.values() if self._owned[topic.id]]
        return sorted(own, key=lambda topic: topic.entries, reverse=True)

    async def _yield_sometimes(self) -> None:
        """Yield to the event loop at every STREAMS_AT_ONCE-th call."""
        self._steps += 1
        if self._steps % STREAMS_AT_ONCE == 0:
            await asyncio.sleep(0)

    # -- choosing ---------------------------------------------------------------------------------------------------

    async def _plan_many(self, merge: Merge) -> None:
        """Take windows of streams with many entries; the streams of a topic get even shares of the merge."""
        state = self._replica.state
        for topic in self._own_topics():
            await self._yield_sometimes()
            effort = effort_for(topic, state.streams, len(state.topics.by_id), self._limits)
            if topic.entries <= effort.many_entries:
                continue
            ready = [state.streams.by_id[one] for one in topic.streams if one in state.streams.by_id]
            ready = [stream for stream in ready if len(stream.bases) >= effort.window_entries]
            if all(len(stream.bases) <= effort.many_entries for stream in ready):
                continue
            most = max(self._limits.merge_entries // len(ready), self._limits.many_entries)
            bounds = bounds_for(self._rules_of(topic), self._limits, state.members.time_ms, most)
            for stream in ready:
                window = await self._many_window(stream, bounds, effort)
                if window is None and most < self._limits.merge_entries:
                    # Where sizes differ much, a longer window may pay when no short one does.
                    wide = bounds._replace(entries=self._limits.merge_entries)
                    window = await self._many_window(stream, wide, effort)
                if window and not merge.take(window, state.streams, bounds.span_ms) and merge.full:
                    return
                await self._yield_sometimes()

    async def _many_window(self, stream: Stream, bounds: WindowBounds, effort: Effort) -> MergeWindow | None:
        """Search in ranges of twice as many entries as a window may have; yields to the event loop between two."""
        first = self._skip_full(stream, bounds.length // effort.growth)
        while True:
            streams, end = self._replica.state.streams, len(stream.bases)
            if streams.by_id.get(stream.id) is not stream:
                return None  # its topic was deleted, or a checkpoint replaced the whole state
            some = range(first, min(first + 2 * bounds.entries, end))
            window = many_window(stream, streams.objects, bounds, effort, some, self._bad)
            if window is not None or some.stop >= end:
                return window
            following = stream.bases[first + bounds.entries]
            await asyncio.sleep(0)
            first = stream.find(following)

    def _skip_full(self, stream: Stream, length: int) -> int:
        """The first entry that may be merged. Remembers the full-size entries before it, to skip them next time."""
        first = first_below(stream, length, stream.find(self._full.get((stream.id, length), 0)))
        if first:
            if len(self._full) >= REMEMBERED_MAX:
                self._full.clear()
            self._full[stream.id, length] = stream.bases[first - 1]
        return first

    async def _plan_dead(self, merge: Merge) -> None:
        """Take windows of entries that lie in old objects, most of whose bytes are dead."""
        state = self._replica.state
        if state.members.time_ms < self._next_dead_search_ms:
            return
        mostly_dead: set[int] = set()
        for some in chunks(list(state.streams.objects.values()), OBJECTS_AT_ONCE):
            now_ms = state.members.time_ms
            mostly_dead.update(one.number for one in some if is_mostly_dead(one, self._limits, now_ms))
            await asyncio.sleep(0)
        mostly_dead -= self._bad
        if not mostly_dead:
            self._next_dead_search_ms = state.members.time_ms + self._limits.dead_rest_ms
            return
        for topic in self._own_topics():
            bounds = bounds_for(self._rules_of(topic), self._limits, state.members.time_ms, self._limits.merge_entries)
            for stream_id in topic.streams:
                stream = state.streams.by_id.get(stream_id)
                window = stream and dead_window(stream, state.streams.objects, mostly_dead, bounds)
                if window and not merge.take(window, state.streams, bounds.span_ms) and merge.full:
                    return
                await self._yield_sometimes()

    # -- merging ----------------------------------------------------------------------------------------------------

    async def _write_merge(self, merge: Merge) -> int:
        replica, epoch = self._replica, self._replica.epoch
        merge.windows.sort(key=lambda window: window.stream)
        body = bytearray(HEADER_BYTES + merge.length)
        body[:HEADER_BYTES] = header(self._replica.state.sequence)
        try:
            await self._read_sources(merge, body)
            rows = await self._index(merge, body)
        except BadSource as error:
            await self._note_bad_source(error)
            return 0
        tail = merged_tail(body, rows)
        if not epoch or replica.epoch != epoch:
            return 0
        number = self._last = self._last + 1
        try:
            async with asyncio.timeout(self._limits.write_timeout_s):
                await self._wal.put(merged_key(replica.state.cluster, replica.member_id, epoch, number), [body, tail])
            if replica.epoch != epoch:
                return 0
            await self._replace(merge, rows, number, len(body) + len(tail))
        except (Retry, Unknown, Exists, Fenced, TimeoutError) as error:
            log.warning("merge %d is given up: %s", number, error or "it took too long")
            return 0
        finally:
            # In every case the command, if any, is queued before a heartbeat reports this number as settled.
            self._settled = number
        return len(body)

    async def _replace(self, merge: Merge, rows: list[MergedSlice], number: int, size: int) -> None:
        slices = [
            MovedSlice(
                window.stream, window.base, window.end - window.base, row.position, row.length,
                max(entry.max_timestamp for entry in window.entries),
            )
            for window, row in zip(merge.windows, rows, strict=True)
        ]  # fmt: skip
        outcome = await self._replica.propose(ReplaceEntries(number, size, merge.newest_ms, slices))
        if isinstance(outcome, No):
            log.error("merge %d was refused: %s", number, outcome.message)
            return
        objects = self._replica.state.streams.objects
        self.merged_bytes += merge.length
        self.moved_objects += sum(source not in objects for source in merge.sources)
        log.debug("merge %d: %d entries of %d objects", number, merge.entries, len(merge.sources))

    async def _read_sources(self, merge: Merge, body: bytearray) -> None:
        """Copy cached slices, and read the others from the WAL."""
        reads = []
        for source, copies in reads_of(merge):
            if not self._copy_cached(source, copies, body):
                reads.append((source, copies))
            await self._yield_sometimes()
        for some in chunks(reads, self._limits.reads_at_once):
            done = await asyncio.gather(*(self._read(*read, body) for read in some), return_exceptions=True)
            for failed in done:
                if failed is not None:
                    raise failed

    def _copy_cached(self, source: WalObject, copies: list[Copy], body: bytearray) -> bool:
        piece = self._cache.peek((source.number, 0))
        if piece is None or any(copy.position + copy.length > len(piece) for copy in copies):
            return False
        for position, length, target in copies:
            body[target : target + length] = piece.view[position : position + length]
        return True

    async def _read(self, source: WalObject, copies: list[Copy], body: bytearray) -> None:
        key = key_of(self._replica.state.cluster, source)
        try:
            pieces = await self._wal.read(key, [copy[:2] for copy in copies])
        except (Missing, Corrupt) as error:
            raise BadSource(source.number, str(error)) from error
        for copy, piece in zip(copies, pieces, strict=True):
            if len(piece) != copy.length:
                raise BadSource(source.number, f"{key} is cut short")
            body[copy.target : copy.target + copy.length] = piece

    async def _index(self, merge: Merge, body: bytearray) -> list[MergedSlice]:
        """Stamp, check and index every batch; yields to the event loop after every BATCHES_AT_ONCE of them."""
        rows = []
        at, unyielded = HEADER_BYTES, 0
        for window in merge.windows:
            start, batches = at, 0
            marks: list[BatchMark] = []
            for entry in window.entries:
                merged = merge.sources[entry.object].kind == MERGED
                end, offset = at + entry.length, entry.base
                append_ms = merge.times.of(entry)
                while at < end:
                    at, offset, count = finish_batches(body, at, end, entry, offset, merged, marks, append_ms)
                    batches, unyielded = batches + count, unyielded + count
                    if unyielded >= BATCHES_AT_ONCE:
                        unyielded = 0
                        await asyncio.sleep(0)
                if offset != entry.end:
                    raise BadSource(entry.object, f"the slice at {entry.position} does not end with {entry.end}")
            rows.append(MergedSlice(window.stream, start, at - start, batches, window.base, marks))
        return rows

    async def _note_bad_source(self, error: BadSource) -> None:
        """Never merge a damaged object again. One that was collected meanwhile is no damage."""
        await self._replica.catch_up()
        objects = self._replica.state.streams.objects
        if error.number in objects:
            log.error("an object is damaged and is left out of merges: %s", error)
            self._bad.add(error.number)
        self._bad &= objects.keys()

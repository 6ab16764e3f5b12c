"""The reader: finds the entries of an offset, takes the bytes from memory or from the WAL, and gives whole batches.

    find entry -> piece in the cache | read (each piece once, for all readers) -> stamp base offsets -> cut at batches
    below the stream's progress: the topic's table (history.py)

What it returns are views of cached pieces, ready to be sent: base offsets are right, bodies are as produced.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakestream.errors import Corrupt, Missing, Rejected, Retry
from lakestream.interfaces import Wal
from lakestream.metadata.replica import Replica
from lakestream.model.batches import records
from lakestream.model.batches.compression import MAX_DECOMPRESSED_BYTES
from lakestream.model.batches.header import (
    CHECKED_POSITION,
    CODEC_MASK,
    CRC_POSITION,
    HEADER_SIZE,
    LEADER_EPOCH,
    MAX_TIMESTAMP_POSITION,
    PREFIX_SIZE,
    checksum,
    give_append_time,
)
from lakestream.model.batches.wal_object import (
    FOOTER_BYTES,
    MARK_EVERY_BYTES,
    MergedSlice,
    mark_at_or_before,
    mark_with_timestamp,
    merged_key,
    parse_footer,
    parse_merged_index,
    verify,
    wal_key,
)
from lakestream.model.reasons import Reason
from lakestream.model.streams import MERGED, Entry, Stream, WalObject
from lakestream.stream.cache import Cache, CachedPiece, Key
from lakestream.stream.limits import ReadLimits

if TYPE_CHECKING:
    from lakestream.stream.history import HistoryReader

_FRAME = struct.Struct(">qi").unpack_from
_STAMP = struct.Struct(">q").pack_into
_EPOCH = struct.Struct(">i").pack_into
_DELTA = struct.Struct(">i").unpack_from
_TIMESTAMP = struct.Struct(">q").unpack_from
_CRC = struct.Struct(">I").unpack_from
_DELTA_POSITION = 23
INDEX_SLICES_KEPT = 50_000
"""Slices of merged objects whose place is remembered."""

LOOK_UPS_AT_ONCE = 2
"""Batches that are searched for a time at once: each may take MAX_DECOMPRESSED_BYTES."""
INLINE_LOOK_UP_BYTES = 1024 * 1024
"""A larger batch is searched in a thread, so that no other client waits."""


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record found by its time."""

    offset: int
    timestamp: int


class Reader:
    """Reads streams. Below a table's progress the table answers; where there is none, the WAL holds everything."""

    def __init__(
        self, replica: Replica, wal: Wal, cache: Cache, limits: ReadLimits, history: "HistoryReader | None" = None
    ) -> None:
        self._replica = replica
        self._wal = wal
        self._cache = cache
        self._limits = limits
        self._history = history
        self._loading: dict[Key, asyncio.Future[CachedPiece]] = {}
        self._indexes: dict[int, dict[int, MergedSlice]] = {}
        self._slots = asyncio.Semaphore(limits.reads_at_once)
        self._look_ups = asyncio.Semaphore(LOOK_UPS_AT_ONCE)

    async def serve(
        self, stream: Stream, offset: int, max_bytes: int, at_least_one: bool = True
    ) -> list[memoryview]:
        """Whole batches from the one that holds `offset` on, at most `max_bytes` unless one has to be `at_least_one`.

        Raises Rejected if the offset lies outside the log, Corrupt if stored bytes are lost, Retry if a store fails.
        """
        views = self.cached(stream, offset, max_bytes, at_least_one)
        return views if views is not None else await self.read(stream, offset, max_bytes, at_least_one)

    async def read(
        self, stream: Stream, offset: int, max_bytes: int, at_least_one: bool = True
    ) -> list[memoryview]:
        """As `serve`, without the short way through the cache."""
        views: list[memoryview] = []
        left = max_bytes
        while left > 0 or (at_least_one and not views):
            if not stream.start <= offset <= stream.next:
                raise Rejected(Reason.OFFSET_OUT_OF_RANGE, f"{offset} is outside [{stream.start}, {stream.next}]")
            if offset < stream.landed:
                if views:
                    return views  # the offset landed while the reader waited
                # The WAL's next batch may begin below the progress: with it an answer would have records twice.
                return await self._history_of(stream).read(stream, offset, max_bytes, at_least_one)
            index = stream.find(offset)
            if index >= len(stream.bases):
                return views
            entry = stream.entry(index)
            wanted = max(offset, entry.base)
            piece, start = await self._piece(stream, entry, wanted)
            if piece is None:
                continue
            view, offset = self._cut(piece, entry, start, wanted, left, at_least_one and not views)
            if not view:
                return views
            views.append(view)
            left -= len(view)
        return views

    def cached(
        self, stream: Stream, offset: int, max_bytes: int, at_least_one: bool = True
    ) -> list[memoryview] | None:
        """As `read`, without waiting; None if the bytes are not in memory, or if `read` would raise."""
        views: list[memoryview] = []
        left = max_bytes
        if not stream.start <= offset <= stream.next or offset < stream.landed:
            return None
        while left > 0 or (at_least_one and not views):
            index = stream.find(offset)
            if index >= len(stream.bases):
                return views
            entry = stream.entry(index)
            piece = self._cache.get((entry.object, 0))
            if piece is None:
                return views or None
            self._cache.hits += 1
            if piece.stamped is not None and entry.position not in piece.stamped:
                self._stamp(piece, entry, self._replica.state.streams.append_times.of(entry))
            wanted = max(offset, entry.base)
            view, offset = self._cut(piece, entry, entry.position, wanted, left, at_least_one and not views)
            if not view:
                return views
            views.append(view)
            left -= len(view)
        return views

    # -- finding by time --------------------------------------------------------------------------------------------

    async def find_timestamp(self, stream: Stream, timestamp: int) -> FoundRecord | None:
        """The first record with this timestamp or a later one."""
        floor = stream.start
        while floor < stream.landed:
            upto = stream.landed
            row = await self._history_of(stream).find_time(stream, timestamp, floor, upto)
            if row is not None:
                return FoundRecord(row.offset, row.timestamp)
            floor = upto
        for entry in list(stream.entries(floor)):
            if entry.max_timestamp < timestamp:
                continue
            async for batch in self._batches(stream, entry, timestamp, floor):
                if _TIMESTAMP(batch, MAX_TIMESTAMP_POSITION)[0] >= timestamp:
                    found = await self._look_into(batch, records.find_timestamp, timestamp, max(stream.start, floor))
                    if found is not None:
                        return FoundRecord(*found)
        return None

    async def find_max_timestamp(self, stream: Stream) -> FoundRecord | None:
        """The record with the greatest timestamp, the first of several."""
        best: FoundRecord | None = None
        floor = stream.start
        while floor < stream.landed:
            upto = stream.landed
            row = await self._history_of(stream).latest_time(stream, floor, upto)
            if row is not None and (best is None or row.timestamp > best.timestamp):
                best = FoundRecord(row.offset, row.timestamp)
            floor = upto
        entries = sorted(stream.entries(floor), key=lambda entry: (-entry.max_timestamp, entry.base))
        for entry in entries:
            if best is not None and entry.max_timestamp <= best.timestamp:
                break
            async for batch in self._batches(stream, entry, best.timestamp + 1 if best is not None else -1, floor):
                if best is not None and _TIMESTAMP(batch, MAX_TIMESTAMP_POSITION)[0] <= best.timestamp:
                    continue
                found = await self._look_into(batch, records.find_max_timestamp, max(stream.start, floor))
                if found is not None and (best is None or found[1] > best.timestamp):
                    best = FoundRecord(*found)
        return best

    async def _look_into(
        self, batch: memoryview, find: Callable[..., tuple[int, int] | None], *where: int
    ) -> tuple[int, int] | None:
        """The result of `find` in one batch. Few are searched at once, and the loop serves other tasks before each.

        A compressed batch goes to a thread whatever its size, which does not tell its decompressed size.
        """
        compressed = batch[CHECKED_POSITION + 1] & CODEC_MASK
        async with self._look_ups:
            await asyncio.sleep(0)
            if compressed:
                return await asyncio.to_thread(find, batch, *where, MAX_DECOMPRESSED_BYTES)
            if len(batch) > INLINE_LOOK_UP_BYTES:
                return await asyncio.to_thread(find, batch, *where)
            return find(batch, *where)

    def _history_of(self, stream: Stream) -> "HistoryReader":
        """The reader of what lies below a stream's progress. Raises Retry if this broker reads no tables."""
        if self._history is None:
            raise Retry(f"{stream!r} is in its table below {stream.landed}, which needs the setting `tables`")
        return self._history

    async def _batches(self, stream: Stream, entry: Entry, timestamp: int, floor: int) -> AsyncIterator[memoryview]:
        """The batches of an entry, from about where the first one with this timestamp or a later one lies."""
        offset = max(await self._first_offset(entry, timestamp), floor)
        while offset < entry.end:
            views = await self.read(stream, max(offset, stream.start), min(entry.length, self._limits.chunk_bytes))
            if not views:
                return
            for view in views:
                at = 0
                while at < len(view):
                    base, length = _FRAME(view, at)
                    offset = base + _DELTA(view, at + _DELTA_POSITION)[0] + 1
                    yield view[at : at + 12 + length]
                    at += 12 + length

    async def _first_offset(self, entry: Entry, timestamp: int) -> int:
        one = self._replica.state.streams.objects.get(entry.object)
        if one is None or one.kind != MERGED or one.size <= self._limits.whole_object_bytes:
            return entry.base
        try:
            marks = (await self._merged_slice(one, entry)).marks
        except Missing:
            return entry.base
        first = mark_with_timestamp(marks, timestamp)
        return entry.end if first is None else marks[first].offset

    # -- cutting ----------------------------------------------------------------------------------------------------

    def _cut(
        self, piece: CachedPiece, entry: Entry, start: int, offset: int, max_bytes: int, at_least_one: bool
    ) -> tuple[memoryview, int]:
        """The batches from the one that holds `offset`, and the offset behind them."""
        view = piece.view
        begin = start - piece.start
        end = min(entry.position + entry.length - piece.start, len(view))
        whole = begin == entry.position - piece.start and end - begin == entry.length
        if whole and offset == entry.base and entry.length <= max_bytes:
            return view[begin:end], entry.end
        # A piece may hold slices of many streams, whose offsets are alike: a cut counts only inside this one.
        known = piece.ends.get(offset, begin)
        begin = known if begin <= known < end else begin
        base, length = _FRAME(view, begin)
        while begin < end and base + _DELTA(view, begin + _DELTA_POSITION)[0] < offset:
            begin += 12 + length
            if begin < end:
                base, length = _FRAME(view, begin)
        stop, next_offset = begin, offset
        while stop + HEADER_SIZE <= end:
            base, length = _FRAME(view, stop)
            size = 12 + length
            if stop + size > end or (stop + size - begin > max_bytes and not (at_least_one and stop == begin)):
                break
            stop += size
            next_offset = base + _DELTA(view, stop - size + _DELTA_POSITION)[0] + 1
        if stop < end:
            if len(piece.ends) >= 64:
                piece.ends.clear()
            piece.ends[next_offset] = stop
        return view[begin:stop], next_offset

    def _stamp(self, piece: CachedPiece, entry: Entry, append_ms: int | None) -> None:
        """Write the base offsets of one slice, and its append time, into the cached copy (never into the body)."""
        buffer = piece.buffer
        at = entry.position - piece.start
        end = at + entry.length
        offset = entry.base
        while at < end:
            _, length = _FRAME(buffer, at)
            count = _DELTA(buffer, at + _DELTA_POSITION)[0] + 1
            if length < HEADER_SIZE - 12 or count < 1 or at + 12 + length > end:
                raise Corrupt(f"object {entry.object}: no batch at {piece.start + at}")
            _STAMP(buffer, at, offset)
            _EPOCH(buffer, at + 12, LEADER_EPOCH)
            if append_ms is not None:
                give_append_time(buffer, at, 12 + length, append_ms)
            offset += count
            at += 12 + length
        if offset != entry.end:
            raise Corrupt(f"object {entry.object}: the slice at {entry.position} has {offset - entry.base} records")
        assert piece.stamped is not None
        piece.stamped.add(entry.position)

    # -- loading ----------------------------------------------------------------------------------------------------

    async def _piece(self, stream: Stream, entry: Entry, offset: int) -> tuple[CachedPiece | None, int]:
        """The piece that holds the batch with `offset`, and where to look for it; no piece: look the entry up again."""
        one = self._replica.state.streams.objects.get(entry.object)
        if one is None:
            raise Retry(f"stream {stream.id} is of a state that was replaced meanwhile")
        append_ms = self._replica.state.streams.append_times.of(entry)  # before any wait: the object may go meanwhile
        start = entry.position
        try:
            if one.size <= self._limits.whole_object_bytes or self._cache.get((entry.object, 0)):
                key, length = (entry.object, 0), one.size
            elif one.kind == MERGED:
                start, length = await self._merged_range(one, entry, offset)
                key = (entry.object, start)
            else:
                key, length = (entry.object, entry.position), entry.length
            piece = await self._load(one, key, length)
        except Missing as error:
            await self._replica.catch_up()
            if self._replica.state.streams.objects.get(entry.object) is not one:
                return None, 0  # its last entry went, or the whole state was replaced by a checkpoint
            index = stream.find(offset)
            if index < len(stream.bases) and stream.entry(index).object == entry.object:
                raise Corrupt(f"object {self._key(one)} is lost: {error}") from error
            return None, 0
        if piece.stamped is not None and entry.position not in piece.stamped:
            self._stamp(piece, entry, append_ms)
        return piece, start

    async def _load(self, one: WalObject, key: Key, length: int) -> CachedPiece:
        piece = self._cache.get(key)
        if piece is not None:
            self._cache.hits += 1
            return piece
        loading = self._loading.get(key)
        if loading is None:
            self._cache.misses += 1
            loading = self._loading[key] = asyncio.ensure_future(self._fetch(one, key, length))
            loading.add_done_callback(lambda _: self._loading.pop(key, None))
        return await asyncio.shield(loading)

    async def _fetch(self, one: WalObject, key: Key, length: int) -> CachedPiece:
        async with self._slots:
            [buffer] = await self._wal.read(self._key(one), [(key[1], length)])
        if key[1] == 0:
            verify(buffer)
        elif len(buffer) < length:
            raise Corrupt(f"object {self._key(one)} is cut short")
        else:
            check_batches(buffer, self._key(one), key[1])
        piece = CachedPiece(key[1], buffer, None if one.kind == MERGED else set())
        self._cache.put(key, piece)
        return piece

    async def _merged_range(self, one: WalObject, entry: Entry, offset: int) -> tuple[int, int]:
        """Which piece of a merged object to read for `offset`.

        A slice falls into pieces in one way only, so a consumer that takes less than one finds the rest in the cache.
        """
        found = await self._merged_slice(one, entry)
        marks = found.marks
        each = max(self._limits.chunk_bytes // MARK_EVERY_BYTES, 1)
        first = mark_at_or_before(marks, offset) // each * each
        end = marks[first + each].position if first + each < len(marks) else found.position + found.length
        return marks[first].position, end - marks[first].position

    async def _merged_slice(self, one: WalObject, entry: Entry) -> MergedSlice:
        index = self._indexes.get(one.number)
        if index is None:
            index = await self._read_index(one)
        found = index.get(entry.position)
        if found is None:
            raise Corrupt(f"object {self._key(one)} has no slice at {entry.position}")
        return found

    async def _read_index(self, one: WalObject) -> dict[int, MergedSlice]:
        key = self._key(one)
        tail_bytes = min(one.size, 64 * 1024)
        async with self._slots:
            [tail] = await self._wal.read(key, [(one.size - tail_bytes, tail_bytes)])
            footer = parse_footer(tail)
            need = footer.index_length + FOOTER_BYTES
            if need > len(tail):
                [tail] = await self._wal.read(key, [(one.size - need, need)])
        rows = parse_merged_index(footer, tail[len(tail) - need : len(tail) - FOOTER_BYTES])
        self._indexes[one.number] = index = {row.position: row for row in rows}
        while len(self._indexes) > 1 and sum(map(len, self._indexes.values())) > INDEX_SLICES_KEPT:
            self._indexes.pop(next(iter(self._indexes)))
        return index

    def _key(self, one: WalObject) -> str:
        return key_of(self._replica.state.cluster, one)


def check_batches(piece: bytearray, key: str, position: int) -> None:
    """A part of an object has no checksum of its own, but its batches have: see that they are what was produced."""
    view, at = memoryview(piece), 0
    while at < len(piece):
        size = PREFIX_SIZE + (_FRAME(piece, at)[1] if at + HEADER_SIZE <= len(piece) else 0)
        if not HEADER_SIZE <= size <= len(piece) - at or checksum(view, at, size) != _CRC(piece, at + CRC_POSITION)[0]:
            raise Corrupt(f"object {key}: the batch at {position + at} is damaged")
        at += size


def key_of(cluster: str, one: WalObject) -> str:
    """The key of an object that the state knows."""
    named = merged_key if one.kind == MERGED else wal_key
    return named(cluster, one.member, one.epoch, one.tick)

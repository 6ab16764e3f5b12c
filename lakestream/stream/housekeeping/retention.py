"""Retention: a command moves the start of a log past records that are too old or too many (L24).

The collector deletes the bytes later, and the table's care removes the rows (T21). Records in the WAL go by whole
entries, landed records by the ranges in which they landed. Age counts from the append of the entry's object, or from
the landing of the range, in cluster time (L14), so no client's clock can keep or drop a record. A stream that is too
large keeps at least its limit, as in Kafka. The same rounds expire unused producers and committed offsets.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.landed import Landing
from lakestream.model.commands import AdvanceLogStart, Body, ExpireProducers
from lakestream.model.configs import TABLE_ENABLED, TABLE_RETENTION
from lakestream.model.groups.offsets import ExpireGroups, ExpireOffsets, overdue, overdue_offsets
from lakestream.model.levels import BOUNDED
from lakestream.model.reasons import No
from lakestream.model.state import State
from lakestream.model.streams import STRIDE, Stream, WalObject
from lakestream.model.topics import Topic
from lakestream.stream.housekeeping.collector import is_first_broker
from lakestream.stream.long_work import Steps, chunks, run_in_steps
from lakestream.stream.rules import TopicRules

log = logging.getLogger(__name__)

ENTRIES_AT_ONCE = 10_000
"""The most entries that one command drops: folding a command must not stall the brokers."""
STREAMS_AT_ONCE = 1000
GROUPS_AT_ONCE = 500
"""How many groups one step checks."""

RulesOf = Callable[[Topic], TopicRules]


class Trim(NamedTuple):
    """Move the start of a log to `start`, which drops `entries` entries."""

    stream: int
    start: int
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """How long unused producers and committed offsets are kept, and how often they are looked for."""

    producers_ms: int = 86_400_000
    offsets_ms: int = 604_800_000
    every_s: float = 300.0


class Retention:
    """Applies the topics' retention for the whole cluster; only the live broker with the lowest id does."""

    def __init__(self, replica: Replica, rules_of: RulesOf, clock: Clock, expiry: Expiry) -> None:
        self._replica = replica
        self._rules_of = rules_of
        self._clock = clock
        self._expiry = expiry
        self._expired_s = clock.monotonic()
        self.trimmed_entries = 0

    async def apply(self) -> int:
        """Run one round; returns how many entries it dropped. May raise Retry, Unknown or Fenced."""
        replica = self._replica
        if not is_first_broker(replica.state, replica.member_id):
            return 0
        dropped = 0
        waiting: list[Trim] = []
        for topic in list(replica.state.topics.by_id.values()):
            while found := due(replica.state, [topic], self._rules_of, replica.state.members.time_ms):
                waiting += found
                if sum(trim.entries for trim in waiting) < ENTRIES_AT_ONCE:
                    break
                went = await self._trim(waiting)
                dropped += went
                if not went:
                    break
            await asyncio.sleep(0)
        dropped += await self._trim(waiting)
        await self._expire()
        return dropped

    async def _trim(self, waiting: list[Trim]) -> int:
        """Propose the waiting trims in commands of ENTRIES_AT_ONCE at most; returns how many entries were dropped."""
        dropped = 0
        while waiting:
            taken: list[Trim] = []
            entries = 0
            while waiting and len(taken) < STREAMS_AT_ONCE and entries + waiting[-1].entries <= ENTRIES_AT_ONCE:
                taken.append(waiting.pop())
                entries += taken[-1].entries
            if await self._propose(AdvanceLogStart([trim[:2] for trim in taken])):
                dropped += entries
        self.trimmed_entries += dropped
        return dropped

    async def _expire(self) -> None:
        """Every `every_s`, expire idle producers (L18) and committed offsets of groups without members."""
        now_s = self._clock.monotonic()
        if now_s - self._expired_s < self._expiry.every_s:
            return
        self._expired_s = now_s
        state = self._replica.state
        before_ms = state.members.time_ms - self._expiry.producers_ms
        while _has_idle_producers(self._replica.state, before_ms):
            if not await self._propose(ExpireProducers(before_ms)):
                break
        before_ms = state.members.time_ms - self._expiry.offsets_ms
        if self._replica.state.level < BOUNDED:
            if any(overdue(self._replica.state, before_ms)):
                await self._propose(ExpireOffsets(before_ms))
            return
        for names in await run_in_steps(_overdue_groups(self._replica.state, before_ms)):
            await self._propose(ExpireGroups(before_ms, names))

    async def _propose(self, body: Body) -> bool:
        outcome = await self._replica.propose(body)
        if isinstance(outcome, No):
            log.error("%s was refused: %s", type(body).__name__, outcome.message)
        return not isinstance(outcome, No)


def _overdue_groups(state: State, before_ms: int) -> Steps[list[list[str]]]:
    """The groups with offsets to expire, in lists of ENTRIES_AT_ONCE offsets at most, one command each."""
    found: list[list[str]] = [[]]
    weight = 0
    for names in chunks(list(state.groups.by_name), GROUPS_AT_ONCE):
        for name in names:
            group = state.groups.by_name.get(name)
            old = overdue_offsets(state, group, before_ms) if group is not None else 0
            if old and weight + old > ENTRIES_AT_ONCE:
                found.append([])
                weight = 0
            if old:
                found[-1].append(name)
                weight += old
        yield
    return [names for names in found if names]


def _has_idle_producers(state: State, before_ms: int) -> bool:
    """Whether a producer was last used before `before_ms`. From level BOUNDED on the first one is the longest idle."""
    producers = state.producers.by_id.values()
    first = producers if state.producers.limits is None else islice(producers, 1)
    return any(producer.used_ms < before_ms for producer in first)


def due(state: State, topics: Iterable[Topic], rules_of: RulesOf, now_ms: int) -> list[Trim]:
    """The log starts to move; a stream drops ENTRIES_AT_ONCE entries at most."""
    trims = []
    objects, by_id = state.streams.objects, state.streams.by_id
    for topic in topics:
        rules = rules_of(topic)
        if rules.retention_ms < 0 and rules.retention_bytes < 0:
            continue
        for stream_id in topic.streams:
            stream = by_id.get(stream_id)
            if stream is None or (not stream.bases and stream.landed <= stream.start):
                continue
            start, all_landed = overdue_landed(stream, state.catalog.landings.get(topic.id), rules, now_ms)
            # With a table retention of its own, rows outlive their records: a record is not dropped before it landed.
            waits = TABLE_RETENTION in topic.configs and topic.configs.get(TABLE_ENABLED) != "false"
            entries = overdue_entries(stream, objects, rules, now_ms) if all_landed and not waits else 0
            if entries:
                trims.append(Trim(stream_id, stream.entry(entries - 1).end, entries))
            elif start > stream.start:
                trims.append(Trim(stream_id, start, 0))
    return trims


def light_starts(state: State, starts: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """New log starts, as (stream, offset), in lists of ENTRIES_AT_ONCE entries at most, one command each.

    A stream that drops more entries is in several lists.
    """
    some: list[tuple[int, int]] = []
    weight = 0
    for stream_id, offset in starts:
        stream = state.streams.by_id.get(stream_id)
        bases = stream.bases if stream is not None else ()
        entries = stream.find(offset) if stream is not None else 0
        steps = [bases[index] for index in range(ENTRIES_AT_ONCE, entries, ENTRIES_AT_ONCE)]
        for start in (*steps, offset):
            dropped = min(entries, ENTRIES_AT_ONCE)
            entries -= dropped
            if some and (len(some) == STREAMS_AT_ONCE or weight + dropped > ENTRIES_AT_ONCE):
                yield some
                some, weight = [], 0
            some.append((stream_id, start))
            weight += dropped
    if some:
        yield some


def overdue_landed(stream: Stream, landing: Landing | None, rules: TopicRules, now_ms: int) -> tuple[int, bool]:
    """The log start that retention gives by landed ranges, and whether it lies at or above the progress."""
    start = stream.start
    if landing is None or stream.landed <= start:
        return start, True
    before_ms = now_ms - rules.retention_ms if rules.retention_ms >= 0 else -1
    marks = [mark for mark in landing.marks(stream.partition) if mark.end > start]
    # Of a range that the log start cuts, only the part above it counts.
    sizes = [mark.size * (mark.end - max(mark.start, start)) // max(mark.end - mark.start, 1) for mark in marks]
    left = stream.size + sum(sizes)
    for mark, size in zip(marks, sizes, strict=True):
        left -= size
        if mark.time_ms >= before_ms and not 0 <= rules.retention_bytes <= left:
            return start, False
        start = mark.end
    return start, start >= stream.landed


def overdue_entries(stream: Stream, objects: dict[int, WalObject], rules: TopicRules, now_ms: int) -> int:
    """How many of the oldest entries are too old, or exceed the size that retention keeps."""
    refs, size = stream.refs, stream.size
    before_ms = now_ms - rules.retention_ms if rules.retention_ms >= 0 else -1
    kept_bytes = rules.retention_bytes
    for index in range(min(len(stream.bases), ENTRIES_AT_ONCE)):
        at = index * STRIDE
        size -= refs[at + 2]
        if objects[refs[at]].time_ms >= before_ms and not 0 <= kept_bytes <= size:
            return index
    return min(len(stream.bases), ENTRIES_AT_ONCE)

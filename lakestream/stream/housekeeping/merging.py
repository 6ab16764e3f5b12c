"""Which entries the mover merges next: decided here, without I/O, from the state at hand.

Two reasons to merge. A stream has *many* entries, which all members keep in memory (L20); or an old object is mostly
*dead*, and a few live slices pin its bytes. Either way a window of consecutive entries of one stream becomes one.

Rewriting costs, so a window counts only if its result is `growth` times as large as the largest of its entries. Then
every rewrite of a byte makes its entry so many times larger, and a byte is rewritten a logarithmic number of times. If
a window fails that test, so does every part of it that has its largest entry: one looks on in the parts left and right.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from lakestream.model.append_times import AppendTimes
from lakestream.model.batches.wal_object import FOOTER_BYTES, HEADER_BYTES
from lakestream.model.streams import STRIDE, Entry, Stream, Streams, WalObject
from lakestream.model.topics import Topic
from lakestream.stream.rules import TopicRules

SLICE_OVERHEAD_BYTES = 64
"""What a slice costs in an object's index, at most: no part of what is dead in it."""
LEAST_GROWTH = 2
"""What suffices for a window that gets rid of many entries, or when the state is full."""
PARTS_OF_A_LIMIT = 8
"""Retention drops whole entries: one entry spans no more than this part of what a topic's limits allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLimits:
    """Bounds of the mover, and when it moves at all."""

    merge_bytes: int = 16 * 1024 * 1024
    """What one merge holds in memory, and the largest merged object."""
    small_bytes: int = 1024 * 1024
    """The same while the state is small: larger writes get in the way of acknowledgements."""
    small_entries: int = 32_768
    """How many entries a small state has at most."""
    merge_entries: int = 512
    """What one merge replaces; choosing them, and folding its command, takes milliseconds in which nobody else has a
    turn."""
    quiet_ms: int = 10_000
    """Entries of the newest seconds are left alone: consumers read them from memory."""
    many_entries: int = 512
    """A stream with more entries is merged, and others of its topic with it; sooner when the state fills."""
    window_entries: int = 8
    """Fewer entries than this are not worth a merge."""
    growth: int = 4
    dead_age_ms: int = 300_000
    dead_bytes: int = 64 * 1024
    """An object has to pin so many dead bytes before its live ones are moved."""
    dead_rest_ms: int = 5_000
    """How long nobody looks again at all objects, after none was mostly dead."""
    reads_at_once: int = 4
    write_timeout_s: float = 60.0


class Effort(NamedTuple):
    """How hard to try: from how many entries on, for how small a gain."""

    many_entries: int
    window_entries: int
    growth: int


def effort_for(topic: Topic, streams: Streams, topics: int, limits: MoveLimits) -> Effort:
    """Above half of its share, or with the state half full, a topic is merged even where it pays less (L20)."""
    if topic.entries * 2 > streams.share(topic, topics) or streams.entries * 2 > streams.limit:
        return Effort(limits.window_entries, max(limits.window_entries // 2, 2), min(limits.growth, LEAST_GROWTH))
    return Effort(limits.many_entries, limits.window_entries, limits.growth)


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive entries of one stream that become one."""

    stream: int
    entries: list[Entry]
    length: int
    oldest_ms: int
    newest_ms: int

    @property
    def base(self) -> int:
        return self.entries[0].base

    @property
    def end(self) -> int:
        return self.entries[-1].end


@dataclass(slots=True)
class Merge:
    """The windows that go into one merged object. They share one age, so none may be much older than another."""

    limits: MoveLimits
    windows: list[Window] = field(default_factory=list)
    sources: dict[int, WalObject] = field(default_factory=dict)
    times: AppendTimes = field(default_factory=AppendTimes)
    """What was known of the sources' append times when they were chosen: another merge may end them meanwhile (L19)."""
    length: int = 0
    entries: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    span_ms: int = -1

    def take(self, window: Window, streams: Streams, span_ms: int) -> bool:
        """Add a window if it fits; each stream has one at most."""
        oldest_ms = min(self.oldest_ms, window.oldest_ms) if self.windows else window.oldest_ms
        newest_ms = max(self.newest_ms, window.newest_ms)
        spans = [span for span in (self.span_ms, span_ms) if span >= 0]
        if self.windows and (
            self.length + window.length > self.limits.merge_bytes
            or self.entries + len(window.entries) > self.limits.merge_entries
            or (spans and newest_ms - oldest_ms > min(spans))
        ):
            return False
        self.windows.append(window)
        self.sources.update((entry.object, streams.objects[entry.object]) for entry in window.entries)
        self.times.objects.update(streams.append_times.among(entry.object for entry in window.entries).objects)
        self.length += window.length
        self.entries += len(window.entries)
        self.oldest_ms, self.newest_ms, self.span_ms = oldest_ms, newest_ms, min(spans, default=-1)
        return True

    @property
    def full(self) -> bool:
        return self.length * 10 > self.limits.merge_bytes * 9 or self.entries * 10 > self.limits.merge_entries * 9


class Bounds(NamedTuple):
    """What one window of a stream may have."""

    before_ms: int
    length: int
    entries: int
    span_ms: int


def bounds_for(rules: TopicRules, limits: MoveLimits, now_ms: int, entries: int) -> Bounds:
    """From the limits, and from the topic's retention, which can only drop whole entries."""
    length = limits.merge_bytes
    if rules.retention_bytes >= 0:
        length = min(length, rules.retention_bytes // PARTS_OF_A_LIMIT)
    span_ms = rules.retention_ms // PARTS_OF_A_LIMIT if rules.retention_ms >= 0 else -1
    return Bounds(now_ms - limits.quiet_ms, length, entries, span_ms)


def many_window(
    stream: Stream, objects: dict[int, WalObject], bounds: Bounds, effort: Effort, some: range, bad: AbstractSet[int]
) -> Window | None:
    """The oldest window among some entries that is worth a merge."""
    for start, stop in segments(stream, objects, bounds, effort.growth, some, bad):
        if stop - start >= effort.window_entries:
            lengths = list(stream.refs[start * STRIDE + 2 : stop * STRIDE : STRIDE])
            found = worthwhile(lengths, effort.window_entries, effort.growth)
            if found is None:
                found = worthwhile(lengths, 2 * effort.window_entries, min(effort.growth, LEAST_GROWTH))
            if found is not None:
                return window_of(stream, objects, start + found[0], start + found[1])
    return None


def first_below(stream: Stream, length: int, first: int) -> int:
    """The first entry from `first` on that is not larger than this, and so may be merged again."""
    lengths = stream.refs[first * STRIDE + 2 :: STRIDE]
    return next((index for index, one in enumerate(lengths, first) if one <= length), len(stream.bases))


def segments(
    stream: Stream, objects: dict[int, WalObject], bounds: Bounds, growth: int, some: range, bad: AbstractSet[int]
) -> Iterator[tuple[int, int]]:
    """Ranges of entries that one window may take, from the oldest on: quiet, small, next to each other."""
    refs, bases = stream.refs, stream.bases
    start, length, oldest_ms, end = some.start, 0, 0, -1
    for index in some:
        number, _, size, count, _ = refs[index * STRIDE : index * STRIDE + STRIDE]
        time_ms = objects[number].time_ms
        if time_ms > bounds.before_ms:
            yield start, index
            return
        if size * growth > bounds.length or number in bad:
            yield start, index
            start, length, end = index + 1, 0, -1
            continue
        too_long = length + size > bounds.length or index - start >= bounds.entries
        too_wide = length and 0 <= bounds.span_ms < time_ms - oldest_ms
        if index > start and (too_long or too_wide or bases[index] != end):
            yield start, index
            start, length = index, 0
        oldest_ms = min(oldest_ms, time_ms) if length else time_ms
        length += size
        end = bases[index] + count
    yield start, some.stop


def worthwhile(lengths: Sequence[int], fewest: int, growth: int) -> tuple[int, int] | None:
    """The oldest range [start, stop) of at least `fewest` whose sum is `growth` times its largest or more."""
    parts = [(0, len(lengths))]
    while parts:
        start, stop = parts.pop()
        if stop - start < fewest:
            continue
        part = lengths[start:stop]
        largest = max(part)
        if largest * growth <= sum(part):
            return start, stop
        middle = start + part.index(largest)
        parts += [(middle + 1, stop), (start, middle)]
    return None


def dead_window(
    stream: Stream, objects: dict[int, WalObject], victims: AbstractSet[int], bounds: Bounds
) -> Window | None:
    """The oldest consecutive entries of a stream that lie in objects which are mostly dead."""
    numbers = stream.refs[0::STRIDE]
    if victims.isdisjoint(numbers):
        return None
    first = next(index for index, number in enumerate(numbers) if number in victims)
    last, length, end = first, 0, stream.bases[first]
    while last < len(numbers) and numbers[last] in victims and stream.bases[last] == end:
        entry = stream.entry(last)
        length += entry.length
        if last > first and (length > bounds.length or last - first >= bounds.entries):
            break
        last, end = last + 1, entry.end
    return window_of(stream, objects, first, last)


def is_mostly_dead(one: WalObject, limits: MoveLimits, now_ms: int) -> bool:
    dead = one.size - one.live_bytes - one.live * SLICE_OVERHEAD_BYTES - HEADER_BYTES - FOOTER_BYTES
    return dead >= limits.dead_bytes and dead * 2 > one.size and one.time_ms + limits.dead_age_ms <= now_ms


def window_of(stream: Stream, objects: dict[int, WalObject], first: int, last: int) -> Window:
    entries = [stream.entry(index) for index in range(first, last)]
    times = [objects[entry.object].time_ms for entry in entries]
    return Window(stream.id, entries, sum(entry.length for entry in entries), min(times), max(times))

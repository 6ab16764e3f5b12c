"""Which entries the mover merges next: a pure decision from the state.

There are two reasons to merge. A stream has *many* entries, which all members keep in memory (L20); or an old object is
mostly *dead*, and a few live slices pin its bytes. In both cases a window, consecutive entries of one stream, becomes
one entry.

Rewriting costs, so a window is worth a merge only if the result is `growth` times as large as its largest entry. Each
rewrite of a byte then makes its entry `growth` times larger, so a byte is rewritten a logarithmic number of times. If a
window fails that test, so does every part of it that holds its largest entry: the search goes on in the parts to the
left and to the right of that entry.
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
"""The most that one slice takes in an object's index. These bytes do not count as dead."""
LEAST_GROWTH = 2
"""The growth that suffices when a window replaces many entries, or when the state fills."""
PARTS_OF_A_LIMIT = 8
"""An entry spans an eighth of a topic's retention limits at most, since retention drops whole entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLimits:
    """The limits of one merge, and when a merge is worth it."""

    merge_bytes: int = 16 * 1024 * 1024
    """The largest merged object; one merge holds as much in memory."""
    small_bytes: int = 1024 * 1024
    """Replaces `merge_bytes` while the state is small: a larger write would delay acknowledgements."""
    small_entries: int = 32_768
    """The most entries that a state has to be small."""
    merge_entries: int = 512
    """The most entries that one merge replaces: choosing them and folding the command blocks the event loop for some
    milliseconds."""
    quiet_ms: int = 10_000
    """Younger entries are not merged: consumers still read them from the cache."""
    many_entries: int = 512
    """A stream with more entries is merged, together with the other streams of its topic; fewer suffice when the state
    fills."""
    window_entries: int = 8
    """The fewest entries that are worth a merge."""
    growth: int = 4
    dead_age_ms: int = 300_000
    dead_bytes: int = 64 * 1024
    """Live slices are moved out of an object only if it has at least so many dead bytes."""
    dead_rest_ms: int = 5_000
    """The pause between two searches through all objects, when the first found none that is mostly dead."""
    reads_at_once: int = 4
    write_timeout_s: float = 60.0


class Effort(NamedTuple):
    """When to merge a topic: from how many entries of a stream on, and for how small a gain."""

    many_entries: int
    window_entries: int
    growth: int


def effort_for(topic: Topic, streams: Streams, topics: int, limits: MoveLimits) -> Effort:
    """A topic above half of its share, or any topic in a state half full, is merged for a smaller gain (L20)."""
    if topic.entries * 2 > streams.share(topic, topics) or streams.entries * 2 > streams.limit:
        return Effort(limits.window_entries, max(limits.window_entries // 2, 2), min(limits.growth, LEAST_GROWTH))
    return Effort(limits.many_entries, limits.window_entries, limits.growth)


@dataclass(frozen=True, slots=True)
class MergeWindow:
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
    """The windows that go into one merged object. The object has one age, so their ages may differ little only."""

    limits: MoveLimits
    windows: list[MergeWindow] = field(default_factory=list)
    sources: dict[int, WalObject] = field(default_factory=dict)
    times: AppendTimes = field(default_factory=AppendTimes)
    """The append times of the source objects, noted at the choice: another merge may remove them meanwhile (L19)."""
    length: int = 0
    entries: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    span_ms: int = -1

    def take(self, window: MergeWindow, streams: Streams, span_ms: int) -> bool:
        """Add a window if it fits; returns whether it did. Each stream has one window at most."""
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


class WindowBounds(NamedTuple):
    """The limits of one window: the newest append time, bytes, entries, and the span of append times."""

    before_ms: int
    length: int
    entries: int
    span_ms: int


def bounds_for(rules: TopicRules, limits: MoveLimits, now_ms: int, entries: int) -> WindowBounds:
    """The bounds by the mover's limits and by the topic's retention, which drops whole entries only."""
    length = limits.merge_bytes
    if rules.retention_bytes >= 0:
        length = min(length, rules.retention_bytes // PARTS_OF_A_LIMIT)
    span_ms = rules.retention_ms // PARTS_OF_A_LIMIT if rules.retention_ms >= 0 else -1
    return WindowBounds(now_ms - limits.quiet_ms, length, entries, span_ms)


def many_window(
    stream: Stream,
    objects: dict[int, WalObject],
    bounds: WindowBounds,
    effort: Effort,
    some: range,
    bad: AbstractSet[int],
) -> MergeWindow | None:
    """The oldest window worth a merge among the entries of the range `some`."""
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
    """The index of the first entry, from `first` on, of at most `length` bytes: a larger one is not merged again."""
    lengths = stream.refs[first * STRIDE + 2 :: STRIDE]
    return next((index for index, one in enumerate(lengths, first) if one <= length), len(stream.bases))


def segments(
    stream: Stream, objects: dict[int, WalObject], bounds: WindowBounds, growth: int, some: range, bad: AbstractSet[int]
) -> Iterator[tuple[int, int]]:
    """The ranges of entries that one window may take, the oldest first: quiet, small, with consecutive offsets."""
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
    """The oldest range [start, stop) of at least `fewest` lengths whose sum is at least `growth` times the largest."""
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
    stream: Stream, objects: dict[int, WalObject], mostly_dead: AbstractSet[int], bounds: WindowBounds
) -> MergeWindow | None:
    """The oldest consecutive entries of a stream that lie in mostly dead objects."""
    numbers = stream.refs[0::STRIDE]
    if mostly_dead.isdisjoint(numbers):
        return None
    first = next(index for index, number in enumerate(numbers) if number in mostly_dead)
    last, length, end = first, 0, stream.bases[first]
    while last < len(numbers) and numbers[last] in mostly_dead and stream.bases[last] == end:
        entry = stream.entry(last)
        length += entry.length
        if last > first and (length > bounds.length or last - first >= bounds.entries):
            break
        last, end = last + 1, entry.end
    return window_of(stream, objects, first, last)


def is_mostly_dead(one: WalObject, limits: MoveLimits, now_ms: int) -> bool:
    dead = one.size - one.live_bytes - one.live * SLICE_OVERHEAD_BYTES - HEADER_BYTES - FOOTER_BYTES
    return dead >= limits.dead_bytes and dead * 2 > one.size and one.time_ms + limits.dead_age_ms <= now_ms


def window_of(stream: Stream, objects: dict[int, WalObject], first: int, last: int) -> MergeWindow:
    entries = [stream.entry(index) for index in range(first, last)]
    times = [objects[entry.object].time_ms for entry in entries]
    return MergeWindow(stream.id, entries, sum(entry.length for entry in entries), min(times), max(times))

"""What a round lands, and who does which part of it: pure functions of the state.

    choose   for each topic a prefix of what is not in its table yet, as slices of WAL objects, fair shares of the round
    divide   the slices into tasks by weight: small topics share a task, a large one is cut in the order of its objects

Slices of a topic lie next to each other in an object, and topics are divided in the order in which objects hold them,
so a task reads few ranges of an object, and no two tasks read the same byte (T18).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import NamedTuple

from lakestream.data.tables.slices import Slice, slices_of
from lakestream.model.state import State
from lakestream.model.streams import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLimits:
    """Bounds of one round."""

    round_bytes: int = 512 << 20
    """What one round reads from the WAL: it bounds what a crash makes us do again."""
    task_bytes: int = 64 << 20
    small_task_bytes: int = 8 << 20
    """Below this a further task costs more than it gains."""
    file_weight_bytes: int = 256 << 10
    """What it costs to make a file, however small, in bytes that could be landed instead."""
    topic_slices: int = 100_000


class Range(NamedTuple):
    """Offsets [start, end) of one partition."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicWork:
    """What one topic lands in a round; it is committed whole or not at all."""

    topic_id: bytes
    slices: tuple[Slice, ...]
    """In the order of the objects, and of the offsets of each partition."""
    ranges: tuple[Range, ...]

    @property
    def size(self) -> int:
        return sum(one.length for one in self.slices)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a topic's work that one task does, ordered by partition and offset."""

    topic_id: bytes
    slices: tuple[Slice, ...]


def choose(state: State, topic_ids: Iterable[bytes], limits: RoundLimits) -> list[TopicWork]:
    """The work of a round. Topics with little to do get all of it, the others the same share of what is left."""
    waiting = sorted((waiting_bytes(state, one), one) for one in topic_ids if one in state.topics.by_id)
    chosen = []
    left, still = limits.round_bytes, len(waiting)
    for size, topic_id in waiting:
        share = left // still
        still -= 1
        if size:
            work = topic_work(state, topic_id, share, limits.topic_slices)
            left -= min(work.size, share)
            chosen.append(work)
    return sorted(chosen, key=lambda work: state.topics.by_id[work.topic_id].streams[0])


def waiting_bytes(state: State, topic_id: bytes) -> int:
    """How many bytes of the WAL are not in the table yet; of an entry that the progress cuts, all."""
    streams = (state.streams.by_id[one] for one in state.topics.by_id[topic_id].streams)
    return sum(stream.size for stream in streams if waits(stream))


def waits(stream: Stream) -> bool:
    return wanted_from(stream) < stream.next


def wanted_from(stream: Stream) -> int:
    """The first offset that has to land."""
    return max(stream.landed, stream.start)


def topic_work(state: State, topic_id: bytes, max_bytes: int, max_slices: int) -> TopicWork:
    """Slices of all partitions in the order of their objects, up to `max_bytes`, but one at least."""
    streams = [state.streams.by_id[one] for one in state.topics.by_id[topic_id].streams]
    ordered = merge(*(_in_order(stream) for stream in streams if waits(stream)))
    taken: list[Slice] = []
    left = max_bytes
    for _, one in islice(ordered, max_slices):
        if taken and one.length > left:
            break
        taken.append(one)
        left -= one.length
    ends: dict[int, tuple[int, int]] = {}
    for one in taken:
        start, _ = ends.get(one.partition, (one.first, 0))
        ends[one.partition] = (start, one.end)
    ranges = tuple(Range(partition, start, end) for partition, (start, end) in sorted(ends.items()))
    return TopicWork(topic_id, tuple(taken), ranges)


def _in_order(stream: Stream) -> Iterator[tuple[int, Slice]]:
    """A stream's slices with growing keys: merged objects are younger than what follows them, and must not wait."""
    key = 0
    for one in slices_of(stream, wanted_from(stream)):
        key = max(key, one.object)
        yield key, one


def divide(works: Sequence[TopicWork], slots: int, limits: RoundLimits) -> list[list[Share]]:
    """The tasks of a round: as many as there are slots for, or a multiple of that if they would be too large."""
    total = sum(work.size + limits.file_weight_bytes for work in works)
    turns = -(-total // (max(slots, 1) * limits.task_bytes))
    room = max(-(-total // max(slots * turns, 1)), limits.small_task_bytes)
    tasks: list[list[Share]] = []
    left = 0
    for work in works:
        size = work.size + limits.file_weight_bytes
        if size > left and size > room:
            tasks += [[share] for share in _cut(work, -(-size // room))]
            left = 0
            continue
        if size > left:
            tasks.append([])
            left = room
        tasks[-1].append(Share(work.topic_id, by_offset(work.slices)))
        left -= size
    return tasks


def _cut(work: TopicWork, parts: int) -> Iterator[Share]:
    """A large topic in even parts, in the order of its objects, so that each covers a narrow range of offsets."""
    each = -(-work.size // parts)
    part: list[Slice] = []
    passed = number = 0
    for one in work.slices:
        own = (passed + one.length // 2) // each
        if part and own != number:
            yield Share(work.topic_id, by_offset(part))
            part = []
        part.append(one)
        passed, number = passed + one.length, own
    yield Share(work.topic_id, by_offset(part))


def by_offset(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    return tuple(sorted(slices))

"""Plans a round: which slices of the WAL it lands, and which task lands which of them. Pure functions of the state.

    choose   for each topic the oldest records that are not in its table yet, as slices of WAL objects; each topic gets
             a fair share of the round. Of a topic with very many partitions those that wait longest are chosen, since
             one command lands them all
    divide   the slices into tasks by weight: small topics share a task, a large one is cut in the order of its objects

Slices of a topic lie next to each other in an object, and topics are divided in the order in which objects hold them,
so a task reads few ranges of an object, and no two tasks read the same byte (T18).

Choosing looks at every partition, so it pauses from time to time for the event loop. The state may change in a pause:
the slices of a topic are those of one moment, and their objects are noted as they were at that moment.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge, nsmallest
from itertools import islice
from typing import NamedTuple

from lakestream.data.tables.files.slices import TailSlice, slices_of
from lakestream.model.append_times import AppendTimes
from lakestream.model.state import State
from lakestream.model.streams import STRIDE, Stream, WalObject
from lakestream.pipeline.tables.waiting import waits, wanted_from
from lakestream.stream.long_work import Steps, at_once, chunks

TURN_STREAMS = 2_000
TURN_TOPICS = 500
TURN_SLICES = 1_000
"""So much is looked at between two pauses: a few milliseconds each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLimits:
    """Bounds of one round."""

    round_bytes: int = 512 << 20
    """Bytes of the WAL that one round reads, and that a crash makes the next round read again."""
    task_bytes: int = 64 << 20
    small_task_bytes: int = 8 << 20
    """Below this size a further task costs more than it gains."""
    file_weight_bytes: int = 256 << 10
    """The cost of making a file, however small, as bytes that could be landed in that time."""
    topic_slices: int = 50_000
    topic_partitions: int = 2_000
    """Both bound how long every member takes to fold a commit: some 20 ms."""


class WorkRange(NamedTuple):
    """Offsets [start, end) of one partition."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicWork:
    """The records of one topic that a round lands, committed whole or not at all."""

    topic_id: bytes
    slices: tuple[TailSlice, ...]
    """In the order of the objects, and of the offsets of each partition."""
    ranges: tuple[WorkRange, ...]

    @property
    def size(self) -> int:
        return sum(one.length for one in self.slices)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a topic's work that one task does, ordered by partition and offset."""

    topic_id: bytes
    slices: tuple[TailSlice, ...]


class Plan(NamedTuple):
    """The work of a round, and the WAL objects that it lies in, by their numbers."""

    works: list[TopicWork]
    objects: dict[int, WalObject]


def choose(state: State, topic_ids: Iterable[bytes], limits: RoundLimits) -> list[TopicWork]:
    """The work of a round, found without pauses."""
    return at_once(choosing(state, topic_ids, limits)).works


def choosing(state: State, topic_ids: Iterable[bytes], limits: RoundLimits) -> Steps[Plan]:
    """The work of a round. Small topics get all they need, large ones the same share of the rest."""
    waiting: list[tuple[int, bytes]] = []
    for some in chunks(list(topic_ids), TURN_TOPICS):
        for topic_id in some:
            waiting.append(((yield from waiting_bytes(state, topic_id)), topic_id))
        if len(some) == TURN_TOPICS:
            yield
    chosen: list[TopicWork] = []
    objects: dict[int, WalObject] = {}
    left, still, slices = limits.round_bytes, len(waiting), 0
    for size, topic_id in sorted(waiting):
        share = left // still
        still -= 1
        if size:
            work = yield from working(state, topic_id, share, limits, objects)
            if work is not None:
                left -= min(work.size, share)
                chosen.append(work)
                slices += len(work.slices)
        if slices >= TURN_SLICES:
            slices = 0
            yield
    first = {topic_id: topic.streams[0] for topic_id, topic in state.topics.by_id.items()}
    there = [work for work in chosen if work.topic_id in first]  # without topics that were deleted meanwhile
    return Plan(sorted(there, key=lambda work: first[work.topic_id]), objects)


def waiting_bytes(state: State, topic_id: bytes) -> Steps[int]:
    """Bytes of the WAL that are not in the table yet; an entry that landed in part counts whole."""
    size = 0
    topic = state.topics.by_id.get(topic_id)
    for some in chunks(topic.streams if topic is not None else [], TURN_STREAMS):
        streams = (state.streams.by_id.get(one) for one in some)
        size += sum(stream.size for stream in streams if stream is not None and waits(stream))
        if len(some) == TURN_STREAMS:
            yield
    return size


def working(
    state: State, topic_id: bytes, max_bytes: int, limits: RoundLimits, objects: dict[int, WalObject]
) -> Steps[TopicWork | None]:
    """Slices in the order of their objects, at least one and up to `max_bytes`; None if no record waits.

    The objects that hold them are added to `objects`.
    """
    longest = yield from _longest_waiting(state, topic_id, limits.topic_partitions)
    found = (state.streams.by_id.get(one) for one in longest)
    streams = [_copied(stream, limits.topic_slices) for stream in found if stream is not None and waits(stream)]
    numbers = {number for stream in streams for number in stream.refs[::STRIDE]}
    known = {number: state.streams.objects[number] for number in numbers}
    times = state.streams.append_times.among(numbers)
    taken: list[TailSlice] = []
    left = max_bytes
    for _, one in islice(merge(*(_in_order(stream, times) for stream in streams)), limits.topic_slices):
        if taken and one.length > left:
            break
        taken.append(one)
        left -= one.length
        if len(taken) % TURN_SLICES == 0:
            yield
    objects.update((one.object, known[one.object]) for one in taken)
    return _work(topic_id, taken) if taken else None


def _longest_waiting(state: State, topic_id: bytes, most: int) -> Steps[list[int]]:
    """The streams of a topic with waiting records; of too many, those whose first waiting entry is oldest."""
    waiting: list[tuple[int, int]] = []
    topic = state.topics.by_id.get(topic_id)
    for some in chunks(topic.streams if topic is not None else [], TURN_STREAMS):
        for stream in map(state.streams.by_id.get, some):
            if stream is not None and waits(stream):
                first = stream.find(wanted_from(stream)) * STRIDE
                waiting.append((stream.refs[first], stream.id))
        if len(some) == TURN_STREAMS:
            yield
    return [stream_id for _, stream_id in (nsmallest(most, waiting) if len(waiting) > most else waiting)]


def _copied(stream: Stream, most: int) -> Stream:
    """The stream with its first waiting entries, as they are now."""
    first = stream.find(wanted_from(stream))
    copy = Stream(stream.id, stream.topic, stream.partition)
    copy.start, copy.landed, copy.next = stream.start, stream.landed, stream.next
    copy.bases = stream.bases[first : first + most]
    copy.refs = stream.refs[first * STRIDE : (first + most) * STRIDE]
    return copy


def _work(topic_id: bytes, taken: Sequence[TailSlice]) -> TopicWork:
    ends: dict[int, tuple[int, int]] = {}
    for one in taken:
        start, _ = ends.get(one.partition, (one.first, 0))
        ends[one.partition] = (start, one.end)
    ranges = tuple(WorkRange(partition, start, end) for partition, (start, end) in sorted(ends.items()))
    return TopicWork(topic_id, tuple(taken), ranges)


def _in_order(stream: Stream, times: AppendTimes) -> Iterator[tuple[int, TailSlice]]:
    """A stream's slices with growing keys: a merged object has a higher number than the records after it."""
    key = 0
    for one in slices_of(stream, wanted_from(stream), times):
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
    part: list[TailSlice] = []
    passed = number = 0
    for one in work.slices:
        own = (passed + one.length // 2) // each
        if part and own != number:
            yield Share(work.topic_id, by_offset(part))
            part = []
        part.append(one)
        passed, number = passed + one.length, own
    yield Share(work.topic_id, by_offset(part))


def by_offset(slices: Iterable[TailSlice]) -> tuple[TailSlice, ...]:
    return tuple(sorted(slices))

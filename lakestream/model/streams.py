"""Streams: offsets, log starts, and where the bytes of each offset lie. The heart of the state machine.

An entry maps the offsets [base, base + count) to one byte range of one WAL object. All batches of a stream that one
object holds next to each other make one entry; a batch that was refused, or was a duplicate, splits the range, so its
bytes are never served (L20). Entries are packed: `bases` can be bisected, `refs` has five numbers for each base.

`Append` is the hot command: its body is packed (append_rows.py).
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from lakestream.model.append_rows import HEAD, ROW
from lakestream.model.append_times import AppendTimes
from lakestream.model.commands import AdvanceLogStart, Collected, MovedSlice, ReplaceEntries
from lakestream.model.levels import BOUNDED
from lakestream.model.members import Member
from lakestream.model.producers import judge
from lakestream.model.reasons import No, Reason

if TYPE_CHECKING:
    from lakestream.model.state import State
    from lakestream.model.topics import Topic, Topics

STRIDE = 5
NUMBERS_MAX = 1 << 62
"""Numbers of a command above this do not fit into an entry."""

TICK, MERGED = 0, 1


class Entry(NamedTuple):
    """One entry, unpacked. `object` is the number of a WAL object in the state."""

    base: int
    object: int
    position: int
    length: int
    records: int
    max_timestamp: int

    @property
    def end(self) -> int:
        return self.base + self.records


class WalObject:
    """One object that entries point to; its name follows from kind, member, epoch and tick (or move) number."""

    __slots__ = ("dead_ms", "epoch", "kind", "live", "live_bytes", "member", "number", "size", "tick", "time_ms")

    def __init__(self, number: int, kind: int, member: int, epoch: int, tick: int, size: int, time_ms: int) -> None:
        self.number = number
        self.kind = kind
        self.member = member
        self.epoch = epoch
        self.tick = tick
        self.size = size
        self.time_ms = time_ms
        self.live = 0
        self.live_bytes = 0
        self.dead_ms = 0


STORED = ("dead_ms", "epoch", "kind", "live", "live_bytes", "member", "number", "size", "tick", "time_ms")
"""The fields of an object in a checkpoint, in their order for good: later ones are added at the end."""


class Stream:
    """One partition of one topic. Offsets below `landed` are rows of the topic's table, and have no entries."""

    __slots__ = ("bases", "id", "landed", "next", "partition", "refs", "size", "start", "topic")

    def __init__(self, stream_id: int, topic: "Topic", partition: int) -> None:
        self.id = stream_id
        self.topic = topic
        self.partition = partition
        self.start = 0
        self.landed = 0
        self.next = 0
        self.size = 0
        self.bases = array("q")
        self.refs = array("q")

    def __repr__(self) -> str:
        return f"<Stream {self.id} {self.topic.name}-{self.partition} [{self.start}, {self.next})>"

    def dump(self) -> list[Any]:
        places = self.bases.tobytes(), self.refs.tobytes()
        return [self.id, self.topic.id, self.partition, self.start, self.next, self.size, *places, self.landed]

    @classmethod
    def load(cls, fields: list[Any], topic: "Topic") -> "Stream":
        id_, _, partition, start, next_offset, size, bases, refs, *later = fields
        stream = cls(id_, topic, partition)
        stream.start, stream.next, stream.size = start, next_offset, size
        stream.landed = later[0] if later else 0
        stream.bases.frombytes(bases)
        stream.refs.frombytes(refs)
        return stream

    def entry(self, index: int) -> Entry:
        return Entry(self.bases[index], *self.refs[index * STRIDE : index * STRIDE + STRIDE])

    def find(self, offset: int) -> int:
        """The index of the entry that holds `offset`, or of the first one above it."""
        index = bisect_right(self.bases, offset) - 1
        if index < 0 or self.bases[index] + self.refs[index * STRIDE + 3] <= offset:
            return index + 1
        return index

    def entries(self, offset: int) -> Iterator[Entry]:
        """The entries from the one that holds `offset` on."""
        for index in range(self.find(offset), len(self.bases)):
            yield self.entry(index)


class Streams:
    """All streams, and the WAL objects that their entries live in."""

    __slots__ = (
        "active", "append_times", "by_activity", "by_id", "dead", "entries", "limit", "next_id", "next_object",
        "objects",
    )  # fmt: skip

    def __init__(self) -> None:
        self.append_times = AppendTimes()
        self.by_id: dict[int, Stream] = {}
        self.objects: dict[int, WalObject] = {}
        self.dead: dict[int, WalObject] = {}
        self.next_id = 1
        self.next_object = 1
        self.entries = 0
        self.limit = 1_000_000
        self.active = 0
        """Partitions that have entries."""
        self.by_activity = False
        """Whether a topic's share follows its active partitions: from level BOUNDED on."""

    def least_share(self, topics: int) -> int:
        """How many entries every topic may hold (L20): half of all while there is room, else an equal share."""
        crowded = self.entries * 4 >= self.limit * 3
        if not crowded:
            return self.limit // 2
        if self.by_activity:
            return max(self.limit // (2 * max(topics, 1)), 1)
        return max(self.limit // max(topics, 2), 1024)

    def share(self, topic: "Topic", topics: int) -> int:
        """How many entries this topic may hold: at least its part of the partitions that have entries."""
        least = self.least_share(topics)
        return max(least, self.limit * topic.active // max(self.active, 1)) if self.by_activity else least

    def over_share(self, topic: "Topic", topics: int) -> bool:
        return topic.entries >= self.share(topic, topics)

    def add_object(self, kind: int, member: Member, tick: int, size: int, time_ms: int) -> WalObject:
        number = self.next_object
        self.next_object += 1
        made = self.objects[number] = WalObject(number, kind, member.id, member.epoch, tick, size, time_ms)
        return made

    def release(self, number: int, entries: int, size: int, now_ms: int) -> None:
        """Note that entries of an object are gone. Without entries the object is dead (L23)."""
        one = self.objects[number]
        one.live -= entries
        one.live_bytes -= size
        if not one.live:
            del self.objects[number]
            self.append_times.objects.pop(number, None)
            one.dead_ms = now_ms
            self.dead[number] = one

    def drop(self, stream: Stream, first: int, last: int, now_ms: int) -> None:
        """Remove the entries [first, last) of a stream."""
        if last <= first:
            return
        refs = stream.refs
        for index in range(first, last):
            length = refs[index * STRIDE + 2]
            stream.size -= length
            self.release(refs[index * STRIDE], 1, length, now_ms)
        del stream.bases[first:last]
        del refs[first * STRIDE : last * STRIDE]
        self.entries -= last - first
        stream.topic.entries -= last - first
        if not stream.bases:
            self.active -= 1
            stream.topic.active -= 1

    def dump(self, doomed: Iterable["Stream"], level: int) -> list[Any]:
        """`doomed`: streams of deleted topics that still have entries."""
        fields = [
            self.next_id,
            self.next_object,
            self.limit,
            [[getattr(one, name) for name in STORED] for one in self.objects.values()],
            [[getattr(one, name) for name in STORED] for one in self.dead.values()],
            [one.dump() for one in self.by_id.values()],
        ]
        return [*fields, [one.dump() for one in doomed]] if level >= BOUNDED else fields

    @classmethod
    def load(cls, fields: list[Any], topics: "Topics") -> "Streams":
        streams = cls()
        streams.next_id, streams.next_object, streams.limit = fields[:3]
        for source, target in ((fields[3], streams.objects), (fields[4], streams.dead)):
            for values in source:
                one = WalObject(0, 0, 0, 0, 0, 0, 0)
                for name, value in zip(STORED, values, strict=False):
                    setattr(one, name, value)
                target[one.number] = one
        for row in fields[5]:
            stream = Stream.load(row, topics.by_id[row[1]])
            streams.by_id[stream.id] = stream
            streams.count(stream)
        for row in fields[6] if len(fields) > 6 else ():
            doomed = topics.doomed[row[1]]
            doomed.streams.append(Stream.load(row, doomed.topic))
            streams.count(doomed.streams[-1])
        return streams

    def count(self, stream: Stream) -> None:
        """Count a stream's entries."""
        self.entries += len(stream.bases)
        self.active += bool(stream.bases)
        stream.topic.entries += len(stream.bases)
        stream.topic.active += bool(stream.bases)


def append(state: "State", member: Member, payload: memoryview) -> list[int] | No:
    """Give every batch its base offset, or that of the original if it is a duplicate, or a negative reason."""
    if len(payload) < HEAD.size:
        return No(Reason.MALFORMED, "an append without a head")
    tick, size, count = HEAD.unpack_from(payload)
    rows = payload[HEAD.size :]
    if len(rows) != count * ROW.size or tick <= member.tick:
        return No(Reason.MALFORMED, "an append whose rows or tick do not agree with its head")
    member.tick = tick
    streams = state.streams
    time_ms = state.members.time_ms
    topics = len(state.topics.by_id)
    least = streams.least_share(topics)
    made = streams.add_object(TICK, member, tick, size, time_ms)
    number, by_id, producers, moved = made.number, streams.by_id, state.producers, state.moved
    results: list[int] = []
    answer = results.append
    run: Stream | None = None
    run_end = -1
    refs: array[int]
    for stream_id, count, position, length, timestamp, producer_id, epoch, sequence in ROW.iter_unpack(rows):
        stream = by_id.get(stream_id)
        if stream is None or count == 0 or length == 0:
            answer(-Reason.UNKNOWN_STREAM)
            continue
        base = stream.next
        if stream is not run and stream.topic.entries >= least and streams.over_share(stream.topic, topics):
            answer(-Reason.OVER_SHARE)
            continue
        if producer_id >= 0:
            known = judge(producers, producer_id, stream, epoch, sequence, count, base, time_ms)
            if known is not None:
                answer(known)
                continue
        stream.next = base + count
        stream.size += length
        made.live_bytes += length
        refs = stream.refs
        if stream is run and position == run_end:
            refs[-3] += length
            refs[-2] += count
            if timestamp > refs[-1]:
                refs[-1] = timestamp
        else:
            if not refs:
                streams.active += 1
                stream.topic.active += 1
            stream.bases.append(base)
            refs.extend((number, position, length, count, timestamp))
            made.live += 1
            stream.topic.entries += 1
            moved.append(stream_id)
            run = stream
        run_end = position + length
        answer(base)
    streams.entries += made.live
    if not made.live:
        made.live = 1
        streams.release(number, 1, 0, time_ms)
    return results


def advance_log_start(state: "State", member: Member, body: AdvanceLogStart) -> list[int]:
    """The new log start of each stream, or a negative reason. A start never moves back, nor above the end."""
    results = []
    for stream_id, offset in body.starts:
        stream = state.streams.by_id.get(stream_id)
        if stream is None:
            results.append(-int(Reason.UNKNOWN_STREAM))
        elif offset > stream.next or offset < 0:
            results.append(-int(Reason.OFFSET_OUT_OF_RANGE))
        else:
            if offset > stream.start:
                stream.start = offset
                state.streams.drop(stream, 0, stream.find(offset), state.members.time_ms)
            results.append(stream.start)
    return results


def replace_entries(state: "State", member: Member, body: ReplaceEntries) -> list[bool] | No:
    """Which of the ranges were replaced. A range whose entries changed meanwhile is left alone."""
    if body.move <= member.move:
        return No(Reason.MALFORMED, "a merged object's number has to grow")
    member.move = body.move
    streams = state.streams
    made = streams.add_object(MERGED, member, body.move, body.size, body.time_ms)
    results = [_replace(state, made, one) for one in body.slices]
    if not made.live:
        made.live = 1
        streams.release(made.number, 1, 0, state.members.time_ms)
    return results


def _replace(state: "State", made: WalObject, new: MovedSlice) -> bool:
    streams = state.streams
    stream = streams.by_id.get(new.stream)
    lies_within = 0 <= new.position < new.position + new.length <= made.size < NUMBERS_MAX
    if stream is None or not lies_within or abs(new.max_timestamp) > NUMBERS_MAX:
        return False
    first = stream.find(new.base)
    last = bisect_right(stream.bases, new.base + new.records - 1)
    if first >= last or stream.bases[first] != new.base or stream.entry(last - 1).end != new.base + new.records:
        return False
    streams.drop(stream, first, last, state.members.time_ms)
    if not stream.bases:
        streams.active += 1
        stream.topic.active += 1
    stream.bases.insert(first, new.base)
    at = first * STRIDE
    stream.refs[at:at] = array("q", (made.number, new.position, new.length, new.records, new.max_timestamp))
    stream.size += new.length
    made.live += 1
    made.live_bytes += new.length
    streams.entries += 1
    stream.topic.entries += 1
    return True


def collected(state: "State", member: Member, body: Collected) -> int:
    """How many of the names were still known."""
    dead = state.streams.dead
    return sum(dead.pop(number, None) is not None for number in body.objects)


RULES = ((AdvanceLogStart, advance_log_start), (ReplaceEntries, replace_entries), (Collected, collected))

"""Streams: offsets, log starts, and where the bytes of each offset lie. The heart of the state machine.

An entry maps the offsets [base, base + count) to one byte range of one WAL object. All batches of a stream that one
object holds next to each other make one entry; a batch that was refused, or was a duplicate, splits the range, so its
bytes are never served (L20). Entries are packed: `bases` can be bisected, `refs` has five numbers for each base.

`Append` is the hot command. Its body is packed: a head, then one row a batch, rows ordered by stream.
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lakestream.model.commands import AdvanceLogStart, Collected, MovedSlice, ReplaceEntries
from lakestream.model.members import Member
from lakestream.model.producers import BATCHES_KEPT, SEQUENCES, Producer
from lakestream.model.producers import Sequence as ProducerSequence
from lakestream.model.reasons import No, Reason

if TYPE_CHECKING:
    from lakestream.model.state import State
    from lakestream.model.topics import Topic

HEAD = struct.Struct("<QII")
"""The tick, the size of its object, and the number of rows."""
ROW = struct.Struct("<IIIIqqhi")
"""Stream, record count, position, length, max timestamp, producer id, producer epoch, first sequence."""
STRIDE = 5
NUMBERS_MAX = 1 << 62
"""A command may say more than the packed numbers of an entry can hold."""

AppendRow = tuple[int, int, int, int, int, int, int, int]

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

    __slots__ = ("by_id", "dead", "entries", "limit", "next_id", "next_object", "objects")

    def __init__(self) -> None:
        self.by_id: dict[int, Stream] = {}
        self.objects: dict[int, WalObject] = {}
        self.dead: dict[int, WalObject] = {}
        self.next_id = 1
        self.next_object = 1
        self.entries = 0
        self.limit = 1_000_000

    def share(self, topics: int) -> int:
        """How many entries one topic may hold (L20): half of all while there is room, then the others keep theirs."""
        crowded = self.entries * 4 >= self.limit * 3
        return max(self.limit // max(topics, 2), 1024) if crowded else self.limit // 2

    def add_object(self, kind: int, member: Member, tick: int, size: int, time_ms: int) -> WalObject:
        number = self.next_object
        self.next_object += 1
        made = self.objects[number] = WalObject(number, kind, member.id, member.epoch, tick, size, time_ms)
        return made

    def release(self, number: int, entries: int, size: int, now_ms: int) -> None:
        """Some entries of an object are gone; with the last one the object is dead (L23)."""
        one = self.objects[number]
        one.live -= entries
        one.live_bytes -= size
        if not one.live:
            del self.objects[number]
            one.dead_ms = now_ms
            self.dead[number] = one

    def drop(self, stream: Stream, first: int, last: int, now_ms: int) -> None:
        """Remove the entries [first, last) of a stream."""
        refs = stream.refs
        for index in range(first, last):
            length = refs[index * STRIDE + 2]
            stream.size -= length
            self.release(refs[index * STRIDE], 1, length, now_ms)
        del stream.bases[first:last]
        del refs[first * STRIDE : last * STRIDE]
        self.entries -= last - first
        stream.topic.entries -= last - first

    def dump(self) -> list[Any]:
        return [
            self.next_id,
            self.next_object,
            self.limit,
            [[getattr(one, name) for name in WalObject.__slots__] for one in self.objects.values()],
            [[getattr(one, name) for name in WalObject.__slots__] for one in self.dead.values()],
            [
                [s.id, s.topic.id, s.partition, s.start, s.next, s.size, s.bases.tobytes(), s.refs.tobytes(), s.landed]
                for s in self.by_id.values()
            ],
        ]

    @classmethod
    def load(cls, fields: list[Any], topics: dict[bytes, "Topic"]) -> "Streams":
        streams = cls()
        streams.next_id, streams.next_object, streams.limit = fields[:3]
        for source, target in ((fields[3], streams.objects), (fields[4], streams.dead)):
            for values in source:
                one = WalObject(0, 0, 0, 0, 0, 0, 0)
                for name, value in zip(WalObject.__slots__, values, strict=True):
                    setattr(one, name, value)
                target[one.number] = one
        for id_, topic_id, partition, start, following, size, bases, refs, *later in fields[5]:
            stream = Stream(id_, topics[topic_id], partition)
            stream.start, stream.next, stream.size = start, following, size
            stream.landed = later[0] if later else 0
            stream.bases.frombytes(bases)
            stream.refs.frombytes(refs)
            streams.by_id[id_] = stream
            streams.entries += len(stream.bases)
            stream.topic.entries += len(stream.bases)
        return streams


def pack_append(tick: int, size: int, rows: Sequence[AppendRow]) -> bytes:
    """The body of an `Append` command."""
    pack = ROW.pack
    return HEAD.pack(tick, size, len(rows)) + b"".join([pack(*row) for row in rows])


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
    share = streams.share(len(state.topics.by_id))
    made = streams.add_object(TICK, member, tick, size, time_ms)
    number, by_id, producers, moved = made.number, streams.by_id, state.producers.by_id, state.moved
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
        if stream is not run and stream.topic.entries >= share:
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


def judge(
    producers: dict[int, Producer],
    producer_id: int,
    stream: Stream,
    epoch: int,
    sequence: int,
    count: int,
    base: int,
    time_ms: int,
) -> int | None:
    """None if the batch is next in its producer's sequence, and noted as such; else what to answer (L18)."""
    stream_id = stream.id
    producer = producers.get(producer_id)
    if producer is None:
        producer = producers[producer_id] = Producer()
        past = producer.streams[stream_id] = ProducerSequence(epoch)
    else:
        known = producer.streams.get(stream_id)
        if known is None:
            if sequence != 0 and (stream.topic.name, stream.partition) not in producer.again:
                return -Reason.OUT_OF_ORDER
            if producer.again:
                producer.again.pop((stream.topic.name, stream.partition), None)
            past = producer.streams[stream_id] = ProducerSequence(epoch)
        elif epoch != known.epoch:
            if epoch < known.epoch:
                return -Reason.FENCED_PRODUCER
            if sequence != 0:
                return -Reason.OUT_OF_ORDER
            past = known
            past.epoch = epoch
            past.recent = []
        elif sequence != known.next:
            last = (sequence + count - 1) % SEQUENCES
            for first_kept, last_kept, base_kept in known.recent:
                if first_kept == sequence and last_kept == last:
                    return base_kept
            return -Reason.OUT_OF_ORDER
        else:
            past = known
    producer.used_ms = time_ms
    past.next = (sequence + count) % SEQUENCES
    recent = past.recent
    if len(recent) == BATCHES_KEPT:
        del recent[0]
    recent.append((sequence, (sequence + count - 1) % SEQUENCES, base))
    return None


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
    """Which of the ranges were replaced. One whose entries changed meanwhile is left alone (its premise is gone)."""
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

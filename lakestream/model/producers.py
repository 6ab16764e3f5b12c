"""Producers: ids, epochs and sequences, so that a retry is never a second record (C3, L18).

For each producer id and stream the state keeps the epoch and the last five batches. A batch is

    next in sequence                 -> appended
    one of the last five, repeated   -> answered with its first offset, nothing is appended
    of an older epoch                -> fenced
    anything else                    -> out of order

An unknown producer id (expired, or older than the log) may start anywhere; a known id has to start a stream that is new
to it at sequence 0. But the producers of a topic that is deleted and made again do not notice, and count on: each may
start once at its own sequence in the new partition that replaces the one it wrote to.

From level BOUNDED on the ids are bounded: `by_id` is in the order of last use, as cluster time tells it, and those that
were not used for longest are forgotten first. An id that was never given out, but lies close above the counter, moves
the counter, so that no other producer gets it; one far above is refused, so that no client can use the counter up.
"""

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from lakestream.model.commands import AllocateProducerId, ExpireProducers
from lakestream.model.members import Member
from lakestream.model.reasons import Reason

if TYPE_CHECKING:
    from lakestream.model.pieces import Doomed
    from lakestream.model.state import State
    from lakestream.model.streams import Stream

BATCHES_KEPT = 5
SEQUENCES = 1 << 31
AGAIN_MAX = 1000
"""Deleted partitions that are remembered of one producer, the latest ones."""

AHEAD_MAX = 1_000_000
"""An unknown id that is further above the counter than this is refused: the counter has 63 bits, and must last."""
FORGOTTEN_AT_ONCE = 64
"""Producers that one new one pushes out at most; more only where a limit was lowered."""
EXPIRED_AT_ONCE = 5_000
"""Producers that one command forgets; the proposer repeats the command while there are so many."""

Place = tuple[str, int]
"""A topic's name and a partition."""


class ProducerSequence:
    """What one producer did last in one stream: `recent` holds (first, last, base offset), oldest first."""

    __slots__ = ("epoch", "next", "recent")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next = 0
        self.recent: list[tuple[int, int, int]] = []


NO_LIMITS = (0, 0)
"""Of a state that was just loaded, until `bound` says what they are."""


class Producer:
    """One producer id. `again`: where it wrote to a topic that is gone, oldest first."""

    __slots__ = ("again", "streams", "used_ms")

    def __init__(self) -> None:
        self.streams: dict[int, ProducerSequence] = {}
        self.used_ms = 0
        self.again: dict[Place, None] = {}


class Producers:
    """All producer ids that are remembered; `sequences` counts the streams of each. `limits`: of both, if any."""

    __slots__ = ("by_id", "doomed", "limits", "next_id", "sequences")

    def __init__(self) -> None:
        self.by_id: OrderedDict[int, Producer] = OrderedDict()
        self.next_id = 0
        self.sequences = 0
        self.limits: tuple[int, int] | None = None
        self.doomed: Mapping[bytes, Doomed] = {}
        """Deleted topics that some producers still remember."""

    def bound(self, producers: int, sequences: int) -> None:
        """Remember so many at most from now on. The first time the ids are put in the order of their last use."""
        if self.limits is None:
            self.by_id = OrderedDict(sorted(self.by_id.items(), key=lambda one: one[1].used_ms))
            for known in sorted(self.by_id):
                if self.next_id <= known < self.next_id + AHEAD_MAX:
                    self.next_id = known + 1
        self.limits = (producers, sequences)

    def admit(self, producer_id: int) -> Producer | None:
        """Begin to remember an unknown id; None if it lies too far above those that were given out."""
        if self.limits is not None:
            if producer_id >= self.next_id + AHEAD_MAX:
                return None
            self.next_id = max(self.next_id, producer_id + 1)
        producer = self.by_id[producer_id] = Producer()
        return producer

    def use(self, producer_id: int, producer: Producer, time_ms: int) -> None:
        """The producer is at work at this cluster time: it is forgotten later than those that were not."""
        producer.used_ms = time_ms
        if self.limits is not None:
            self.by_id.move_to_end(producer_id)

    def make_room(self, used: int) -> None:
        """Forget those that were not used for longest, but never `used`, while there are more than the limits allow."""
        if self.limits is None:
            return
        producers, sequences = self.limits
        for _ in range(FORGOTTEN_AT_ONCE):
            if len(self.by_id) <= producers and self.sequences <= sequences:
                return
            oldest = next(iter(self.by_id))
            if oldest != used:
                self.forget(oldest)
            elif len(self.by_id) == 1:
                return
            else:
                self.by_id.move_to_end(used)

    def forget(self, producer_id: int) -> None:
        self.sequences -= len(self.by_id.pop(producer_id).streams)

    def forget_streams(self, streams: Mapping[int, Place | None]) -> None:
        """Streams go; those with a place may be there again."""
        for producer in self.by_id.values():
            self.forget_streams_of(producer, streams)

    def forget_streams_of(self, producer: Producer, streams: Mapping[int, Place | None]) -> None:
        gone = sorted(streams.keys() & producer.streams.keys())
        self.sequences -= len(gone)
        for stream in gone:
            del producer.streams[stream]
            place = streams[stream]
            if place is not None:
                producer.again.pop(place, None)
                producer.again[place] = None
        while len(producer.again) > AGAIN_MAX:
            del producer.again[next(iter(producer.again))]

    def recall(self, producer: Producer, name: str, partition: int) -> bool:
        """Whether the producer wrote to a topic of this name whose deletion is not finished: it may go on there."""
        for doomed in self.doomed.values():
            if (held := doomed.held(name, partition)) in producer.streams:
                self.forget_streams_of(producer, {held: (name, partition)})
                return True
        return False

    def dump(self) -> list[Any]:
        return [self.next_id, [_dumped(id_, one) for id_, one in self.by_id.items()]]

    @classmethod
    def load(cls, fields: list[Any]) -> "Producers":
        producers = cls()
        producers.next_id = fields[0]
        for id_, used_ms, streams, *later in fields[1]:
            producer = producers.by_id[id_] = Producer()
            producer.used_ms = used_ms
            producer.again = {(name, partition): None for name, partition in later[0]} if later else {}
            for stream, epoch, next_sequence, recent, *_ in streams:
                sequence = producer.streams[stream] = ProducerSequence(epoch)
                sequence.next = next_sequence
                sequence.recent = [(first, last, base) for first, last, base in recent]
            producers.sequences += len(producer.streams)
        return producers


def _dumped(id_: int, one: Producer) -> list[Any]:
    streams = [[stream, s.epoch, s.next, s.recent] for stream, s in one.streams.items()]
    return [id_, one.used_ms, streams, *([[list(place) for place in one.again]] if one.again else [])]


def judge(
    producers: Producers,
    producer_id: int,
    stream: "Stream",
    epoch: int,
    sequence: int,
    count: int,
    base: int,
    time_ms: int,
) -> int | None:
    """None if the batch is next in its producer's sequence, and noted as such; else what to answer (L18)."""
    stream_id = stream.id
    producer = producers.by_id.get(producer_id)
    if producer is None:
        producer = producers.admit(producer_id)
        if producer is None:
            return -Reason.UNKNOWN_PRODUCER
        remembered = producer.streams[stream_id] = ProducerSequence(epoch)
        producers.sequences += 1
        producers.make_room(producer_id)
    else:
        known = producer.streams.get(stream_id)
        if known is None:
            place = (stream.topic.name, stream.partition)
            if sequence != 0 and place not in producer.again and not producers.recall(producer, *place):
                return -Reason.OUT_OF_ORDER
            if producer.again:
                producer.again.pop(place, None)
            remembered = producer.streams[stream_id] = ProducerSequence(epoch)
            producers.sequences += 1
            producers.make_room(producer_id)
        elif epoch != known.epoch:
            if epoch < known.epoch:
                return -Reason.FENCED_PRODUCER
            if sequence != 0:
                return -Reason.OUT_OF_ORDER
            remembered = known
            remembered.epoch = epoch
            remembered.recent = []
        elif sequence != known.next:
            last = (sequence + count - 1) % SEQUENCES
            for first_kept, last_kept, base_kept in known.recent:
                if first_kept == sequence and last_kept == last:
                    return base_kept
            return -Reason.OUT_OF_ORDER
        else:
            remembered = known
    if producer.used_ms != time_ms:
        producers.use(producer_id, producer, time_ms)
    remembered.next = (sequence + count) % SEQUENCES
    recent = remembered.recent
    if len(recent) == BATCHES_KEPT:
        del recent[0]
    recent.append((sequence, (sequence + count - 1) % SEQUENCES, base))
    return None


def allocate(state: "State", member: Member, body: AllocateProducerId) -> int:
    """A fresh id. It becomes known, so that its first batch in every stream has to start at sequence 0."""
    producers = state.producers
    given = producers.next_id
    while producers.limits is not None and given in producers.by_id:
        given += 1  # a producer brought this id along before the counter was moved by such ids
    producers.next_id = given + 1
    if (replaced := producers.by_id.get(given)) is not None:  # at the first level an id may be given out that is known
        producers.sequences -= len(replaced.streams)
    producer = producers.by_id[given] = Producer()
    producer.used_ms = state.members.time_ms
    producers.make_room(given)
    return given


def expire(state: "State", member: Member, body: ExpireProducers) -> int:
    """How many went. Those in the order of their last use are a few at a time, so that the fold is short."""
    producers = state.producers
    known = producers.by_id.items()
    if producers.limits is None:
        old = [id_ for id_, producer in known if producer.used_ms < body.before_ms]
    else:
        first = islice(known, EXPIRED_AT_ONCE)
        old = [id_ for id_, _ in takewhile(lambda one: one[1].used_ms < body.before_ms, first)]
    for id_ in old:
        producers.forget(id_)
    return len(old)


RULES = ((AllocateProducerId, allocate), (ExpireProducers, expire))

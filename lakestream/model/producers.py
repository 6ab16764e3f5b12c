"""Producers: ids, epochs and sequences, so that a retry is never a second record (C3, L18).

For each producer id and stream the state keeps the epoch and the last five batches. A batch is

    next in sequence                 -> appended
    one of the last five, repeated   -> answered with its first offset, nothing is appended
    of an older epoch                -> fenced
    anything else                    -> out of order

A producer id that nobody knows (expired, or from before) may start anywhere; a known id has to start a stream that is
new to it at sequence 0. But when a topic is deleted and made again its producers do not know, and count on: each may
start once where it is in the partition that is now in place of the one it wrote to.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakestream.model.commands import AllocateProducerId, ExpireProducers
from lakestream.model.members import Member

if TYPE_CHECKING:
    from lakestream.model.state import State

BATCHES_KEPT = 5
SEQUENCES = 1 << 31
AGAIN_MAX = 1000
"""So many partitions that are gone are remembered of one producer, the latest."""

Place = tuple[str, int]
"""A topic's name and a partition."""


class Sequence:
    """What one producer did last in one stream: `recent` holds (first, last, base offset), oldest first."""

    __slots__ = ("epoch", "next", "recent")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next = 0
        self.recent: list[tuple[int, int, int]] = []


class Producer:
    """One producer id. `again`: where it wrote to a topic that is gone, oldest first."""

    __slots__ = ("again", "streams", "used_ms")

    def __init__(self) -> None:
        self.streams: dict[int, Sequence] = {}
        self.used_ms = 0
        self.again: dict[Place, None] = {}


class Producers:
    """All producer ids that are remembered."""

    __slots__ = ("by_id", "next_id")

    def __init__(self) -> None:
        self.by_id: dict[int, Producer] = {}
        self.next_id = 0

    def forget_streams(self, streams: Mapping[int, Place | None]) -> None:
        """Streams go; those with a place may be there again."""
        for producer in self.by_id.values():
            for stream in sorted(streams.keys() & producer.streams.keys()):
                del producer.streams[stream]
                place = streams[stream]
                if place is not None:
                    producer.again.pop(place, None)
                    producer.again[place] = None
            while len(producer.again) > AGAIN_MAX:
                del producer.again[next(iter(producer.again))]

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
            for stream, epoch, following, recent in streams:
                sequence = producer.streams[stream] = Sequence(epoch)
                sequence.next = following
                sequence.recent = [(first, last, base) for first, last, base in recent]
        return producers


def _dumped(id_: int, one: Producer) -> list[Any]:
    streams = [[stream, s.epoch, s.next, s.recent] for stream, s in one.streams.items()]
    return [id_, one.used_ms, streams, *([[list(place) for place in one.again]] if one.again else [])]


def allocate(state: "State", member: Member, body: AllocateProducerId) -> int:
    """A fresh id. It becomes known, so that its first batch in every stream has to start at sequence 0."""
    producers = state.producers
    given = producers.next_id
    producers.next_id += 1
    producer = producers.by_id[given] = Producer()
    producer.used_ms = state.members.time_ms
    return given


def expire(state: "State", member: Member, body: ExpireProducers) -> int:
    by_id = state.producers.by_id
    old = [id_ for id_, producer in by_id.items() if producer.used_ms < body.before_ms]
    for id_ in old:
        del by_id[id_]
    return len(old)


RULES = ((AllocateProducerId, allocate), (ExpireProducers, expire))

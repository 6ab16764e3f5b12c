"""Topics that are too large for one command: they are made, and deleted, in pieces of a few milliseconds each.

    made      BeginTopic takes the name and the room -> ExtendTopic adds partitions, as often as needed -> with the last
              partition the topic exists. Until then no client sees it.
    deleted   DeleteTopic takes the topic away at once: its name is free, its streams are unknown. What it leaves in the
              state (entries, producers' memory, committed offsets) goes by Dismantle, as often as needed.

The state says what is not finished, so after a crash any broker goes on where the last one stopped.
"""

from typing import TYPE_CHECKING, Any, ClassVar

from lakestream.model.commands import Body, CreateTopic
from lakestream.model.levels import BOUNDED
from lakestream.model.members import Member
from lakestream.model.producers import Place
from lakestream.model.reasons import No, Reason
from lakestream.model.streams import Stream

if TYPE_CHECKING:
    from lakestream.model.state import State
    from lakestream.model.topics import Topic

ENTRIES_A_PARTITION = 5
"""A command that deletes drops so many entries for each partition that it may delete: both take about as long."""


class BeginTopic(CreateTopic, frozen=True, array_like=True):
    """A topic that comes to be when its last partition is made (ExtendTopic). Its name is taken from now on."""

    KIND: ClassVar[int] = 54
    LEVEL: ClassVar[int] = BOUNDED


class ExtendTopic(Body, frozen=True, array_like=True):
    """Make the next partitions of a topic that was begun: as many as one command may."""

    KIND: ClassVar[int] = 55
    LEVEL: ClassVar[int] = BOUNDED
    topic_id: bytes


class Dismantle(Body, frozen=True, array_like=True):
    """Forget a piece of a deleted topic: as many entries as one command may drop, and what these producers and groups
    remember of it. `last`: nothing else is left.
    """

    KIND: ClassVar[int] = 56
    LEVEL: ClassVar[int] = BOUNDED
    topic_id: bytes
    producers: list[int]
    groups: list[str]
    last: bool = False


class Forming:
    """A topic that is being made: `streams` are those that it has so far, of `partitions`."""

    __slots__ = ("partitions", "streams", "topic")

    def __init__(self, topic: "Topic", partitions: int) -> None:
        self.topic = topic
        self.partitions = partitions
        self.streams: list[Stream] = []

    def dump(self) -> list[Any]:
        one = self.topic
        return [one.id, one.name, one.replication, one.configs, self.partitions, [stream.id for stream in self.streams]]

    @classmethod
    def load(cls, topic: "Topic", partitions: int, streams: list[int]) -> "Forming":
        forming = cls(topic, partitions)
        forming.streams = [Stream(id_, topic, partition) for partition, id_ in enumerate(streams)]
        return forming


class Doomed:
    """A deleted topic: `streams` are those that still have entries. `again`: see DeleteTopic."""

    __slots__ = ("_places", "again", "streams", "topic")

    def __init__(self, topic: "Topic", again: bool, streams: list[Stream]) -> None:
        self.topic = topic
        self.again = again
        self.streams = streams
        self._places: dict[int, Place | None] | None = None

    @property
    def places(self) -> dict[int, Place | None]:
        """The streams that it had, and where each was, for producers that may find it there again."""
        if self._places is None:
            name = self.topic.name
            self._places = {id_: (name, at) if self.again else None for at, id_ in enumerate(self.topic.streams)}
        return self._places

    def held(self, name: str, partition: int) -> int:
        """The stream that was this partition of a topic of this name, if producers may find it again; else 0."""
        topic = self.topic
        return topic.streams[partition] if self.again and topic.name == name and partition < len(topic.streams) else 0

    def dump(self) -> list[Any]:
        one = self.topic
        return [one.id, one.name, one.replication, one.configs, one.streams, self.again]


def is_long(state: "State", topic: "Topic") -> bool:
    """Whether deleting this topic takes more than one command may."""
    piece = state.topics.bounds.piece
    most = piece * ENTRIES_A_PARTITION
    remembered = max(topic.entries, len(state.producers.by_id), len(state.groups.by_name))
    return len(topic.streams) > piece or remembered > most


def doom(state: "State", topic: "Topic", again: bool) -> None:
    """Take the streams of a deleted topic away; what they leave is dismantled later."""
    by_id = state.streams.by_id
    streams = [by_id.pop(stream_id) for stream_id in topic.streams]
    state.topics.doomed[topic.id] = Doomed(topic, again, [stream for stream in streams if stream.bases])


def extend(state: "State", member: Member, body: ExtendTopic) -> int | No:
    """How many partitions the topic has now; with the last one it is there."""
    forming = state.topics.forming.get(body.topic_id)
    if forming is None:
        return No(Reason.UNKNOWN_TOPIC, "no topic of this id is being made")
    streams, topic, made = state.streams, forming.topic, forming.streams
    for partition in range(len(made), min(len(made) + state.topics.bounds.piece, forming.partitions)):
        made.append(Stream(streams.next_id, topic, partition))
        streams.next_id += 1
    if len(made) == forming.partitions:
        del state.topics.forming[topic.id]
        topic.streams = [stream.id for stream in made]
        streams.by_id.update((stream.id, stream) for stream in made)
        state.topics.add(topic)
    return len(made)


def dismantle(state: "State", member: Member, body: Dismantle) -> int | No:
    """How many of the topic's streams still have entries."""
    doomed = state.topics.doomed.get(body.topic_id)
    if doomed is None:
        return No(Reason.UNKNOWN_TOPIC, "no topic of this id is being deleted")
    for producer_id in body.producers:
        producer = state.producers.by_id.get(producer_id)
        if producer is not None:
            state.producers.forget_streams_of(producer, doomed.places)
    for name in body.groups:
        group = state.groups.by_name.get(name)
        if group is not None:
            state.groups.forget_streams_of(group, doomed.places.keys())
    left = state.topics.bounds.piece * ENTRIES_A_PARTITION
    while doomed.streams and left > 0:
        stream = doomed.streams[-1]
        dropped = min(left, len(stream.bases))
        state.streams.drop(stream, 0, dropped, state.members.time_ms)
        left -= dropped + 1
        if not stream.bases:
            doomed.streams.pop()
    if body.last and not doomed.streams:
        del state.topics.doomed[body.topic_id]
    return len(doomed.streams)


RULES = ((ExtendTopic, extend), (Dismantle, dismantle))

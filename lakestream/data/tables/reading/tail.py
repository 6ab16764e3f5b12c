"""Where a topic's records are at one moment: its table up to the progress, slices of the WAL behind it.

A broker gives this out of its state (`describe_tail`), as JSON at TAIL_PATH of its HTTP port; who has it reads table
and tail from the store, without the broker and without a gap or an overlap between the two. Several topics that are
asked for at once are described at the same moment.
"""

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import msgspec

from lakestream.data.tables.files.slices import TailObject, TailSlice, slices_of, source_of
from lakestream.errors import Missing, Retry
from lakestream.model.state import State

TAIL_PATH = "/tail/"
"""Followed by the topic's name."""
TAILS_PATH = "/tail?"
"""Followed by topic=NAME for each."""
TIMEOUT_S = 20.0

T = TypeVar("T")


class PartitionBounds(NamedTuple):
    """Offsets [start, end) exist; those below `landed` are rows of the table."""

    partition: int
    start: int
    landed: int
    end: int


class TopicTail(msgspec.Struct, frozen=True):
    """One topic. A slice's `object` is an index into `objects`; item i of `max_timestamps` belongs to slice i."""

    topic: str
    root: str
    metadata_location: str
    """The table's metadata file; empty if it has none yet."""
    partitions: list[PartitionBounds]
    objects: list[TailObject]
    slices: list[TailSlice]
    max_timestamps: list[int]
    topic_id: str = ""
    """Another one if the topic was deleted and made again."""

    def slices_of(self, partition: int) -> list[TailSlice]:
        return [one for one in self.slices if one.partition == partition]


def describe_tail(state: State, topic_name: str, root: str) -> TopicTail:
    """Raises Missing if there is no such topic."""
    topic = state.topics.by_name.get(topic_name)
    if topic is None:
        raise Missing(f"there is no topic {topic_name!r}")
    table = state.catalog.of_topic(topic.id)
    bounds, slices, times = [], [], []
    numbers: dict[int, int] = {}
    for stream_id in topic.streams:
        stream = state.streams.by_id[stream_id]
        landed = max(stream.landed, stream.start)
        bounds.append(PartitionBounds(stream.partition, stream.start, landed, stream.next))
        found = slices_of(stream, landed, state.streams.append_times)
        for one, entry in zip(found, stream.entries(landed), strict=True):
            number = numbers.setdefault(one.object, len(numbers))
            slices.append(one._replace(object=number))
            times.append(entry.max_timestamp)
    return TopicTail(
        topic=topic_name,
        root=root,
        metadata_location=table.location if table is not None else "",
        partitions=bounds,
        objects=[source_of(state.cluster, state.streams.objects[number]) for number in numbers],
        slices=slices,
        max_timestamps=times,
        topic_id=topic.id.hex(),
    )


def pack_tail(tail: TopicTail | list[TopicTail]) -> bytes:
    return msgspec.json.encode(tail)


def fetch_tail(broker: str, topic: str) -> TopicTail:
    """Ask a broker, by the HOST:PORT of its HTTP listener. Raises Missing or Retry."""
    try:
        return _fetched(f"http://{broker}{TAIL_PATH}{urllib.parse.quote(topic, safe='')}", TopicTail)
    except Missing:
        raise Missing(f"{broker} knows no topic {topic!r}") from None


def fetch_tails(broker: str, topics: Iterable[str]) -> list[TopicTail]:
    """Those of the topics that exist, all at one moment. Raises Missing if the broker has no tables, or Retry."""
    names = urllib.parse.urlencode([("topic", name) for name in topics])
    return _fetched(f"http://{broker}{TAILS_PATH}{names}", list[TopicTail])


def _fetched(url: str, kind: type[T]) -> T:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read(), type=kind)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise Missing(f"{url} is not there") from None
        raise Retry(f"{url}: {error}") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise Retry(f"{url}: {error}") from error

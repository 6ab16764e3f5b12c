"""How far tables are behind their streams, from the state alone: for `lakestream tables` and the metrics."""

from dataclasses import dataclass

from lakestream.model.state import State
from lakestream.model.topics import Topic
from lakestream.pipeline.tables.waiting import is_table, wanted_from


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLag:
    """One topic: the records that are not in its table yet, how long the oldest waits, and why, if they are held."""

    topic: str
    records: int
    wal_bytes: int
    waited_ms: int
    held: str


def lags(state: State) -> list[TopicLag]:
    """Of all topics that want a table, by name."""
    topics = (topic for topic in state.topics.by_id.values() if is_table(state, topic.id))
    return sorted((lag_of(state, topic) for topic in topics), key=lambda one: one.topic)


def lag_of(state: State, topic: Topic) -> TopicLag:
    """Times are the cluster's, which moves with heartbeats: exact to a few seconds."""
    records = size = 0
    oldest_ms = state.members.time_ms
    for stream_id in topic.streams:
        stream = state.streams.by_id[stream_id]
        records += max(stream.next - wanted_from(stream), 0)
        size += stream.size
        if len(stream.bases):
            oldest_ms = min(oldest_ms, state.streams.objects[stream.entry(0).object].time_ms)
    landing = state.catalog.landings.get(topic.id)
    return TopicLag(
        topic=topic.name,
        records=records,
        wal_bytes=size,
        waited_ms=state.members.time_ms - oldest_ms if records else 0,
        held=landing.held if landing is not None else "",
    )


def lag_s(state: State) -> float:
    """The longest wait of all topics, for a gauge."""
    return max((one.waited_ms for one in lags(state)), default=0) / 1000

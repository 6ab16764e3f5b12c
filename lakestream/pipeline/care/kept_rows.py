"""The rows that retention keeps in a table: those that the stream still has, or more if the topic says so (T21)."""

from lakestream.model.catalog.landed import Landing
from lakestream.model.configs import TABLE_RETENTION, TOPIC_CONFIGS
from lakestream.model.state import State
from lakestream.model.topics import Topic

FOREVER = -1


def keep_from(state: State, topic: Topic) -> dict[int, int]:
    """The first offset to keep of each partition that has one above 0."""
    landing = state.catalog.landings.get(topic.id)
    asked = int(TOPIC_CONFIGS.value(TABLE_RETENTION, topic.configs))
    if landing is None or asked == FOREVER:
        return {}
    kept: dict[int, int] = {}
    for stream_id in topic.streams:
        stream = state.streams.by_id[stream_id]
        first = min(stream.start, stream.landed)
        if asked >= 0:
            first = min(first, landed_before(landing, stream.partition, state.members.time_ms - asked))
        if first > 0:
            kept[stream.partition] = first
    return kept


def landed_before(landing: Landing, partition: int, time_ms: int) -> int:
    """The end of the rows that landed before a moment, in cluster time."""
    ends = [mark.end for mark in landing.marks(partition) if mark.time_ms < time_ms]
    return ends[-1] if ends else 0

"""Which topics want a table, and which of their records wait to land."""

from lakestream.model.state import State
from lakestream.model.streams import Stream

ENABLED, FRESHNESS = "lakestream.table.enabled", "lakestream.table.freshness.ms"
"""Configs of a topic."""


def is_table(state: State, topic_id: bytes) -> bool:
    """Whether the topic wants a table at all."""
    return state.topics.by_id[topic_id].configs.get(ENABLED, "true") != "false"


def waits(stream: Stream) -> bool:
    """Whether the stream has records that have to land."""
    return wanted_from(stream) < stream.next


def wanted_from(stream: Stream) -> int:
    """The first offset that has to land."""
    return max(stream.landed, stream.start)

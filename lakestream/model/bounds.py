"""Limits on the size of the state, so that no client can fill the memory of all members (L20).

Every member enforces the same limits, so they are part of the state: configs of the cluster, which a command changes,
with the defaults below. The limits hold from feature level BOUNDED on; below it nothing is bounded.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from lakestream.model.levels import BOUNDED

if TYPE_CHECKING:
    from lakestream.model.state import State

UNBOUNDED = 1 << 62
ENTRY_BYTES = 48
"""The size of an entry: six numbers of 64 bits."""


class Bounds(NamedTuple):
    """The limits in force. The defaults belong to level BOUNDED: other ones would be another level."""

    topics: int = 20_000
    partitions: int = 200_000
    groups: int = 50_000
    offsets: int = 1_000_000
    """Committed offsets of all groups."""
    note_bytes: int = 64 << 20
    """Notes that clients committed with these offsets, as UTF-8."""
    producers: int = 200_000
    sequences: int = 1_000_000
    """Pairs of a producer and a partition that it wrote to."""
    entry_bytes: int = 128 << 20
    piece: int = 2_000
    """Partitions that one command makes, and about a fifth of the entries that one command deletes."""


NO_BOUNDS = Bounds(*[UNBOUNDED] * len(Bounds._fields))

CONFIGS = {
    "lakestream.max.topics": "topics",
    "lakestream.max.partitions": "partitions",
    "lakestream.max.groups": "groups",
    "lakestream.max.committed.offsets": "offsets",
    "lakestream.max.offset.note.bytes": "note_bytes",
    "lakestream.max.producers": "producers",
    "lakestream.max.producer.partitions": "sequences",
    "lakestream.max.entry.bytes": "entry_bytes",
    "lakestream.command.partitions": "piece",
}
"""The cluster's configs that set limits, and which limit each sets."""


def bounds_of(configs: Mapping[str, str]) -> Bounds:
    """The limits that these configs of the cluster ask for. A value that is no number from 1 on counts as not set."""
    asked = {field: _number(configs[name]) for name, field in CONFIGS.items() if name in configs}
    return Bounds()._replace(**{field: value for field, value in asked.items() if value})


def _number(text: str) -> int:
    return min(int(text), UNBOUNDED) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def settle_bounds(state: "State") -> None:
    """Put the limits in force that level and configs ask for: after a load, and after a change of either."""
    if state.level < BOUNDED:
        return
    bounds = state.topics.bounds = bounds_of(state.topics.configs)
    state.streams.limit = bounds.entry_bytes // ENTRY_BYTES
    state.streams.by_activity = True
    state.producers.bound(bounds.producers, bounds.sequences)
    state.producers.doomed = state.topics.doomed

"""The lags of consumer groups: the records that a group has not committed yet, by topic.

Every broker measures the groups that it coordinates, so the figures of all brokers add up. Only the
SERIES_MAX largest lags are shown, since clients choose the number of groups; another figure counts the rest.
"""

from collections.abc import Mapping
from heapq import heappush, heappushpop

from lakestream.metadata.replica import Replica
from lakestream.model.groups.group import Group
from lakestream.model.groups.membership import coordinator
from lakestream.model.state import State
from lakestream.stream.long_work import Steps, run_in_steps

SERIES_MAX = 1000
NAME_MAX = 255
"""Characters of a group's name. Groups with longer names have no figures: a thousand would make a scrape of 32 MB."""
OFFSETS_AT_ONCE = 2000
"""Committed offsets that are read before the loop serves other tasks."""
GROUP_WORK = 10
"""A group counts as this many offsets, which take about as long."""


class GroupLags:
    """The figures of the last round, by group and topic."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.records: Mapping[tuple[str, ...], int] = {}
        self.left_out = 0

    async def measure(self) -> int:
        """Measure once; returns the number of figures."""
        self.records, self.left_out = await run_in_steps(_Round(self._replica).measure())
        return len(self.records)


class _Round:
    """Looks at every group once."""

    def __init__(self, replica: Replica) -> None:
        self._state: State = replica.state
        self._broker = replica.member_id
        self._largest: list[tuple[int, str, str]] = []
        self._left_out = 0
        self._work = 0

    def measure(self) -> Steps[tuple[dict[tuple[str, ...], int], int]]:
        for name in list(self._state.groups.by_name):
            self._work += GROUP_WORK
            if self._work >= OFFSETS_AT_ONCE:
                self._work = 0
                yield
            group = self._state.groups.by_name.get(name)
            if group is None or not group.offsets or coordinator(self._state, name) != self._broker:
                continue
            for topic, lag in (yield from self._by_topic(group)).items():
                self._add(lag, name, topic)
        return {(group, topic): lag for lag, group, topic in sorted(self._largest, reverse=True)}, self._left_out

    def _by_topic(self, group: Group) -> Steps[dict[str, int]]:
        found: dict[str, int] = {}
        for stream_id in list(group.offsets):
            self._work += 1
            if self._work >= OFFSETS_AT_ONCE:
                self._work = 0
                yield
            stream, commit = self._state.streams.by_id.get(stream_id), group.offsets.get(stream_id)
            if stream is not None and commit is not None:
                topic = stream.topic.name
                found[topic] = found.get(topic, 0) + max(0, stream.next - commit.offset)
        return found

    def _add(self, lag: int, group: str, topic: str) -> None:
        if len(group) > NAME_MAX:
            self._left_out += 1
        elif len(self._largest) < SERIES_MAX:
            heappush(self._largest, (lag, group, topic))
        else:
            heappushpop(self._largest, (lag, group, topic))
            self._left_out += 1

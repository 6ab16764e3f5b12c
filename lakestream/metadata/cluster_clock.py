"""A machine's clock for times that stay: those of tables' snapshots, which engines want to grow."""

from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.cluster_time import stamp_time


class ClusterClock:
    """Cluster time while the machine's clock is far ahead of that (L14).

    Engines refuse a commit to a table whose last snapshot is later than their own: one that is a year ahead would keep
    them out for a year, and all snapshots of that year would count as new.
    """

    def __init__(self, replica: Replica, clock: Clock) -> None:
        self._replica = replica
        self._clock = clock

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall_ms(self) -> int:
        return stamp_time(self._replica.state.members.time_ms, self._clock.wall_ms())

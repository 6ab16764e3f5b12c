"""What tables' snapshots are dated with: the machine's clock, or cluster time where that clock is far ahead (L14)."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from lakestream.metadata.cluster_clock import ClusterClock
from tests.support.broker_and_pipeline import start_both


@dataclass
class Watch:
    now_ms: int

    def monotonic(self) -> float:
        return 1.0

    def wall_ms(self) -> int:
        return self.now_ms


@pytest.mark.parametrize(("ahead_ms", "believed"), [(-86_400_000, True), (3_000_000, True), (86_400_000, False)])
async def test_a_clock_is_believed_unless_it_is_far_ahead(tmp_path: Path, ahead_ms: int, believed: bool) -> None:
    broker, pipeline, _ = await start_both(tmp_path)
    cluster_ms = pipeline.replica.state.members.time_ms
    assert cluster_ms > 0
    clock = ClusterClock(pipeline.replica, Watch(cluster_ms + ahead_ms))
    assert clock.wall_ms() == cluster_ms + (ahead_ms if believed else 0)
    await pipeline.stop()
    await broker.stop()

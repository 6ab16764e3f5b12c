"""The faults of a simulation, in named mixes: a seed chooses one of them."""

from dataclasses import dataclass

from lakestream.testing.faults import StoreFaults
from lakestream.testing.lake.pipeline_node import EngineFaults
from lakestream.testing.simulation.cluster import ClusterFaults


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The faults of stores and networks, and the mean seconds between two acts of the nemesis."""

    faults: ClusterFaults
    kill_every_s: float = 0.0
    pause_every_s: float = 0.0
    cut_every_s: float = 0.0
    jump_every_s: float = 0.0
    upgrade: bool = False
    """The brokers begin with the code of the first feature level; each restart brings the newest (L3)."""


_LOSSY = StoreFaults(refused=0.02, request_lost=0.02, answer_lost=0.05, late=0.03, slow=0.02, hint_lost=0.3)
_CRASHY = StoreFaults(crash_before=0.004, crash_after=0.004, answer_lost=0.01)
_BAD_STORE = StoreFaults(
    latency_s=(0.002, 0.1), refused=0.08, request_lost=0.04, answer_lost=0.05, late=0.05, slow=0.05
)

MIXES = {
    "calm": Mix(faults=ClusterFaults()),
    "lost and late answers": Mix(faults=ClusterFaults(log=_LOSSY, wal=_LOSSY, wire_lost=0.03)),
    "crash between any two steps": Mix(faults=ClusterFaults(log=_CRASHY, wal=_CRASHY), kill_every_s=6.0),
    "paused brokers": Mix(faults=ClusterFaults(wire_lost=0.01), pause_every_s=2.0),
    "object-store errors": Mix(faults=ClusterFaults(wal=_BAD_STORE)),
    "cut off": Mix(faults=ClusterFaults(log=StoreFaults(answer_lost=0.01)), cut_every_s=3.0),
    "rolling upgrade": Mix(
        faults=ClusterFaults(log=_CRASHY, wire_lost=0.01), kill_every_s=3.0, pause_every_s=8.0, upgrade=True
    ),
    "wrong clocks": Mix(faults=ClusterFaults(skew_ms=5_000), kill_every_s=8.0, jump_every_s=1.5),
    "everything": Mix(
        faults=ClusterFaults(
            log=StoreFaults(refused=0.01, request_lost=0.01, answer_lost=0.03, late=0.02, slow=0.02, crash_before=0.002,
                       crash_after=0.002, hint_lost=0.2),
            wal=StoreFaults(latency_s=(0.002, 0.05), refused=0.03, request_lost=0.02, answer_lost=0.02, late=0.02,
                       slow=0.02, crash_before=0.002, crash_after=0.002),
            wire_lost=0.02,
            skew_ms=60_000,
        ),
        kill_every_s=8.0, pause_every_s=4.0, cut_every_s=8.0, jump_every_s=5.0,
    ),
}  # fmt: skip

_GOOD_ENGINE = EngineFaults()
_BAD_ENGINE = EngineFaults(twice=0.1, failed=0.1, died=0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeMix(Mix):
    """A mix for topics with tables: how many engines and operators use the tables, and the faults of the workers."""

    other_engines: int = 2
    engine: EngineFaults = _GOOD_ENGINE
    operators: int = 1
    members: tuple[int, ...] = ()
    """The pipelines' member ids; drawn if none are named."""


LAKE_MIXES = {
    "calm": LakeMix(faults=ClusterFaults(), other_engines=0),
    "others at work": LakeMix(faults=ClusterFaults(), other_engines=3),
    "lost and late answers": LakeMix(
        faults=ClusterFaults(log=_LOSSY, wal=_LOSSY, tables=_LOSSY, wire_lost=0.03), engine=_BAD_ENGINE
    ),
    "crash between any two steps": LakeMix(
        faults=ClusterFaults(log=_CRASHY, wal=_CRASHY, tables=_CRASHY), kill_every_s=4.0, engine=_BAD_ENGINE
    ),
    "paused": LakeMix(faults=ClusterFaults(wire_lost=0.01), pause_every_s=1.0),
    "store errors": LakeMix(faults=ClusterFaults(wal=_BAD_STORE, tables=_BAD_STORE)),
    "cut off": LakeMix(faults=ClusterFaults(log=StoreFaults(answer_lost=0.01)), cut_every_s=1.5),
    "everything": LakeMix(
        faults=ClusterFaults(
            log=MIXES["everything"].faults.log, wal=MIXES["everything"].faults.wal,
            tables=MIXES["everything"].faults.wal, wire_lost=0.02, skew_ms=60_000,
        ),
        kill_every_s=5.0, pause_every_s=3.0, cut_every_s=5.0, jump_every_s=5.0, engine=_BAD_ENGINE,
    ),
}  # fmt: skip

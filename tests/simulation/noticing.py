"""Which seed notices that a rule of landing or of care is broken."""

from collections.abc import Sequence

import pytest

from lakestream.testing.lake.pipeline_node import PipelineClasses
from lakestream.testing.lake.scenario import simulate_landing
from lakestream.testing.simulation.event_loop import SimulationError
from lakestream.testing.simulation.ledger import Violation
from lakestream.testing.simulation.node import Classes

SEEDS = 80
OTHERS = ("others at work",)
BAD = ("lost and late answers", "paused", "everything", "crash between any two steps")


def first_violation(
    mixes: Sequence[str], classes: Classes | None = None, pipeline: PipelineClasses | None = None, first: int = 0
) -> str:
    """What the first seed that notices says; `first`: where to begin, since many would not."""
    for seed in range(first, first + SEEDS):
        try:
            simulate_landing(seed, mixes[seed % len(mixes)], classes, pipeline)
        except (Violation, SimulationError) as violation:
            return str(violation)
    pytest.fail(f"{SEEDS} seeds did not notice")

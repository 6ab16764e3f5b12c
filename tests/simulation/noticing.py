"""Which seed notices that a rule of landing or of care is broken."""

from collections.abc import Sequence

import pytest

from lakestream.testing.landing import simulate_landing
from lakestream.testing.ledger import Violation
from lakestream.testing.node import Classes
from lakestream.testing.pipeline_node import PipelineClasses
from lakestream.testing.simulation import SimulationError

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

"""Many offsets as a few ranges to show, and how many they are."""

import numpy as np

from lakestream.lake.verify.ledger import Numbers
from lakestream.lake.verify.report import Range

RANGES_KEPT = 100


class Ranges:
    """Offsets in ascending order; only the first ranges of them are kept, all are counted."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[Range] = []

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, offsets: Numbers) -> None:
        """Ascending, each once, all above those that were added before."""
        if not len(offsets):
            return
        self.count += len(offsets)
        cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
        shown = offsets[: int(cuts[RANGES_KEPT])] if len(cuts) > RANGES_KEPT else offsets
        for piece in np.split(shown, cuts[:RANGES_KEPT]):
            if not len(piece):
                continue
            start, end = int(piece[0]), int(piece[-1]) + 1
            if self.first and self.first[-1][1] == start:
                self.first[-1] = (self.first[-1][0], end)
            elif len(self.first) < RANGES_KEPT:
                self.first.append((start, end))

"""The bytes of what is ours in a table stay as docs/formats/table.md says: later versions have to read them."""

import json

from lakestream.data.tables.files.runs import unpack_runs
from lakestream.data.tables.iceberg.progress import (
    LandedOffsets,
    OffsetRange,
    pack_progress,
    pack_ranges,
    unpack_progress,
    unpack_ranges,
)
from tests.support import places

PROGRESS = {0: LandedOffsets(5), 7: LandedOffsets(300, ((310, 312),)), 8: LandedOffsets(0)}
RANGES = [OffsetRange(0, 5, 9), OffsetRange(300, 0, 0)]
GOLDEN = json.loads((places.GOLDEN / "table-v1.json").read_text())
RUNS = [[0, 0, 5, 9, 1_700_000_000_000, 5], [1, 3, 0, 7, -1, 8]]


def test_progress_is_packed_as_the_page_says() -> None:
    assert pack_progress(PROGRESS) == GOLDEN["progress"]
    assert unpack_progress(GOLDEN["progress"]) == PROGRESS


def test_ranges_are_packed_as_the_page_says() -> None:
    assert pack_ranges(RANGES) == GOLDEN["ranges"]
    assert unpack_ranges(GOLDEN["ranges"]) == RANGES


def test_runs_of_the_first_version_are_read() -> None:
    """Only reading is pinned: how well zlib packs is its own affair."""
    first, unknown = unpack_runs(GOLDEN["runs"])
    assert first is not None and first.tolist() == RUNS
    assert unknown is None

"""Topics become tables on virtual time, many seeds: pipelines die, pause and race, other engines work on the tables.

Seed n runs mix n modulo their number, so each chunk has some of every mix. A failing seed says how to run it again;
what the first ones found has tests of its own in tests/unit/pipeline/test_moved_meanwhile.py.
"""

import pytest

pytest.importorskip("pyarrow")

from lakestream.testing.lake.scenario import simulate_landing
from lakestream.testing.simulation.mixes import LAKE_MIXES

CHUNK = 16
CHUNKS = 4
LONG_CHUNK = 80
LONG_CHUNKS = 30


@pytest.mark.parametrize("first", range(0, CHUNK * CHUNKS, CHUNK))
def test_every_acked_record_is_one_row_and_is_served_from_it(first: int) -> None:
    reports = [simulate_landing(seed) for seed in range(first, first + CHUNK)]
    assert {report.mix for report in reports} == set(LAKE_MIXES)
    # Where retention is short and clocks jump it may take all that there is before anything lands.
    assert sum(report.landed > 0 for report in reports) > CHUNK * 3 // 4
    assert {report.pipelines for report in reports} == {1, 2}
    for figure in ("kills", "landings", "rewrites", "deletes", "updates", "foreign_rewrites", "expiries"):
        assert sum(getattr(report, figure) for report in reports) > 0, figure
    for care in ("optimize asked", "delete asked", "orphans asked", "delete", "retention"):
        assert sum(report.care.get(care, 0) for report in reports) > 0, care


@pytest.mark.long
@pytest.mark.parametrize("first", range(10_000, 10_000 + LONG_CHUNK * LONG_CHUNKS, LONG_CHUNK))
def test_every_acked_record_is_one_row_for_thousands_of_seeds(first: int) -> None:
    for seed in range(first, first + LONG_CHUNK):
        simulate_landing(seed)


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate_landing(7) == simulate_landing(7)


FOUND = {
    "the rest of a fetch lands while its first half is read (C2)": (32, "calm"),
    "an object is merged while a round begins (T18)": (39, "everything"),
    "an epoch ends while tables are made": (10, "lost and late answers"),
    "a pipeline gives up on what the other has landed": (5, "store errors"),
    "files of a lost commit cannot be removed": (2037, "store errors"),
    "a topic is deleted while its table is loaded": (10_156, "paused"),
    "snapshots expire behind a protected one (T11, T16)": (76, "paused"),
    "a manifest still names a file that it removed (T12)": (1, "others at work"),
    "two pipelines account for the same snapshots (T16)": (145, "others at work"),
    "our own snapshots expire before others' that wait (T16)": (212, "paused"),
    "a slow clock lets snapshots expire that wait to be accounted for (T16)": (2207, "everything"),
    "a pipeline stands still while its topic is deleted (T12)": (10_460, "paused"),
    "a round is over between two looks of one search for orphans (T12)": (10_777, "others at work"),
    "a table is made while its topic is deleted, and its maker stands still (T12)": (11_870, ""),
    "a lock is held while deletes are read": (6, "cut off"),
}
"""Seeds that found something. What a seed runs changes with the simulator."""


@pytest.mark.parametrize("story", FOUND)
def test_a_seed_that_once_failed_holds(story: str) -> None:
    seed, mix = FOUND[story]
    simulate_landing(seed, mix)

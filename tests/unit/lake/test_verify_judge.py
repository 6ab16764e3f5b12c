"""The checker's verdict on rows, from arrays alone: what adds up is proven, what does not is named (T16)."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from lakestream.lake.verify.facts import (
    CAME_BACK,
    CHANGED,
    REMOVED,
    PartitionFacts,
    SnapshotEffects,
    SnapshotNote,
    Verdict,
    tag_of,
)
from lakestream.lake.verify.judge import judge_partition
from lakestream.lake.verify.ledger import BUCKET_BITS, Ledger, LedgerCursor
from lakestream.lake.verify.ranges import RANGES_KEPT, Ranges
from lakestream.lake.verify.report import Explanation, Finding, FindingKind, Report, TopicReport, Why, shown_ranges
from lakestream.model.catalog.landed import LandedMark

HASHES = 1 << 64
EDGE = 1 << BUCKET_BITS


def hash_of(offset: int) -> int:
    return int(np.int64(np.uint64(offset * 0x9E3779B97F4A7C15 % HASHES)))


def digest(offsets: Sequence[int]) -> int:
    return sum(hash_of(offset) for offset in offsets) % HASHES


def mark(start: int, end: int, time_ms: int = 5) -> LandedMark:
    return LandedMark(start, end, end - start, digest(range(start, end)), time_ms)


def filled(offsets: Sequence[int], hashes: Sequence[int] | None = None, tag: int = 0, **how: int) -> Ledger:
    ledger = Ledger(**how)
    add(ledger, offsets, hashes, tag)
    return ledger


def add(ledger: Ledger, offsets: Sequence[int], hashes: Sequence[int] | None = None, tag: int = 0) -> None:
    numbers = np.array(offsets, dtype=np.int64)
    told = np.array([hash_of(one) for one in offsets] if hashes is None else hashes, dtype=np.int64)
    ledger.add(np.zeros(len(numbers), dtype=np.int64), numbers, told, tag)


def effects(complete: bool = True, operation: str = "delete", removals: Ledger | None = None) -> SnapshotEffects:
    notes = [SnapshotNote(snapshot_id=9, time_ms=1, operation=operation)]
    return SnapshotEffects(removals=removals or Ledger(), notes=notes, complete=complete)


def judged(
    ledger: Ledger, marks: Sequence[LandedMark], recorded: Sequence[LandedMark] = (), start: int = 0, own: bool = True,
    history: SnapshotEffects | None = None,
) -> Verdict:  # fmt: skip
    facts = PartitionFacts(topic="t", partition=0, log_start=start, marks=marks, recorded=recorded)
    return judge_partition(facts, ledger, [own], history or effects())


def kinds(verdict: Verdict) -> list[FindingKind]:
    return [finding.kind for finding in verdict.findings]


def test_rows_that_add_up_are_proven_across_buckets_and_marks() -> None:
    offsets = range(EDGE - 500, EDGE + 500)
    verdict = judged(filled(offsets), [mark(EDGE - 500, EDGE + 100), mark(EDGE + 100, EDGE + 500)])
    assert verdict.findings == [] and verdict.explained == [] and verdict.proven == 1000


def test_a_ledger_gives_back_in_order_what_it_had_to_put_on_disk() -> None:
    offsets = [*range(EDGE + 50, EDGE - 50, -1), *range(100, 0, -1)]
    ledger = Ledger(memory_rows=30)
    for at in range(0, len(offsets), 20):
        add(ledger, offsets[at : at + 20])
    assert ledger.buckets(0) == [0, 1] and ledger.rows == len(offsets)
    found = np.concatenate([ledger.bucket(0, number)[:, 0] for number in ledger.buckets(0)]).tolist()
    assert found == sorted(offsets)
    cursor = LedgerCursor(ledger, 0, 10)
    assert cursor.take(12)[:, 0].tolist() == [10, 11] and len(cursor.take(EDGE)) == 89 + 49
    ledger.close()


def test_a_missing_row_is_a_loss_and_is_named() -> None:
    verdict = judged(filled([*range(40), *range(42, 100)]), [mark(0, 50), mark(50, 100)])
    assert kinds(verdict) == [FindingKind.LOST] and verdict.findings[0].ranges == [(40, 42)]
    assert verdict.proven == 50


def test_a_row_that_is_another_one_is_a_change_and_its_range_is_named() -> None:
    hashes = [hash_of(one) for one in range(100)]
    hashes[70] += 1
    verdict = judged(filled(range(100), hashes), [mark(0, 50), mark(50, 100)])
    assert (
        kinds(verdict) == [FindingKind.CHANGED] and verdict.findings[0].ranges == [(50, 100)] and verdict.proven == 50
    )


def test_recorded_removals_explain_missing_rows_even_across_marks() -> None:
    gone = LandedMark(45, 55, 4, digest([45, 47, 51, 54]), 77)
    rows = [one for one in range(100) if one not in (45, 47, 51, 54)]
    verdict = judged(filled(rows), [mark(0, 50), mark(50, 100)], [gone])
    assert verdict.findings == [] and verdict.proven == 96
    [explained] = verdict.explained
    assert (explained.why, explained.rows, explained.time_ms) == (Why.RECORDED, 4, 77)


def test_a_recorded_removal_does_not_hide_the_loss_of_another_row() -> None:
    verdict = judged(filled([one for one in range(50) if one not in (5, 6)]), [mark(0, 50)], [mark(5, 6)])
    assert kinds(verdict) == [FindingKind.LOST] and verdict.findings[0].rows == 1


def test_what_a_snapshot_removed_is_explained_by_it() -> None:
    removals = filled([5, 6], tag=tag_of(0, REMOVED))
    verdict = judged(filled([*range(5), *range(7, 50)]), [mark(0, 50)], history=effects(removals=removals))
    assert verdict.findings == [] and verdict.proven == 48
    assert [(one.why, one.rows, one.snapshot) for one in verdict.explained] == [(Why.DELETED, 2, 9)]


def test_a_rewrite_that_removes_rows_is_a_loss() -> None:
    removals = filled([5], tag=tag_of(0, REMOVED))
    verdict = judged(filled([*range(5), *range(6, 50)]), [mark(0, 50)], history=effects(True, "replace", removals))
    assert kinds(verdict) == [FindingKind.LOST] and "'replace'" in verdict.findings[0].text


def test_an_update_in_one_snapshot_or_in_two_is_explained() -> None:
    hashes = [hash_of(one) for one in range(50)]
    hashes[5] = 1234
    changed = filled([5], [hash_of(5) - 1234], tag_of(0, CHANGED))
    verdict = judged(filled(range(50), hashes), [mark(0, 50)], history=effects(True, "overwrite", changed))
    assert verdict.findings == [] and [one.why for one in verdict.explained] == [Why.CHANGED]
    in_two = filled([5], tag=tag_of(0, REMOVED))
    add(in_two, [5], [-1234], tag_of(0, CAME_BACK))
    verdict = judged(filled(range(50), hashes), [mark(0, 50)], history=effects(True, "overwrite", in_two))
    assert verdict.findings == [] and [one.why for one in verdict.explained] == [Why.CHANGED]


def test_a_rewrite_that_brings_a_removed_row_back_is_found() -> None:
    """T8."""
    history = filled([5], tag=tag_of(0, REMOVED))
    add(history, [5], [-hash_of(5)], tag_of(1, CAME_BACK))
    notes = [SnapshotNote(snapshot_id=n, time_ms=1, operation=what) for n, what in enumerate(("delete", "replace"))]
    whole = SnapshotEffects(removals=history, notes=notes, complete=True)
    verdict = judged(filled(range(50)), [mark(0, 50)], history=whole)
    assert kinds(verdict) == [FindingKind.STRAY_ROWS] and verdict.findings[0].ranges == [(5, 6)]


def test_a_new_row_that_nobody_had_removed_explains_no_other() -> None:
    inserted = filled([7], [-99], tag_of(0, CAME_BACK))
    ledger = filled(range(50))
    add(ledger, [7], [99])
    verdict = judged(ledger, [mark(0, 50)], history=effects(True, "append", inserted))
    assert FindingKind.DOUBLED in kinds(verdict) and FindingKind.LOST not in kinds(verdict)


@pytest.mark.parametrize("own", [True, False])
def test_without_all_snapshots_nothing_is_called_lost_or_clean(own: bool) -> None:
    verdict = judged(filled(range(40)), [mark(0, 50)], own=own, history=effects(complete=False))
    assert kinds(verdict) == [FindingKind.UNPROVABLE] and verdict.findings[0].ranges == [(40, 50)]


def test_changed_rows_in_files_that_only_we_wrote_are_found_even_without_all_snapshots() -> None:
    ledger = filled(range(50), [hash_of(one) + (one == 3) for one in range(50)])
    assert kinds(judged(ledger, [mark(0, 50)], history=effects(complete=False))) == [FindingKind.CHANGED]
    assert kinds(judged(ledger, [mark(0, 50)], own=False, history=effects(complete=False))) == [FindingKind.UNPROVABLE]


def test_rows_twice_and_rows_that_never_landed_are_named() -> None:
    verdict = judged(filled([*range(50), 20, 49, 60, 61]), [mark(0, 50)])
    assert kinds(verdict) == [FindingKind.DOUBLED, FindingKind.STRAY_ROWS]
    assert [finding.ranges for finding in verdict.findings] == [[(20, 21), (49, 50)], [(60, 62)]]
    assert verdict.proven == 50


def test_a_removed_row_that_is_back_is_found() -> None:
    verdict = judged(filled(range(50)), [mark(0, 50)], [mark(5, 6)])
    assert kinds(verdict) == [FindingKind.STRAY_ROWS] and "back" in verdict.findings[0].text
    verdict = judged(filled(range(50)), [mark(0, 50)], [mark(5, 6)], history=effects(complete=False))
    assert kinds(verdict) == [FindingKind.UNPROVABLE]


def test_rows_below_the_log_start_may_go_but_do_not_hide_a_loss_above_it() -> None:
    marks = [mark(0, 50), mark(50, 100)]
    verdict = judged(filled(range(50, 100)), marks, start=50)
    assert verdict.findings == [] and [one.why for one in verdict.explained] == [Why.RETENTION]
    verdict = judged(filled([*range(50, 70), *range(71, 100)]), marks, start=50)
    assert kinds(verdict) == [FindingKind.LOST] and verdict.findings[0].ranges == [(70, 71)]
    verdict = judged(filled(range(20, 100)), marks, start=20)
    assert kinds(verdict) == [FindingKind.UNPROVABLE] and verdict.proven == 50


def test_offsets_that_never_were_records_are_explained() -> None:
    sparse = LandedMark(0, 50, 48, digest([one for one in range(50) if one not in (8, 9)]), 5)
    verdict = judged(filled([one for one in range(50) if one not in (8, 9)]), [sparse])
    assert verdict.findings == [] and [(one.why, one.rows) for one in verdict.explained] == [(Why.NO_RECORD, 2)]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_to_rows_is_told_as_what_it_was(seed: int) -> None:
    """Rows are noted as removed, taken by a snapshot, lost or changed, at random."""
    random = Random(seed)
    edges = sorted(random.sample(range(1, 3000), 6))
    marks = [mark(start, end) for start, end in pairwise([0, *edges])]
    kinds_of_fate, weights = ("keep", "record", "take", "lose", "change"), [60, 1, 1, 0.02, 0.02]
    fates = dict(enumerate(random.choices(kinds_of_fate, weights, k=edges[-1])))
    rows = {offset: hash_of(offset) for offset, fate in fates.items() if fate in ("keep", "change")}
    rows |= dict.fromkeys((offset for offset, fate in fates.items() if fate == "change"), 7)
    recorded = [LandedMark(n, n + 1, 1, digest([n]), 1) for n, fate in fates.items() if fate == "record"]
    taken = [offset for offset, fate in fates.items() if fate == "take"]
    ledger = filled(list(rows), list(rows.values()), memory_rows=random.choice([100, 10_000]))
    removals = filled(taken, tag=tag_of(0, REMOVED))
    verdict = judged(ledger, marks, recorded, history=effects(removals=removals))
    of_marks = [[fates[offset] for offset in range(one.start, one.end)] for one in marks]
    assert kinds(verdict).count(FindingKind.LOST) == sum("lose" in fates for fates in of_marks)
    only_changed = sum("change" in fates and "lose" not in fates for fates in of_marks)
    assert kinds(verdict).count(FindingKind.CHANGED) == only_changed
    assert set(kinds(verdict)) <= {FindingKind.LOST, FindingKind.CHANGED}
    named = [one for finding in verdict.findings if finding.kind == FindingKind.LOST for one in finding.ranges]
    lost = [offset for start, end in named for offset in range(start, end)]
    assert {offset for offset, fate in fates.items() if fate == "lose"} <= set(lost)
    clean = [fates for fates in of_marks if not {"lose", "change"} & set(fates)]
    assert verdict.proven == sum(fates.count("keep") for fates in clean)
    assert sum(one.rows for one in verdict.explained if one.why == Why.DELETED) == len(taken)


def test_ranges_join_across_pieces_and_keep_only_the_first() -> None:
    ranges = Ranges()
    ranges.add(np.array([1, 2, 3]))
    ranges.add(np.array([4, 9]))
    assert ranges.first == [(1, 5), (9, 10)] and ranges.count == 5
    ranges.add(np.arange(10, 10_000, 2))
    assert len(ranges.first) == RANGES_KEPT and ranges.count == 5 + 4995
    assert ranges.first[1] == (9, 11) and ranges.first[2] == (12, 13)
    assert shown_ranges([(1, 2), (5, 8)]) == "1, 5 to 7"
    assert shown_ranges([(n, n + 1) for n in range(20)]).endswith("others")


def test_the_exit_code_tells_findings_from_what_could_not_be_checked() -> None:
    report = Report(cluster="c", sequence=1, topics=[TopicReport(topic="a")])
    assert report.exit_code() == 0 and report.as_json()["clean"] is True
    report.topics.append(TopicReport(topic="b", unchecked="away"))
    assert report.exit_code() == 2
    report.topics[0].findings.append(Finding(kind=FindingKind.LOST, text="x"))
    report.topics[0].explained.append(Explanation(why=Why.DELETED, text="y", partition=0, rows=1))
    assert report.exit_code() == 1 and report.as_json()["topics"][0]["findings"][0]["kind"] == "lost-rows"

"""What care plans: which files are joined, how often a row is written again, what retention drops."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.data.tables.iceberg.live_files import LiveFile, PartitionSpan
from lakestream.pipeline.care.accounts import difference, joined, minus
from lakestream.pipeline.care.plan import CareLimits, RewriteGroup, Target, to_drop, to_rewrite
from lakestream.pipeline.care.tasks import CountedRows

KB, MB = 1 << 10, 1 << 20
LIMITS = CareLimits()


def file(number: int, size: int = 10 * KB, partitions: Sequence[int] = (0, 1), rows: int = 100) -> LiveFile:
    spans = tuple(PartitionSpan(one, number * rows, number * rows + rows - 1, rows) for one in partitions)
    return LiveFile(
        path=f"f{number:06d}-{size}", size=size, rows=rows * len(partitions), sequence=number, spec_id=0,
        place="", spans=spans,
    )  # fmt: skip


def plan(
    files: Sequence[LiveFile], *, asked: bool = False, everything: bool = False, **deleted: int
) -> list[RewriteGroup]:
    return to_rewrite(files, deleted, LIMITS, asked=asked, everything=everything)


def test_nothing_is_done_before_a_tier_is_full_unless_somebody_asks() -> None:
    files = [file(n) for n in range(31)]
    assert plan(files) == [] and len(plan([*files, file(31)])[0].files) == 32
    [group] = plan(files, asked=True)
    assert len(group.files) == 31 and not group.split, "partitions share a file while each would get a small one"
    assert plan(files[:1], asked=True) == []


def test_large_files_are_left_alone_and_groups_are_what_one_task_reads() -> None:
    files = [file(n, 20 * MB) for n in range(20)] + [file(n, 100 * MB) for n in range(20, 25)]
    groups = plan(files, asked=True)
    assert {one.path for group in groups for one in group.files} == {one.path for one in files[:20]}
    assert all(group.size <= LIMITS.task_bytes and group.split for group in groups)


def test_files_with_deleted_rows_are_rewritten_when_a_third_is_gone_or_when_asked() -> None:
    large = file(1, 100 * MB)
    assert plan([large], **{large.path: 60}) == []
    assert [group.files for group in plan([large], **{large.path: 70})] == [(large,)]
    assert [group.files for group in plan([large], asked=True, **{large.path: 1})] == [(large,)]


def test_a_users_partitions_are_left_to_him_and_everything_means_everything() -> None:
    from dataclasses import replace

    theirs = [replace(file(n), place="{'day': 5}", spec_id=1) for n in range(40)]
    assert plan(theirs, asked=True) == []
    [group] = to_rewrite(theirs, {}, LIMITS, asked=True, everything=False, target=Target(spec_id=1))
    assert len(group.files) == 40, "files of one place are joined"
    strays = [file(n, 100 * MB) for n in range(3)]
    brought = to_rewrite(strays, {}, LIMITS, asked=True, everything=False, target=Target(spec_id=1))
    assert len(brought) == 3, "brought to their places"
    assert to_rewrite(strays, {}, LIMITS, asked=False, everything=False, target=Target(spec_id=1)) == []
    ours = [file(n, 100 * MB) for n in range(3)]
    assert len(plan([*theirs, *ours], everything=True)) == 3


@pytest.mark.parametrize("size", [2 * KB, 50 * KB, 900 * KB])
def test_a_row_is_written_again_a_few_times_only_however_many_commits_there_are(size: int) -> None:
    """Commits bring a small file each; tiers are rewritten as the schedule does it."""
    files: list[LiveFile] = []
    landed = written = most = 0
    for number in range(4000):
        files.append(file(number, size))
        landed += size
        if len(files) % 8 == 0:
            for group in plan(files):
                gone = {one.path for one in group.files}
                files = [one for one in files if one.path not in gone]
                merged = file(group.files[0].sequence, group.size, (0,) if group.split else (0, 1))
                files.append(merged)
                written += group.size
        most = max(most, len(files))
    assert written <= 6 * landed, f"{written / landed:.1f} times"
    assert most <= 32 + 8 * 7 + landed // (32 * MB) + 16, most


def test_retention_drops_whole_files_and_cuts_those_that_are_mostly_gone_t21() -> None:
    files = [file(n) for n in range(4)]
    drop = to_drop(files, {0: 270, 1: 270}, share=0.5)
    assert drop.whole == tuple(files[:2]) and drop.partly == (files[2],)
    assert to_drop(files, {0: 220, 1: 220}, share=0.5).partly == ()
    assert to_drop(files, {0: 400}, share=0.5).partly == tuple(files), "half of each is of the other partition"
    assert to_drop(files, {}, share=0.5) == to_drop([], {0: 5}, share=0.5)


def test_a_file_of_unknown_rows_is_looked_into() -> None:
    from dataclasses import replace

    unknown = replace(file(1), spans=None)
    assert to_drop([unknown], {0: 5}, share=0.5).partly == (unknown,)


# -- offsets as spans -------------------------------------------------------------------------------------------------

offsets = st.sets(st.integers(0, 40))


def spans(numbers: set[int]) -> list[tuple[int, int]]:
    return joined((one, one + 1) for one in numbers)


@given(offsets, offsets)
@settings(max_examples=200)
def test_spans_are_sets_of_offsets(one: set[int], other: set[int]) -> None:
    def back(parts: Sequence[tuple[int, int]]) -> set[int]:
        return {offset for start, end in parts for offset in range(start, end)}

    assert back(spans(one)) == one
    assert back(joined([*spans(one), *spans(other)])) == one | other
    assert back(minus(spans(one), spans(other))) == one - other


def test_the_difference_of_two_snapshots_is_what_went_and_what_changed_t16() -> None:
    had = [
        CountedRows(0, [(0, 100)], 100, 5000), CountedRows(1, [(0, 50)], 50, 7), CountedRows(0, [(100, 150)], 50, 1000)
    ]  # fmt: skip
    has = [CountedRows(0, [(0, 40), (60, 150)], 130, 4000), CountedRows(1, [(0, 50)], 50, 9)]
    removed, sure = difference(had, has, rewritten=False)
    assert sure
    assert [one[:4] for one in removed] == [(0, 40, 60, 20), (1, 0, 50, 0)]
    assert [one.digest for one in removed] == [2000, (7 - 9) % 2**64]
    assert difference(has, has, rewritten=False) == ([], True)
    assert difference(has, had, rewritten=False)[1] is False, "more rows than there were"

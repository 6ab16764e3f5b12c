"""The simulator of landing can fail: each test breaks one rule on purpose, and some seed has to catch it soon."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyarrow")

from lakestream.data.tables.files.file_stats import FileStats
from lakestream.data.tables.iceberg import committer
from lakestream.data.tables.iceberg.commit import Commit
from lakestream.data.tables.iceberg.progress import LandedOffsets
from lakestream.data.tables.iceberg.reachable_files import reachable_from
from lakestream.errors import LakestreamError, Unknown
from lakestream.model.catalog import tables
from lakestream.model.catalog.landed import LandedRange
from lakestream.model.catalog.names import root_of
from lakestream.model.streams import Stream
from lakestream.model.topics import Topic
from lakestream.pipeline.landing import lander, round_names
from lakestream.pipeline.landing.lander import Lander
from lakestream.pipeline.landing.planner import TopicWork
from lakestream.pipeline.landing.round_names import candidates
from lakestream.pipeline.landing.sweeper import Sweeper
from lakestream.stream.history import HistoryReader
from lakestream.stream.reader import Reader
from lakestream.testing.lake import pipeline_node
from lakestream.testing.lake.pipeline_node import PipelineClasses, QuickDriver
from lakestream.testing.simulation.node import Classes
from tests.simulation.noticing import BAD, OTHERS, first_violation

LONG_S = (6.0,)
"""Rounds that take longer than what lies about is left alone."""


class OverwritesWhatItDidNotSee(Lander):
    """Breaks T7: swaps the pointer whatever it is by then."""

    async def _commit(self, topic: Topic, commit: Commit, epoch: int) -> Any:
        bound = self._replica.state.catalog.of_topic(topic.id)
        assert bound is not None
        return await super()._commit(topic, dataclasses.replace(commit, base=bound.location), epoch)


def test_a_commit_without_its_premise_is_noticed_T7() -> None:
    assert first_violation(OTHERS, pipeline=PipelineClasses(lander=OverwritesWhatItDidNotSee))


def test_a_state_machine_that_ignores_the_premise_is_noticed_T7(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tables._change

    def change(draft: Any, wanted: Any) -> Any:
        table = draft.get((wanted.namespace, wanted.name))
        return real(draft, wanted if table is None else msgspec.structs.replace(wanted, expected=table.location))

    monkeypatch.setattr(tables, "_change", change)
    assert first_violation(OTHERS)


def test_a_rewrite_over_what_others_deleted_is_noticed_T8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "check_base", lambda *_: None)
    said = first_violation(OTHERS, first=11)
    assert "lands 0 rows" in said or "other rows than its author says" in said or " went, but " in said


class TakesSilenceForANo(Lander):
    """Breaks T7: a commit without an answer in time counts as lost, and its files go at once."""

    async def _commit(self, topic: Topic, commit: Commit, epoch: int) -> Any:
        try:
            return await asyncio.wait_for(super()._commit(topic, commit, epoch), 0.1)
        except TimeoutError:
            raise Unknown("no answer") from None

    async def _land(self, work: TopicWork, files: Sequence[FileStats], epoch: int) -> Any:
        failed, _ = await super()._land(work, files, epoch)
        return failed, True


def test_files_that_are_deleted_on_an_unknown_answer_are_noticed_T7() -> None:
    said = first_violation(BAD[:3], pipeline=PipelineClasses(lander=TakesSilenceForANo))
    assert "its table needs it" in said or "without all its files" in said


class SweepsFromAnOldState(Sweeper):
    """Breaks T12: looks what the table needs, and only then what lies there."""

    async def sweep_table(self, topic_id: bytes, grace_s: float = 0.0) -> int:
        bound = self._replica.state.catalog.of_topic(topic_id)
        if bound is None:
            return 0
        try:
            files = self._tables.files
            known = await files.off(reachable_from, files.store, bound.location)
            await asyncio.sleep(0.5)
            found = await files.off(files.store.list, f"{root_of(bound.location)}/data/")
            suspects = candidates([uri for uri, _ in found], self._replica.state)
            await files.off(files.store.delete, [uri for uri in suspects if uri not in known])
        except LakestreamError:
            return 0
        return 1


def test_a_sweep_that_judges_before_it_folds_is_noticed_T12() -> None:
    said = first_violation(("calm", *BAD), pipeline=PipelineClasses(sweeper=SweepsFromAnOldState))
    assert "its table needs it" in said


def test_a_sweep_of_rounds_that_are_not_over_is_noticed_T12(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_names, "is_over", lambda *_: True)
    monkeypatch.setattr(pipeline_node, "SLOW_S", LONG_S)
    said = first_violation(BAD, first=12)
    assert "without all its files" in said or "its table needs it" in said


class SettlesTooEarly(QuickDriver):
    """Breaks T12: calls a round over while it is under way."""

    def settled(self) -> tuple[int, int]:
        return self._round if self._replica.epoch == self._epoch else 0, 0


def test_a_round_that_is_called_over_too_early_is_noticed_T12(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_node, "SLOW_S", LONG_S)
    said = first_violation(BAD, pipeline=PipelineClasses(driver=SettlesTooEarly), first=9)
    assert "without all its files" in said or "its table needs it" in said


class FollowsOurOwnCommitsOnly(HistoryReader):
    """Breaks C7: what others commit is not seen before the next landing."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._seen: dict[int, str] = {}

    def _current(self, stream: Stream, uuid: str) -> Callable[[], str]:
        newest = super()._current(stream, uuid)

        def stale() -> str:
            landing = self._replica.state.catalog.landings[stream.topic.id]
            return self._seen.setdefault(landing.snapshot, newest())

        return stale


def test_history_out_of_a_stale_snapshot_is_noticed_C7() -> None:
    said = first_violation(OTHERS, Classes(history=FollowsOurOwnCommitsOnly))
    assert "with its value before command" in said or "lost bytes" in said


class LeavesAFileOut(Lander):
    """Breaks C1: lands a range without all of its rows."""

    async def _plan(
        self, table: Any, work: TopicWork, files: Sequence[FileStats], landed: Sequence[LandedRange]
    ) -> Any:
        return await super()._plan(table, work, files[1:], landed)


def test_a_landing_that_skips_rows_is_noticed() -> None:
    assert "rows, but" in first_violation(("calm",), pipeline=PipelineClasses(lander=LeavesAFileOut))


class LandsWhateverLanded(Lander):
    """Breaks T7: does not look whether another pipeline was faster."""

    def _follows(self, topic: Topic, work: TopicWork) -> bool:
        return True


def test_a_range_that_lands_twice_is_noticed_T7(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "landing_problem", lambda *_: None)
    def whatever_landed(progress: Any, ranges: Any) -> Any:
        return {**progress, **{one.partition: LandedOffsets(one.end) for one in ranges}}

    monkeypatch.setattr(committer, "advance", whatever_landed)
    said = first_violation(("calm", "paused"), pipeline=PipelineClasses(lander=LandsWhateverLanded))
    assert "twice" in said


def test_data_without_its_progress_is_noticed_T6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "advance", lambda progress, ranges: dict(progress))
    assert "the table's progress is" in first_violation(("calm",))


def test_a_digest_of_something_else_is_noticed_T16(monkeypatch: pytest.MonkeyPatch) -> None:
    real = lander.ranges_of

    def wrong(work: TopicWork, files: Sequence[FileStats]) -> Any:
        found = real(work, files)
        return [one._replace(digest=one.digest ^ 1) for one in found] if isinstance(found, list) else found

    monkeypatch.setattr(lander, "ranges_of", wrong)
    assert "digests" in first_violation(("calm",))


class ForgetsWhatItRead(Reader):
    """Breaks C2: what was read of the WAL is dropped where the rest has landed meanwhile."""

    async def read(self, stream: Any, offset: int, max_bytes: int, at_least_one: bool = True) -> Any:
        views = await super().read(stream, offset, max_bytes, at_least_one)
        if len(views) > 1 and stream.landed > offset:
            return views[1:]
        return views


def test_a_fetch_that_skips_what_it_read_is_noticed_C2() -> None:
    assert "got the batch" in first_violation(("calm", "others at work"), Classes(reader=ForgetsWhatItRead))

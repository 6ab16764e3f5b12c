"""The simulator of care can fail: each test breaks one rule on purpose, and some seed has to catch it soon."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from lakestream.data.tables.iceberg.live_files import LiveFile
from lakestream.data.tables.iceberg.metadata.table_metadata import Table, TableMetadata
from lakestream.data.tables.iceberg.reachable_files import reachable
from lakestream.model.catalog.names import root_of
from lakestream.model.state import State
from lakestream.model.topics import Topic
from lakestream.pipeline.care import accounts, caretaker, jobs
from lakestream.pipeline.care.caretaker import Caretaker
from lakestream.pipeline.care.kept_rows import keep_from
from lakestream.pipeline.care.orphans import Orphans
from lakestream.pipeline.care.requests import CareRequests
from lakestream.pipeline.care.results import Result
from lakestream.pipeline.landing.sweeper import Sweeper
from lakestream.pipeline.tables.iceberg_format import IcebergFormat
from lakestream.pipeline.tables.unused_files import UnusedFiles
from lakestream.testing.lake.pipeline_node import PipelineClasses, QuickDriver, TrustingJobs
from tests.simulation.noticing import BAD, OTHERS, first_violation

READ = "a reader may still need it"


class GivesNoGrace(QuickDriver):
    """Breaks T11: what a commit made unreachable goes at once."""

    obsolete_grace_s = 0.0


def test_files_that_go_before_their_readers_are_noticed_T11() -> None:
    assert READ in first_violation(OTHERS, pipeline=PipelineClasses(driver=GivesNoGrace))


def test_what_another_pipeline_let_go_just_now_is_not_swept_T11(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnusedFiles, "due", lambda _self, _topic, _search, found, _grace: list(found))
    assert READ in first_violation(("crash between any two steps", "everything"))


class JudgesOrphansFirst(Caretaker):
    """Breaks T12: looks what the table needs, and only then what lies there."""

    async def remove_orphans(self, topic_id: bytes, older_than_ms: int | None, *, dry_run: bool) -> Result:
        files, location = self._tables.files, self._bound(topic_id).location
        off, store = files.off, files.store
        known = await off(lambda: reachable(store, location, TableMetadata.parse(store.get(location))))
        await asyncio.sleep(0.5)
        listed = await off(store.list, f"{root_of(location)}/")
        await off(store.delete, [uri for uri, _ in listed if uri not in known])
        return Result("", {"spared": 0})


def test_orphans_that_are_judged_before_the_fold_are_noticed_T12() -> None:
    said = first_violation(("calm", *BAD), pipeline=PipelineClasses(caretaker=JudgesOrphansFirst))
    assert "its table needs it" in said or "without all its files" in said or READ in said


class NeverSweeps(Sweeper):
    """Breaks T12: what failed rounds left stays for ever."""

    async def sweep_table(self, topic_id: bytes, grace_s: float = 0.0) -> int:
        return 0


def test_what_is_never_swept_nor_found_is_noticed_C10(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caretaker, "judge_orphans", lambda *_, **__: Orphans((), (), {}))
    assert "not removed" in first_violation(BAD, pipeline=PipelineClasses(sweeper=NeverSweeps))


class NeverLooksForUnborn(Caretaker):
    """Breaks C10: the first file of a table that its maker died with stays for ever."""

    async def remove_unbound(self) -> int:
        return 0


def test_what_is_left_of_a_table_that_was_never_bound_is_noticed_C10() -> None:
    said = first_violation(("crash between any two steps",), pipeline=PipelineClasses(caretaker=NeverLooksForUnborn))
    assert "not removed" in said and "/metadata/00000-" in said


def test_retention_that_takes_too_much_is_noticed_T21(monkeypatch: pytest.MonkeyPatch) -> None:
    def more(state: State, topic: Topic) -> Mapping[int, int]:
        return {partition: first + 1 for partition, first in keep_from(state, topic).items()}

    monkeypatch.setattr(caretaker, "keep_from", more)
    assert "without a reason" in first_violation(("calm", "paused"))


def test_rows_that_outlive_their_retention_are_noticed_T21(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caretaker, "keep_from", lambda *_: {})
    assert "not removed" in first_violation(("calm", "paused"), first=4)


class SkipsAFile(TrustingJobs):
    """Breaks T14: says that rows are deleted without having looked everywhere."""

    async def _filter(self, picture: Any, files: Sequence[LiveFile], *rest: Any, **how: Any) -> Any:
        return await super()._filter(picture, files[1:], *rest, **how)


def test_a_delete_that_skips_rows_is_noticed_T14() -> None:
    said = first_violation(("calm", *OTHERS), pipeline=PipelineClasses(jobs=SkipsAFile))
    assert "reported as done" in said


def test_removed_rows_that_are_not_noted_are_noticed_T16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "removed_ranges", lambda _: [])
    assert "tells that" in first_violation(("calm", *OTHERS))


def test_what_others_removed_and_nobody_noted_is_noticed_T16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "difference", lambda *_, **how: ([], True))
    assert "the state accounts for" in first_violation(OTHERS, first=5)


class ExpiresBeforeItAccounts(IcebergFormat):
    """Breaks T16: lets snapshots go that were not compared."""

    def protected(self, topic_id: bytes, table: Table) -> frozenset[int]:
        return frozenset()


def test_an_expiry_before_the_accounts_is_noticed_T16() -> None:
    said = first_violation(OTHERS, pipeline=PipelineClasses(table_format=ExpiresBeforeItAccounts), first=5)
    assert "no snapshot was lost" in said


class Deaf(CareRequests):
    """Answers no request."""

    async def answer(self, request: bytes) -> None:
        return None


class HearsNobody(Caretaker):
    """Does what it wants, and not what people ask for."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.requests = Deaf(self._replica, self._clock, self._do, 1.0)


def test_a_request_that_is_never_answered_is_noticed() -> None:
    assert "not answered" in first_violation(("calm",), pipeline=PipelineClasses(caretaker=HearsNobody))

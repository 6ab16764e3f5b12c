"""The jobs that take care of one topic's table: rewrite, delete, retention, expiry. Each commits or changes nothing.

    live files at a base snapshot -> plan (pure) -> tasks on the engine, a few at a time -> Lander.change: one commit

It is the same in every catalog; only `Lander.change` knows where a commit is made (external_catalog.py for
others than ours).
Whatever somebody else commits between the base and our commit makes the result worthless: it is thrown away and done
again (T8). Landing goes on all the while: rounds of care are numbered like others, and take at most half of the slots.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lakestream.data.tables.conditions.process import check_apart
from lakestream.data.tables.files.file_stats import FileStats
from lakestream.data.tables.iceberg.commit import Commit, Stale
from lakestream.data.tables.iceberg.live_files import LiveFile, LiveFiles
from lakestream.data.tables.iceberg.manifests.files import NewFile
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.iceberg.summaries import CARE_KEY, OPTIMIZE
from lakestream.data.tables.iceberg.topic_table import STREAM_ORDER
from lakestream.data.tables.reading.position_deletes import parse_deletes
from lakestream.data.tables.stores.routed_store import place_of
from lakestream.errors import LakestreamError
from lakestream.interfaces import Clock
from lakestream.model.catalog.landed import LandedRange
from lakestream.pipeline.care.layout import Layout, users_layout
from lakestream.pipeline.care.plan import CareLimits, Group, to_drop, to_rewrite
from lakestream.pipeline.care.sweep import RoundName
from lakestream.pipeline.care.tasks import (
    DIGEST,
    FILTER,
    MERGE,
    Cared,
    CareFailed,
    CareFile,
    CareTask,
    Rows,
    Scattered,
    pack_care,
    unpack_care_answer,
)
from lakestream.pipeline.care.worker import care_task
from lakestream.pipeline.landing.driver import Driver
from lakestream.pipeline.landing.lander import Lander
from lakestream.pipeline.landing.rounds import Engine
from lakestream.pipeline.landing.tasks import Failed
from lakestream.stream.long_work import chunks

log = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often a job is done again because others committed meanwhile."""
STRADDLE_SHARE = 0.5
"""A file that retention cuts is rewritten when so much of it has to go."""

T = TypeVar("T")
Progress = Callable[[str], Awaitable[None]]


class NotDone(LakestreamError):
    """A job of care could not be done; says why."""


class Hung(NotDone):
    """A job of care did not end in time; the next attempt may."""


class Lost(NotDone):
    """A file of the table is not there, or not what was written."""


@dataclass(slots=True)
class Result:
    """What a job did."""

    text: str = ""
    figures: dict[str, int] = field(default_factory=dict)

    def count(self, **figures: int) -> None:
        for name, value in figures.items():
            self.figures[name] = self.figures.get(name, 0) + value


@dataclass(frozen=True, slots=True)
class Picture:
    """A table at one moment, as a job sees it."""

    table: Table
    base: int
    live: LiveFiles
    deleted_in: dict[str, int]
    """Rows deleted by position, by data file."""
    touched: dict[str, frozenset[str]]
    """The data files that each delete file speaks of."""

    def source(self, file: LiveFile) -> CareFile:
        own = [one.path for one in self.live.deletes_of(file) if file.path in self.touched[one.path]]
        return CareFile(file.path, file.size, file.rows, own)

    def dangling(self, replaced: Iterable[str]) -> frozenset[str]:
        """Delete files that speak of nothing that is left."""
        left = self.live.data.keys() - set(replaced)
        return frozenset(path for path, files in self.touched.items() if not files & left)


class CareJobs:
    """Does the jobs, one at a time."""

    def __init__(
        self, lander: Lander, driver: Driver, engine: Engine, clock: Clock, limits: CareLimits, root: str
    ) -> None:
        self._lander = lander
        self._driver = driver
        self._engine = engine
        self._clock = clock
        self._limits = limits
        self._root = root
        self._scattered: dict[str, int] = {}
        """Tables whose partition spec made too many files, by uuid; found out again by another pipeline."""

    @property
    def grace_s(self) -> float:
        """How long files that nothing leads to stay for who reads them."""
        return self._driver.obsolete_grace_s

    # -- rewriting ----------------------------------------------------------------------------------------------------

    async def optimize(self, topic_id: bytes, progress: Progress, *, asked: bool, everything: bool = False) -> Result:
        """Large sorted files instead of small ones, without deleted rows."""
        result = Result()

        async def attempt(name: RoundName) -> None:
            picture = await self._picture(topic_id)
            if picture is None:
                return
            files = list(picture.live.data.values())
            metadata = picture.table.metadata
            layout = users_layout(metadata, self._scattered.get(metadata.uuid))
            result.text = layout.problem
            groups = to_rewrite(
                files, picture.deleted_in, self._limits, asked=asked, everything=everything, target=layout.target
            )
            base, done = picture.base, 0
            for some in chunks(groups, self._width):
                tasks = [self._merge(picture, group, name, n, layout) for n, group in enumerate(some, done)]
                try:
                    answers = await self._run(tasks)
                except Scattered:
                    assert layout.target.spec_id is not None, "only partitioning scatters"
                    self._scattered[metadata.uuid] = layout.target.spec_id
                    raise
                done += len(some)
                replaced = [path for answer in answers for path in answer.replaced]
                made = [stats for answer in answers for stats in answer.files]
                gone = frozenset(replaced) | (picture.dangling(replaced) if done == len(groups) else frozenset())
                places = [place for answer in answers for place in answer.places]
                new = new_files(made, places, layout.target.order_id or STREAM_ORDER)
                commit = await self._rewrite(topic_id, base, gone, new, "replace", OPTIMIZE, [], name)
                base = commit.snapshot_id
                result.count(
                    files_before=len(replaced), files_after=len(made), rows=sum(stats.rows for stats in made),
                    bytes=sum(stats.bytes for stats in made),
                )  # fmt: skip
                await progress(f"rewrote {done} of {len(groups)} groups of files")

        try:
            await self._until_done(topic_id, attempt)
        except Scattered:
            await self._until_done(topic_id, attempt)
        said = [] if result.figures else ["nothing to rewrite"]
        result.text = "; ".join([*said, result.text] if result.text else said)
        return result

    def _merge(self, picture: Picture, group: Group, name: RoundName, number: int, layout: Layout) -> CareTask:
        return self.task(
            picture.table, number, MERGE, [picture.source(file) for file in group.files],
            folder=self._folder(picture.table, name), split=group.split and not layout.spec,
            target_bytes=self._limits.target_bytes, spec=layout.spec, order=layout.order,
        )  # fmt: skip

    # -- rows that go -------------------------------------------------------------------------------------------------

    async def delete(self, topic_id: bytes, where: str, progress: Progress) -> Result:
        """Rows of the table that fulfil a condition go, between rounds; what has not landed yet stays (T14, T15)."""
        if problem := await self._lander.off(self.condition_problem, where):
            raise NotDone(f"this is no condition over the table's rows: {problem}")
        result = Result()

        async def attempt(name: RoundName) -> None:
            picture = await self._picture(topic_id)
            if picture is None:
                return
            files = sorted(picture.live.data.values(), key=lambda one: one.sequence)
            answers = await self._filter(picture, files, name, progress, where=where)
            await self._take_away(topic_id, picture, answers, "delete", [], name, result)

        await self._until_done(topic_id, attempt)
        result.text = "" if result.figures else "no row fulfils the condition"
        return result

    def condition_problem(self, where: str) -> str:
        """Why a text is no condition over a table's rows, or nothing. Blocks."""
        return check_apart(where)

    async def retain(
        self, topic_id: bytes, keep_from: Mapping[int, int], progress: Progress, share: float = STRADDLE_SHARE
    ) -> Result:
        """Rows below these offsets go: whole files at once, of files that have both when it is worth while (T21)."""
        result = Result()

        async def attempt(name: RoundName) -> None:
            picture = await self._picture(topic_id)
            if picture is None:
                return
            drop = to_drop(list(picture.live.data.values()), keep_from, share=share)
            counted = await self._counted(picture, drop.whole, progress)
            below = sorted(keep_from.items())
            answers = await self._filter(picture, drop.partly, name, progress, keep_from=below)
            whole = [file.path for file in drop.whole]
            answers.append(Cared(0, whole, [], [rows for one in counted for rows in one.rows]))
            await self._take_away(topic_id, picture, answers, "retention", whole, name, result)

        await self._until_done(topic_id, attempt)
        return result

    async def _filter(
        self, picture: Picture, files: Sequence[LiveFile], name: RoundName, progress: Progress, *, where: str = "",
        keep_from: Sequence[tuple[int, int]] = (),
    ) -> list[Cared]:  # fmt: skip
        folder = self._folder(picture.table, name)
        tasks = [
            self.task(
                picture.table, number, FILTER, [picture.source(file) for file in some], folder=folder,
                target_bytes=self._limits.target_bytes, where=where, keep_from=list(keep_from),
            )
            for number, some in enumerate(self.by_bytes(files))
        ]  # fmt: skip
        return await self.run_all(tasks, progress, "went through")

    async def _counted(self, picture: Picture, files: Sequence[LiveFile], progress: Progress) -> list[Cared]:
        """What rows there are in files."""
        tasks = [
            self.task(picture.table, number, DIGEST, [picture.source(file) for file in some])
            for number, some in enumerate(self.by_bytes(files))
        ]
        return await self.run_all(tasks, progress, "counted")

    async def _take_away(
        self, topic_id: bytes, picture: Picture, answers: Sequence[Cared], why: str, whole: Sequence[str],
        name: RoundName, result: Result,
    ) -> None:  # fmt: skip
        replaced = [path for answer in answers for path in answer.replaced]
        made = [stats for answer in answers for stats in answer.files]
        removed = removed_ranges(rows for answer in answers for rows in answer.rows)
        if not replaced:
            return
        operation = "overwrite" if made else "delete"
        gone = frozenset(replaced) | picture.dangling(replaced)
        await self._rewrite(topic_id, picture.base, gone, new_files(made, [], None), operation, why, removed, name)
        result.count(
            rows_removed=sum(one.records for one in removed), files_removed=len(replaced), files_written=len(made)
        )

    # -- snapshots ----------------------------------------------------------------------------------------------------

    async def expire(self, topic_id: bytes, older_than_ms: int | None) -> Result:
        """Old snapshots are forgotten; those that are not accounted for stay (T16)."""
        result = Result()

        def prepare(table: Table) -> Commit:
            commit = self._lander.committer.expire(
                table, now_ms=self._clock.wall_ms(), older_than_ms=older_than_ms,
                protected=self._lander.unaccounted(topic_id, table),
                write_metadata=not self._lander.is_outside(topic_id),
            )  # fmt: skip
            if commit is None:
                raise NothingToDo("no snapshot is old enough")
            before, after = len(table.metadata.snapshots), len(commit.table.metadata.snapshots)
            result.figures = {"snapshots_expired": before - after, "snapshots_left": after}
            result.count(files_unreachable=len(commit.obsolete))
            return commit

        name = self._driver.open_round()
        try:
            commit = await self._lander.change(topic_id, prepare, [], name.epoch)
        except NothingToDo as error:
            self._driver.close_round(name)
            return Result(str(error))
        except LakestreamError:
            self._over(name)
            raise
        self._driver.close_round(name)
        if isinstance(commit, Failed):
            raise NotDone(commit.reason)
        return result

    # -- the way there ------------------------------------------------------------------------------------------------

    async def _until_done(self, topic_id: bytes, attempt: Callable[[RoundName], Awaitable[None]]) -> None:
        """Do it, and again if others committed meanwhile. Each time the files are those of a round of their own."""
        for left in reversed(range(ATTEMPTS)):
            name = self._driver.open_round()
            try:
                await attempt(name)
                self._driver.close_round(name)
                return
            except Stale as error:
                log.info("care of a table is begun anew: %s", error)
                self._over(name)
                if not left:
                    raise NotDone(f"others commit all the time: {error}") from error
            except LakestreamError:
                self._over(name)
                raise
            finally:
                self._lander.work_from(topic_id, None)

    def _over(self, name: RoundName) -> None:
        """A round that failed left files behind. One that is broken off stays open: its command may be on its way."""
        self._driver.close_round(name)
        self._driver.untidy()

    async def _picture(self, topic_id: bytes) -> Picture | None:
        """None if the table has no snapshot. Raises NotDone."""
        table = await self._lander.table_of(topic_id)
        if isinstance(table, Failed):
            raise NotDone(table.reason)
        base = table.metadata.current_snapshot_id
        if base is None:
            return None
        self._lander.work_from(topic_id, base)
        live = await self._lander.off(self._lander.committer.live_files, table)
        deleted_in, touched = await self._lander.off(self._deletes, live)
        return Picture(table, base, live, deleted_in, touched)

    def _deletes(self, live: LiveFiles) -> tuple[dict[str, int], dict[str, frozenset[str]]]:
        counts: dict[str, int] = {}
        touched: dict[str, frozenset[str]] = {}
        for one in live.deletes:
            found = parse_deletes(self._lander.store.get(one.path))
            own = {path for path in found if path in live.data and live.data[path].sequence <= one.sequence}
            touched[one.path] = frozenset(own)
            for path in own:
                counts[path] = counts.get(path, 0) + len(found[path])
        return counts, touched

    async def _rewrite(
        self, topic_id: bytes, base: int, gone: frozenset[str], new: Sequence[NewFile], operation: str, why: str,
        removed: Sequence[LandedRange], name: RoundName,
    ) -> Commit:  # fmt: skip
        """Raises Stale or NotDone."""

        def prepare(table: Table) -> Commit:
            return self._lander.committer.rewrite(
                table, base, gone, new, now_ms=self._clock.wall_ms(), operation=operation, notes={CARE_KEY: why},
                protected=self._lander.unaccounted(topic_id, table),
                write_metadata=not self._lander.is_outside(topic_id),
            )  # fmt: skip

        commit = await self._lander.change(topic_id, prepare, removed, name.epoch)
        if isinstance(commit, Failed):
            raise NotDone(commit.reason)
        return commit

    def _folder(self, table: Table, name: RoundName) -> str:
        return f"{table.metadata.location}/data/{name.member}-{name.epoch}-{name.round}"

    def task(self, table: Table, number: int, mode: str, files: list[CareFile], **how: Any) -> CareTask:
        """Workers open the store that the table lies in: another catalog may have placed it elsewhere."""
        place = place_of(self._root, table.metadata_location)
        elsewhere = self._lander.elsewhere() if place != self._root else {}
        return CareTask(number, place, mode, files, elsewhere=elsewhere, **how)

    def by_bytes(self, files: Sequence[LiveFile]) -> Iterable[list[LiveFile]]:
        some: list[LiveFile] = []
        for file in files:
            if some and sum(one.size for one in some) + file.size > self._limits.task_bytes:
                yield some
                some = []
            some.append(file)
        if some:
            yield some

    @property
    def _width(self) -> int:
        """How many tasks of ours run at once: the other slots are for landing."""
        return max(self._engine.slots // 2, 1)

    async def run_all(self, tasks: Sequence[CareTask], progress: Progress, verb: str) -> list[Cared]:
        found: list[Cared] = []
        for some in chunks(tasks, self._width):
            found += await self._run(some)
            if len(found) < len(tasks):
                await progress(f"{verb} {len(found)} of {len(tasks)} parts of the table")
        return found

    async def _run(self, tasks: Sequence[CareTask]) -> list[Cared]:
        """Raises NotDone if a task failed, JobFailed if the engine did."""
        try:
            answers = await asyncio.to_thread(self._engine.run, care_task, [pack_care(task) for task in tasks])
        except asyncio.CancelledError:
            self._engine.cancel(care_task)
            raise
        found: list[Cared] = []
        for bodies in answers:
            for body in bodies:
                answer = unpack_care_answer(body)
                if not isinstance(answer, Cared):
                    raise _failure(answer)
                found.append(answer)
        if len(found) != len(tasks):
            raise NotDone(f"{len(tasks) - len(found)} of {len(tasks)} tasks did not answer")
        return found


def _failure(answer: CareFailed) -> LakestreamError:
    if answer.lost:
        return Lost(answer.reason)
    if answer.scattered:
        return Scattered(answer.reason)
    return Hung(answer.reason) if answer.hung else NotDone(answer.reason)


class NothingToDo(LakestreamError):
    """There is nothing to commit."""


def new_files(made: Sequence[FileStats], places: Sequence[Mapping[str, object]], order: int | None) -> list[NewFile]:
    if not places:
        return [NewFile(stats=stats, sort_order_id=order) for stats in made]
    return [
        NewFile(stats=stats, sort_order_id=order, partition=place)
        for stats, place in zip(made, places, strict=True)
    ]


def removed_ranges(parts: Iterable[Rows]) -> list[LandedRange]:
    """Rows that go, as the state notes them: for each partition where they lie, how many, and their hashes (T16)."""
    found: dict[int, LandedRange] = {}
    for rows in parts:
        if not rows.offsets:
            continue
        start, end = rows.offsets[0][0], rows.offsets[-1][1]
        known = found.get(rows.partition, LandedRange(rows.partition, start, end, 0, 0))
        found[rows.partition] = LandedRange(
            rows.partition, min(known.start, start), max(known.end, end), known.records + rows.records,
            (known.digest + rows.digest) % 2**64,
        )  # fmt: skip
    return [found[partition] for partition in sorted(found)]

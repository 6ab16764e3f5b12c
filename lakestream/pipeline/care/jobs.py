"""The jobs that take care of one topic's table: rewrite, delete, retention, expiry. Each commits or changes nothing.

    a picture of the table at a base snapshot -> which files (plan.py) -> tasks on the engine, a few at a time
    -> TopicTables.change: one commit

A commit of another writer between the base and our commit makes the result worthless: the job is done again (T8).
Landing goes on all the while; the files of care are those of numbered rounds, as landing's are.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from lakestream.data.tables.conditions.process import check_apart
from lakestream.data.tables.files.file_stats import FileStats
from lakestream.data.tables.iceberg.commit import Commit, Stale
from lakestream.data.tables.iceberg.live_files import LiveFile
from lakestream.data.tables.iceberg.manifests.files import NewFile
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.iceberg.summaries import OPTIMIZE
from lakestream.data.tables.iceberg.topic_table import STREAM_ORDER
from lakestream.errors import LakestreamError
from lakestream.model.catalog.landed import LandedRange
from lakestream.pipeline.care.layout import UserLayout, users_layout
from lakestream.pipeline.care.plan import CareLimits, RewriteGroup, to_drop, to_rewrite
from lakestream.pipeline.care.results import NotDone, NothingToDo, Progress, Result
from lakestream.pipeline.care.table_picture import Picture, take_picture
from lakestream.pipeline.care.task_runs import CareRuns
from lakestream.pipeline.care.tasks import (
    DIGEST,
    FILTER,
    MERGE,
    Cared,
    CareTask,
    CountedRows,
    Scattered,
)
from lakestream.pipeline.landing.driver import Driver
from lakestream.pipeline.landing.round_names import RoundName
from lakestream.pipeline.landing.rounds import Engine
from lakestream.pipeline.tables.failure import Failed
from lakestream.pipeline.tables.iceberg_format import Rewrite
from lakestream.pipeline.tables.topic_tables import TopicTables
from lakestream.stream.long_work import chunks

log = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often a job is tried while other writers commit in between."""
STRADDLE_SHARE = 0.5
"""A file that retention cuts is rewritten when this share of its rows has to go."""

class CareJobs:
    """Does the jobs, one at a time."""

    def __init__(
        self, tables: TopicTables, driver: Driver, engine: Engine, limits: CareLimits, root: str
    ) -> None:
        self.runs = CareRuns(tables, engine, limits, root)
        self._tables = tables
        self._driver = driver
        self._limits = limits
        self._scattered: dict[str, int] = {}
        """Tables whose partition spec made too many files, by uuid; found out again by another pipeline."""

    @property
    def grace_s(self) -> float:
        """How long unused files stay for their readers (T11)."""
        return self._driver.obsolete_grace_s

    # -- rewriting ----------------------------------------------------------------------------------------------------

    async def optimize(self, topic_id: bytes, progress: Progress, *, asked: bool, everything: bool = False) -> Result:
        """Rewrite small files as large sorted ones, without deleted rows."""
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
            for some in chunks(groups, self.runs.width):
                tasks = [self._merge(picture, group, name, n, layout) for n, group in enumerate(some, done)]
                try:
                    answers = await self.runs.run(tasks)
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

    def _merge(
        self, picture: Picture, group: RewriteGroup, name: RoundName, number: int, layout: UserLayout
    ) -> CareTask:
        return self.runs.task(
            picture.table, number, MERGE, [picture.source(file) for file in group.files],
            folder=self._folder(picture.table, name), split=group.split and not layout.spec,
            target_bytes=self._limits.target_bytes, spec=layout.spec, order=layout.order,
        )  # fmt: skip

    # -- rows that go -------------------------------------------------------------------------------------------------

    async def delete(self, topic_id: bytes, where: str, progress: Progress) -> Result:
        """Delete the rows of the table that fulfil a condition; records that have not landed yet stay (T14, T15)."""
        if problem := await self._tables.files.off(self.condition_problem, where):
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
        """Why a text is no condition over a table's rows; empty if it is one. Blocks."""
        return check_apart(where)

    async def retain(
        self, topic_id: bytes, keep_from: Mapping[int, int], progress: Progress, share: float = STRADDLE_SHARE
    ) -> Result:
        """Remove the rows below these offsets: whole files, and files that `share` of has to go (T21)."""
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
            self.runs.task(
                picture.table, number, FILTER, [picture.source(file) for file in some], folder=folder,
                target_bytes=self._limits.target_bytes, where=where, keep_from=list(keep_from),
            )
            for number, some in enumerate(self.runs.by_bytes(files))
        ]  # fmt: skip
        return await self.runs.run_all(tasks, progress, "went through")

    async def _counted(self, picture: Picture, files: Sequence[LiveFile], progress: Progress) -> list[Cared]:
        """The rows of files, counted and hashed by partition."""
        tasks = [
            self.runs.task(picture.table, number, DIGEST, [picture.source(file) for file in some])
            for number, some in enumerate(self.runs.by_bytes(files))
        ]
        return await self.runs.run_all(tasks, progress, "counted")

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
        """Expire old snapshots; those that are not accounted for stay (T16)."""
        result = Result()

        def plan(table: Table) -> Commit:
            commit = self._tables.format.expire(topic_id, table, older_than_ms)
            if commit is None:
                raise NothingToDo("no snapshot is old enough")
            before, after = len(table.metadata.snapshots), len(commit.table.metadata.snapshots)
            result.figures = {"snapshots_expired": before - after, "snapshots_left": after}
            result.count(files_unreachable=len(commit.obsolete))
            return commit

        name = self._driver.open_round()
        try:
            commit = await self._tables.change(topic_id, plan, name.epoch)
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
        """Attempt a job until no other writer commits in between. Each attempt writes the files of its own round."""
        for left in reversed(range(ATTEMPTS)):
            name = self._driver.open_round()
            try:
                await attempt(name)
                self._driver.close_round(name)
                return
            except Stale as error:
                log.info("care of a table begins again: %s", error)
                self._over(name)
                if not left:
                    raise NotDone(f"other writers commit all the time: {error}") from error
            except LakestreamError:
                self._over(name)
                raise
            finally:
                self._tables.format.protect(topic_id, None)

    def _over(self, name: RoundName) -> None:
        """End a failed round; a sweep deletes its files. A cancelled one stays open: its command may be on its way."""
        self._driver.close_round(name)
        self._driver.untidy()

    async def _picture(self, topic_id: bytes) -> Picture | None:
        """None if the table has no snapshot. Raises NotDone."""
        table = await self._tables.table_of(topic_id)
        if isinstance(table, Failed):
            raise NotDone(table.reason)
        base = table.metadata.current_snapshot_id
        if base is None:
            return None
        self._tables.format.protect(topic_id, base)
        files = self._tables.files
        return await files.off(take_picture, files.store, table, base, self._tables.format.files)

    async def _rewrite(
        self, topic_id: bytes, base: int, gone: frozenset[str], new: Sequence[NewFile], operation: str, why: str,
        removed: Sequence[LandedRange], name: RoundName,
    ) -> Commit:  # fmt: skip
        """Raises Stale or NotDone."""

        change = Rewrite(base, gone, new, operation, why, removed)

        def plan(table: Table) -> Commit:
            return self._tables.format.plan(topic_id, table, change)

        commit = await self._tables.change(topic_id, plan, name.epoch)
        if isinstance(commit, Failed):
            raise NotDone(commit.reason)
        return commit

    def _folder(self, table: Table, name: RoundName) -> str:
        return f"{table.metadata.location}/data/{name.member}-{name.epoch}-{name.round}"

def new_files(made: Sequence[FileStats], places: Sequence[Mapping[str, object]], order: int | None) -> list[NewFile]:
    if not places:
        return [NewFile(stats=stats, sort_order_id=order) for stats in made]
    return [
        NewFile(stats=stats, sort_order_id=order, partition=place)
        for stats, place in zip(made, places, strict=True)
    ]


def removed_ranges(parts: Iterable[CountedRows]) -> list[LandedRange]:
    """Removed rows as the state notes them: for each partition their range, number and sum of hashes (T16)."""
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

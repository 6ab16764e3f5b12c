"""Landing: the files that workers wrote become rows of a topic's table, by one commit that also moves its progress.

    open_round: where the files of each topic go -> (workers write them) -> finish: plan -> commit (T6, T7)

A crash before the commit leaves unused files, which a sweep deletes; after the commit nothing is left to do. A commit
that is refused because the table has moved on is planned again on top of the table as it is then, but only if the
progress is still the same; if it is not, another pipeline was faster, and the files are deleted.
"""

import asyncio
import logging
from collections.abc import Sequence

from lakestream.data.tables.files.file_stats import FileStats
from lakestream.data.tables.iceberg.commit import Commit
from lakestream.data.tables.iceberg.manifests.files import NewFile
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.iceberg.topic_table import STREAM_ORDER
from lakestream.errors import Corrupt, LakestreamError, Missing
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.landed import HoldTopic, LandedRange
from lakestream.model.reasons import No, Reason
from lakestream.model.topics import Topic
from lakestream.pipeline.landing.planner import TopicWork
from lakestream.pipeline.landing.round_names import RoundName
from lakestream.pipeline.landing.rounds import ranges_of
from lakestream.pipeline.landing.tasks import WrittenFiles
from lakestream.pipeline.tables.failure import Failed
from lakestream.pipeline.tables.holds import HELD_BY_US
from lakestream.pipeline.tables.iceberg_format import Append
from lakestream.pipeline.tables.topic_tables import COMMIT_ATTEMPTS, PASSING, TopicTables, fault
from lakestream.pipeline.tables.waiting import wanted_from

log = logging.getLogger(__name__)

OUTRUN = "the progress moved meanwhile: another pipeline was faster"


class Lander:
    """Commits the files of rounds, topic by topic."""

    def __init__(self, replica: Replica, tables: TopicTables) -> None:
        self.tables = tables
        self._replica = replica

    async def open_round(
        self, name: RoundName, works: Sequence[TopicWork]
    ) -> tuple[dict[bytes, str], dict[bytes, WrittenFiles | Failed]]:
        """Where the files of each topic go in this round; why some topics cannot take part in it."""
        topics = [self._replica.state.topics.by_id[work.topic_id] for work in works]
        tables = await asyncio.gather(*(self.tables.table(topic) for topic in topics))
        folders: dict[bytes, str] = {}
        refused: dict[bytes, WrittenFiles | Failed] = {}
        for topic, table in zip(topics, tables, strict=True):
            if isinstance(table, Failed):
                refused[topic.id] = table
            else:
                folders[topic.id] = f"{table.metadata.location}/data/{name.member}-{name.epoch}-{name.round}"
        return folders, refused

    async def finish(self, work: TopicWork, outcome: WrittenFiles | Failed, folder: str, epoch: int) -> Failed | None:
        """Commit the files that workers wrote for a topic; why not, if not. Certainly unused files are deleted.

        Only in the epoch that the files were written in: once it has ended, another member may sweep them (T12).
        """
        failed: Failed | None
        certain = False
        try:
            if isinstance(outcome, Failed):
                failed, certain = outcome, True
            else:
                failed, certain = await self._land(work, outcome.files, epoch)
        except LakestreamError as error:
            failed = Failed(work.topic_id, str(error), False)
        except Exception as error:
            failed = fault(work.topic_id, error)
        if failed is not None:
            self.tables.forget(work.topic_id)
        if failed is not None and certain and folder:
            await self._delete(folder)
        return failed

    async def _land(self, work: TopicWork, files: Sequence[FileStats], epoch: int) -> tuple[Failed | None, bool]:
        """None if the work landed, else why not; and whether the outcome is certain."""
        landed = ranges_of(work, files)
        if isinstance(landed, Failed):
            return landed, True
        for _ in range(COMMIT_ATTEMPTS):
            topic = self._replica.state.topics.by_id.get(work.topic_id)
            if topic is None:
                return Failed(work.topic_id, "the topic was deleted meanwhile", False), True
            table = await self.tables.table(topic)
            if isinstance(table, Failed):
                return table, True
            if work.topic_id not in self._replica.state.topics.by_id:
                return Failed(work.topic_id, "the topic was deleted meanwhile", False), True
            if not self._follows(topic, work):
                return Failed(work.topic_id, OUTRUN, False), True
            commit = await self._plan(table, work, files, landed)
            if isinstance(commit, Failed):
                return commit, True
            try:
                outcome = await self._commit(topic, commit, epoch)
            except LakestreamError as error:
                return Failed(work.topic_id, str(error), False), False
            if not isinstance(outcome, No):
                return None, True
            if outcome.reason != Reason.STALE_PREMISE:
                return Failed(work.topic_id, outcome.message, outcome.reason not in PASSING), True
            try:
                await self._replica.catch_up()
            except LakestreamError as error:
                return Failed(work.topic_id, str(error), False), True
        return Failed(work.topic_id, f"other writers committed {COMMIT_ATTEMPTS} times in between", False), True

    def _follows(self, topic: Topic, work: TopicWork) -> bool:
        """Whether the stream's progress is still where the work begins; not if the topic was deleted meanwhile."""
        streams = [self._replica.state.streams.by_id.get(topic.streams[one.partition]) for one in work.ranges]
        return all(
            stream is not None and stream.landed <= one.start <= wanted_from(stream)
            for stream, one in zip(streams, work.ranges, strict=True)
        )

    async def _plan(
        self, table: Table, work: TopicWork, files: Sequence[FileStats], landed: Sequence[LandedRange]
    ) -> Commit | Failed:
        change = Append([NewFile(stats=stats, sort_order_id=STREAM_ORDER) for stats in files], landed)
        try:
            return await self.tables.files.off(self.tables.format.plan, work.topic_id, table, change)
        except ValueError as error:
            return Failed(work.topic_id, f"the table's progress contradicts the state's: {error}", True)
        except LakestreamError as error:
            return Failed(work.topic_id, str(error), isinstance(error, Corrupt | Missing))

    async def _commit(self, topic: Topic, commit: Commit, epoch: int) -> int | No:
        landing = self._replica.state.catalog.landings.get(topic.id)
        if landing is not None and landing.held.startswith(HELD_BY_US):
            await self._replica.propose(HoldTopic(topic.id, ""))
        return await self.tables.commit(topic, commit, epoch)

    async def _delete(self, folder: str) -> None:
        """Delete all files that a round wrote for a topic that did not commit them."""
        files = self.tables.files
        try:
            found = await files.off(files.store.list, f"{folder}/")
            await files.off(files.store.delete, [uri for uri, _ in found])
        except LakestreamError as error:
            log.warning("files of a round that failed are left for the next sweep: %s", error)

"""The tables of all topics, for landing and care: found or made, changed, and their files deleted when it is time.

    table: the topic's catalog says which version is current (table_catalog.py)
    change: plan on top of that version -> commit; if another writer was faster, once more on top of theirs
"""

import asyncio
import logging
from collections.abc import Callable
from random import Random

from lakestream.data.tables.iceberg.commit import Commit
from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.iceberg.snapshot_history import SnapshotHistory
from lakestream.data.tables.iceberg.topic_table import maker
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import LakestreamError, Retry
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.names import Warehouse
from lakestream.model.reasons import No, Reason
from lakestream.model.topics import Topic
from lakestream.pipeline.tables.external_catalog import ExternalCatalog
from lakestream.pipeline.tables.failure import Failed
from lakestream.pipeline.tables.holds import HELD_BY_US
from lakestream.pipeline.tables.iceberg_format import IcebergFormat
from lakestream.pipeline.tables.obsolete_files import ObsoleteFiles
from lakestream.pipeline.tables.own_catalog import TOO_LATE, OwnCatalog
from lakestream.pipeline.tables.table_catalog import TableCatalogs
from lakestream.pipeline.tables.table_files import TableFiles
from lakestream.pipeline.tables.unused_files import UnusedFiles
from lakestream.pipeline.tables.waiting import is_table
from lakestream.stream.long_work import chunks

log = logging.getLogger(__name__)

COMMIT_ATTEMPTS = 8
MAKE_AGAIN_S = 10.0
REMOVED_AT_ONCE = 500
PASSING = frozenset((Reason.TOPIC_HELD, TOO_LATE.reason))
"""Refusals that say nothing about the table: no reason to hold its topic."""


class TopicTables:
    """All tables of one pipeline."""

    def __init__(
        self, replica: Replica, files: TableFiles, catalogs: TableCatalogs, table_format: IcebergFormat, clock: Clock
    ) -> None:
        self.catalogs = catalogs
        self.format = table_format
        self.files = files
        self.obsolete = ObsoleteFiles(clock)
        self.unused = UnusedFiles(clock)
        self._replica = replica
        self._clock = clock
        self._not_made: dict[bytes, float] = {}

    def close(self) -> None:
        self.catalogs.close()
        self.files.close()
        self.format.committer.close()

    # -- tables -------------------------------------------------------------------------------------------------------

    async def table(self, topic: Topic) -> Table | Failed:
        """The topic's table as it is now, made if there is none; or why nothing can be committed to it (T2)."""
        landing = self._replica.state.catalog.landings.get(topic.id)
        if landing is not None and landing.held and not landing.held.startswith(HELD_BY_US):
            return Failed(topic.id, f"held: {landing.held}", False)
        try:
            return await self.catalogs.of(topic.id).table(topic)
        except LakestreamError as error:
            return Failed(topic.id, str(error), False)
        except Exception as error:
            return fault(topic.id, error)

    async def table_of(self, topic_id: bytes) -> Table | Failed:
        topic = self._replica.state.topics.by_id.get(topic_id)
        return await self.table(topic) if topic is not None else Failed(topic_id, "there is no such topic", False)

    async def location_of(self, topic_id: bytes) -> str:
        """The current metadata file of a table, as its catalog says. Raises Retry."""
        bound = self._replica.state.catalog.of_topic(topic_id)
        if bound is not None and not self.is_external(topic_id):
            return bound.location
        table = await self.table_of(topic_id)
        if isinstance(table, Failed):
            raise Retry(table.reason)
        return table.metadata_location

    def is_external(self, topic_id: bytes) -> bool:
        """Whether an external catalog has the topic's table, or will have it."""
        return self.catalogs.of(topic_id).external

    def forget(self, topic_id: bytes) -> None:
        """Read the files of a table anew the next time: a damaged one may have been put back."""
        self.catalogs.own.forget(topic_id)
        self.format.committer.forget()

    async def make_all(self) -> None:
        """Every topic that wants a table gets one, even before its first record."""
        catalog, now = self._replica.state.catalog, self._clock.monotonic()
        topics = [
            topic
            for topic in self._replica.state.topics.by_id.values()
            if topic.id not in catalog.landings and is_table(self._replica.state, topic.id)
            and self._not_made.get(topic.id, now) <= now
        ]  # fmt: skip
        made = await asyncio.gather(*(self.table(topic) for topic in topics))
        for topic, table in zip(topics, made, strict=True):
            if isinstance(table, Failed):
                log.warning("topic %s has no table yet: %s", topic.name, table.reason)
                self._not_made[topic.id] = now + MAKE_AGAIN_S

    # -- commits ------------------------------------------------------------------------------------------------------

    async def commit(self, topic: Topic, commit: Commit, epoch: int) -> int | No:
        """Make a planned commit current. If it certainly is not, its files are deleted."""
        outcome = await self.format.commit(topic.id, commit, epoch)
        if isinstance(outcome, No):
            await self.files.remove(commit.written)
        else:
            self.obsolete.add(self.catalogs.of(topic.id).take_obsolete(topic, commit))
        return outcome

    async def change(self, topic_id: bytes, plan: Callable[[Table], Commit], epoch: int) -> Commit | Failed:
        """Commit a change of care: `plan` is called again for each version that is current by then.

        The rows that go are noted by the same command, or after it (T16). Raises the errors of `plan`, above all Stale.
        """
        for _ in range(COMMIT_ATTEMPTS):
            topic = self._replica.state.topics.by_id.get(topic_id)
            if topic is None:
                return Failed(topic_id, "the topic was deleted", False)
            table = await self.table(topic)
            if isinstance(table, Failed):
                return table
            commit = await self.files.off(plan, table)
            try:
                outcome = await self.commit(topic, commit, epoch)
            except LakestreamError as error:
                # It may have happened: its files stay, and are swept when this epoch has ended if nothing names them.
                return Failed(topic_id, str(error), False)
            if not isinstance(outcome, No):
                return commit
            if outcome.reason != Reason.STALE_PREMISE:
                return Failed(topic_id, outcome.message, outcome.reason not in PASSING)
            await self._replica.catch_up()
        return Failed(topic_id, f"other writers committed {COMMIT_ATTEMPTS} times in between", False)

    async def fence(self, topic_id: bytes) -> bool:
        """Make commits impossible that a member of an ended epoch planned; whether that took a commit. Raises Retry."""
        topic = self._replica.state.topics.by_id.get(topic_id)
        return topic is not None and await self.catalogs.of(topic_id).fence(topic)

    async def delete_obsolete(self, grace_s: float) -> None:
        """Delete files that commits made obsolete, once readers of older versions had their time (T11)."""
        for some in chunks(self.obsolete.take(grace_s), REMOVED_AT_ONCE):
            await self.files.remove(some)


def open_tables(
    replica: Replica, store: TableStore, warehouse: Callable[[], Warehouse], clock: Clock, random: Random,
    external: ExternalCatalog | None = None, history: SnapshotHistory | None = None,
    table_format: type[IcebergFormat] = IcebergFormat,
) -> TopicTables:  # fmt: skip
    """The parts put together. `history`: which snapshots stay of tables in our own catalog.

    Without a history all snapshots stay that are not too old.
    """
    committer = committer_of(replica, store, random, history) if external is None else external.committer
    files = TableFiles(store)
    catalogs = TableCatalogs(replica, OwnCatalog(replica, committer, files, warehouse, clock, random), external)
    return TopicTables(replica, files, catalogs, table_format(replica, committer, catalogs, clock), clock)


def committer_of(
    replica: Replica, store: TableStore, random: Random, history: SnapshotHistory | None = None
) -> Committer:
    """A committer whose manifests and lists carry the member and the epoch in their names (T12)."""
    return Committer(store, random, lambda: maker(replica.member_id, replica.epoch), history)


def fault(topic_id: bytes, error: Exception) -> Failed:
    """An unexpected error is this topic's: the other topics must not wait until it is understood."""
    log.exception("a topic's table could not be worked on", exc_info=error)
    return Failed(topic_id, f"{type(error).__name__}: {error}", True)

"""Topics' tables in our own catalog: one command in the state makes a table, or makes a commit current (T7).

    commit: CommitTables swaps the pointer, moves the progress, notes landed and removed ranges, all or nothing

A crash before the command leaves unused files, which a sweep deletes; after it nothing is left to do.
"""

from collections.abc import Callable, Sequence
from random import Random
from uuid import UUID

from lakestream.data.tables.iceberg.commit import Commit
from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.expiry import AGE_PROPERTY
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.iceberg.summaries import accounted_after
from lakestream.data.tables.iceberg.topic_table import MAKER_PROPERTY, TOPIC_ID_PROPERTY, maker, new_topic_table
from lakestream.errors import Corrupt, Fenced, Missing, Retry, Unknown
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.names import STREAMS, Warehouse
from lakestream.model.catalog.tables import CatalogTable, CommitTables, TableChange
from lakestream.model.levels import BOUNDED
from lakestream.model.reasons import No, Reason
from lakestream.model.topics import Topic
from lakestream.pipeline.tables.failure import Failed
from lakestream.pipeline.tables.table_files import TableFiles

TOO_LATE = No(Reason.UNKNOWN_MEMBER, "the epoch in which the files were written has ended")


class OwnCatalog:
    """Tables whose pointers are in the state."""

    external = False

    def __init__(
        self, replica: Replica, committer: Committer, files: TableFiles, warehouse: Callable[[], Warehouse],
        clock: Clock, random: Random,
    ) -> None:  # fmt: skip
        self._replica = replica
        self._committer = committer
        self._files = files
        self._warehouse = warehouse
        self._clock = clock
        self._random = random
        self._tables: dict[bytes, Table] = {}

    def forget(self, topic_id: bytes) -> None:
        self._tables.pop(topic_id, None)

    async def table(self, topic: Topic) -> Table | Failed:
        try:
            bound = self._replica.state.catalog.of_topic(topic.id)
            table = await self._make(topic) if bound is None else await self._load(topic, bound)
        except Missing as error:
            return Failed(topic.id, f"the table's metadata is lost: {error}", True)
        except Corrupt as error:
            return Failed(topic.id, f"the table's metadata: {error}", True)
        if isinstance(table, No):
            return Failed(topic.id, f"the table cannot be made: {table.message}", True)
        if table.metadata.properties.get(TOPIC_ID_PROPERTY) != str(UUID(bytes=topic.id)):
            return Failed(topic.id, "the table belongs to another topic, by its properties", True)
        return table

    async def _load(self, topic: Topic, bound: CatalogTable) -> Table:
        known = self._tables.get(topic.id)
        if known is None or known.metadata_location != bound.location:
            known = self._tables[topic.id] = await self._files.off(self._committer.load, bound.location)
        if known.metadata.uuid != bound.uuid:
            raise Corrupt(f"{bound.location} is of table {known.metadata.uuid}, not {bound.uuid}")
        return known

    async def _make(self, topic: Topic) -> Table | No:
        epoch, uuid = self._replica.epoch, str(UUID(int=self._random.getrandbits(128), version=4))
        history = self._committer.history
        age = {} if history is None else {AGE_PROPERTY: str(history.age_ms)}
        metadata = new_topic_table(
            table_uuid=uuid,
            topic_id=topic.id,
            location=self._warehouse().place_for(STREAMS, topic.name, uuid),
            now_ms=self._clock.wall_ms(),
            properties={MAKER_PROPERTY: maker(self._replica.member_id, epoch), **age},
            packed=self._replica.state.level >= BOUNDED,
        )
        table = await self._files.off(self._committer.create, metadata)
        change = TableChange(STREAMS, topic.name, uuid, "", table.metadata_location, topic_id=topic.id)
        try:
            if self._replica.epoch != epoch:  # another member may take the file for one that never counts
                raise Fenced(TOO_LATE.message)
            outcome = await self._replica.propose(CommitTables([change]))
        except (Fenced, Retry):
            await self._files.remove([table.metadata_location])
            raise
        if isinstance(outcome, No):
            await self._files.remove([table.metadata_location])
            return outcome
        self._tables[topic.id] = table
        return table

    async def commit(self, topic: Topic, commit: Commit) -> int | No:
        """Propose one command. If its answer is lost, the state says whether it was made."""
        location = commit.table.metadata_location
        change = TableChange(
            STREAMS, topic.name, commit.table.metadata.uuid, commit.base, location, topic_id=topic.id,
            landed=list(commit.landed), snapshot=commit.snapshot_id if commit.removed is not None else 0,
            removed=list(commit.removed or ()), accounted=self._accounted(topic, commit),
        )  # fmt: skip
        try:
            outcome: int | No = await self._replica.propose(CommitTables([change]))
        except (Unknown, Fenced):
            await self._replica.catch_up()
            bound = self._replica.state.catalog.of_topic(topic.id)
            if bound is None or bound.location != location:
                raise
            outcome = 1
        return outcome

    def _accounted(self, topic: Topic, commit: Commit) -> int:
        """Up to which snapshot the state knows all removed rows once the commit has won; 0 if it does not (T16)."""
        known, landing = self._tables.get(topic.id), self._replica.state.catalog.landings.get(topic.id)
        if known is None or known.metadata_location != commit.base or landing is None or commit.removed is None:
            return 0
        return accounted_after(known.metadata, landing.accounted, commit.table.metadata)

    def take_obsolete(self, topic: Topic, commit: Commit) -> Sequence[str]:
        self._tables[topic.id] = commit.table
        return commit.obsolete

    async def fence(self, topic: Topic) -> bool:
        """Nothing to do: a command of an epoch that has ended changes nothing."""
        return False

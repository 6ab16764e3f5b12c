"""The purger: deletes the files of tables that were dropped with purge, and of deleted topics' tables.

A folder is deleted whole if it lies in the warehouse and its name carries the table's uuid. Elsewhere, for example in
an allowed location, only the files that the table's metadata leads to are deleted, since clients may choose a uuid.
Both wait for a grace, in which readers of the table end. Neither deletes a file in a folder of a table that is in the
catalog: the table's own folder, and those that its `write.*.path` properties name. So a folder that was registered
again keeps its files, and forged metadata cannot lead the purger to files of another table.

    dropped -> (grace) emptied -> (SECOND_PURGE_GRACES graces) emptied again, and forgotten

A writer that stood still while its table was dropped may write files after the folder was emptied, and may die before
it learns that its commit fails. So the folder with the uuid is emptied a second time, much later.
"""

import asyncio
import logging
from collections.abc import Iterable

from lakestream.data.tables.iceberg.metadata.files import MetadataFiles
from lakestream.data.tables.iceberg.reachable_files import occupied, still_reachable
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, Fenced, Halted, LakestreamError, Missing, Rejected, Unknown
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.names import Warehouse, canonical, carries_id, overlap, root_of, within
from lakestream.model.catalog.tables import CatalogTable, Purge, TablesPurged
from lakestream.stream.housekeeping.collector import is_first_broker
from lakestream.stream.long_work import chunks

log = logging.getLogger(__name__)

DELETED_AT_ONCE = 1000
SECOND_PURGE_GRACES = 7
"""After so many graces no writer is left that has not seen the drop."""


class Purger:
    """Purges tables for the whole cluster; only the live broker with the lowest id does."""

    def __init__(
        self, replica: Replica, store: TableStore, files: MetadataFiles, warehouse: Warehouse, grace_ms: int
    ) -> None:
        self._replica = replica
        self._store = store
        self._files = files
        self._warehouse = warehouse
        self._grace_ms = grace_ms
        self._emptied: dict[str, str] = {}
        """Folders that are emptied a second time, by the uuid of their table."""
        self._known: dict[str, tuple[str, ...]] = {}
        """The folders of tables, by the URI of their metadata file, whose content never changes."""

        self.purged_files = 0

    async def purge(self) -> int:
        """Run one round; returns how many files it deleted. Raises Retry, Unknown or Fenced; the next round goes on.

        A purge that fails, on forged metadata for example, does not hold up the other purges.
        """
        replica = self._replica
        if not is_first_broker(replica.state, replica.member_id) or not replica.state.catalog.purges:
            return 0
        await replica.catch_up()
        purges, deleted = replica.state.catalog.purges, 0
        self._emptied = {uuid: folder for uuid, folder in self._emptied.items() if uuid in purges}
        for uuid, purge in list(purges.items()):
            age_ms = replica.state.members.time_ms - purge.time_ms
            last = age_ms >= self._grace_ms * SECOND_PURGE_GRACES
            if age_ms < self._grace_ms or (uuid in self._emptied and not last):
                continue
            places = await asyncio.to_thread(self._places, list(replica.state.catalog.tables.values()))
            places |= {canonical(root) for root in replica.state.catalog.homes()}
            try:
                deleted += await self._purge_one(uuid, purge, places, last)
            except (Unknown, Fenced, Halted):
                raise
            except (LakestreamError, OSError, ValueError) as error:
                log.warning("the purge of %s failed and runs again in the next round: %s", purge.location, error)
        self.purged_files += deleted
        return deleted

    async def _purge_one(self, uuid: str, purge: Purge, places: set[str], last: bool) -> int:
        folder, deleted = self._emptied.get(uuid), 0
        if folder is None:
            folder, files = await asyncio.to_thread(self._files_to_delete, uuid, purge, last)
            deleted += await asyncio.to_thread(self._delete, folder or purge.location, files, places, last)
        if folder is not None and is_unused(folder, places):
            deleted += await asyncio.to_thread(self._delete_folder, folder)
        if folder is not None and not last:
            self._emptied[uuid] = folder
        else:
            await self._replica.propose(TablesPurged([uuid]))
        return deleted

    def _places(self, tables: list[CatalogTable]) -> set[str]:
        """All folders in which tables of the catalog have files. A stream's table has its files in one folder."""
        found: set[str] = set()
        known: dict[str, tuple[str, ...]] = {}
        for table in tables:
            if not table.topic_id:
                known[table.location] = self._known.get(table.location) or self._occupied(table.location)
            found.update(known.get(table.location) or (canonical(root_of(table.location)),))
        self._known = known
        return found

    def _occupied(self, location: str) -> tuple[str, ...]:
        try:
            return occupied(location, self._files.load(location))
        except (Missing, Corrupt, Rejected):
            return (canonical(root_of(location)),)

    def _files_to_delete(self, uuid: str, purge: Purge, last: bool) -> tuple[str | None, set[str]]:
        """The folder to delete whole (None unless it lies in the warehouse and carries the uuid), and single files."""
        try:
            metadata = self._files.load(purge.location)
            folder, own = metadata.location, occupied(purge.location, metadata)
            files = still_reachable(self._store, purge.location, metadata, last=last)
        except (Missing, Corrupt, Rejected):
            folder, files = root_of(purge.location), {canonical(purge.location)}
            own = (folder,)
        if not self._warehouse.admits(folder):
            log.warning("%s lies outside the warehouse and the allowed locations: its files are not deleted", folder)
            return None, set()
        named = folder if self._warehouse.path_of(folder) is not None and carries_id(folder, uuid) else None
        return named, {
            uri for uri in files
            if any(within(place, uri) for place in own if self._warehouse.admits(place))
            and not (named and within(named, uri))
        }  # fmt: skip

    def _delete(self, origin: str, files: set[str], places: set[str], last: bool) -> int:
        """Delete these files, except files of streams' tables and files in a folder of another table.

        If `last`, a file that cannot be deleted is left, and the others are deleted.
        """
        found = sorted(uri for uri in files if not self._warehouse.of_streams(uri) and is_unused(uri, places))
        undeletable = 0
        for some in chunks(found, DELETED_AT_ONCE):
            try:
                self._store.delete(some)
            except (LakestreamError, OSError, ValueError):
                if not last:
                    raise
                undeletable += sum(not self._is_deleted(uri) for uri in some)
        if found:
            log.info("purged %d files of the table at %s", len(found) - undeletable, origin)
        return len(found) - undeletable

    def _is_deleted(self, uri: str) -> bool:
        try:
            self._store.delete([uri])
        except (LakestreamError, OSError, ValueError) as error:
            log.warning("%r cannot be deleted, although its table is purged: %s", uri, error)
            return False
        return True

    def _delete_folder(self, folder: str) -> int:
        found = [uri for uri, _ in self._store.list(folder.rstrip("/") + "/")]
        for some in chunks(found, DELETED_AT_ONCE):
            self._store.delete(some)
        if found:
            log.info("purged %d files in the folder %s", len(found), folder)
        return len(found)


def is_unused(folder: str, places: Iterable[str]) -> bool:
    """Whether no table's folder overlaps with this folder or file."""

    place = canonical(folder)
    return not any(overlap(place, other) for other in places)

"""The purger: deletes the files of tables that were dropped for good, and of topics that took their tables along.

A folder goes whole if it lies in the warehouse and carries the table's uuid. Elsewhere, in allowed locations above all,
only those files go that the table's metadata leads to, since clients may choose a uuid. Either waits for a grace in
which those who still read may end, and neither touches a place of a table that is in the catalog: its folder, and the
folders that its `write.*.path` properties name. So a place that was registered again is somebody's now, and forged
metadata leads to nobody else's files.

    dropped -> (grace) emptied -> (LATE graces) emptied again, and forgotten

Who was about to commit to the table when it was dropped, and stood still since, writes its files after the folder was
emptied, and may die before it learns that they are for nothing. So the folder with the uuid is looked at once more,
much later.
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
LATE = 7
"""After how many graces nobody is left who did not see that the table is gone."""


class Purger:
    """Works for the whole cluster; only the live broker with the lowest id does."""

    def __init__(
        self, replica: Replica, store: TableStore, files: MetadataFiles, warehouse: Warehouse, grace_ms: int
    ) -> None:
        self._replica = replica
        self._store = store
        self._files = files
        self._warehouse = warehouse
        self._grace_ms = grace_ms
        self._emptied: dict[str, str] = {}
        """Folders that are looked at once more, by the uuid of their table."""
        self._known: dict[str, tuple[str, ...]] = {}
        """The places of tables, by their metadata files, which never change."""

        self.purged_files = 0

    async def purge(self) -> int:
        """One round; how many files were deleted. Raises Retry, Unknown or Fenced: the next round goes on.

        A purge that fails holds up no other one: the table's metadata may be forged.
        """
        replica = self._replica
        if not is_first_broker(replica.state, replica.member_id) or not replica.state.catalog.purges:
            return 0
        await replica.catch_up()
        purges, deleted = replica.state.catalog.purges, 0
        self._emptied = {uuid: folder for uuid, folder in self._emptied.items() if uuid in purges}
        for uuid, purge in list(purges.items()):
            age_ms = replica.state.members.time_ms - purge.time_ms
            last = age_ms >= self._grace_ms * LATE
            if age_ms < self._grace_ms or (uuid in self._emptied and not last):
                continue
            places = await asyncio.to_thread(self._places, list(replica.state.catalog.tables.values()))
            places |= {canonical(root) for root in replica.state.catalog.homes()}
            try:
                deleted += await self._purge_one(uuid, purge, places, last)
            except (Unknown, Fenced, Halted):
                raise
            except (LakestreamError, OSError, ValueError) as error:
                log.warning("the purge of %s failed, and is tried again: %s", purge.location, error)
        self.purged_files += deleted
        return deleted

    async def _purge_one(self, uuid: str, purge: Purge, places: set[str], last: bool) -> int:
        folder, deleted = self._emptied.get(uuid), 0
        if folder is None:
            folder, files = await asyncio.to_thread(self._doomed, uuid, purge, last)
            deleted += await asyncio.to_thread(self._delete, folder or purge.location, files, places, last)
        if folder is not None and is_deserted(folder, places):
            deleted += await asyncio.to_thread(self._empty, folder)
        if folder is not None and not last:
            self._emptied[uuid] = folder
        else:
            await self._replica.propose(TablesPurged([uuid]))
        return deleted

    def _places(self, tables: list[CatalogTable]) -> set[str]:
        """All folders that tables of the catalog have files in. A stream's table has all its files in its own."""
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

    def _doomed(self, uuid: str, purge: Purge, last: bool) -> tuple[str | None, set[str]]:
        """The folder that goes whole, if it is the warehouse's and has the uuid, and the files that go one by one."""
        try:
            metadata = self._files.load(purge.location)
            folder, own = metadata.location, occupied(purge.location, metadata)
            files = still_reachable(self._store, purge.location, metadata, last=last)
        except (Missing, Corrupt, Rejected):
            folder, files = root_of(purge.location), {canonical(purge.location)}
            own = (folder,)
        if not self._warehouse.admits(folder):
            log.warning("%s is outside the warehouse: its files stay", folder)
            return None, set()
        named = folder if self._warehouse.path_of(folder) is not None and carries_id(folder, uuid) else None
        return named, {
            uri for uri in files
            if any(within(place, uri) for place in own if self._warehouse.admits(place))
            and not (named and within(named, uri))
        }  # fmt: skip

    def _delete(self, whose: str, files: set[str], places: set[str], last: bool) -> int:
        """Delete these files, but none of a stream's, or in a place of another table.

        `last`: a file that cannot be deleted stays, and does not keep the others.
        """
        found = sorted(uri for uri in files if not self._warehouse.of_streams(uri) and is_deserted(uri, places))
        stay = 0
        for some in chunks(found, DELETED_AT_ONCE):
            try:
                self._store.delete(some)
            except (LakestreamError, OSError, ValueError):
                if not last:
                    raise
                stay += sum(not self._is_deleted(uri) for uri in some)
        if found:
            log.info("purged %d files that %s led to", len(found) - stay, whose)
        return len(found) - stay

    def _is_deleted(self, uri: str) -> bool:
        try:
            self._store.delete([uri])
        except (LakestreamError, OSError, ValueError) as error:
            log.warning("%r stays, although its table is purged: %s", uri, error)
            return False
        return True

    def _empty(self, folder: str) -> int:
        found = [uri for uri, _ in self._store.list(folder.rstrip("/") + "/")]
        for some in chunks(found, DELETED_AT_ONCE):
            self._store.delete(some)
        if found:
            log.info("purged %d files of %s", len(found), folder)
        return len(found)


def is_deserted(folder: str, places: Iterable[str]) -> bool:
    """Whether no table has files in the folder, or the folder lies in a table's."""
    place = canonical(folder)
    return not any(overlap(place, other) for other in places)

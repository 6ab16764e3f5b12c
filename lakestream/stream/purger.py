"""The purger: deletes the files of tables that were dropped for good, and of topics that took their tables along.

A table's folder goes whole, after a grace in which those who still read it may end, and only if no other table of the
catalog lives in it: a place that was registered again is somebody's now.

    dropped -> (grace) emptied -> (LATE graces) emptied again, and forgotten

Who was about to commit to the table when it was dropped, and stood still since, writes its files after the folder was
emptied, and may die before it learns that they are for nothing. So the folder is looked at once more, much later; but
only one whose name nobody else can choose, since it carries the table's uuid.
"""

import asyncio
import logging

from lakestream.data.tables.metadata_files import MetadataFiles
from lakestream.data.tables.store import TableStore
from lakestream.errors import Corrupt, Missing, Rejected
from lakestream.metadata.replica import Replica
from lakestream.model.catalog import Catalog, Purge, TablesPurged
from lakestream.model.catalog_names import Warehouse, canonical, overlap, root_of
from lakestream.stream.collector import is_first_broker
from lakestream.stream.turns import chunks

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

        self.purged_files = 0

    async def purge(self) -> int:
        """One round; how many files were deleted. Raises Retry, Unknown or Fenced: the next round goes on."""
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
            folder = self._emptied.get(uuid) or await asyncio.to_thread(self._folder, purge)
            if folder is not None and is_deserted(replica.state.catalog, folder):
                deleted += await asyncio.to_thread(self._delete, folder)
            if folder is not None and folder.endswith(uuid) and not last:
                self._emptied[uuid] = folder
            else:
                await replica.propose(TablesPurged([uuid]))
        self.purged_files += deleted
        return deleted

    def _folder(self, purge: Purge) -> str | None:
        """The table's folder as its metadata says; without the metadata, as its place says."""
        try:
            folder = str(self._files.load(purge.location)["location"])
        except (Missing, Corrupt, Rejected):
            folder = root_of(purge.location)
        if self._warehouse.path_of(folder) is None:
            log.warning("%s is outside the warehouse: its files stay", folder)
            return None
        return folder

    def _delete(self, folder: str) -> int:
        found = [uri for uri, _ in self._store.list(folder.rstrip("/") + "/")]
        for some in chunks(found, DELETED_AT_ONCE):
            self._store.delete(some)
        if found:
            log.info("purged %d files of %s", len(found), folder)
        return len(found)


def is_deserted(catalog: Catalog, folder: str) -> bool:
    """Whether no table lives in the folder, or it in a table's."""
    place = canonical(folder)
    return not any(overlap(place, canonical(root_of(table.location))) for table in catalog.tables.values())

"""The purger: deletes the files of tables that were dropped for good, and of topics that took their tables along.

A table's folder goes whole, after a grace in which those who still read it may end, and only if no other table of the
catalog lives in it: a place that was registered again is somebody's now.
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
        self.purged_files = 0

    async def purge(self) -> int:
        """One round; how many files were deleted. Raises Retry, Unknown or Fenced: the next round goes on."""
        replica = self._replica
        if not is_first_broker(replica.state, replica.member_id) or not replica.state.catalog.purges:
            return 0
        await replica.catch_up()
        state, deleted = replica.state, 0
        due = {
            uuid: purge
            for uuid, purge in state.catalog.purges.items()
            if purge.time_ms + self._grace_ms <= state.members.time_ms
        }
        for uuid, purge in due.items():
            folder = await asyncio.to_thread(self._folder, purge)
            if folder is not None and is_deserted(replica.state.catalog, folder):
                deleted += await asyncio.to_thread(self._delete, folder)
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
        log.info("purged %d files of %s", len(found), folder)
        return len(found)


def is_deserted(catalog: Catalog, folder: str) -> bool:
    """Whether no table lives in the folder, or it in a table's."""
    place = canonical(folder)
    return not any(overlap(place, canonical(root_of(table.location))) for table in catalog.tables.values())

"""A simulated broker's catalog: commits as the REST protocol makes them, and the purger."""

from random import Random

from lakestream.data.tables.foreign.allowed_changes import Refused
from lakestream.data.tables.iceberg.metadata.documents import Conflict
from lakestream.data.tables.iceberg.metadata.files import MetadataFiles
from lakestream.data.tables.iceberg.metadata.schemas import Invalid
from lakestream.data.tables.iceberg.metadata.table_metadata import Table, TableMetadata
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import LakestreamError, Rejected, Retry, Unknown
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.names import Warehouse, warehouse_uri
from lakestream.model.catalog.tables import TableKey
from lakestream.model.reasons import Reason
from lakestream.protocol.http.iceberg.drafts import CommitRequest, Drafting, TableDraft
from lakestream.protocol.http.iceberg.errors import CatalogError, of_exception
from lakestream.protocol.http.iceberg.places import TablePlaces
from lakestream.protocol.http.iceberg.tables import Tables
from lakestream.stream.housekeeping.purger import Purger


class NodeCatalog:
    """Uses the catalog's parts as the HTTP handlers do; the first request makes the parts."""

    def __init__(self, replica: Replica, store: TableStore, clock: Clock, random: Random, grace_ms: int) -> None:
        self._replica = replica
        self._store = store
        self._clock = clock
        self._random = random
        self._grace_ms = grace_ms
        self._made: tuple[Tables, Purger] | None = None

    def _parts(self) -> tuple[Tables, Purger]:
        if self._made is None:
            replica = self._replica
            files = MetadataFiles(self._store, self._random)
            warehouse = Warehouse(warehouse_uri(self._store.root, replica.state.cluster))
            places = TablePlaces(warehouse, lambda: replica.state.catalog.homes())
            drafting = Drafting(self._store, files, places, self._clock, self._random)
            purger = Purger(replica, self._store, files, warehouse, self._grace_ms)
            self._made = Tables(replica, drafting, files), purger
        return self._made

    async def purge(self) -> int:
        return await self._parts()[1].purge()

    async def load(self, key: TableKey) -> Table:
        try:
            return _table(await self._parts()[0].load(key))
        except (CatalogError, LakestreamError) as error:
            raise _as_client_error(error) from error

    async def commit(self, key: TableKey, request: CommitRequest) -> Table:
        """Commit; returns the new table. Raises Rejected or Retry if it certainly did not happen, or Unknown."""
        try:
            [draft] = await self._parts()[0].commit([(key, request)])
        except (CatalogError, LakestreamError, Refused, Conflict, Invalid) as error:
            raise _as_client_error(error) from error
        return _table(draft)


def _table(draft: TableDraft) -> Table:
    return Table(draft.location, TableMetadata.parse(draft.metadata))


def _as_client_error(error: Exception) -> LakestreamError:
    """The error by the answer's HTTP status, as a client understands it (T17)."""
    answer = of_exception(error)
    assert answer is not None, "each of these kinds has an answer"
    if answer.status == 409:
        return Rejected(Reason.STALE_PREMISE, str(answer))
    if answer.status == 404:
        return Rejected(Reason.UNKNOWN_TABLE, str(answer))
    if answer.status < 500:
        return Rejected(Reason.INVALID_REQUEST, str(answer))
    return Retry(str(answer)) if answer.status == 503 else Unknown(str(answer))

"""The catalog's tables: load, create, commit to one or several, register, rename, drop.

A commit is drafted in a thread, then one command swaps the pointers if they are what the draft was made from; on a lost
race it is drafted again from the table as it is now (T17). Answers come from a state that was folded to the end of the
log after the request came, so every broker knows the answers of the others (L6).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from lakestream.data.tables.iceberg.metadata.files import MetadataFiles
from lakestream.errors import Fenced, Retry
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.names import STREAMS, name_problem, shown
from lakestream.model.catalog.tables import Catalog, CatalogTable, CommitTables, TableChange, TableKey
from lakestream.model.reasons import No, Reason
from lakestream.protocol.http.iceberg.drafts import CommitRequest, CreateRequest, Drafting, TableDraft
from lakestream.protocol.http.iceberg.errors import (
    CatalogError,
    bad_request,
    no_such_namespace,
    no_such_table,
    of_refusal,
)

ATTEMPTS = 16
DRAFTS_AT_ONCE = 4
WAITING_MAX = 256

T = TypeVar("T")


class Tables:
    """The operations of the REST protocol on tables."""

    def __init__(self, replica: Replica, drafting: Drafting, files: MetadataFiles) -> None:
        self._replica = replica
        self._drafting = drafting
        self._files = files
        self._slots = asyncio.Semaphore(DRAFTS_AT_ONCE)
        self._waiting = 0
        self._locks: WeakValueDictionary[TableKey, asyncio.Lock] = WeakValueDictionary()

    @property
    def catalog(self) -> Catalog:
        return self._replica.state.catalog

    async def find(self, key: TableKey) -> CatalogTable:
        await self._replica.catch_up()
        table = self.catalog.tables.get(key)
        if table is None:
            raise no_such_table(shown(*key))
        return table

    async def load(self, key: TableKey) -> TableDraft:
        table = await self.find(key)
        data = await asyncio.to_thread(self._files.read_present, table.location)
        return TableDraft(location=table.location, metadata=data, change=None)

    async def create(self, namespace: str, request: CreateRequest) -> TableDraft:
        key = await self._free(namespace, request.name)
        draft = await self._drafted(lambda: self._drafting.create(namespace, request))
        if draft.change is not None:
            await self._propose_new(draft, [draft.change])
        elif key in self.catalog.tables:
            raise of_refusal(No(Reason.TABLE_EXISTS, f"Table already exists: {shown(*key)}"))
        return draft

    async def register(self, namespace: str, name: str, place: str, overwrite: bool) -> TableDraft:
        await self._replica.catch_up()
        old = self.catalog.tables.get((namespace, name)) if overwrite else None
        key = (namespace, name) if old is not None else await self._free(namespace, name)
        draft = await self._drafted(lambda: self._drafting.register(key, place, old))
        assert draft.change is not None
        going = [TableChange(*key, old.uuid, old.location, "")] if old is not None else []
        outcome = await self._replica.propose(CommitTables([*going, draft.change]))
        if isinstance(outcome, No):
            raise of_refusal(outcome)
        return draft

    async def _free(self, namespace: str, name: str) -> TableKey:
        """The key of a table that can be created."""
        if problem := name_problem(name):
            raise bad_request(problem)
        await self._replica.catch_up()
        if namespace not in self.catalog.namespaces:
            raise no_such_namespace(shown(namespace))
        if (namespace, name) in self.catalog.tables:
            raise of_refusal(No(Reason.TABLE_EXISTS, f"Table already exists: {shown(namespace, name)}"))
        if (namespace, name) in self.catalog.views.by_key:
            taken = f"View with same name already exists: {shown(namespace, name)}"
            raise of_refusal(No(Reason.VIEW_EXISTS, taken))
        if namespace == STREAMS:
            raise of_refusal(No(Reason.TABLE_BOUND, f"the namespace {STREAMS} belongs to the topics"))
        return namespace, name

    async def _propose_new(self, draft: TableDraft, changes: list[TableChange]) -> None:
        try:
            outcome = await self._replica.propose(CommitTables(changes))
        except (Retry, Fenced):
            await asyncio.to_thread(self._files.remove, [draft.location])
            raise
        if isinstance(outcome, No):
            await asyncio.to_thread(self._files.remove, [draft.location])
            raise of_refusal(outcome)

    async def drop(self, key: TableKey, purge: bool) -> None:
        await self._swap(key, lambda table: TableChange(*key, table.uuid, table.location, "", purge=purge))

    async def rename(self, key: TableKey, to: TableKey) -> None:
        if problem := name_problem(to[1]):
            raise bad_request(problem)

        def change(table: CatalogTable) -> TableChange:
            return TableChange(*key, table.uuid, table.location, table.location, rename_to=to)

        await self._swap(key, change)

    async def _swap(self, key: TableKey, change: Callable[[CatalogTable], TableChange]) -> None:
        for _ in range(ATTEMPTS):
            outcome = await self._replica.propose(CommitTables([change(await self.find(key))]))
            if not isinstance(outcome, No):
                return
            if outcome.reason != Reason.STALE_PREMISE:
                raise of_refusal(outcome)
        raise busy()

    async def commit(self, requests: Sequence[tuple[TableKey, CommitRequest]]) -> list[TableDraft]:
        """Commit to all tables or to none; answer i belongs to request i."""
        keys = [key for key, _ in requests]
        if len(set(keys)) != len(keys):
            raise bad_request("a table is named twice")
        async with self._held(keys):
            for _ in range(ATTEMPTS):
                await self._replica.catch_up()
                drafts = await self._draft_all(requests)
                if await self._commit(drafts):
                    return drafts
        raise busy()

    async def _draft_all(self, requests: Sequence[tuple[TableKey, CommitRequest]]) -> list[TableDraft]:
        drafts: list[TableDraft] = []
        tables = self.catalog.tables
        try:
            for key, request in requests:
                table = tables.get(key)
                if table is None and not any(r.get("type") == "assert-create" for r in request.requirements):
                    raise no_such_table(shown(*key))
                if table is None:
                    await self._free(*key)
                drafts.append(await self._drafted(lambda k=key, t=table, r=request: self._drafting.commit(k, t, r)))  # type: ignore[misc]
        except BaseException:
            await self._discard(drafts)
            raise
        return drafts

    async def _commit(self, drafts: list[TableDraft]) -> bool:
        """Returns whether the commit was made; if not, another commit was faster."""
        changes = [draft.change for draft in drafts if draft.change is not None]
        if not changes:
            return True
        try:
            outcome = await self._replica.propose(CommitTables(changes))
        except (Retry, Fenced):
            await self._discard(drafts)
            raise
        if isinstance(outcome, No):
            await self._discard(drafts)
            if outcome.reason in (Reason.STALE_PREMISE, Reason.TABLE_EXISTS, Reason.UNKNOWN_TABLE):
                return False
            raise of_refusal(outcome)
        obsolete = [place for draft in drafts for place in draft.obsolete]
        if obsolete:
            await asyncio.to_thread(self._files.remove, obsolete)
        return True

    async def _discard(self, drafts: list[TableDraft]) -> None:
        """Deletes files that nothing refers to."""
        written = [draft.location for draft in drafts if draft.change is not None]
        if written:
            await asyncio.to_thread(self._files.remove, written)

    async def _drafted(self, draft: Callable[[], TableDraft]) -> TableDraft:
        """Drafts in a thread, a few at once; with too many waiting the request is refused with a 503."""
        if self._waiting >= WAITING_MAX:
            raise CatalogError(503, "ServiceUnavailableException", "too many commits at once")
        self._waiting += 1
        try:
            async with self._slots:
                return await asyncio.to_thread(draft)
        finally:
            self._waiting -= 1

    @asynccontextmanager
    async def _held(self, keys: Sequence[TableKey]) -> AsyncIterator[None]:
        """Commits of this broker to one table go one after the other: they would only lose races to each other."""
        async with AsyncExitStack() as stack:
            for key in sorted(set(keys)):
                await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            yield


def busy() -> CatalogError:
    return CatalogError(409, "CommitFailedException", "others commit all the time: try again")

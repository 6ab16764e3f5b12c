"""The catalog's views: list, load, create, replace, register, rename, drop.

A view's metadata file is drafted in a thread, then one command swaps the pointer, as for tables. The commands are of
level 2: until every live member knows them, views can be read (there are none) and not be written.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from lakestream.data.tables.iceberg.metadata.files import MetadataFiles
from lakestream.data.tables.iceberg.metadata.schemas import Invalid, Json
from lakestream.data.tables.iceberg.metadata.view_metadata import (
    apply_view_updates,
    check_view_requirements,
    new_view,
    parse_view,
    render_view,
)
from lakestream.errors import Corrupt, Fenced, Missing, Retry
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.names import METADATA_SUFFIX, STREAMS, name_problem, root_of, shown
from lakestream.model.catalog.views import CatalogView, CommitView, ViewKey
from lakestream.model.levels import BOUNDED
from lakestream.model.reasons import No, Reason
from lakestream.protocol.http.iceberg.errors import (
    CatalogError,
    bad_request,
    no_such_namespace,
    no_such_view,
    of_refusal,
)
from lakestream.protocol.http.iceberg.places import TablePlaces

T = TypeVar("T")
ATTEMPTS = 16
DRAFTS_AT_ONCE = 4
METADATA_PATH = "write.metadata.path"
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class CreateViewRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """A new view."""

    name: str
    schema: dict[str, Any]
    view_version: dict[str, Any]
    location: str | None = None
    properties: dict[str, str] | None = None


class CommitViewRequest(msgspec.Struct, frozen=True):
    """A client's commit to one view."""

    updates: list[dict[str, Any]]
    requirements: list[dict[str, Any]] = []
    identifier: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class LoadedView:
    """A view: the location of its metadata, and the metadata."""

    location: str
    metadata: bytes


class ViewEndpoints:
    """The operations of the REST protocol on views."""

    def __init__(
        self, replica: Replica, files: MetadataFiles, places: TablePlaces, clock: Clock, random: Random
    ) -> None:
        self._replica = replica
        self._files = files
        self._places = places
        self._clock = clock
        self._random = random
        self._slots = asyncio.Semaphore(DRAFTS_AT_ONCE)

    async def names(self, namespace: str) -> list[str]:
        await self._replica.catch_up()
        catalog = self._replica.state.catalog
        if namespace not in catalog.namespaces:
            raise no_such_namespace(shown(namespace))
        return [name for space, name in catalog.views.by_key if space == namespace]

    async def find(self, key: ViewKey) -> CatalogView:
        await self._replica.catch_up()
        view = self._replica.state.catalog.views.by_key.get(key)
        if view is None:
            raise no_such_view(shown(*key))
        return view

    async def load(self, key: ViewKey) -> LoadedView:
        view = await self.find(key)
        return LoadedView(view.location, await asyncio.to_thread(self._files.read_present, view.location))

    async def create(self, namespace: str, request: CreateViewRequest) -> LoadedView:
        key = (namespace, request.name)
        await self._may_be_made(key)
        uuid = str(UUID(int=self._random.getrandbits(128), version=4))
        made = await self._drafted(lambda: self._draft_new(key, uuid, request))
        await self._swap(CommitView(*key, uuid, "", made.location), made.location)
        return made

    def _draft_new(self, key: ViewKey, uuid: str, request: CreateViewRequest) -> LoadedView:
        place = self._places.warehouse.place_for(*key, uuid)
        metadata = new_view(
            uuid=uuid,
            location=(request.location or place).rstrip("/"),
            schema=request.schema,
            version=request.view_version,
            properties=request.properties or {},
            now_ms=self._clock.wall_ms(),
        )
        self._places.judge("the location", metadata["location"])
        return self._written(metadata, "", ())

    def _written(self, metadata: Json, previous: str, own: tuple[str, ...]) -> LoadedView:
        folder = metadata["properties"].get(METADATA_PATH, "").rstrip("/")
        if folder:
            self._places.judge(METADATA_PATH, folder, (*own, metadata["location"]))
        folder = folder or f"{metadata['location']}/metadata"
        return LoadedView(*self._files.place(folder, previous, render_view(metadata)))

    async def register(self, namespace: str, name: str, place: str) -> LoadedView:
        key = (namespace, name)
        await self._may_be_made(key)
        made, uuid = await self._drafted(lambda: self._registered(place))
        await self._swap(CommitView(*key, uuid, "", place), "")
        return made

    def _registered(self, place: str) -> tuple[LoadedView, str]:
        if not self._places.warehouse.admits(place) or not place.endswith(METADATA_SUFFIX):
            raise Invalid(f"{place} is no metadata file in the warehouse {self._places.warehouse.uri}")
        try:
            data = self._files.read(place)
            metadata = parse_view(data)
        except (Missing, Corrupt) as error:
            raise Invalid(f"{place} cannot be registered: {error}") from error
        uuid = metadata["view-uuid"]
        if not _UUID.fullmatch(uuid):
            raise Invalid(f"{uuid!r} is no uuid")
        self._places.judge("the view's location", metadata["location"])
        self._places.judge("the folder of", root_of(place))
        return LoadedView(place, data), uuid

    async def commit(self, key: ViewKey, request: CommitViewRequest) -> LoadedView:
        self._check_level()
        for _ in range(ATTEMPTS):
            view = await self.find(key)
            made = await self._drafted(lambda view=view: self._changed(view, request))  # type: ignore[misc]
            if made.location == view.location:
                return made
            if await self._swap(CommitView(*key, view.uuid, view.location, made.location), made.location):
                return made
        raise _busy()

    def _changed(self, view: CatalogView, request: CommitViewRequest) -> LoadedView:
        data = self._files.read(view.location)
        base = parse_view(data)
        check_view_requirements(base, request.requirements)
        metadata = apply_view_updates(base, request.updates, self._clock.wall_ms())
        if metadata == base:
            return LoadedView(view.location, data)
        own = (base["location"], root_of(view.location))
        if metadata["location"] != base["location"]:
            self._places.judge("the location", metadata["location"], own)
        return self._written(metadata, view.location, own)

    async def drop(self, key: ViewKey) -> None:
        await self._move(lambda view: CommitView(*key, view.uuid, view.location, ""), key)

    async def rename(self, key: ViewKey, to: ViewKey) -> None:
        if problem := name_problem(to[1]):
            raise bad_request(problem)
        await self._move(lambda view: CommitView(*key, view.uuid, view.location, view.location, to), key)

    async def _move(self, change: Callable[[CatalogView], CommitView], key: ViewKey) -> None:
        self._check_level()
        for _ in range(ATTEMPTS):
            if await self._swap(change(await self.find(key)), ""):
                return
        raise _busy()

    async def _swap(self, change: CommitView, written: str) -> bool:
        """Returns whether the swap was made; if not, another one was faster. Unneeded files are deleted."""
        unneeded = [written] if written else []
        try:
            outcome = await self._replica.propose(change)
        except (Retry, Fenced):
            await asyncio.to_thread(self._files.remove, unneeded)
            raise
        if not isinstance(outcome, No):
            return True
        await asyncio.to_thread(self._files.remove, unneeded)
        if outcome.reason == Reason.STALE_PREMISE:
            return False
        raise of_refusal(outcome)

    async def _may_be_made(self, key: ViewKey) -> None:
        """Raises the error for which the command would be refused, before a file is written."""
        self._check_level()
        if problem := name_problem(key[1]):
            raise bad_request(problem)
        await self._replica.catch_up()
        catalog = self._replica.state.catalog
        if key[0] not in catalog.namespaces:
            raise no_such_namespace(shown(key[0]))
        if key in catalog.tables:
            raise of_refusal(No(Reason.TABLE_EXISTS, f"Table with same name already exists: {shown(*key)}"))
        if key in catalog.views.by_key:
            raise of_refusal(No(Reason.VIEW_EXISTS, f"View already exists: {shown(*key)}"))
        if key[0] == STREAMS:
            raise of_refusal(No(Reason.TABLE_BOUND, f"the namespace {STREAMS} belongs to the topics"))

    def _check_level(self) -> None:
        if self._replica.state.level < BOUNDED:
            told = "Views need all members of the cluster to run a version that knows views: upgrade the older ones"
            raise CatalogError(503, "ServiceUnavailableException", told)

    async def _drafted(self, draft: Callable[[], T]) -> T:
        async with self._slots:
            return await asyncio.to_thread(draft)


def _busy() -> CatalogError:
    return CatalogError(409, "CommitFailedException", "others change the view all the time: try again")

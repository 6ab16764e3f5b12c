"""What a commit would make of a table: judged, and written down as a new metadata file, before anybody is asked (T17).

This blocks (it reads and writes files) and runs in threads. A draft changes nothing: the caller swaps the pointer by
one command, or takes the file away again.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID

import msgspec

from lakestream.data.tables.foreign import Refused, judge_metadata, ours
from lakestream.data.tables.metadata_files import MetadataFiles
from lakestream.data.tables.metadata_json import (
    MAIN,
    ancestors,
    check_requirements,
    main_of,
    new_metadata,
    parse,
    render,
    snapshot_of,
)
from lakestream.data.tables.metadata_schema import Invalid, Json
from lakestream.data.tables.metadata_updates import apply_updates
from lakestream.data.tables.progress import PROGRESS_PROPERTY
from lakestream.data.tables.store import TableStore
from lakestream.data.tables.topic_table import TOPIC_ID_PROPERTY
from lakestream.errors import Corrupt, Missing
from lakestream.interfaces import Clock
from lakestream.model.catalog import CatalogTable, TableChange, TableKey
from lakestream.model.catalog_names import STREAMS, Warehouse, canonical, overlap, root_of, shown, within
from lakestream.protocol.http.iceberg_errors import no_such_table

CLEAN_UP = "write.metadata.delete-after-commit.enabled"
_PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
_OF_TOPICS = (TOPIC_ID_PROPERTY, PROGRESS_PROPERTY)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class CommitRequest(msgspec.Struct, frozen=True):
    """What a client asks of one table. The identifier is in the body of a commit to several tables only."""

    requirements: list[dict[str, Any]]
    updates: list[dict[str, Any]]
    identifier: dict[str, Any] | None = None


class CreateRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """A new table; a staged one is only drafted, and made by a commit later."""

    name: str
    schema: dict[str, Any]
    location: str | None = None
    partition_spec: dict[str, Any] | None = None
    write_order: dict[str, Any] | None = None
    stage_create: bool = False
    properties: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A table as it would be: where its metadata lies, the metadata, and the change (None: nothing has to change)."""

    location: str
    metadata: bytes
    change: TableChange | None
    obsolete: tuple[str, ...] = ()
    """Old metadata files that nobody refers to once the change is made."""


class Drafting:
    """Judges requests and writes drafts. `roots` gives the folders of the tables that there are."""

    def __init__(
        self,
        store: TableStore,
        files: MetadataFiles,
        warehouse: Warehouse,
        clock: Clock,
        random: Random,
        roots: Callable[[], Iterable[str]],
    ) -> None:
        self._store = store
        self._files = files
        self._warehouse = warehouse
        self._clock = clock
        self._random = random
        self._roots = roots

    def uuid(self) -> str:
        return str(UUID(int=self._random.getrandbits(128), version=4))

    # -- new tables -------------------------------------------------------------------------------------------------

    def create(self, namespace: str, request: CreateRequest) -> Draft:
        uuid = self.uuid()
        location = (request.location or self._warehouse.place_for(namespace, request.name, uuid)).rstrip("/")
        metadata = new_metadata(
            uuid=uuid,
            location=location,
            schema=request.schema,
            spec=request.partition_spec,
            order=request.write_order,
            properties=request.properties or {},
            now_ms=self._clock.wall_ms(),
        )
        self._judge_new(metadata)
        if request.stage_create:
            return Draft(location="", metadata=render(metadata), change=None)
        return self._made((namespace, request.name), metadata)

    def _made(self, key: TableKey, metadata: Json) -> Draft:
        location, data = self._files.write(metadata, "")
        return Draft(
            location=location, metadata=data, change=TableChange(*key, metadata["table-uuid"], "", location)
        )

    def _judge_new(self, metadata: Json) -> None:
        if not _UUID.fullmatch(metadata["table-uuid"]):
            raise Invalid(f"{metadata['table-uuid']!r} is no uuid")
        path = self._judge_own({}, metadata)
        if path.split("/")[0] == STREAMS:
            raise Invalid(f"the folder {STREAMS} belongs to the topics' tables")
        self._judge_free(metadata["location"])

    def _judge_free(self, location: str, own: str = "") -> None:
        """No other table lives there; `own` is the folder of the one that moves, or goes."""
        others = [canonical(root) for root in self._roots() if canonical(root) != canonical(own)]
        if any(overlap(canonical(location), root) for root in others):
            raise Invalid(f"{location} overlaps the folder of another table")

    def register(self, key: TableKey, place: str, replaced: CatalogTable | None) -> Draft:
        """A table out of a metadata file that is there already, maybe an earlier one of the table that it replaces."""
        path = self._warehouse.path_of(place)
        if path is None or not path.endswith(".metadata.json"):
            raise Invalid(f"{place} is no metadata file in the warehouse {self._warehouse.uri}")
        try:
            data = self._files.read(place)
            metadata = parse(data)
        except (Missing, Corrupt) as error:
            raise Invalid(f"{place} cannot be registered: {error}") from error
        if not _UUID.fullmatch(metadata["table-uuid"]):
            raise Invalid(f"{metadata['table-uuid']!r} is no uuid")
        if self._warehouse.path_of(metadata["location"]) is None:
            raise Invalid(f"the table's location {metadata['location']} is outside the warehouse")
        own = root_of(replaced.location) if replaced is not None else ""
        self._judge_free(metadata["location"], own)
        self._judge_free(root_of(place), own)
        return Draft(location=place, metadata=data, change=TableChange(*key, metadata["table-uuid"], "", place))

    # -- commits ----------------------------------------------------------------------------------------------------

    def commit(self, key: TableKey, table: CatalogTable | None, request: CommitRequest) -> Draft:
        if table is None:
            return self._commit_new(key, request)
        data = self._files.read(table.location)
        base = parse(data)
        if is_done(base, request.updates):
            return Draft(location=table.location, metadata=data, change=None)
        check_requirements(base, request.requirements)
        if not request.updates:
            return Draft(location=table.location, metadata=data, change=None)
        now_ms = max(self._clock.wall_ms(), base["last-updated-ms"])
        metadata = apply_updates(base, request.updates, now_ms, table.location)
        if table.topic_id:
            self._judge_stream(base, metadata)
        else:
            self._judge_own(base, metadata)
        location, data = self._files.write(metadata, table.location)
        change = TableChange(*key, table.uuid, table.location, location)
        return Draft(location=location, metadata=data, change=change, obsolete=self._obsolete(base, metadata))

    def _commit_new(self, key: TableKey, request: CommitRequest) -> Draft:
        if not any(requirement.get("type") == "assert-create" for requirement in request.requirements):
            raise no_such_table(shown(*key))
        check_requirements(None, request.requirements)
        uuid = next((u["uuid"] for u in request.updates if u.get("action") == "assign-uuid" and "uuid" in u), None)
        uuid = uuid.lower() if isinstance(uuid, str) else self.uuid()
        place = {"action": "set-location", "location": self._warehouse.place_for(*key, uuid)}
        metadata = apply_updates(None, [place, *request.updates], self._clock.wall_ms(), "", uuid)
        self._judge_new(metadata)
        return self._made(key, metadata)

    def _judge_stream(self, base: Json, metadata: Json) -> None:
        """T13."""
        for name, place in self._new_paths(base["properties"], metadata["properties"]):
            if not within(base["location"], place):
                raise Refused(f"a stream's table has all its files in its own folder, and {name} {place} is not there")
        if not judge_metadata(base, metadata):
            return
        # Arrow is loaded only when somebody else commits to a stream.
        from lakestream.data.tables.foreign_rows import judge_rows

        after = snapshot_of(metadata, main_of(metadata))
        assert after is not None, "a reference has its snapshot"
        try:
            judge_rows(self._store, base["location"], snapshot_of(base, main_of(base)), after, self._random)
        except (Missing, Corrupt) as error:
            raise Refused(f"the commit's files cannot be read: {error}") from error

    def _judge_own(self, base: Json, metadata: Json) -> str:
        """A user's own table: anything, but inside the warehouse. Its way there is returned.

        It may well be a topic's of another cluster, which then writes the properties that such a table has.
        """
        path = self._warehouse.path_of(metadata["location"])
        if path is None:
            raise Invalid(f"{metadata['location']} is outside the warehouse {self._warehouse.uri}")
        before: Mapping[str, str] = base.get("properties", {})
        if _reserved(metadata["properties"]) != _reserved(before):
            raise Invalid("properties that begin with lakestream. are written by Lakestream only")
        self._new_paths(before, metadata["properties"])
        if base and metadata["location"] != base["location"]:
            # Its files would stay where they are, and a table that somebody makes there would have them for its own.
            if base.get("snapshots"):
                raise Invalid("a table that has snapshots keeps its location")
            self._judge_free(metadata["location"], base["location"])
        return path

    def _new_paths(self, before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, str]]:
        """Places to write to that a commit names, by property. Raises Invalid if one is outside the warehouse."""
        found = [(name, after[name]) for name in _PATHS if name in after and after[name] != before.get(name)]
        for name, place in found:
            if self._warehouse.path_of(place) is None:
                raise Invalid(f"{name} {place} is outside the warehouse {self._warehouse.uri}")
        return found

    def _obsolete(self, base: Json, metadata: Json) -> tuple[str, ...]:
        if metadata["properties"].get(CLEAN_UP, "").lower() != "true":
            return ()
        kept = {entry["metadata-file"] for entry in metadata["metadata-log"]}
        dropped = [entry.get("metadata-file") for entry in base["metadata-log"]]
        return tuple(
            place for place in dropped
            if isinstance(place, str) and place not in kept and self._warehouse.path_of(place) is not None
        )  # fmt: skip


def _reserved(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in ours(properties).items() if name not in _OF_TOPICS}


def is_done(metadata: Json, updates: list[dict[str, Any]]) -> bool:
    """Whether this very commit was made before: its answer was lost, and the client asks again (T17)."""
    snapshots = [update.get("snapshot") for update in updates if update.get("action") == "add-snapshot"]
    if not snapshots:
        return False
    named = [update.get("ref-name") for update in updates if update.get("action") == "set-snapshot-ref"] or [MAIN]
    heads = [ref["snapshot-id"] for name, ref in metadata["refs"].items() if name in named]
    there = [one for head in heads for one in ancestors(metadata, head)]
    for snapshot in snapshots:
        if not isinstance(snapshot, dict) or snapshot.get("snapshot-id") not in there:
            return False
        found = snapshot_of(metadata, snapshot["snapshot-id"])
        if found is None or found.get("manifest-list") != snapshot.get("manifest-list"):
            return False
    return True

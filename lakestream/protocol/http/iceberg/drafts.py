"""What a commit would make of a table: judged, and written down as a new metadata file, before anybody is asked (T17).

This blocks (it reads and writes files) and runs in threads. A draft changes nothing: the caller swaps the pointer by
one command, or takes the file away again.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID

import msgspec

from lakestream.data.tables.foreign.allowed_changes import Refused, judge_metadata, ours
from lakestream.data.tables.iceberg.metadata.documents import (
    MAIN,
    ancestors,
    check_requirements,
    main_of,
    new_metadata,
    parse,
    render,
    snapshot_of,
)
from lakestream.data.tables.iceberg.metadata.files import MetadataFiles
from lakestream.data.tables.iceberg.metadata.schemas import Invalid, Json
from lakestream.data.tables.iceberg.metadata.updates import apply_updates
from lakestream.data.tables.iceberg.progress import PROGRESS_PROPERTY
from lakestream.data.tables.iceberg.reachable_files import PATHS
from lakestream.data.tables.iceberg.topic_table import TOPIC_ID_PROPERTY
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, Missing
from lakestream.interfaces import Clock
from lakestream.model.catalog.names import (
    METADATA_SUFFIX,
    STREAMS,
    canonical,
    carries_id,
    is_own_version,
    path_below,
    root_of,
    shown,
    within,
)
from lakestream.model.catalog.tables import CatalogTable, TableChange, TableKey
from lakestream.model.cluster_time import JUMP_MS
from lakestream.protocol.http.iceberg.errors import no_such_table
from lakestream.protocol.http.iceberg.places import Places

CLEAN_UP = "write.metadata.delete-after-commit.enabled"
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
    """Judges requests and writes drafts."""

    def __init__(
        self,
        store: TableStore,
        files: MetadataFiles,
        places: Places,
        clock: Clock,
        random: Random,
    ) -> None:
        self._store = store
        self._files = files
        self._places = places
        self._warehouse = places.warehouse
        self._clock = clock
        self._random = random

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
        self._judge_own({}, metadata, ())
        self._places.judge("the location", metadata["location"])

    def register(self, key: TableKey, place: str, replaced: CatalogTable | None) -> Draft:
        """A table out of a metadata file that is there already, maybe an earlier one of the table that it replaces."""
        if not self._warehouse.admits(place) or not place.endswith(METADATA_SUFFIX):
            raise Invalid(f"{place} is no metadata file in the warehouse {self._warehouse.uri}")
        try:
            data = self._files.read(place)
            metadata = parse(data)
        except (Missing, Corrupt) as error:
            raise Invalid(f"{place} cannot be registered: {error}") from error
        if not _UUID.fullmatch(metadata["table-uuid"]):
            raise Invalid(f"{metadata['table-uuid']!r} is no uuid")
        self._judge_registered(metadata, place, replaced)
        return Draft(location=place, metadata=data, change=TableChange(*key, metadata["table-uuid"], "", place))

    def _judge_registered(self, metadata: Json, place: str, replaced: CatalogTable | None) -> None:
        """The file leads to no folder of another table, and calls no file an earlier version that is none of its own.

        Anybody may have written the file, and what it names is deleted one day.
        """
        location = metadata["location"]
        own = [root_of(replaced.location)] if replaced is not None else []
        below = (self._warehouse.path_of(location) or "").split("/")
        kept = below[0] == STREAMS and len(below) == 2 and carries_id(location, metadata["table-uuid"])
        self._places.judge("the table's location", location, own, kept)
        self._places.judge("the folder of", place, own, kept and within(location, place))
        for name, path in _paths(metadata["properties"]):
            self._places.judge(name, path, [*own, location])
        folders = (location, place.rpartition("/")[0])
        for version in metadata["metadata-log"]:
            file = version["metadata-file"]
            if not file.endswith(METADATA_SUFFIX) or not any(path_below(folder, file) for folder in folders):
                raise Invalid(f"the metadata-log names {file}, which is no metadata file in the table's own folder")

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
            self._judge_stream(base, metadata, now_ms)
        else:
            self._judge_own(base, metadata, (base["location"], root_of(table.location)))
            if metadata["location"] != base["location"]:
                self._judge_named(key, metadata)
        metadata["metadata-log"] = self._own_versions(metadata, (base["location"], root_of(table.location)))
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
        self._judge_named(key, metadata)
        return self._made(key, metadata)

    def _judge_named(self, key: TableKey, metadata: Json) -> None:
        """A folder with the table's uuid in its name goes whole with the table, so it holds no files of others.

        Clients may choose both the uuid and the place. Where the catalog itself would put the table, files may be
        there already: those that a client wrote before it commits a staged table.
        """
        location, uuid = metadata["location"], metadata["table-uuid"]
        if not carries_id(location, uuid) or canonical(location) == canonical(self._warehouse.place_for(*key, uuid)):
            return
        if self._store.list(f"{location.rstrip('/')}/"):
            raise Invalid(f"the location {location} has files already, and would be the table's own by its uuid")

    def _judge_stream(self, base: Json, metadata: Json, now_ms: int) -> None:
        """T13."""
        for name, place in self._new_paths(base["properties"], metadata["properties"]):
            if path_below(base["location"], f"{place}/files") is None:
                raise Refused(f"a stream's table has all its files in its own folder, and {name} {place} is not there")
        moved = judge_metadata(base, metadata)
        known = {snapshot["snapshot-id"] for snapshot in base["snapshots"]}
        head = main_of(metadata) if moved else None
        made = [one for one in metadata["snapshots"] if one["snapshot-id"] not in known]
        if any(one["timestamp-ms"] > now_ms + JUMP_MS for one in made):
            raise Refused("a snapshot is more than an hour ahead of the cluster: look at the clock of who made it")
        aside = [one for one in made if one["snapshot-id"] != head]
        if not moved and not aside:
            return
        # Arrow is loaded only when somebody else commits to a stream.
        from lakestream.data.tables.foreign.rows import judge_aside, judge_rows

        try:
            for snapshot in aside:
                judge_aside(self._store, base["location"], snapshot)
            if moved:
                after = snapshot_of(metadata, head)
                assert after is not None, "a reference has its snapshot"
                judge_rows(self._store, base["location"], snapshot_of(base, main_of(base)), after, self._random)
        except (Missing, Corrupt) as error:
            raise Refused(f"the commit's files cannot be read: {error}") from error

    def _judge_own(self, base: Json, metadata: Json, own: Collection[str]) -> None:
        """A user's own table: anything, but in places that are its own, which it has or which are free.

        It may well be a topic's of another cluster, which then writes the properties that such a table has.
        """
        before: Mapping[str, str] = base.get("properties", {})
        if _reserved(metadata["properties"]) != _reserved(before):
            raise Invalid("properties that begin with lakestream. are written by Lakestream only")
        for name, place in self._new_paths(before, metadata["properties"]):
            self._places.judge(name, place, [*own, metadata["location"]])
        if base and metadata["location"] != base["location"]:
            # Its files would stay where they are, and a table that somebody makes there would have them for its own.
            if base.get("snapshots"):
                raise Invalid("a table that has snapshots keeps its location")
            self._places.judge("the location", metadata["location"], own)

    def _new_paths(self, before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, str]]:
        """Places to write to that a commit names, by property."""
        return [(name, place) for name, place in _paths(after) if place != before.get(name)]

    def _own_versions(self, metadata: Json, own: Collection[str]) -> list[Json]:
        """The metadata-log without what is not the table's: who follows it, to delete say, finds nobody else's files.

        Files from where the table lay before it was moved stay in the log, unless another table lies there now.
        """

        def is_own(file: str) -> bool:
            if is_own_version(metadata["location"], file):
                return True
            return file.endswith(METADATA_SUFFIX) and self._places.problem("", file, own) == ""

        return [entry for entry in metadata["metadata-log"] if is_own(entry["metadata-file"])]

    def _obsolete(self, base: Json, metadata: Json) -> tuple[str, ...]:
        """Metadata files that the table lets go: of its own only, whatever its metadata-log says."""
        if metadata["properties"].get(CLEAN_UP, "").lower() != "true":
            return ()
        kept = {entry["metadata-file"] for entry in metadata["metadata-log"]}
        dropped = [entry["metadata-file"] for entry in base["metadata-log"]]
        return tuple(place for place in dropped if place not in kept and is_own_version(base["location"], place))


def _paths(properties: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, properties[name]) for name in PATHS if name in properties]


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

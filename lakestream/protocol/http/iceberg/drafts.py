"""Judges a commit and writes the metadata file that it would make, before the command is proposed (T17).

This blocks (it reads and writes files) and runs in threads. A draft changes nothing: the caller swaps the pointer by
one command, or deletes the file again.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID

import msgspec

from lakestream.data.tables.foreign.allowed_changes import Refused, judge_metadata, lakestream_properties
from lakestream.data.tables.iceberg.metadata.documents import (
    check_requirements,
    new_metadata,
    parse_any,
)
from lakestream.data.tables.iceberg.metadata.files import MetadataFiles
from lakestream.data.tables.iceberg.metadata.schemas import Invalid, Json
from lakestream.data.tables.iceberg.metadata.table_metadata import MAIN, TableMetadata
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
from lakestream.protocol.http.iceberg.places import TablePlaces

CLEAN_UP = "write.metadata.delete-after-commit.enabled"
_OF_TOPICS = (TOPIC_ID_PROPERTY, PROGRESS_PROPERTY)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class CommitRequest(msgspec.Struct, frozen=True):
    """A client's commit to one table. The identifier is in the body only if the commit has several tables."""

    requirements: list[dict[str, Any]]
    updates: list[dict[str, Any]]
    identifier: dict[str, Any] | None = None


class CreateRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """A new table. A staged one is only drafted; a later commit creates it."""

    name: str
    schema: dict[str, Any]
    location: str | None = None
    partition_spec: dict[str, Any] | None = None
    write_order: dict[str, Any] | None = None
    stage_create: bool = False
    properties: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDraft:
    """A table after the commit: the location of its metadata, the metadata, and the change (None: nothing changes)."""

    location: str
    metadata: bytes
    change: TableChange | None
    obsolete: tuple[str, ...] = ()
    """Old metadata files without references once the change is made."""


class Drafting:
    """Judges requests and writes drafts."""

    def __init__(
        self,
        store: TableStore,
        files: MetadataFiles,
        places: TablePlaces,
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

    def create(self, namespace: str, request: CreateRequest) -> TableDraft:
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
            return TableDraft(location="", metadata=metadata.encode(), change=None)
        return self._made((namespace, request.name), metadata)

    def _made(self, key: TableKey, metadata: TableMetadata) -> TableDraft:
        location, data = self._files.write(metadata, "")
        return TableDraft(location=location, metadata=data, change=TableChange(*key, metadata.uuid, "", location))

    def _judge_new(self, metadata: TableMetadata) -> None:
        if not _UUID.fullmatch(metadata.uuid):
            raise Invalid(f"{metadata.uuid!r} is no uuid")
        self._judge_own(None, metadata, ())
        self._places.judge("the location", metadata.location)

    def register(self, key: TableKey, place: str, replaced: CatalogTable | None) -> TableDraft:
        """Registers an existing metadata file as a table, maybe an earlier file of the table that it replaces."""
        if not self._warehouse.admits(place) or not place.endswith(METADATA_SUFFIX):
            raise Invalid(f"{place} is no metadata file in the warehouse {self._warehouse.uri}")
        try:
            data = self._files.read(place)
            metadata = parse_any(data)
        except (Missing, Corrupt) as error:
            raise Invalid(f"{place} cannot be registered: {error}") from error
        if not _UUID.fullmatch(metadata.uuid):
            raise Invalid(f"{metadata.uuid!r} is no uuid")
        self._judge_registered(metadata, place, replaced)
        return TableDraft(location=place, metadata=data, change=TableChange(*key, metadata.uuid, "", place))

    def _judge_registered(self, metadata: TableMetadata, place: str, replaced: CatalogTable | None) -> None:
        """Raises Invalid if the file leads to a folder of another table, or lists files of others as versions.

Any client may have written the file, and the files that it names are deleted with the table.
        """
        location = metadata.location
        own = [root_of(replaced.location)] if replaced is not None else []
        below = (self._warehouse.path_of(location) or "").split("/")
        kept = below[0] == STREAMS and len(below) == 2 and carries_id(location, metadata.uuid)
        self._places.judge("the table's location", location, own, kept)
        self._places.judge("the folder of", place, own, kept and within(location, place))
        for name, path in _paths(metadata.properties):
            self._places.judge(name, path, [*own, location])
        folders = (location, place.rpartition("/")[0])
        for version in metadata.value("metadata-log"):
            file = version["metadata-file"]
            if not file.endswith(METADATA_SUFFIX) or not any(path_below(folder, file) for folder in folders):
                raise Invalid(f"the metadata-log names {file}, which is no metadata file in the table's own folder")

    # -- commits ----------------------------------------------------------------------------------------------------

    def commit(self, key: TableKey, table: CatalogTable | None, request: CommitRequest) -> TableDraft:
        if table is None:
            return self._commit_new(key, request)
        data = self._files.read(table.location)
        base = parse_any(data)
        if is_done(base, request.updates):
            return TableDraft(location=table.location, metadata=data, change=None)
        check_requirements(base, request.requirements)
        if not request.updates:
            return TableDraft(location=table.location, metadata=data, change=None)
        now_ms = max(self._clock.wall_ms(), base.value("last-updated-ms"))
        metadata = apply_updates(base, request.updates, now_ms, table.location)
        if table.topic_id:
            self._judge_stream(base, metadata, now_ms)
        else:
            self._judge_own(base, metadata, (base.location, root_of(table.location)))
            if metadata.location != base.location:
                self._judge_named(key, metadata)
        versions = self._own_versions(metadata, (base.location, root_of(table.location)))
        metadata = metadata.replaced({"metadata-log": versions})
        location, data = self._files.write(metadata, table.location)
        change = TableChange(*key, table.uuid, table.location, location)
        return TableDraft(location=location, metadata=data, change=change, obsolete=self._obsolete(base, metadata))

    def _commit_new(self, key: TableKey, request: CommitRequest) -> TableDraft:
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

    def _judge_named(self, key: TableKey, metadata: TableMetadata) -> None:
        """Raises Invalid if the location carries the table's uuid and has files: such a folder is purged as a whole.

        Clients may choose both the uuid and the location. At the catalog's own location files may exist already: a
        client writes them before it commits a staged table.
        """
        location, uuid = metadata.location, metadata.uuid
        if not carries_id(location, uuid) or canonical(location) == canonical(self._warehouse.place_for(*key, uuid)):
            return
        if self._store.list(f"{location.rstrip('/')}/"):
            raise Invalid(f"the location {location} has files already, and would be the table's own by its uuid")

    def _judge_stream(self, base: TableMetadata, metadata: TableMetadata, now_ms: int) -> None:
        """T13."""
        for name, place in self._new_paths(base.properties, metadata.properties):
            if path_below(base.location, f"{place}/files") is None:
                raise Refused(f"a stream's table has all its files in its own folder, and {name} {place} is not there")
        moved = judge_metadata(base, metadata)
        known = {head.snapshot_id for head in base.snapshots}
        head = metadata.main_id if moved else None
        made = [one for one in metadata.value("snapshots") if one["snapshot-id"] not in known]
        if any(one["timestamp-ms"] > now_ms + JUMP_MS for one in made):
            raise Refused("a snapshot is more than an hour ahead of the cluster: look at the clock of who made it")
        aside = [one for one in made if one["snapshot-id"] != head]
        if not moved and not aside:
            return
        # Arrow is loaded only when another engine commits to a stream.
        from lakestream.data.tables.foreign.rows import judge_aside, judge_rows

        try:
            for snapshot in aside:
                judge_aside(self._store, base.location, snapshot)
            if moved:
                after = metadata.snapshot_fields(head)
                assert after is not None, "a reference has its snapshot"
                judge_rows(self._store, base.location, base.snapshot_fields(base.main_id), after, self._random)
        except (Missing, Corrupt) as error:
            raise Refused(f"the commit's files cannot be read: {error}") from error

    def _judge_own(self, base: TableMetadata | None, metadata: TableMetadata, own: Collection[str]) -> None:
        """Judges a user's own table: any change, but only at locations that it has already or that are free.

        The table may belong to a topic of another cluster, which then writes the properties of such a table.
        """
        before: Mapping[str, str] = {} if base is None else base.properties
        if _reserved(metadata.properties) != _reserved(before):
            raise Invalid("properties that begin with lakestream. are written by Lakestream only")
        for name, place in self._new_paths(before, metadata.properties):
            self._places.judge(name, place, [*own, metadata.location])
        if base is not None and metadata.location != base.location:
            # Its files would stay, and a new table at the old location would own them.
            if base.snapshots:
                raise Invalid("a table that has snapshots keeps its location")
            self._places.judge("the location", metadata.location, own)

    def _new_paths(self, before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, str]]:
        """The locations that a commit names in new or changed properties, by property."""
        return [(name, place) for name, place in _paths(after) if place != before.get(name)]

    def _own_versions(self, metadata: TableMetadata, own: Collection[str]) -> list[Json]:
        """The metadata-log without files of other tables, so that nothing else is deleted by it.

        Files at an earlier location of the table stay in the log, unless another table is there now.
        """

        def is_own(file: str) -> bool:
            if is_own_version(metadata.location, file):
                return True
            return file.endswith(METADATA_SUFFIX) and self._places.problem("", file, own) == ""

        return [entry for entry in metadata.value("metadata-log") if is_own(entry["metadata-file"])]

    def _obsolete(self, base: TableMetadata, metadata: TableMetadata) -> tuple[str, ...]:
        """The metadata files that the commit drops; only the table's own, whatever its metadata-log says."""
        if metadata.properties.get(CLEAN_UP, "").lower() != "true":
            return ()
        kept = {entry["metadata-file"] for entry in metadata.value("metadata-log")}
        dropped = [entry["metadata-file"] for entry in base.value("metadata-log")]
        return tuple(place for place in dropped if place not in kept and is_own_version(base.location, place))


def _paths(properties: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, properties[name]) for name in PATHS if name in properties]


def _reserved(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in lakestream_properties(properties).items() if name not in _OF_TOPICS}


def is_done(metadata: TableMetadata, updates: list[dict[str, Any]]) -> bool:
    """Whether this commit was made before: its answer was lost, and the client sends it again (T17)."""
    snapshots = [update.get("snapshot") for update in updates if update.get("action") == "add-snapshot"]
    if not snapshots:
        return False
    named = [update.get("ref-name") for update in updates if update.get("action") == "set-snapshot-ref"] or [MAIN]
    heads = [ref["snapshot-id"] for name, ref in metadata.refs.items() if name in named]
    there = [one for head in heads for one in metadata.ancestor_ids(head)]
    for snapshot in snapshots:
        if not isinstance(snapshot, dict) or snapshot.get("snapshot-id") not in there:
            return False
        found = metadata.snapshot_fields(snapshot["snapshot-id"])
        if found is None or found.get("manifest-list") != snapshot.get("manifest-list"):
            return False
    return True

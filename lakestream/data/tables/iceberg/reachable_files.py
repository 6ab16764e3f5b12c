"""All files that a table's metadata leads to. Other files in its folder are orphans, or not committed yet."""

from collections.abc import Iterator
from contextlib import suppress

from lakestream.data.tables.iceberg.manifests.files import ManifestFile, read_manifest, read_manifest_list
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, Missing, Rejected, Retry
from lakestream.model.catalog.names import canonical, root_of

PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
"""Properties by which a table names further folders for its files."""
_UNREADABLE = (Missing, Corrupt, Rejected, KeyError, TypeError, AttributeError, ValueError)
"""A file may be gone, damaged, outside the store, or Avro but no manifest, and its name may be no valid name."""


def reachable(store: TableStore, location: str, metadata: TableMetadata, *, leaving: bool = False) -> set[str]:
    """The files of all snapshots and the metadata files that are kept. Raises Missing if a part of it is not there.

    URIs are spelled as stores list them, however an engine has spelled them.

    `leaving`: also files that manifests name as removed. New readers do not need them, but they may be in their grace.
    """
    found = {location, *(one["metadata-file"] for one in metadata.value("metadata-log", []))}
    for name in ("statistics", "partition-statistics"):
        found.update(one["statistics-path"] for one in metadata.value(name, []) or [])
    manifests: dict[str, ManifestFile] = {}
    for head in metadata.snapshots:
        found.add(head.manifest_list)
        manifests.update((listed.path, listed) for listed in read_manifest_list(store.get(head.manifest_list)))
    for listed in manifests.values():
        found.add(listed.path)
        manifest = read_manifest(store.get(listed.path), listed)
        places = range(len(manifest.entries)) if leaving else manifest.live()
        found.update(manifest.entries[at]["data_file"]["file_path"] for at in places)
    return {canonical(uri) for uri in found}


def reachable_from(store: TableStore, location: str) -> set[str]:
    """The reachable files of the table with this metadata file."""
    return reachable(store, location, TableMetadata.parse(store.get(location)))


def still_reachable(store: TableStore, location: str, metadata: TableMetadata, *, last: bool = False) -> set[str]:
    """What can be found of a table of any format version, although a part of it may be gone or damaged already.

    Raises Retry if a file cannot be read now. `last`: there is no later attempt, so such a file counts as damaged. The
    snapshot that names it may be forged, and the file may be a folder.
    """
    unreadable = (*_UNREADABLE, Retry) if last else _UNREADABLE
    found = {location, *(one["metadata-file"] for one in metadata.value("metadata-log"))}
    for name in ("statistics", "partition-statistics"):
        found.update(path for one in metadata.value(name) or [] if isinstance(path := one.get("statistics-path"), str))
    manifests: dict[str, ManifestFile] = {}
    for snapshot in metadata.value("snapshots"):
        listed = snapshot.get("manifest-list")
        if isinstance(listed, str):
            found.add(listed)
            with suppress(*unreadable):
                manifests.update((one.path, one) for one in read_manifest_list(store.get(listed)))
    for path, manifest in manifests.items():
        found.add(path)
        with suppress(*unreadable):
            found.update(_named(store, manifest))
    return {canonical(uri) for uri in found if isinstance(uri, str) and ".." not in uri.split("/")}


def _named(store: TableStore, listed: ManifestFile) -> Iterator[str]:
    for entry in read_manifest(store.get(listed.path), listed).entries:
        yield entry["data_file"]["file_path"]


def occupied(location: str, metadata: TableMetadata) -> tuple[str, ...]:
    """All folders that a table has files in, or may have: its metadata file is at `location`."""
    named = (metadata.properties[name] for name in PATHS if name in metadata.properties)
    return tuple({canonical(folder).rstrip("/") for folder in (root_of(location), metadata.location, *named)})

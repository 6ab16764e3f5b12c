"""Every file that a table's metadata leads to: what is in its folder beside these is nobody's, or not yet anybody's."""

from lakestream.data.tables.manifests import ManifestFile, read_manifest, read_manifest_list
from lakestream.data.tables.store import TableStore
from lakestream.data.tables.table_metadata import TableMetadata
from lakestream.model.catalog_names import canonical


def reachable(
    store: TableStore, location: str, metadata: TableMetadata, *, leaving: bool = False
) -> set[str]:
    """The files of all snapshots and the metadata files that are kept. Raises Missing if a part of it is not there.

    They are spelled as stores list them, however an engine has written them.

    `leaving`: also files that manifests name as removed, which nobody reads any more, but which may have their grace.
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
    """The same, of the table whose metadata file this is."""
    return reachable(store, location, TableMetadata.parse(store.get(location)))

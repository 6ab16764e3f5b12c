"""The files that a table's older snapshots pin: only they lead to them, and the current snapshot does not."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lakestream.data.tables.iceberg.manifests.files import (
    BOUNDS,
    STATISTICS,
    ManifestFile,
    read_manifest,
    read_manifest_list,
)
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.stores.table_store import TableStore

GetAll = Callable[[Sequence[str]], list[bytes]]


@dataclass(frozen=True, slots=True)
class Pinned:
    """Numbers and sizes: data and delete files, and the manifests and lists that name them."""

    files: int
    bytes: int
    metadata_bytes: int


def pinned(store: TableStore, metadata: TableMetadata) -> Pinned:
    """Reads all manifest lists and most manifests, blocking. Raises Missing if one of them has just gone.

    Eight threads are 7 times as fast on a store that answers in 10 ms (bench/table_threads.py).
    """
    current = metadata.current
    if current is None:
        return Pinned(0, 0, 0)
    with ThreadPoolExecutor(store.requests_at_once) as pool:

        def get_all(uris: Sequence[str]) -> list[bytes]:
            return list(pool.map(store.get, uris))

        own, *rest = get_all([current.manifest_list, *_others(metadata)])
        held = {listed.path: listed for listed in read_manifest_list(own)}
        only = {one.path: one for data in rest for one in read_manifest_list(data) if one.path not in held}
        files = _files(only.values(), get_all) if only else {}
        for path in _files(held.values(), get_all) if files else ():
            files.pop(path, None)
    sizes = sum(map(len, rest)) + sum(listed.length for listed in only.values())
    return Pinned(len(files), sum(files.values()), sizes)


def _others(metadata: TableMetadata) -> list[str]:
    return [head.manifest_list for head in metadata.snapshots if head.snapshot_id != metadata.current_snapshot_id]


def _files(manifests: Iterable[ManifestFile], get_all: GetAll) -> dict[str, int]:
    """The live files of manifests, and their sizes."""
    found: dict[str, int] = {}
    wanted = list(manifests)
    for listed, data in zip(wanted, get_all([one.path for one in wanted]), strict=True):
        manifest = read_manifest(data, listed, STATISTICS | BOUNDS)
        for at in manifest.live():
            file = manifest.entries[at]["data_file"]
            found[file["file_path"]] = file["file_size_in_bytes"]
    return found

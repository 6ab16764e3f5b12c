"""A table at one moment, as a job of care sees it: the live files, and which rows of them are deleted by position."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lakestream.data.tables.iceberg.live_files import LiveFile, LiveFiles
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.reading.position_deletes import parse_deletes
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.pipeline.care.tasks import CareFile


@dataclass(frozen=True, slots=True)
class Picture:
    """The table that a job works from; its commit has to find the same files (T8)."""

    table: Table
    base: int
    live: LiveFiles
    deleted_in: dict[str, int]
    """Rows deleted by position, by data file."""
    touched: dict[str, frozenset[str]]
    """The data files that each delete file speaks of."""

    def source(self, file: LiveFile) -> CareFile:
        own = [one.path for one in self.live.deletes_of(file) if file.path in self.touched[one.path]]
        return CareFile(file.path, file.size, file.rows, own)

    def dangling(self, replaced: Iterable[str]) -> frozenset[str]:
        """Delete files that speak of nothing that is left."""
        left = self.live.data.keys() - set(replaced)
        return frozenset(path for path, files in self.touched.items() if not files & left)


def take_picture(store: TableStore, table: Table, base: int, files_of: Callable[[Table], LiveFiles]) -> Picture:
    """Read the manifests and the delete files of the table's current snapshot, `base`. Blocks."""
    live = files_of(table)
    counts: dict[str, int] = {}
    touched: dict[str, frozenset[str]] = {}
    for one in live.deletes:
        found = parse_deletes(store.get(one.path))
        own = {path for path in found if path in live.data and live.data[path].sequence <= one.sequence}
        touched[one.path] = frozenset(own)
        for path in own:
            counts[path] = counts.get(path, 0) + len(found[path])
    return Picture(table, base, live, counts, touched)

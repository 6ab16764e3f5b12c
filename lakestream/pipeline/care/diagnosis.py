"""The diagnosis of a topic's table after a repair: whether its files are there and agree with the state."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from lakestream.data.tables.iceberg.live_files import LiveFile
from lakestream.data.tables.iceberg.metadata.table_metadata import Table, TableMetadata
from lakestream.data.tables.iceberg.topic_table import TOPIC_ID_PROPERTY
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, Missing
from lakestream.model.catalog.tables import CatalogTable
from lakestream.model.state import State
from lakestream.model.topics import Topic
from lakestream.pipeline.tables.topic_tables import TopicTables

NAMED_MAX = 5
"""The number of lost files that a diagnosis names."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The faults of a table. `lost`: data files that are missing or not whole; `problems`: for the operator."""

    problems: tuple[str, ...]
    lost: tuple[LiveFile, ...]
    lost_deletes: tuple[str, ...]
    rows: int
    files: int

    @property
    def healthy(self) -> bool:
        return not self.problems and not self.lost and not self.lost_deletes

    def text(self) -> str:
        said = list(self.problems)
        if self.lost:
            names = ", ".join(file.path for file in self.lost[:NAMED_MAX])
            more = f" and {len(self.lost) - NAMED_MAX} others" if len(self.lost) > NAMED_MAX else ""
            rows = sum(file.rows for file in self.lost)
            said.append(f"{len(self.lost)} data files with {rows} rows are lost: {names}{more}")
        if self.lost_deletes:
            said.append(f"{len(self.lost_deletes)} delete files are lost: rows that were deleted would be back")
        return "; ".join(said)


def diagnose(tables: TopicTables, state: State, topic: Topic, bound: CatalogTable) -> Diagnosis:
    """Blocks. Raises Retry if the store cannot be asked."""
    store = tables.files.store
    try:
        metadata = TableMetadata.parse(store.get(bound.location))
        table = Table(bound.location, metadata)
        live = tables.format.files(table)
    except (Missing, Corrupt) as error:
        return Diagnosis((f"the table's metadata is lost or broken: {error}; restore it from a backup",), (), (), 0, 0)
    problems = [*_binding(metadata, topic, bound), *_progress(tables, table, state, topic)]
    sizes = dict(store.list(f"{metadata.location}/"))
    lost = tuple(file for path, file in live.data.items() if not _is_there(store, sizes, path, file.size))
    deletes = tuple(one.path for one in live.deletes if not _is_there(store, sizes, one.path, one.size))
    rows = sum(file.rows for file in live.data.values())
    return Diagnosis(tuple(problems), lost, deletes, rows, len(live.data))


def _binding(metadata: TableMetadata, topic: Topic, bound: CatalogTable) -> Sequence[str]:
    if metadata.uuid != bound.uuid:
        return [f"the metadata file is of table {metadata.uuid}, not {bound.uuid}"]
    if metadata.properties.get(TOPIC_ID_PROPERTY) != str(UUID(bytes=topic.id)):
        return ["by its properties the table belongs to another topic"]
    return []


def _progress(tables: TopicTables, table: Table, state: State, topic: Topic) -> Sequence[str]:
    try:
        progress = tables.format.progress(table)
    except Corrupt as error:
        return [str(error)]
    found = []
    for stream_id in topic.streams:
        stream = state.streams.by_id[stream_id]
        end = progress.get(stream.partition, 0)
        if end != stream.landed:
            problem = f"partition {stream.partition}: the table has landed {end}, the state says {stream.landed}"
            found.append(problem)
    return found


def _is_there(store: TableStore, sizes: dict[str, int], path: str, size: int) -> bool:
    """Whether a file is there and whole. `sizes`: the table's folder; other engines may add files outside of it."""
    if path in sizes:
        return sizes[path] == size
    return dict(store.list(path)).get(path) == size

"""The files of a topic's table, as PyIceberg plans them through the REST catalog: a second opinion beside our own code.

PyIceberg reads metadata and manifests by its own code; only the bytes come through our store, which reaches all that
the brokers reach. Position deletes are matched to data files by PyIceberg as well.
"""

import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError, RESTError
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import StaticTable, Table

from lakestream.data.tables.stores.routed_store import place_of
from lakestream.data.tables.stores.table_store import TableStore, open_table_store
from lakestream.errors import Corrupt, Missing, Retry
from lakestream.model.catalog.names import STREAMS

_ROOT = "lakestream.verify.root"
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, EOFError, zlib.error)
"""What PyIceberg raises at bytes that are no metadata or no manifest."""
_IO = {"py-io-impl": f"{__name__}.StoreIO"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """A live data file, what its manifest says of it, and the delete files that PyIceberg applies to it."""

    path: str
    rows: int
    size: int
    lower: Mapping[int, bytes]
    upper: Mapping[int, bytes]
    deletes: Sequence[str]


def load_by_catalog(http: str, root: str, topic: str) -> Table:
    """The table as the catalog at a broker's HTTP port serves it now. Raises Missing, Retry or Corrupt."""
    try:
        catalog = RestCatalog("verify", uri=f"http://{http}/iceberg", **_IO, **{_ROOT: root})
        loaded: Table = catalog.load_table((STREAMS, topic))
        return loaded
    except NoSuchTableError:
        raise Missing(f"the catalog has no table {STREAMS}.{topic}") from None
    except (RESTError, OSError) as error:
        raise Retry(f"the catalog at {http} does not answer: {error}") from error
    except _MALFORMED as error:
        raise Corrupt(f"PyIceberg cannot read the table's metadata: {error}") from error


def load_at(root: str, metadata_location: str) -> Table:
    """The table as a metadata file has it. Raises Missing or Corrupt."""
    try:
        return StaticTable.from_metadata(metadata_location, {**_IO, _ROOT: place_of(root, metadata_location)})
    except _MALFORMED as error:
        raise Corrupt(f"PyIceberg cannot read the table's metadata: {error}") from error


def plan(table: Table) -> list[PlannedFile]:
    """All live data files. Raises Missing, Retry, or Corrupt where the table cannot be a stream's."""
    try:
        tasks = list(table.scan().plan_files())
    except _MALFORMED as error:
        raise Corrupt(f"PyIceberg cannot plan the table: {error}") from error
    planned = []
    for task in tasks:
        deletes = sorted(task.delete_files, key=lambda one: one.file_path)
        if any(one.content != DataFileContent.POSITION_DELETES for one in deletes):
            raise Corrupt(f"{task.file.file_path} has equality deletes, which no stream's table has")
        planned.append(
            PlannedFile(
                path=task.file.file_path,
                rows=task.file.record_count,
                size=task.file.file_size_in_bytes,
                lower=dict(task.file.lower_bounds or {}),
                upper=dict(task.file.upper_bounds or {}),
                deletes=[one.file_path for one in deletes],
            )
        )
    return sorted(planned, key=lambda one: one.path)


class StoreIO(FileIO):
    """PyIceberg's way to files, over our store; it reads only."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        super().__init__(dict(properties))
        self._store = open_table_store(str(properties[_ROOT]))

    def new_input(self, location: str) -> InputFile:
        return _Stored(location, self._store)

    def new_output(self, location: str) -> OutputFile:
        raise Retry(f"the checker writes nothing, not {location} either")

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise Retry(f"the checker deletes nothing, not {location} either")


class _Stored(InputFile):
    def __init__(self, location: str, store: TableStore) -> None:
        super().__init__(location)
        self._store = store

    def __len__(self) -> int:
        return len(self._store.get(self.location))

    def exists(self) -> bool:
        try:
            self._store.read(self.location, [(0, 1)])
        except Missing:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return io.BytesIO(self._store.get(self.location))

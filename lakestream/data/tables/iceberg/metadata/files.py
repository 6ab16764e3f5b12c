"""Reads, writes and deletes metadata files of tables. They never change, so they are cached; writes are create-only.

This blocks; it is called from threads.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Mapping
from random import Random
from threading import Lock
from uuid import UUID

from lakestream.data.tables.iceberg.metadata.documents import parse_any
from lakestream.data.tables.iceberg.metadata.names import METADATA_BYTES_MAX, metadata_ending, packed, unpacked
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, LakestreamError, Retry, Unknown

log = logging.getLogger(__name__)

REMEMBERED_BYTES = 16 * 1024 * 1024
_VERSION = re.compile(r"(\d{1,12})-")


class MetadataFiles:
    """The metadata files in one store."""

    def __init__(self, store: TableStore, random: Random) -> None:
        self._store = store
        self._random = random
        self._lock = Lock()
        self._remembered: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def read(self, location: str) -> bytes:
        """The file's JSON. Raises Missing, Corrupt, Retry, or Rejected if the place is outside the store."""
        with self._lock:
            known = self._remembered.get(location)
            if known is not None:
                self._remembered.move_to_end(location)
                return known
        data = self._store.get(location)
        if len(data) > METADATA_BYTES_MAX:
            raise Corrupt(f"{location} is too large for a table's metadata")
        data = unpacked(data)
        self._remember(location, data)
        return data

    def read_present(self, location: str) -> bytes:
        """As `read`, but raises Missing also if the file is cached and was deleted since."""
        with self._lock:
            remembered = location in self._remembered
        if remembered:
            self._store.read(location, [(0, 1)])
        return self.read(location)

    def load(self, location: str) -> TableMetadata:
        return parse_any(self.read(location))

    def write(self, metadata: TableMetadata, previous: str) -> tuple[str, bytes]:
        """Writes a new metadata file; returns its location and its JSON. Raises Retry if the file was not written."""
        folder, number = f"{metadata.location}/metadata", len(metadata.value("metadata-log"))
        return self.place(folder, previous, metadata.encode(), number, metadata.properties)

    def place(
        self, folder: str, previous: str, data: bytes, version: int = 0, properties: Mapping[str, str] | None = None
    ) -> tuple[str, bytes]:
        """Writes a new file, numbered after the previous one or with `version`, packed if the properties say so."""
        told = properties or {}
        name = previous.rpartition("/")[2]
        found = _VERSION.match(name)
        version = int(found[1]) + 1 if found else version
        unique = UUID(int=self._random.getrandbits(128), version=4)
        location = f"{folder}/{version:05d}-{unique}{metadata_ending(told)}"
        try:
            self._store.put(location, packed(data, told))
        except Unknown as error:
            raise Retry(str(error)) from error
        self._remember(location, data)
        return location, data

    def remove(self, locations: list[str]) -> None:
        """Deletes files without references. A failure is only logged."""
        try:
            self._store.delete(locations)
        except (LakestreamError, OSError) as error:
            log.warning("metadata files could not be removed: %s", error)

    def _remember(self, location: str, data: bytes) -> None:
        with self._lock:
            if location not in self._remembered and len(data) <= REMEMBERED_BYTES // 4:
                self._remembered[location] = data
                self._bytes += len(data)
            while self._bytes > REMEMBERED_BYTES:
                self._bytes -= len(self._remembered.popitem(last=False)[1])

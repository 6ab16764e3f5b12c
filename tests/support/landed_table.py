"""A topic's table in a catalog, filled from the inside: what landing does, without a pipeline."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA
from lakestream.data.tables.iceberg.metadata.files import MetadataFiles
from lakestream.data.tables.iceberg.metadata.updates import apply_updates
from lakestream.data.tables.iceberg.topic_table import new_topic_table
from lakestream.model.catalog.landed import LandedRange
from lakestream.model.catalog.names import STREAMS, Warehouse
from lakestream.model.catalog.tables import CommitTables, TableChange
from tests.support.catalog_server import CatalogServer
from tests.support.memory_broker import batch

UUID = "01234567-89ab-4def-8123-456789abcdef"


def rows(offsets: Sequence[int], partition: int = 0, mark: bytes = b"v") -> pa.Table:
    count = len(offsets)
    columns: dict[str, Any] = {
        "stream_partition": pa.array([partition] * count, pa.int32()),
        "stream_offset": pa.array(offsets, pa.int64()),
        "stream_timestamp": pa.array([1000] * count, pa.timestamp("us", tz="UTC")),
        "stream_key": pa.array([None] * count, pa.binary()),
        "stream_headers": pa.array([[]] * count, ARROW_SCHEMA.field("stream_headers").type),
        "stream_flags": pa.array([0] * count, pa.int32()),
        "stream_original": pa.array([None] * count, pa.binary()),
        "value": pa.array([mark + str(offset).encode() for offset in offsets], pa.binary()),
    }
    return pa.table(columns, schema=ARROW_SCHEMA)


class Insider(RestCatalog):
    """PyIceberg's client, whose commits are Lakestream's own: one command with the ranges that land."""

    def __init__(self, server: CatalogServer) -> None:
        super().__init__("inside", uri=server.uri)
        self.server = server
        self.files = MetadataFiles(server.store, Random(7))
        self.landed: list[LandedRange] = []

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        [key] = [key for key, found in self.server.state.catalog.tables.items() if found.uuid == UUID]
        found = self.server.state.catalog.tables[key]
        told = [update.model_dump(mode="json", by_alias=True, exclude_none=True) for update in updates]
        metadata = apply_updates(self.files.load(found.location), told, 1, found.location)
        location, data = self.files.write(metadata, found.location)
        change = TableChange(*key, UUID, found.location, location, None, found.topic_id, self.landed)
        assert self.server.call(self.server.broker.replica.propose(CommitTables([change]))) == 1
        return CommitTableResponse.model_validate_json(
            b'{"metadata-location": "' + location.encode() + b'", "metadata": ' + data + b"}"
        )

    def land(self, name: str, *tables: pa.Table) -> None:
        """One commit a table; offsets of each are a dense run."""
        for table in tables:
            offsets = table["stream_offset"].to_pylist()
            partition = table["stream_partition"][0].as_py()
            self.landed = [LandedRange(partition, offsets[0], offsets[-1] + 1, len(offsets), 1)]
            self.load_table((STREAMS, name)).append(table)


def make_stream(server: CatalogServer, name: str = "orders", partitions: int = 2, records: int = 20) -> Insider:
    """A topic with records, and its table, still empty."""

    async def make() -> None:
        streams = await server.broker.topic(name, partitions)
        for stream in streams:
            await server.broker.append(*((stream, batch(b"v")) for _ in range(records)))
        topic_id = streams[0].topic.id
        place = Warehouse(server.store.root).place_for(STREAMS, name, UUID)
        made = new_topic_table(table_uuid=UUID, topic_id=topic_id, location=place, now_ms=1)
        location = f"{place}/metadata/00000-first.metadata.json"
        server.store.put(location, made.encode())
        change = TableChange(STREAMS, name, UUID, "", location, None, topic_id)
        assert await server.broker.replica.propose(CommitTables([change])) == 1

    server.call(make())
    return Insider(server)

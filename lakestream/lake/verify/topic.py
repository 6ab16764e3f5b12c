"""Checks one topic once, by one state: its table, its removed rows, its stream and its folder."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID

from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.iceberg.progress import PROGRESS_PROPERTY, unpack_progress
from lakestream.data.tables.iceberg.reachable_files import reachable
from lakestream.data.tables.iceberg.topic_table import TOPIC_ID_PROPERTY
from lakestream.data.tables.stores.table_store import DatedStore
from lakestream.errors import Corrupt, LakestreamError, Missing
from lakestream.lake.verify.facts import PartitionFacts, SnapshotEffects
from lakestream.lake.verify.judge import judge_partition
from lakestream.lake.verify.ledger import Ledger
from lakestream.lake.verify.objects import GracePeriods, Ownership, check_orphans, list_table
from lakestream.lake.verify.plan import PlannedFile, load_at, load_by_catalog, plan
from lakestream.lake.verify.report import Finding, FindingKind, TopicReport
from lakestream.lake.verify.rows import RowReader, check_file, into, row_at
from lakestream.lake.verify.snapshots import snapshot_effects
from lakestream.lake.verify.stream import Extent, RecordSource, columns_that_differ, compare, record_at
from lakestream.metadata.export import Exported
from lakestream.model.catalog.landed import Landing
from lakestream.model.catalog.names import root_of
from lakestream.model.catalog.tables import CatalogTable
from lakestream.model.state import State, load
from lakestream.model.topics import Topic

LOADS = 5
"""How often state and catalog are asked until they speak of the same moment."""


class CheckedCluster(RecordSource, Protocol):
    """The brokers, as the checker sees them."""

    http: str
    """HOST:PORT of a broker's HTTP listener."""

    async def exported(self) -> Exported:
        """The state at this moment. Raises Retry."""
        ...


class Watch(Protocol):
    """Receives progress: rows checked so far, rows in total."""

    def begin(self, what: str, total: int) -> None: ...

    def advance(self, amount: int) -> None: ...


class TopicCheck:
    """One check of one topic."""

    def __init__(self, cluster: CheckedCluster, store: DatedStore, watch: Watch, state: State, name: str) -> None:
        self._cluster = cluster
        self._store = store
        self._watch = watch
        self.state = state
        self.name = name
        self.ledger = Ledger()
        self.report = TopicReport(topic=name)
        self._loaded: tuple[str, TableMetadata] | None = None
        """The metadata file that the check began with: it goes when some later ones have come."""
        self._table_read = False
        self._planned: list[PlannedFile] = []
        """With the sizes that the files have, whatever the manifests say."""

    async def run(self, ownership: Ownership, patience: GracePeriods, now_ms: int) -> None:
        topic = self.state.topics.by_name.get(self.name)
        if topic is None:
            raise Missing(f"there is no topic {self.name!r}")
        self.report.partitions = len(topic.streams)
        table = self.state.catalog.of_topic(topic.id)
        landing = self.state.catalog.landings.get(topic.id)
        if table is not None:
            try:
                await asyncio.to_thread(self._metadata, table)
                table, loaded = await self._settle(topic, table)
                await asyncio.to_thread(self._check_table, topic, table, loaded, ownership)
                await asyncio.to_thread(self._check_folder, table, ownership, patience, now_ms)
            except Missing as error:
                self._found(FindingKind.FILE_MISSING, f"the table leads to a file that is not there: {error}")
            except Corrupt as error:
                self._found(FindingKind.FILE_UNREADABLE, f"the table cannot be read: {error}", table.location)
        if landing is not None and landing.held:
            self.report.notes.append(f"nothing lands: {landing.held}")
        await self._check_stream(topic)

    async def _settle(self, topic: Topic, table: CatalogTable) -> tuple[CatalogTable, Any]:
        """Loads the table by PyIceberg together with a state that names the same metadata file."""
        root = self._store.root
        if table.uuid not in self.state.catalog.keys:
            # It is in a catalog of the user's: the state names its metadata file all the same.
            return table, await asyncio.to_thread(load_at, root, table.location)
        for _ in range(LOADS):
            try:
                loaded = await asyncio.to_thread(load_by_catalog, self._cluster.http, root, self.name)
            except Missing as error:
                self._found(FindingKind.CATALOG, str(error), table.location)
                break
            if loaded.metadata_location == table.location:
                return table, loaded
            state = load((await self._cluster.exported()).checkpoint)
            now = state.catalog.of_topic(topic.id)
            if now is None:
                raise Missing("the topic was deleted meanwhile")
            if now.location == table.location:
                text = f"the catalog serves {loaded.metadata_location}, the state says {table.location}"
                self._found(FindingKind.CATALOG, text, table.location)
                break
            self.state, table = state, now
        return table, await asyncio.to_thread(load_at, root, table.location)

    # -- the table: all of this blocks --------------------------------------------------------------------------------

    def _check_table(
        self, topic: Topic, table: CatalogTable, loaded: Any, ownership: Ownership
    ) -> None:
        metadata = self._metadata(table)
        landing = self.state.catalog.landings[topic.id]
        self._check_binding(topic, table, metadata)
        self._check_progress(topic, metadata)
        planned = plan(loaded)
        sizes = {uri: size for uri, size, _ in list_table(self._store, metadata.location)}
        self._planned = [replace(one, size=sizes.get(one.path, one.size)) for one in planned]
        self.report.files = len(planned)
        self._watch.begin(f"{self.name}: table", sum(one.size for one in planned))
        reader = RowReader(self._store)
        for number, one in enumerate(planned):
            live, findings = check_file(self.name, one, sizes, reader, into(self.ledger, number))
            self.report.table_rows += live
            self.report.findings += findings
            self._watch.advance(one.size)
        self._table_read = True
        effects = snapshot_effects(self._store, metadata, landing.accounted, external=bool(landing.location))
        if landing.unproven:
            # Care looked for a snapshot to account for, and it was gone already.
            effects = replace(effects, complete=False)
        own_files = [ownership.is_ours(one.path) and not one.deletes for one in planned]
        try:
            self._judge(topic, landing, own_files, effects)
        finally:
            effects.removals.close()

    def _metadata(self, table: CatalogTable) -> TableMetadata:
        if self._loaded is None or self._loaded[0] != table.location:
            self._loaded = table.location, TableMetadata.parse(self._store.get(table.location))
        return self._loaded[1]

    @property
    def snapshot(self) -> int | None:
        """What the table was at when it was read; none if it was empty or could not be read."""
        return self._loaded[1].current_snapshot_id if self._loaded is not None else None

    def _check_binding(self, topic: Topic, table: CatalogTable, metadata: TableMetadata) -> None:
        if metadata.uuid != table.uuid:
            text = f"the metadata file is of table {metadata.uuid}, not {table.uuid}"
            self._found(FindingKind.CATALOG, text, table.location)
        if metadata.properties.get(TOPIC_ID_PROPERTY) != str(UUID(bytes=topic.id)):
            self._found(FindingKind.CATALOG, "by its properties the table belongs to another topic", table.location)

    def _check_progress(self, topic: Topic, metadata: TableMetadata) -> None:
        try:
            progress = unpack_progress(metadata.properties.get(PROGRESS_PROPERTY, ""))
        except Corrupt as error:
            self._found(FindingKind.PROGRESS, str(error))
            return
        for stream_id in topic.streams:
            stream = self.state.streams.by_id[stream_id]
            landed = progress.get(stream.partition)
            end = landed.end if landed is not None else 0
            if end != stream.landed:
                text = f"the table says that offsets below {end} have landed, the state says {stream.landed}"
                self._found(FindingKind.PROGRESS, text, partition=stream.partition)

    def _judge(self, topic: Topic, landing: Landing, own_files: Sequence[bool], effects: SnapshotEffects) -> None:
        known = range(len(topic.streams))
        for partition in sorted({*known, *self.ledger.partitions()}):
            start = self.state.streams.by_id[topic.streams[partition]].start if partition in known else 0
            facts = PartitionFacts(
                topic=self.name,
                partition=partition,
                log_start=start,
                marks=list(landing.marks(partition)),
                recorded=landing.removed.get(partition, []),
            )
            verdict = judge_partition(facts, self.ledger, own_files, effects)
            self.report.findings += verdict.findings
            self.report.explained += verdict.explained
            self.report.proven_rows += verdict.proven

    def _check_folder(self, table: CatalogTable, ownership: Ownership, patience: GracePeriods, now_ms: int) -> None:
        listed = list_table(self._store, root_of(table.location))
        known = reachable(self._store, table.location, self._metadata(table), leaving=True)
        self.report.findings += check_orphans(self.name, listed, known, ownership, self.state, patience, now_ms)

    # -- the stream ---------------------------------------------------------------------------------------------------

    async def _check_stream(self, topic: Topic) -> None:
        streams = [self.state.streams.by_id[stream_id] for stream_id in topic.streams]
        extents = []
        for stream in streams:
            landed = max(stream.landed, stream.start)
            # What cannot be compared with a table is not asked for: the table's finding is enough.
            start = stream.start if self._table_read else landed
            extents.append(
                Extent(topic=self.name, partition=stream.partition, start=start, landed=landed, end=stream.next)
            )
        self._watch.begin(f"{self.name}: stream", sum(extent.end - extent.start for extent in extents))
        for extent in extents:
            compared = await compare(self._cluster, extent, self.ledger, self._watch.advance)
            if compared.differs is not None:
                await self._tell_difference(extent, compared.differs)
            self.report.compared_rows += compared.rows
            self.report.tail_records += compared.tail
            self.report.findings += compared.findings

    async def _tell_difference(self, extent: Extent, offset: int) -> None:
        """Names the columns in which the first differing row differs."""
        tag = self.ledger.tag_at(extent.partition, offset)
        if tag is None:
            return
        file = self._planned[tag]
        try:
            record = await record_at(self._cluster, extent, offset)
            row = await asyncio.to_thread(row_at, RowReader(self._store), file, extent.partition, offset)
        except LakestreamError:
            return
        if record.num_rows == 1 and row.num_rows == 1 and (names := columns_that_differ(record, row)):
            where = f"{extent.topic}-{extent.partition}, offset {offset}"
            self.report.notes.append(f"{where}: other {', '.join(names)} than in {file.path}")

    def _found(self, kind: FindingKind, text: str, place: str = "", partition: int | None = None) -> None:
        self.report.findings.append(
            Finding(kind=kind, text=text, topic=self.name, place=place, partition=partition)
        )

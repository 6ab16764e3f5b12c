"""The checker: is every record that was acked still there, once, unchanged, in the stream and in the table? (T16)

    state from a broker -> the table at exactly that state -> every file into a ledger -> judged against what landed
    -> the stream, read as a consumer reads it, compared with the ledger -> the tail -> files and objects left over

It only reads, and copes with landing going on beside it: all is judged as of the state that was read first. When
something looks wrong and the table was changed by others meanwhile, the topic is checked once more.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from lakestream.data.tables.progress import PROGRESS_PROPERTY, unpack_progress
from lakestream.data.tables.store import DatedStore, open_table_store
from lakestream.data.tables.summaries import is_our_append
from lakestream.data.tables.table_metadata import TableMetadata
from lakestream.data.tables.topic_table import TOPIC_ID_PROPERTY
from lakestream.errors import Corrupt, LakestreamError, Missing
from lakestream.lake.verify_judge import PartitionFacts, Past, judge_partition
from lakestream.lake.verify_ledger import Ledger
from lakestream.lake.verify_objects import (
    Ownership,
    Patience,
    check_orphans,
    check_wal,
    list_table,
    list_wal,
    reachable,
)
from lakestream.lake.verify_past import past_of
from lakestream.lake.verify_plan import load_at, load_by_catalog, plan
from lakestream.lake.verify_report import Finding, Kind, Report, TopicReport
from lakestream.lake.verify_rows import RowReader, check_file, into
from lakestream.lake.verify_stream import Extent, RecordSource, compare
from lakestream.metadata.export import Exported
from lakestream.model.catalog import CatalogTable
from lakestream.model.catalog_landing import Landing
from lakestream.model.catalog_names import root_of
from lakestream.model.state import State, load
from lakestream.model.topics import Topic

ATTEMPTS = 3
LOADS = 5


class Cluster(RecordSource, Protocol):
    """The brokers, as the checker sees them."""

    http: str
    """HOST:PORT of a broker's HTTP listener."""

    async def exported(self) -> Exported:
        """The state at this moment. Raises Retry."""
        ...


class Watch(Protocol):
    """Somebody who is told how far it is."""

    def begin(self, what: str, total: int) -> None: ...

    def advance(self, amount: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`graces`: whether what the collector and the sweep may still remove is let pass."""

    now_ms: int
    graces: bool = True


class Checker:
    """Checks topics of one cluster, one after the other."""

    def __init__(self, cluster: Cluster, ownership: Ownership, watch: Watch, options: Options) -> None:
        self._cluster = cluster
        self._ownership = ownership
        self._watch = watch
        self._options = options

    async def verify(self, names: Sequence[str] = ()) -> Report:
        """All topics, or the named ones. Raises LakestreamError if not even the state can be read."""
        exported = await self._cluster.exported()
        state = load(exported.checkpoint)
        store = open_table_store(exported.root)
        patience = Patience(wal_ms=exported.collected_after_ms)
        if not self._options.graces:
            patience = Patience(wal_ms=0, rounds_ms=0, others_ms=0)
        report = Report(cluster=state.cluster, sequence=state.sequence)
        await self._check_wal(report, state, store, patience)
        for name in names or sorted(state.topics.by_name):
            report.topics.append(await self._check_topic(name, store, patience))
        return report

    async def _state(self) -> State:
        return load((await self._cluster.exported()).checkpoint)

    async def _check_wal(self, report: Report, before: State, store: DatedStore, patience: Patience) -> None:
        self._watch.begin("WAL objects", 0)
        try:
            listed = await asyncio.to_thread(list_wal, store, before.cluster)
        except LakestreamError as error:
            report.unchecked = f"the WAL's objects cannot be listed: {error}"
            return
        report.wal_objects = len(listed)
        after = await self._state()
        report.findings += check_wal(before, listed, after, store.root, patience, self._options.now_ms)

    async def _check_topic(self, name: str, store: DatedStore, patience: Patience) -> TopicReport:
        for attempt in range(ATTEMPTS):
            state = await self._state()
            check = _TopicCheck(self._cluster, store, self._watch, state, name)
            try:
                await check.run(self._ownership, patience, self._options.now_ms)
            except LakestreamError as error:
                check.report.unchecked = str(error)
            finally:
                check.ledger.close()
            report = check.report
            if not report.findings and not report.unchecked:
                break
            now = await self._state()
            if attempt == ATTEMPTS - 1 or not await asyncio.to_thread(_moved, store, check.state, now, name):
                break
        return report


def _moved(store: DatedStore, before: State, after: State, name: str) -> bool:
    """Whether what was checked may have changed under the checker's hands, other than by our own landing."""
    old, new = before.topics.by_name.get(name), after.topics.by_name.get(name)
    if old is None or new is None or old.id != new.id:
        return old is not new
    if _starts(before, old) != _starts(after, new):
        return True
    tables = before.catalog.of_topic(old.id), after.catalog.of_topic(new.id)
    if tables[0] is None or tables[1] is None:
        return tables[0] is not tables[1]
    if tables[0].location == tables[1].location:
        return False
    try:
        base = TableMetadata.parse(store.get(tables[0].location)).current_snapshot_id
        metadata = TableMetadata.parse(store.get(tables[1].location))
    except (Missing, Corrupt):
        return True
    for head in metadata.ancestors(metadata.current_snapshot_id):
        if head.snapshot_id == base:
            return False
        if not is_our_append(metadata.summary(head.snapshot_id)):
            return True
    return True


def _starts(state: State, topic: Topic) -> list[int]:
    return [state.streams.by_id[stream_id].start for stream_id in topic.streams]


class _TopicCheck:
    """One topic, once."""

    def __init__(self, cluster: Cluster, store: DatedStore, watch: Watch, state: State, name: str) -> None:
        self._cluster = cluster
        self._store = store
        self._watch = watch
        self.state = state
        self.name = name
        self.ledger = Ledger()
        self.report = TopicReport(topic=name)

    async def run(self, ownership: Ownership, patience: Patience, now_ms: int) -> None:
        topic = self.state.topics.by_name.get(self.name)
        if topic is None:
            raise Missing(f"there is no topic {self.name!r}")
        self.report.partitions = len(topic.streams)
        table = self.state.catalog.of_topic(topic.id)
        landing = self.state.catalog.landings.get(topic.id)
        if table is not None and landing is not None:
            table, planned_by = await self._settle(topic, table)
            landing = self.state.catalog.landings[topic.id]
            await asyncio.to_thread(self._check_table, topic, table, landing, planned_by, ownership)
            await asyncio.to_thread(self._check_folder, table, ownership, patience, now_ms)
        if landing is not None and landing.held:
            self.report.notes.append(f"nothing lands: {landing.held}")
        await self._check_stream(topic)

    async def _settle(self, topic: Topic, table: CatalogTable) -> tuple[CatalogTable, Any]:
        """State and catalog at the same moment: the table as PyIceberg loads it, and the state that says the same."""
        root = self._store.root
        if table.uuid not in self.state.catalog.keys:
            # It is in a catalog of the user's: the state names its metadata file all the same.
            return table, await asyncio.to_thread(load_at, root, table.location)
        for _ in range(LOADS):
            loaded = await asyncio.to_thread(load_by_catalog, self._cluster.http, root, self.name)
            if loaded.metadata_location == table.location:
                return table, loaded
            state = load((await self._cluster.exported()).checkpoint)
            now = state.catalog.of_topic(topic.id)
            if now is None:
                raise Missing("the topic was deleted meanwhile")
            if now.location == table.location:
                text = f"the catalog serves {loaded.metadata_location}, the state says {table.location}"
                self._found(Kind.CATALOG, text, table.location)
                break
            self.state, table = state, now
        return table, await asyncio.to_thread(load_at, root, table.location)

    # -- the table: all of this blocks --------------------------------------------------------------------------------

    def _check_table(
        self, topic: Topic, table: CatalogTable, landing: Landing, loaded: Any, ownership: Ownership
    ) -> None:
        metadata = TableMetadata.parse(self._store.get(table.location))
        self._check_binding(topic, table, metadata)
        self._check_progress(topic, metadata)
        planned = plan(loaded)
        sizes = {uri: size for uri, size, _ in list_table(self._store, metadata.location)}
        self.report.files = len(planned)
        self._watch.begin(f"{self.name}: table", sum(one.size for one in planned))
        reader = RowReader(self._store)
        for number, one in enumerate(planned):
            live, findings = check_file(self.name, one, sizes, reader, into(self.ledger, number))
            self.report.table_rows += live
            self.report.findings += findings
            self._watch.advance(one.size)
        past = past_of(self._store, metadata, landing.accounted)
        own_files = [ownership.is_ours(one.path) and not one.deletes for one in planned]
        try:
            self._judge(topic, landing, own_files, past)
        finally:
            past.removals.close()

    def _check_binding(self, topic: Topic, table: CatalogTable, metadata: TableMetadata) -> None:
        if metadata.uuid != table.uuid:
            text = f"the metadata file is of table {metadata.uuid}, not {table.uuid}"
            self._found(Kind.CATALOG, text, table.location)
        if metadata.properties.get(TOPIC_ID_PROPERTY) != str(UUID(bytes=topic.id)):
            self._found(Kind.CATALOG, "by its properties the table belongs to another topic", table.location)

    def _check_progress(self, topic: Topic, metadata: TableMetadata) -> None:
        try:
            progress = unpack_progress(metadata.properties.get(PROGRESS_PROPERTY, ""))
        except Corrupt as error:
            self._found(Kind.PROGRESS, str(error))
            return
        for stream_id in topic.streams:
            stream = self.state.streams.by_id[stream_id]
            landed = progress.get(stream.partition)
            end = landed.end if landed is not None else 0
            if end != stream.landed:
                text = f"the table says that offsets below {end} have landed, the state says {stream.landed}"
                self._found(Kind.PROGRESS, text, partition=stream.partition)

    def _judge(self, topic: Topic, landing: Landing, own_files: Sequence[bool], past: Past) -> None:
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
            verdict = judge_partition(facts, self.ledger, own_files, past)
            self.report.findings += verdict.findings
            self.report.explained += verdict.explained
            self.report.proven_rows += verdict.proven

    def _check_folder(self, table: CatalogTable, ownership: Ownership, patience: Patience, now_ms: int) -> None:
        metadata = TableMetadata.parse(self._store.get(table.location))
        listed = list_table(self._store, root_of(table.location))
        try:
            known = reachable(self._store, table.location, metadata)
        except Missing as error:
            self._found(Kind.FILE_MISSING, f"a snapshot of the table leads to a file that is not there: {error}")
            return
        self.report.findings += check_orphans(
            self.name, listed, known, lambda uris: ownership.over(uris, self.state), patience, now_ms
        )

    # -- the stream ---------------------------------------------------------------------------------------------------

    async def _check_stream(self, topic: Topic) -> None:
        streams = [self.state.streams.by_id[stream_id] for stream_id in topic.streams]
        self._watch.begin(f"{self.name}: stream", sum(stream.next - stream.start for stream in streams))
        for stream in streams:
            extent = Extent(
                topic=self.name, partition=stream.partition, start=stream.start,
                landed=max(stream.landed, stream.start), end=stream.next,
            )  # fmt: skip
            compared = await compare(self._cluster, extent, self.ledger, self._watch.advance)
            self.report.compared_rows += compared.rows
            self.report.tail_records += compared.tail
            self.report.findings += compared.findings

    def _found(self, kind: Kind, text: str, place: str = "", partition: int | None = None) -> None:
        self.report.findings.append(
            Finding(kind=kind, text=text, topic=self.name, place=place, partition=partition)
        )

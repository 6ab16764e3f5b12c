"""The checker: is every record that was acked still there, once, unchanged, in the stream and in the table? (T16)

    state from a broker -> the table at exactly that state -> every file into a ledger -> judged against what landed
    -> the stream, read as a consumer reads it, compared with the ledger -> the tail -> files and objects left over

The checker only reads. Landing may go on: everything is judged by the state that was read first. If a topic looks wrong
and another engine changed its table meanwhile, the topic is checked once more.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.iceberg.summaries import is_our_append
from lakestream.data.tables.stores.routed_store import external_roots, open_routed
from lakestream.data.tables.stores.table_store import DatedStore
from lakestream.errors import LakestreamError
from lakestream.lake.verify.objects import GracePeriods, Ownership, check_wal, check_warehouse, list_wal
from lakestream.lake.verify.report import FindingKind, Report, TopicReport
from lakestream.lake.verify.topic import CheckedCluster, TopicCheck, Watch
from lakestream.model.state import State, load
from lakestream.model.topics import Topic

ATTEMPTS = 3
STATE_S = 5.0
"""A state serves for the topics that are checked so long after it was read: to export it costs a broker time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """`graces`: whether objects that the collector and the sweep may still remove are no findings."""

    now_ms: int
    graces: bool = True


class Checker:
    """Checks topics of one cluster, one after the other."""

    def __init__(self, cluster: CheckedCluster, ownership: Ownership, watch: Watch, options: CheckOptions) -> None:
        self._cluster = cluster
        self._ownership = ownership
        self._watch = watch
        self._options = options
        self._known: tuple[float, State] | None = None

    async def verify(self, names: Sequence[str] = ()) -> Report:
        """All topics, or the named ones. Raises LakestreamError if not even the state can be read."""
        exported = await self._cluster.exported()
        state = load(exported.checkpoint)
        store = open_routed(exported.root, lambda: external_roots(state.catalog))
        patience = GracePeriods(wal_ms=exported.collected_after_ms)
        if not self._options.graces:
            patience = GracePeriods(wal_ms=0, rounds_ms=0, others_ms=0)
        report = Report(cluster=state.cluster, sequence=state.sequence)
        await self._check_wal(report, state, store, patience)
        if not names and not report.unchecked:
            now = await self._state()
            report.findings += await asyncio.to_thread(check_warehouse, store, now, patience, self._options.now_ms)
        for name in names or sorted(state.topics.by_name):
            report.topics.append(await self._check_topic(name, store, patience))
        return report

    async def _state(self) -> State:
        """As it is now."""
        state = load((await self._cluster.exported()).checkpoint)
        self._known = asyncio.get_running_loop().time(), state
        return state

    async def _recent(self) -> State:
        """As it is, or was a moment ago."""
        if self._known is None or asyncio.get_running_loop().time() - self._known[0] > STATE_S:
            return await self._state()
        return self._known[1]

    async def _check_wal(self, report: Report, before: State, store: DatedStore, patience: GracePeriods) -> None:
        self._watch.begin("WAL objects", 0)
        try:
            listed = await asyncio.to_thread(list_wal, store, before.cluster)
        except LakestreamError as error:
            report.unchecked = f"the WAL's objects cannot be listed: {error}"
            return
        report.wal_objects = len(listed)
        after = await self._state()
        report.findings += check_wal(before, listed, after, store.root, patience, self._options.now_ms)

    async def _check_topic(self, name: str, store: DatedStore, patience: GracePeriods) -> TopicReport:
        for attempt in range(ATTEMPTS):
            state = await (self._state() if attempt else self._recent())
            check = TopicCheck(self._cluster, store, self._watch, state, name)
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
            if not await asyncio.to_thread(_moved, store, check, now):
                break
            if attempt == ATTEMPTS - 1:
                _doubt(report)
        return report


def _doubt(report: TopicReport) -> None:
    """Rows were deleted during each comparison with the stream, so there is no verdict."""
    if any(one.kind is FindingKind.STREAM_DIFFERS for one in report.findings):
        report.findings = [one for one in report.findings if one.kind is not FindingKind.STREAM_DIFFERS]
        report.unchecked = f"others changed the table during each of {ATTEMPTS} checks; check again when they rest"


def _moved(store: DatedStore, check: TopicCheck, after: State) -> bool:
    """Whether the table changed during the check, other than by our own landing."""
    before = check.state
    old, new = before.topics.by_name.get(check.name), after.topics.by_name.get(check.name)
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
        metadata = TableMetadata.parse(store.get(tables[1].location))
    except LakestreamError:
        return True
    for head in metadata.ancestors(metadata.current_snapshot_id):
        if head.snapshot_id == check.snapshot:
            return False
        if not is_our_append(metadata.summary(head.snapshot_id)):
            return True
    return True


def _starts(state: State, topic: Topic) -> list[int]:
    return [state.streams.by_id[stream_id].start for stream_id in topic.streams]

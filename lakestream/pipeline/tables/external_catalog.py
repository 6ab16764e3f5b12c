"""Topics' tables in an external catalog: tables are made there, commits are made there, and the state is told.

    table:  load -> judge the changes of other engines (T9, T13) -> Land tells brokers the new metadata file, or a hold
    commit: 1. the catalog's own commit, with progress and digests, on condition that `main` is unchanged
            2. Land: the state knows the table's metadata file, and the ranges that landed
            3. NoteRemoved: the state knows the removed rows, and up to which snapshot they are accounted for (T16)

The table is the truth. If its progress is ahead of the state's, the state is told, and nothing is written again; if it
is behind, the topic is held. Brokers go on with the last metadata file that was judged good. Landing and care commit by
the same three steps, and a crash between two of them heals by itself:

    after 1   the next look finds a newer table: its rows are judged like those of any engine, then 2 and 3 are done
    after 2   appends and rewrites remove no row: the next look does 3. A snapshot of ours that removed rows is not
              accounted for, so the pipeline does not expire it, and care compares it with the one before (accounts.py)
    unknown   the table is loaded again. The commit counts as made only if it is in the table, with nothing after it;
              else its files stay until a sweep, which first makes the commit impossible (`fence`)
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import ParamSpec, TypeVar
from uuid import UUID

from lakestream.data.tables.files.arrow_view import digest_rows
from lakestream.data.tables.files.file_stats import Digest, add_digests
from lakestream.data.tables.foreign.allowed_changes import Refused
from lakestream.data.tables.foreign.continuity import ForeignCommits, UnreportedRange, judge_commits, rewound
from lakestream.data.tables.foreign.rows import judge_rows
from lakestream.data.tables.iceberg.commit import Commit, Stale
from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.expiry import own_versions
from lakestream.data.tables.iceberg.metadata.documents import checked
from lakestream.data.tables.iceberg.metadata.table_metadata import Table, TableMetadata
from lakestream.data.tables.iceberg.progress import OffsetRange
from lakestream.data.tables.iceberg.pyiceberg_catalog import CatalogEntry, PyIcebergCatalog
from lakestream.data.tables.iceberg.snapshots_since import needs_comparison, unaccounted_snapshots
from lakestream.data.tables.iceberg.topic_table import CLEAN_UP, TOPIC_ID_PROPERTY, new_topic_table
from lakestream.data.tables.reading.table_reader import ReadCaches, TableReader
from lakestream.data.tables.stores.routed_store import RoutedStore
from lakestream.data.tables.stores.small_files import SmallFiles
from lakestream.errors import Corrupt, Exists, LakestreamError, Missing, Rejected, Retry, Unknown
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.landed import HoldTopic, Land, LandedRange, Landing, NoteRemoved
from lakestream.model.catalog.names import root_of
from lakestream.model.reasons import No, Reason
from lakestream.model.topics import Topic
from lakestream.pipeline.tables.failure import Failed
from lakestream.pipeline.tables.holds import HELD_BY_TABLE, HELD_BY_US, TABLE

log = logging.getLogger(__name__)

THREADS = 8
ANSWER_S = 60.0
"""A catalog that does not answer for so long is taken for down."""
READ_BYTES = 8 << 20

P = ParamSpec("P")
T = TypeVar("T")


class ExternalCatalog:
    """Tables in one external catalog."""

    external = True

    def __init__(
        self, replica: Replica, catalog: PyIcebergCatalog, store: RoutedStore, committer: Committer, clock: Clock,
        random: Random,
    ) -> None:  # fmt: skip
        self.catalog = catalog
        self.store = store
        self.committer = committer
        self._replica = replica
        self.clock = clock
        self._random = random
        self._pool = ThreadPoolExecutor(THREADS, "external")
        self._locks: dict[bytes, asyncio.Lock] = {}
        self._found: dict[bytes, CatalogEntry] = {}
        self._obsolete: list[str] = []

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- the table as it is --------------------------------------------------------------------------------------------

    async def table(self, topic: Topic) -> Table | Failed:
        """The topic's table as the catalog has it now, judged, and the state told; or why it cannot be landed in."""
        async with self._lock(topic.id):
            try:
                table = await self._current(topic)
                landing = self._landing(topic)
                if landing is not None and landing.held.startswith(HELD_BY_TABLE):
                    await self._replica.propose(HoldTopic(topic.id, ""))
            except (Refused, Missing, Corrupt, Rejected, Exists) as error:
                return Failed(topic.id, f"{TABLE}{error}", True)
            except LakestreamError as error:
                return Failed(topic.id, f"{TABLE}the catalog or its store cannot be asked: {error}", False)
            return table

    async def _current(self, topic: Topic) -> Table:
        landing = self._landing(topic)
        if landing is None or not landing.uuid:
            return await self._make(topic)
        try:
            found = await self.asked(self.catalog.load, topic.name)
        except Missing as error:
            raise Missing(f"it is not in the catalog any more, or its metadata file is lost: {error}") from error
        self._found[topic.id] = found
        if found.location != landing.location:
            return await self._accept(topic, landing, found.location, None)
        table = await self.asked(self.committer.load, found.location)
        await self._account(topic, table)
        return table

    async def _make(self, topic: Topic) -> Table:
        """Make a table for a topic that has none; an empty one that a crash left behind is used."""
        try:
            found = await self.asked(self.catalog.load, topic.name)
        except Missing:
            found = await self._create(topic)
        self.store.allow(root_of(found.location))
        table = await self.asked(self.committer.load, found.location)
        if table.metadata.properties.get(TOPIC_ID_PROPERTY) != str(UUID(bytes=topic.id)):
            raise Exists(f"the catalog has a table {topic.name} already that is not this topic's")
        if table.metadata.current is not None:
            raise Exists(f"the table {topic.name} has rows already, which the topic does not know of")
        check_place(table.metadata.location, found.location)
        outcome = await self._replica.propose(Land(topic.id, table.metadata.uuid, 0, [], found.location, ""))
        if isinstance(outcome, No):
            raise Retry(outcome.message)
        self._found[topic.id] = found
        return table

    async def _create(self, topic: Topic) -> CatalogEntry:
        """Make the table in the catalog, or load the one that another pipeline has just made."""
        uuid = str(UUID(int=self._random.getrandbits(128), version=4))
        place = await self.asked(self.catalog.place_for, topic.name, uuid)
        metadata = new_topic_table(table_uuid=uuid, topic_id=topic.id, location=place, now_ms=self.clock.wall_ms())
        try:
            return await self.asked(self.catalog.create, topic.name, metadata)
        except Exists:
            return await self.asked(self.catalog.load, topic.name)

    # -- newer versions ------------------------------------------------------------------------------------------------

    async def _accept(
        self, topic: Topic, landing: Landing, location: str, own: Commit | None
    ) -> Table:
        """Judge the table as it is now against the last good version, and tell the state. Raises Refused.

        `own`: our commit that made this version; then its rows are known.
        """
        new = await self.asked(self._load_inside, landing, location)
        landed = {number: self._replica.state.streams.by_id[one].landed for number, one in enumerate(topic.streams)}
        verdict = await self.asked(self._judge, landing, new, landed, own)
        ranges = await self.asked(self._told_of, new, verdict) if own is None else _digests(verdict)
        if ranges and landing.held.startswith(HELD_BY_US):
            await self._replica.propose(HoldTopic(topic.id, ""))
        snapshot = new.metadata.current_snapshot_id if ranges or own is not None else 0
        land = Land(topic.id, landing.uuid, snapshot or 0, ranges, location, landing.location)
        outcome = await self._replica.propose(land)
        if isinstance(outcome, No):
            await self._replica.catch_up()
            now = self._landing(topic)
            if now is None or now.location != location:
                raise Retry(f"another pipeline tells of it, too: {outcome.message}")
        elif ranges and own is None:
            log.warning("topic %s: the state is told of rows that the table had more: %s", topic.name, verdict.ranges)
        await self._account(topic, new, own)
        return new

    async def _account(self, topic: Topic, table: Table, own: Commit | None = None) -> None:
        """Note the rows that our own commit removed, and that all is accounted for; not if a snapshot waits (T16)."""
        removed = own.removed if own is not None else None
        landing = self._landing(topic)
        if landing is None or landing.uuid != table.metadata.uuid:
            return
        known = _added(own) if own is not None and removed is not None else None
        unaccounted = unaccounted_snapshots(table.metadata, landing.accounted)
        left = [head.snapshot_id for head in unaccounted.heads if head.snapshot_id != known]
        if not unaccounted.heads or any(needs_comparison(table.metadata.summary(one), external=True) for one in left):
            return
        upto = unaccounted.heads[-1].sequence_number
        note = NoteRemoved(topic.id, landing.accounted, upto, list(removed or ()), not unaccounted.complete)
        try:
            await self._replica.propose(note)
        except LakestreamError as error:
            log.warning("topic %s: its snapshots are accounted for later: %s", topic.name, error)

    def _load_inside(self, landing: Landing, location: str) -> Table:
        check_place(root_of(landing.location), location)
        return self.committer.load(location)

    def _judge(self, landing: Landing, table: Table, landed: dict[int, int], own: Commit | None) -> ForeignCommits:
        new = checked(table.metadata)
        old = self._last_good(landing, new)
        verdict = judge_commits(old, new, landed)
        after = new.snapshot_fields(new.main_id)
        if verdict.moved and own is None and after is not None:
            judge_rows(
                self.store, root_of(landing.location), old.snapshot_fields(old.main_id), after, self._random,
                verdict.ranges,
            )  # fmt: skip
        return verdict

    def _last_good(self, landing: Landing, new: TableMetadata) -> TableMetadata:
        try:
            return checked(self.committer.load(landing.location).metadata)
        except Missing:
            # Catalogs remove old metadata files, and no pipeline ran for long.
            return rewound(new, landing.snapshot)

    def _told_of(self, table: Table, verdict: ForeignCommits) -> list[LandedRange]:
        """The landed ranges that the state was not told of. Their rows are read, since the WAL's copy will go."""
        files = SmallFiles(self.store)
        try:
            reader = TableReader(self.store, files, ReadCaches(), lambda: table.metadata_location)
            return [_with_digest(one, _digest(reader, one.range)) for one in verdict.untold]
        finally:
            files.close()

    # -- commits -------------------------------------------------------------------------------------------------------

    async def commit(self, topic: Topic, commit: Commit) -> int | No:
        """Make a commit current and tell the state; or say that another writer was faster.

        Raises Unknown if it may have been made, Retry if it certainly was not.
        """
        async with self._lock(topic.id):
            landing, found = self._landing(topic), self._found.get(topic.id)
            if landing is None or found is None or landing.location != commit.base:
                return No(Reason.STALE_PREMISE, "the table has moved on")
            try:
                location = await self.asked(self.catalog.commit, found.handle, commit.requirements, commit.updates)
            except (Stale, Missing) as error:
                return No(Reason.STALE_PREMISE, str(error))
            except Unknown as error:
                location = await self._looked_up(topic, commit, error)
            try:
                table = await self._accept(topic, landing, location, commit)
                self._obsolete += await self.asked(self._unreachable, commit, table)
            except (Refused, Missing, Corrupt, Rejected, Retry) as error:
                # The rows are in the table, and the state will be told when the cause is gone.
                raise Unknown(f"{TABLE}{error}") from error
            return 1

    def take_obsolete(self, topic: Topic, commit: Commit) -> Sequence[str]:
        """Also the files that commits of `fence` and of repairs made unreachable meanwhile."""
        taken, self._obsolete = self._obsolete, []
        return taken

    def _unreachable(self, commit: Commit, table: Table) -> list[str]:
        """The files that nothing leads to after a commit. Blocks.

        Files of expired snapshots count only if the table has exactly the snapshots that the commit left: another
        engine may have made a branch from an expired one meanwhile. PyIceberg leaves old metadata files to its caller.
        """
        thought, has = ({head.snapshot_id for head in one.metadata.snapshots} for one in (commit.table, table))
        found = list(commit.obsolete) if thought == has else []
        if table.metadata.properties.get(CLEAN_UP, "").lower() == "true":
            before = self.committer.load(commit.base).metadata.value("metadata-log", [])
            kept = {entry["metadata-file"] for entry in table.metadata.value("metadata-log", [])}
            dropped = [one["metadata-file"] for one in before if one["metadata-file"] not in kept]
            found += own_versions(table.metadata.location, dropped)
        return found

    async def _looked_up(self, topic: Topic, commit: Commit, error: Unknown) -> str:
        """The metadata file of a commit whose answer was lost (T7). Raises Unknown if that cannot be told yet."""
        try:
            found = await self.asked(self.catalog.load, topic.name)
            self.store.allow(root_of(found.location))
            table = await self.asked(self.committer.load, found.location)
        except LakestreamError:
            raise error from None
        if not _is_in(commit, table.metadata):
            raise error
        if table.metadata.current_snapshot_id != commit.snapshot_id:
            raise Unknown("the commit was made, and later ones too, which are judged next") from error
        return found.location

    async def fence(self, topic: Topic) -> bool:
        """A commit that a dead pipeline, or one that is thought to be dead, has planned cannot be made any more (T12).

        The external catalog would accept it, but its condition is `main`, which an empty commit moves. To plan it again
        that pipeline has to tell the state where the table is, and learns that its epoch has ended. Raises Retry.
        """
        table = await self.table(topic)
        if isinstance(table, Failed):
            raise Retry(table.reason)
        now_ms = self.clock.wall_ms()
        commit = await self.asked(self.committer.append, table, [], [], now_ms=now_ms, write_metadata=False)
        outcome = await self.commit(topic, commit)
        if isinstance(outcome, No):
            await self.asked(self.store.delete, commit.written)
            raise Retry(outcome.message)
        return True

    # -- small things --------------------------------------------------------------------------------------------------

    def _landing(self, topic: Topic) -> Landing | None:
        return self._replica.state.catalog.landings.get(topic.id)

    def _lock(self, topic_id: bytes) -> asyncio.Lock:
        return self._locks.setdefault(topic_id, asyncio.Lock())

    async def asked(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a call that blocks, off the event loop. Raises Unknown if there is no answer in ANSWER_S."""
        doing = asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*args, **kwargs))
        try:
            return await asyncio.wait_for(doing, ANSWER_S)
        except TimeoutError:
            raise Unknown(f"no answer for {ANSWER_S:.0f} s") from None


def check_place(root: str, location: str) -> None:
    """A table's metadata file lies in the table's folder. Raises Corrupt."""
    if root_of(location) != root or not location.startswith(f"{root}/"):
        raise Corrupt(f"the catalog says that its metadata is {location}, which is not in its folder {root}")


def _added(commit: Commit) -> int | None:
    """The snapshot that a commit makes; None if it only expires snapshots."""
    return commit.snapshot_id if any(one["action"] == "add-snapshot" for one in commit.updates) else None


def _is_in(commit: Commit, metadata: TableMetadata) -> bool:
    """Whether a commit is in a table: the table has its snapshot, and none of those that it expired."""
    line = {head.snapshot_id for head in metadata.ancestors(metadata.current_snapshot_id)}
    lists = [one["snapshot-ids"] for one in commit.updates if one["action"] == "remove-snapshots"]
    left = {head.snapshot_id for head in metadata.snapshots}
    return commit.snapshot_id in line and all(left.isdisjoint(expired) for expired in lists)


def _digests(verdict: ForeignCommits) -> list[LandedRange]:
    return [_with_digest(one, Digest()) for one in verdict.untold]


def _with_digest(one: UnreportedRange, found: Digest) -> LandedRange:
    digest = one.digest or found
    return LandedRange(one.range.partition, one.range.start, one.range.end, digest.records, digest.hash)


def _digest(reader: TableReader, wanted: OffsetRange) -> Digest:
    """Read all rows of a range."""
    at, total = wanted.start, Digest()
    while at < wanted.end:
        found = reader.read_rows(wanted.partition, at, wanted.end, READ_BYTES)
        total += add_digests([digest_rows(found.rows)]).get(wanted.partition, Digest())
        at = found.end
    return total

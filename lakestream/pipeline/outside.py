"""Topics' tables in somebody else's catalog: made there, committed to there, and followed.

    commit in the catalog, with progress and digests -> Land tells the state      (a crash between: healed by following)
    follow: load -> judge what came since (T9, T13) -> Land tells brokers where the table is now, or the topic is held

The table is the truth. What its progress has beyond the state's is told without writing again; what it lacks holds the
topic. Brokers go on with the last metadata file that was found good.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import ParamSpec, TypeVar
from uuid import UUID

from lakestream.data.tables.arrow_view import digest_rows
from lakestream.data.tables.file_stats import Digest, add_digests
from lakestream.data.tables.followed import Followed, Untold, follow, rewound
from lakestream.data.tables.foreign import Refused
from lakestream.data.tables.foreign_rows import judge_rows
from lakestream.data.tables.iceberg import Commit, Committer, Stale
from lakestream.data.tables.metadata_json import main_of, parse, snapshot_of
from lakestream.data.tables.metadata_schema import Json
from lakestream.data.tables.other_catalog import Found, OtherCatalog
from lakestream.data.tables.progress import PROGRESS_PROPERTY, Range, unpack_progress
from lakestream.data.tables.recent_files import RecentFiles
from lakestream.data.tables.table_metadata import Table
from lakestream.data.tables.table_reader import ReadCaches, TableReader
from lakestream.data.tables.topic_table import TOPIC_ID_PROPERTY, new_topic_table
from lakestream.data.tables.wider_store import WiderStore
from lakestream.errors import Corrupt, Exists, LakestreamError, Missing, Rejected, Retry, Unknown
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.catalog import HoldTopic, Land
from lakestream.model.catalog_landing import LandedRange, Landing
from lakestream.model.catalog_names import root_of
from lakestream.model.reasons import No, Reason
from lakestream.model.topics import Topic
from lakestream.pipeline.holds import HELD_BY_TABLE, HELD_BY_US, TABLE
from lakestream.pipeline.tasks import Failed

log = logging.getLogger(__name__)

THREADS = 8
ANSWER_S = 60.0
"""A catalog that does not answer for so long counts as down."""
READ_BYTES = 8 << 20
CLEAN_UP = "write.metadata.delete-after-commit.enabled"

P = ParamSpec("P")
T = TypeVar("T")


class Outside:
    """Tables in one other catalog."""

    def __init__(
        self, replica: Replica, catalog: OtherCatalog, store: WiderStore, committer: Committer, clock: Clock,
        random: Random,
    ) -> None:  # fmt: skip
        self.catalog = catalog
        self.store = store
        self.committer = committer
        self._replica = replica
        self._clock = clock
        self._random = random
        self._pool = ThreadPoolExecutor(THREADS, "outside")
        self._locks: dict[bytes, asyncio.Lock] = {}
        self._found: dict[bytes, Found] = {}
        self._obsolete: list[str] = []

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- the table as it is --------------------------------------------------------------------------------------------

    async def table(self, topic: Topic) -> Table | Failed:
        """The topic's table as the catalog has it now, judged and told to the state; or why it cannot be landed in."""
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
        if found.location == landing.location:
            return await self.asked(self.committer.load, found.location)
        return await self._accept(topic, landing, found.location, None)

    async def _make(self, topic: Topic) -> Table:
        """A table for a topic that has none; one that a crash left behind is taken."""
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

    async def _create(self, topic: Topic) -> Found:
        """In the catalog; or the one that another pipeline has just made."""
        uuid = str(UUID(int=self._random.getrandbits(128), version=4))
        place = await self.asked(self.catalog.place_for, topic.name, uuid)
        metadata = new_topic_table(table_uuid=uuid, topic_id=topic.id, location=place, now_ms=self._clock.wall_ms())
        try:
            return await self.asked(self.catalog.create, topic.name, metadata)
        except Exists:
            return await self.asked(self.catalog.load, topic.name)

    # -- what came since -----------------------------------------------------------------------------------------------

    async def _accept(self, topic: Topic, landing: Landing, location: str, own: Commit | None) -> Table:
        """Judge the table as it is now against the last one found good, and tell the state. Raises Refused.

        `own`: the commit of ours that it comes from; then its rows are known.
        """
        new = await self.asked(self._load_inside, landing, location)
        landed = {number: self._replica.state.streams.by_id[one].landed for number, one in enumerate(topic.streams)}
        verdict = await self.asked(self._judge, landing, new, landed, own)
        ranges = await self.asked(self._told_of, new, verdict) if own is None else _digests(verdict)
        if ranges and landing.held.startswith(HELD_BY_US):
            await self._replica.propose(HoldTopic(topic.id, ""))
        snapshot = new.metadata.current_snapshot_id if ranges else 0
        told = Land(topic.id, landing.uuid, snapshot or 0, ranges, location, landing.location)
        outcome = await self._replica.propose(told)
        if isinstance(outcome, No):
            await self._replica.catch_up()
            now = self._landing(topic)
            if now is None or now.location != location:
                raise Retry(f"another pipeline tells of it, too: {outcome.message}")
        elif ranges and own is None:
            log.warning("topic %s: the state is told of rows that the table had more: %s", topic.name, verdict.ranges)
        return new

    def _load_inside(self, landing: Landing, location: str) -> Table:
        check_place(root_of(landing.location), location)
        return self.committer.load(location)

    def _judge(self, landing: Landing, table: Table, landed: dict[int, int], own: Commit | None) -> Followed:
        new = parse(table.metadata.encode())
        old = self._last_good(landing, new)
        verdict = follow(old, new, landed)
        after = snapshot_of(new, main_of(new))
        if verdict.moved and own is None and after is not None:
            judge_rows(self.store, snapshot_of(old, main_of(old)), after, self._random, verdict.ranges)
        return verdict

    def _last_good(self, landing: Landing, new: Json) -> Json:
        try:
            return parse(self.committer.load(landing.location).metadata.encode())
        except Missing:
            # Catalogs remove metadata files that are old, and we were away for long.
            return rewound(new, landing.snapshot)

    def _told_of(self, table: Table, verdict: Followed) -> list[LandedRange]:
        """What the state has to know of rows that it was not told of. They are read: it forgets the WAL's copy."""
        files = RecentFiles(self.store)
        try:
            reader = TableReader(self.store, files, ReadCaches(), lambda: table.metadata_location)
            return [_with_digest(one, _digest(reader, one.range)) for one in verdict.untold]
        finally:
            files.close()

    # -- commits -------------------------------------------------------------------------------------------------------

    async def commit(self, topic: Topic, commit: Commit) -> int | No:
        """Make a commit current and tell the state: the number of ranges, or that somebody was faster.

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
                self._obsolete += await self.asked(self._dropped, commit.base, table)
            except (Refused, Missing, Corrupt, Rejected, Retry) as error:
                # The rows are in the table, and the state will be told when the cause is gone.
                raise Unknown(f"{TABLE}{error}") from error
            return 1

    def take_obsolete(self) -> list[str]:
        """Old metadata files that our commits made unreachable: who commits through PyIceberg has to remove them."""
        taken, self._obsolete = self._obsolete, []
        return taken

    def _dropped(self, base: str, table: Table) -> list[str]:
        """The metadata files that the table no longer mentions. Blocking."""
        if table.metadata.properties.get(CLEAN_UP, "").lower() != "true":
            return []
        before = self.committer.load(base).metadata
        kept = {entry["metadata-file"] for entry in table.metadata.value("metadata-log", [])}
        return [one["metadata-file"] for one in before.value("metadata-log", []) if one["metadata-file"] not in kept]

    async def _looked_up(self, topic: Topic, commit: Commit, error: Unknown) -> str:
        """What became of a commit whose answer was lost (T7). Raises Unknown if it cannot be told, or not yet."""
        try:
            found = await self.asked(self.catalog.load, topic.name)
            self.store.allow(root_of(found.location))
            table = await self.asked(self.committer.load, found.location)
        except LakestreamError:
            raise error from None
        if all(head.snapshot_id != commit.snapshot_id for head in table.metadata.ancestors(_main(table))):
            raise error
        if table.metadata.current_snapshot_id != commit.snapshot_id:
            raise Unknown("the commit was made, and others since: they are judged next") from error
        return found.location

    # -- small things --------------------------------------------------------------------------------------------------

    def _landing(self, topic: Topic) -> Landing | None:
        return self._replica.state.catalog.landings.get(topic.id)

    def handle(self, topic_id: bytes) -> Found | None:
        """The table as it was last loaded."""
        return self._found.get(topic_id)

    def _lock(self, topic_id: bytes) -> asyncio.Lock:
        return self._locks.setdefault(topic_id, asyncio.Lock())

    async def asked(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Off the event loop, and not for ever. Raises Unknown if there is no answer."""
        doing = asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*args, **kwargs))
        try:
            return await asyncio.wait_for(doing, ANSWER_S)
        except TimeoutError:
            raise Unknown(f"no answer for {ANSWER_S:.0f} s") from None


def check_place(root: str, location: str) -> None:
    """A table's metadata file lies in the table's folder. Raises Corrupt."""
    if root_of(location) != root or not location.startswith(f"{root}/"):
        raise Corrupt(f"the catalog says that its metadata is {location}, which is not in its folder {root}")


def progress_of(table: Table) -> dict[int, int]:
    """The first offset of each partition that is not in the table."""
    packed = unpack_progress(table.metadata.properties[PROGRESS_PROPERTY])
    return {partition: landed.end for partition, landed in packed.items()}


def _main(table: Table) -> int | None:
    return table.metadata.current_snapshot_id


def _digests(verdict: Followed) -> list[LandedRange]:
    return [_with_digest(one, Digest()) for one in verdict.untold]


def _with_digest(one: Untold, found: Digest) -> LandedRange:
    digest = one.digest or found
    return LandedRange(one.range.partition, one.range.start, one.range.end, digest.records, digest.hash)


def _digest(reader: TableReader, wanted: Range) -> Digest:
    """Read all rows of a range."""
    at, total = wanted.start, Digest()
    while at < wanted.end:
        found = reader.read_rows(wanted.partition, at, wanted.end, READ_BYTES)
        total += add_digests([digest_rows(found.rows)]).get(wanted.partition, Digest())
        at = found.end
    return total

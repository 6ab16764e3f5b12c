"""Landing: the files that workers wrote become rows of a topic's table, by one command that also moves its progress.

    files -> manifests and metadata.json (nobody refers to them yet) -> CommitTables (T6, T7)

A crash before the command leaves files that nobody needs, one after it nothing to do. A command that is refused because
the table has moved on is made again on top of what is there now, but only if the progress is still the same; if it is
not, another pipeline was faster, and our files go.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from lakestream.data.tables.files.file_stats import FileStats, add_digests
from lakestream.data.tables.iceberg.commit import Commit
from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.expiry import AGE_PROPERTY
from lakestream.data.tables.iceberg.manifests.files import NewFile
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.iceberg.progress import Range, pack_digests
from lakestream.data.tables.iceberg.reachable_files import reachable_from
from lakestream.data.tables.iceberg.snapshot_history import History
from lakestream.data.tables.iceberg.snapshots_since import unaccounted
from lakestream.data.tables.iceberg.summaries import DIGESTS_KEY, accounted_after
from lakestream.data.tables.iceberg.topic_table import MAKER_PROPERTY, STREAM_ORDER, TOPIC_ID_PROPERTY, new_topic_table
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, Fenced, LakestreamError, Missing, Retry, Unknown
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.landed import LandedRange
from lakestream.model.catalog.names import STREAMS, Warehouse, root_of
from lakestream.model.catalog.tables import CatalogTable, CommitTables, HoldTopic, TableChange
from lakestream.model.levels import BOUNDED
from lakestream.model.reasons import No, Reason
from lakestream.model.topics import Topic
from lakestream.pipeline.care.abandoned_tables import maker
from lakestream.pipeline.care.sweep import RoundName, candidates
from lakestream.pipeline.care.unreachable_files import Unreached
from lakestream.pipeline.care.unused_since import SWEEP, Leftovers
from lakestream.pipeline.external.external_catalog import Outside
from lakestream.pipeline.external.follower import FOLLOW_EVERY_S, Follower
from lakestream.pipeline.landing.freshness import is_table
from lakestream.pipeline.landing.holds import HELD_BY_US
from lakestream.pipeline.landing.planner import TopicWork, wanted_from
from lakestream.pipeline.landing.rounds import ranges_of
from lakestream.pipeline.landing.tasks import Failed, Landed
from lakestream.stream.long_work import chunks

log = logging.getLogger(__name__)

COMMIT_ATTEMPTS = 8
COMMITS_AT_ONCE = 8
MAKE_AGAIN_S = 10.0
REMOVED_AT_ONCE = 500
OUTRUN = "the progress moved meanwhile: another pipeline was faster"
TOO_LATE = No(Reason.UNKNOWN_MEMBER, "the epoch in which the files were written has ended")
PASSING = frozenset((Reason.TOPIC_HELD, TOO_LATE.reason))
"""Refusals that say nothing about the table: no reason to hold its topic."""

P = ParamSpec("P")
T = TypeVar("T")


class Lander:
    """Makes topics' tables, and commits to them."""

    def __init__(
        self, replica: Replica, store: TableStore, warehouse: Callable[[], Warehouse], clock: Clock, random: Random,
        outside: Outside | None = None, history: History | None = None,
    ) -> None:  # fmt: skip
        """`history`: which snapshots stay of tables in our own catalog; all that are not too old without it."""
        self._replica = replica
        self._store = self.store = store
        self._warehouse = warehouse
        self._clock = clock
        self._random = self.random = random
        self._outside = self.outside = outside
        self.look_every_s = FOLLOW_EVERY_S if outside is not None else float("inf")
        self._follower = Follower(replica, outside, self.hold, clock) if outside is not None else None
        own = committer_of(replica, store, random, history) if outside is None else outside.committer
        self._committer = self.committer = own
        self._pool = ThreadPoolExecutor(COMMITS_AT_ONCE, "land")
        self._tables: dict[bytes, Table] = {}
        self._not_made: dict[bytes, float] = {}
        self.unreached = Unreached(clock)
        self._bases: dict[bytes, int] = {}
        self.leftovers = Leftovers(clock)

    def close(self) -> None:
        if self._follower is not None and self._outside is not None:
            self._follower.close()
            self._outside.close()
        self._pool.shutdown()
        self._committer.close()

    def elsewhere(self) -> dict[str, str]:
        """What workers need to write to object stores that another catalog has placed tables in."""
        return self._outside.store.options() if self._outside is not None else {}

    async def follow(self, at_once: bool = False) -> None:
        """See what others did to tables in another catalog, if there is one: when it is time to, or at once."""
        if self._follower is not None:
            await self._follower.tick(at_once)

    # -- tables -----------------------------------------------------------------------------------------------------

    async def make_tables(self) -> None:
        """Every topic that wants a table has one, even before its first record."""
        catalog, now = self._replica.state.catalog, self._clock.monotonic()
        topics = [
            topic
            for topic in self._replica.state.topics.by_id.values()
            if topic.id not in catalog.landings and is_table(self._replica.state, topic.id)
            and self._not_made.get(topic.id, now) <= now
        ]  # fmt: skip
        made = await asyncio.gather(*(self._table(topic) for topic in topics))
        for topic, table in zip(topics, made, strict=True):
            if isinstance(table, Failed):
                log.warning("topic %s has no table yet: %s", topic.name, table.reason)
                self._not_made[topic.id] = now + MAKE_AGAIN_S

    async def open_round(
        self, name: RoundName, works: Sequence[TopicWork]
    ) -> tuple[dict[bytes, str], dict[bytes, Landed | Failed]]:
        """Where the files of each topic go in this round; why some cannot take part in it."""
        topics = [self._replica.state.topics.by_id[work.topic_id] for work in works]
        tables = await asyncio.gather(*(self._table(topic) for topic in topics))
        folders: dict[bytes, str] = {}
        refused: dict[bytes, Landed | Failed] = {}
        for topic, table in zip(topics, tables, strict=True):
            if isinstance(table, Failed):
                refused[topic.id] = table
            else:
                folders[topic.id] = f"{table.metadata.location}/data/{name.member}-{name.epoch}-{name.round}"
        return folders, refused

    async def _table(self, topic: Topic) -> Table | Failed:
        """The topic's table as it is now, made if there is none; or why it cannot be landed in (T2)."""
        try:
            return await self._found(topic)
        except LakestreamError as error:
            return Failed(topic.id, str(error), False)
        except Exception as error:
            return _stumbled(topic.id, error)

    async def _found(self, topic: Topic) -> Table | Failed:
        landing = self._replica.state.catalog.landings.get(topic.id)
        if landing is not None and landing.held and not landing.held.startswith(HELD_BY_US):
            return Failed(topic.id, f"held: {landing.held}", False)
        if self.is_outside(topic.id):
            if self._outside is None:
                return Failed(topic.id, "the table is in another catalog, and the setting `catalog` is empty", True)
            return await self._outside.table(topic)
        try:
            bound = self._replica.state.catalog.of_topic(topic.id)
            table = await self._make(topic) if bound is None else await self._load(topic, bound)
        except Missing as error:
            return Failed(topic.id, f"the table's metadata is lost: {error}", True)
        except Corrupt as error:
            return Failed(topic.id, f"the table's metadata: {error}", True)
        if isinstance(table, No):
            return Failed(topic.id, f"the table cannot be made: {table.message}", True)
        if table.metadata.properties.get(TOPIC_ID_PROPERTY) != str(UUID(bytes=topic.id)):
            return Failed(topic.id, "the table belongs to another topic, by its properties", True)
        return table

    def is_outside(self, topic_id: bytes) -> bool:
        """Whether its table is in another catalog, or will be: a topic stays where its table was made."""
        landing = self._replica.state.catalog.landings.get(topic_id)
        return self._outside is not None if landing is None or not landing.uuid else bool(landing.location)

    async def _load(self, topic: Topic, bound: CatalogTable) -> Table:
        known = self._tables.get(topic.id)
        if known is None or known.metadata_location != bound.location:
            known = self._tables[topic.id] = await self.off(self._committer.load, bound.location)
        if known.metadata.uuid != bound.uuid:
            raise Corrupt(f"{bound.location} is of table {known.metadata.uuid}, not {bound.uuid}")
        return known

    async def _make(self, topic: Topic) -> Table | No:
        epoch, uuid = self._replica.epoch, str(UUID(int=self._random.getrandbits(128), version=4))
        history = self._committer.history
        age = {} if history is None else {AGE_PROPERTY: str(history.age_ms)}
        metadata = new_topic_table(
            table_uuid=uuid,
            topic_id=topic.id,
            location=self._warehouse().place_for(STREAMS, topic.name, uuid),
            now_ms=self._clock.wall_ms(),
            properties={MAKER_PROPERTY: maker(self._replica.member_id, epoch), **age},
            packed=self._replica.state.level >= BOUNDED,
        )
        table = await self.off(self._committer.create, metadata)
        change = TableChange(STREAMS, topic.name, uuid, "", table.metadata_location, topic_id=topic.id)
        try:
            if self._replica.epoch != epoch:  # others may take the file for one that never counts
                raise Fenced(TOO_LATE.message)
            outcome = await self._replica.propose(CommitTables([change]))
        except (Fenced, Retry):
            await self._remove([table.metadata_location])
            raise
        if isinstance(outcome, No):
            await self._remove([table.metadata_location])
            return outcome
        self._tables[topic.id] = table
        return table

    # -- commits ----------------------------------------------------------------------------------------------------

    async def finish(self, work: TopicWork, outcome: Landed | Failed, folder: str, epoch: int) -> Failed | None:
        """Commit what workers wrote for a topic; why not, if not. What is certainly not needed is removed.

        Only in the epoch that the files were written in: when it has ended, others may sweep them already (T12).
        """
        failed: Failed | None
        certain = False
        try:
            if isinstance(outcome, Failed):
                failed, certain = outcome, True
            else:
                failed, certain = await self._commit(work, outcome.files, epoch)
        except LakestreamError as error:
            failed = Failed(work.topic_id, str(error), False)
        except Exception as error:
            failed = _stumbled(work.topic_id, error)
        if failed is not None:
            self._forget(work.topic_id)
        if failed is not None and certain and folder:
            await self._sweep(folder)
        return failed

    def _forget(self, topic_id: bytes) -> None:
        """Its files are read anew the next time: what was damaged may have been put back."""
        self._tables.pop(topic_id, None)
        self._committer.forget()

    async def _commit(self, work: TopicWork, files: Sequence[FileStats], epoch: int) -> tuple[Failed | None, bool]:
        """Why the work did not land, and whether it certainly did not."""
        landed = ranges_of(work, files)
        if isinstance(landed, Failed):
            return landed, True
        for _ in range(COMMIT_ATTEMPTS):
            topic = self._replica.state.topics.by_id.get(work.topic_id)
            if topic is None:
                return Failed(work.topic_id, "the topic was deleted meanwhile", False), True
            table = await self._table(topic)
            if isinstance(table, Failed):
                return table, True
            if work.topic_id not in self._replica.state.topics.by_id:
                return Failed(work.topic_id, "the topic was deleted meanwhile", False), True
            if not self._follows(topic, work):
                return Failed(work.topic_id, OUTRUN, False), True
            commit = await self._prepare(table, work, files)
            if isinstance(commit, Failed):
                return commit, True
            try:
                outcome = await self._swap(topic, commit, landed, epoch)
            except LakestreamError as error:
                return Failed(work.topic_id, str(error), False), False
            if not isinstance(outcome, No):
                self._won(topic, commit)
                return None, True
            await self._remove(commit.written)
            if outcome.reason != Reason.STALE_PREMISE:
                return Failed(work.topic_id, outcome.message, outcome.reason not in PASSING), True
            try:
                await self._replica.catch_up()
            except LakestreamError as error:
                return Failed(work.topic_id, str(error), False), True
        return Failed(work.topic_id, f"others committed {COMMIT_ATTEMPTS} times in between", False), True

    def _follows(self, topic: Topic, work: TopicWork) -> bool:
        """Whether the progress is where the work begins; a topic that was deleted meanwhile has none."""
        streams = [self._replica.state.streams.by_id.get(topic.streams[one.partition]) for one in work.ranges]
        return all(
            stream is not None and stream.landed <= one.start <= wanted_from(stream)
            for stream, one in zip(streams, work.ranges, strict=True)
        )

    async def _prepare(self, table: Table, work: TopicWork, files: Sequence[FileStats]) -> Commit | Failed:
        outside = self.is_outside(work.topic_id)
        digests = add_digests(stats.digests for stats in files)
        told = pack_digests([(digests[one.partition].records, digests[one.partition].hash) for one in work.ranges])
        try:
            return await self.off(
                self._committer.append,
                table,
                [NewFile(stats=stats, sort_order_id=STREAM_ORDER) for stats in files],
                [Range(*one) for one in work.ranges],
                now_ms=self._clock.wall_ms(),
                notes={DIGESTS_KEY: told} if outside else None,
                protected=self.unaccounted(work.topic_id, table),
                write_metadata=not outside,
            )
        except ValueError as error:
            return Failed(work.topic_id, f"the table's progress contradicts the state's: {error}", True)
        except LakestreamError as error:
            return Failed(work.topic_id, str(error), isinstance(error, Corrupt | Missing))

    async def table_of(self, topic_id: bytes) -> Table | Failed:
        """A topic's table as it is now."""
        topic = self._replica.state.topics.by_id.get(topic_id)
        return await self._table(topic) if topic is not None else Failed(topic_id, "there is no such topic", False)

    def unaccounted(self, topic_id: bytes, table: Table) -> frozenset[int]:
        """Snapshots that must not expire yet, since what they took away is not accounted for (T16), or a job needs it.
        """
        landing = self._replica.state.catalog.landings.get(topic_id)
        if landing is None:
            return frozenset()
        base = self._bases.get(topic_id)
        needed = frozenset() if base is None else frozenset((base,))
        return needed | unaccounted(table.metadata, landing.accounted, outside=self.is_outside(topic_id))

    def work_from(self, topic_id: bytes, snapshot_id: int | None) -> None:
        """A job of care that may take long commits on top of this snapshot: it stays until the job is over (None)."""
        if snapshot_id is None:
            self._bases.pop(topic_id, None)
        else:
            self._bases[topic_id] = snapshot_id

    def history_of(self, topic_id: bytes) -> History | None:
        return None if self.is_outside(topic_id) else self._committer.history

    async def _swap(self, topic: Topic, commit: Commit, landed: list[LandedRange], epoch: int) -> Any:
        landing = self._replica.state.catalog.landings.get(topic.id)
        if landing is not None and landing.held.startswith(HELD_BY_US):
            await self._replica.propose(HoldTopic(topic.id, ""))
        return await self._make_current(topic, commit, landed, [], epoch)

    async def _make_current(
        self, topic: Topic, commit: Commit, landed: list[LandedRange], removed: Sequence[LandedRange], epoch: int
    ) -> Any:
        """The one step by which a commit counts: a command of ours, or the commit in another catalog (T7).

        After the epoch in which its files were written it is not even tried: others may have swept them (T12).
        """
        if self._replica.epoch != epoch:
            return TOO_LATE
        if self._outside is not None and self.is_outside(topic.id):
            return await self._outside.commit(topic, commit, removed)
        return await self._propose(topic, commit, landed, removed)

    def _won(self, topic: Topic, commit: Commit) -> None:
        """What was there before may be deleted after a grace."""
        obsolete: Sequence[str] = commit.obsolete
        if self._outside is not None and self.is_outside(topic.id):
            obsolete = self._outside.take_obsolete()
        else:
            self._tables[topic.id] = commit.table
        self.unreached.add(obsolete)

    async def _propose(
        self, topic: Topic, commit: Commit, landed: list[LandedRange], removed: Sequence[LandedRange]
    ) -> Any:
        """One command. If its answer is lost, the state tells what became of it."""
        location = commit.table.metadata_location
        change = TableChange(
            STREAMS, topic.name, commit.table.metadata.uuid, commit.base, location, topic_id=topic.id, landed=landed,
            snapshot=commit.snapshot_id, removed=list(removed), accounted=self._accounted(topic, commit),
        )  # fmt: skip
        try:
            return await self._replica.propose(CommitTables([change]))
        except (Unknown, Fenced):
            await self._replica.catch_up()
            bound = self._replica.state.catalog.of_topic(topic.id)
            if bound is not None and bound.location == location:
                return 1
            raise

    async def change(
        self, topic_id: bytes, prepare: Callable[[Table], Commit], removed: Sequence[LandedRange], epoch: int
    ) -> Commit | Failed:
        """Commit something else than a landing: `prepare` is asked again for each table that is current by then.

        The rows that go are noted by the same command, or after it (T16). Raises what `prepare` does, Stale above all.
        """
        for _ in range(COMMIT_ATTEMPTS):
            topic = self._replica.state.topics.by_id.get(topic_id)
            if topic is None:
                return Failed(topic_id, "the topic was deleted", False)
            table = await self._table(topic)
            if isinstance(table, Failed):
                return table
            commit = await self.off(prepare, table)
            try:
                outcome = await self._make_current(topic, commit, [], removed, epoch)
            except LakestreamError as error:
                # It may have happened: its files stay, and what nobody refers to is swept when this epoch has ended.
                return Failed(topic_id, str(error), False)
            if not isinstance(outcome, No):
                self._won(topic, commit)
                return commit
            await self._remove(commit.written)
            if outcome.reason != Reason.STALE_PREMISE:
                return Failed(topic_id, outcome.message, outcome.reason not in PASSING)
            await self._replica.catch_up()
        return Failed(topic_id, f"others committed {COMMIT_ATTEMPTS} times in between", False)

    def _accounted(self, topic: Topic, commit: Commit) -> int:
        known, landing = self._tables.get(topic.id), self._replica.state.catalog.landings.get(topic.id)
        if known is None or known.metadata_location != commit.base or landing is None:
            return 0
        return accounted_after(known.metadata, landing.accounted, commit.table.metadata)

    async def hold(self, topic_id: bytes, reason: str) -> None:
        """Say in the state why a topic waits, once."""
        landing = self._replica.state.catalog.landings.get(topic_id)
        wanted = f"{HELD_BY_US}{reason}"
        held = landing.held if landing is not None else ""
        if held and (held == wanted or not held.startswith(HELD_BY_US)):
            return
        try:
            await self._replica.propose(HoldTopic(topic_id, wanted))
        except LakestreamError as error:
            log.warning("the reason why a topic waits could not be noted: %s", error)

    async def _sweep(self, folder: str) -> None:
        """Remove all that a round wrote for a topic that did not commit it."""
        try:
            found = await self.off(self._store.list, f"{folder}/")
            await self.off(self._store.delete, [uri for uri, _ in found])
        except LakestreamError as error:
            log.warning("files of a round that failed are left for the next sweep: %s", error)

    async def sweep_table(self, topic_id: bytes, grace_s: float = 0.0) -> int:
        """Remove the orphans of one table (T12); how many. List first, then fold to the end, then judge."""
        bound = self._replica.state.catalog.of_topic(topic_id)
        if bound is None:
            return 0
        try:
            found = await self.off(self._store.list, f"{root_of(bound.location)}/data/")
            await self._replica.catch_up()
            suspects = candidates([uri for uri, _ in found], self._replica.state)
            orphans = self.leftovers.due(topic_id, SWEEP, await self._unknown(topic_id, suspects), grace_s)
            if orphans and await self.fence(topic_id):
                orphans = await self._unknown(topic_id, orphans)
            await self.off(self._store.delete, orphans)
        except LakestreamError as error:
            log.warning("a table could not be swept: %s", error)
            return 0
        if orphans:
            log.info("removed %d files of rounds that did not end", len(orphans))
        return len(orphans)

    async def _unknown(self, topic_id: bytes, suspects: Sequence[str]) -> list[str]:
        """Those that the table does not refer to, and that had their grace."""
        if not suspects or self._replica.state.catalog.of_topic(topic_id) is None:
            return []
        known = await self.off(reachable_from, self._store, await self.location_of(topic_id))
        later = self.unreached.waiting()
        return [uri for uri in suspects if uri not in known and uri not in later]

    async def location_of(self, topic_id: bytes) -> str:
        """The current metadata file of a table, as its catalog says. Raises Retry."""
        bound = self._replica.state.catalog.of_topic(topic_id)
        table = await self.table_of(topic_id) if bound is None or self.is_outside(topic_id) else None
        if isinstance(table, Failed):
            raise Retry(table.reason)
        if table is not None:
            return table.metadata_location
        assert bound is not None
        return bound.location

    async def fence(self, topic_id: bytes) -> bool:
        """Nobody whose epoch has ended can commit what it prepared; whether that took a commit. Raises Retry."""
        topic = self._replica.state.topics.by_id.get(topic_id)
        if topic is None or self._outside is None or not self.is_outside(topic_id):
            return False
        await self._outside.fence(topic)
        return True

    async def delete_obsolete(self, grace_s: float) -> None:
        """Remove what commits made unreachable, once readers of older snapshots had their time (T11)."""
        for some in chunks(self.unreached.take(grace_s), REMOVED_AT_ONCE):
            await self._remove(some)

    async def _remove(self, uris: Sequence[str]) -> None:
        """Take away what nobody refers to; that it failed is no reason to fail anything else."""
        try:
            await self.off(self._store.delete, uris)
        except LakestreamError as error:
            log.warning("files that nobody reaches are left: %s", error)

    async def off(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Something that blocks, in one of our threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*args, **kwargs))


def committer_of(replica: Replica, store: TableStore, random: Random, history: History | None = None) -> Committer:
    """Its manifests and lists carry the member and the epoch in their names (T12)."""
    return Committer(store, random, lambda: maker(replica.member_id, replica.epoch), history)


def _stumbled(topic_id: bytes, error: Exception) -> Failed:
    """Whatever it is, it is this topic's: the others must not wait for somebody to understand it."""
    log.exception("a topic's table could not be worked on", exc_info=error)
    return Failed(topic_id, f"{type(error).__name__}: {error}", True)

"""The caretaker: takes care of all topics' tables beside the rounds, by itself and by request.

    requests in the state, the oldest first -> tables that changed: accounts (T16), small files, rows that retention
    lets go (T21), old snapshots of idle tables (T11) -> now and then: orphans (T12)

One job runs at a time; each leaves the table whole, whenever it is killed. A request whose pipeline died before it
answered is begun once more by the next pipeline (requests.py).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.iceberg.reachable_files import reachable_from
from lakestream.data.tables.iceberg.summaries import RECENT_MAX, is_ours
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import LakestreamError
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.care import TEXT_MAX, CareRequest, NoteCare
from lakestream.model.catalog.landed import HoldTopic
from lakestream.model.catalog.names import STREAMS, root_of, warehouse_uri
from lakestream.model.catalog.tables import CatalogTable
from lakestream.model.topics import Topic
from lakestream.pipeline.care.abandoned_tables import find_unbound, judge_unbound
from lakestream.pipeline.care.accounts import Accounts
from lakestream.pipeline.care.diagnosis import Diagnosis, diagnose
from lakestream.pipeline.care.jobs import CareJobs
from lakestream.pipeline.care.kept_rows import keep_from
from lakestream.pipeline.care.orphans import OTHERS_MS, Listed, Orphans, judge_orphans, over_by
from lakestream.pipeline.care.plan import CareLimits
from lakestream.pipeline.care.repair import Tools, repair
from lakestream.pipeline.care.requests import CareRequests, log_failure, reason_of
from lakestream.pipeline.care.results import NotDone, Progress, Result
from lakestream.pipeline.tables.failure import Failed
from lakestream.pipeline.tables.topic_tables import TopicTables
from lakestream.pipeline.tables.unused_files import ORPHANS

log = logging.getLogger(__name__)

NEVER_MS = 1 << 62
IN_A_ROW = 2
"""After so many failures in a row the reason is noted in the state: one may be a race that another writer won."""
PILED_UP = 8
"""With so many times the files that call for a rewrite, they are rewritten even while engines change the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CareSchedule:
    """The care that needs no request, and when it is due."""

    enabled: bool = True
    orphans_first_s: float = 30.0
    orphans_every_s: float = 86_400.0
    others_ms: int = OTHERS_MS
    look_s: float = 1.0
    again_s: float = 60.0
    """The pause before a table is looked at again that did not change, or whose care failed."""
    hang_s: float = 1800.0
    """A request without progress for so long is broken off (requests.py)."""
    others_rest_s: float = 60.0
    """For so long after an engine changed a table its files are not rewritten: its next DELETE may need them (T14)."""


@dataclass(slots=True)
class _Seen:
    """The caretaker's memory of a table. All of it can be found again."""

    location: str = ""
    again_s: float = 0.0
    files: int = 0
    """The number of files when a rewrite was last planned."""
    deletes: int = 0
    kept: dict[int, int] = field(default_factory=dict)
    orphans_s: float = 0.0
    failures: int = 0


class Caretaker:
    """Runs beside the driver, in one pipeline."""

    def __init__(
        self, replica: Replica, tables: TopicTables, jobs: CareJobs, clock: Clock, random: Random, limits: CareLimits,
        schedule: CareSchedule,
    ) -> None:  # fmt: skip
        self._replica = replica
        self._tables = tables
        self._jobs = jobs
        self._clock = clock
        self._random = random
        self._limits = limits
        self._schedule = schedule
        self.accounts = Accounts(replica, tables, jobs.runs)
        self._seen: dict[bytes, _Seen] = {}
        self._began_s = clock.monotonic()
        self.requests = CareRequests(replica, clock, self._do, schedule.hang_s)
        self._unbound_s = self._began_s + schedule.orphans_first_s
        self._unbound_removed = False
        """A request of this step has looked for unbound tables: once is enough for all requests of a step."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                with suppress(LakestreamError):
                    await self.step()
            except Exception:
                # A fault in care must not end the landing beside it.
                log.exception("care of tables failed")
                await asyncio.sleep(self._schedule.again_s)
            await asyncio.sleep(self._schedule.look_s)

    async def step(self) -> None:
        """Answer the requests, then look at every table once."""
        if not self._replica.epoch:
            return
        self._unbound_removed = False
        for request in self._replica.state.care.waiting():
            await self.requests.answer(request)
        if self._schedule.enabled:
            for topic_id in list(self._replica.state.catalog.landings):
                await self._look_after(topic_id)
            if self._clock.monotonic() >= self._unbound_s:
                self._unbound_s = self._clock.monotonic() + self._schedule.again_s
                await self.remove_unbound()
                self._unbound_s = self._clock.monotonic() + self._schedule.orphans_every_s

    # -- by request ---------------------------------------------------------------------------------------------------

    async def _do(self, one: CareRequest, progress: Progress) -> Result:
        topic = self._replica.state.topics.by_id.get(one.topic_id)
        if topic is None or self._replica.state.catalog.of_topic(topic.id) is None:
            raise NotDone("the topic has no table")
        arguments, topic_id = one.arguments, one.topic_id
        age_ms = _whole(arguments.get("older_than_ms"))
        match one.kind:
            case "optimize":
                everything = arguments.get("all") == "true"
                return await self._jobs.optimize(topic_id, progress, asked=True, everything=everything)
            case "delete":
                return await self._jobs.delete(topic_id, arguments.get("where", ""), progress)
            case "expire":
                await self._settle(topic_id, progress)
                return await self._jobs.expire(topic_id, age_ms)
            case "orphans":
                if arguments.get("dry_run") != "true" and not self._unbound_removed:
                    await self.remove_unbound()
                    self._unbound_removed = True
                return await self.remove_orphans(topic_id, age_ms, dry_run=arguments.get("dry_run") == "true")
            case "repair":
                return await self.repair(topic_id, accept_loss=arguments.get("accept_loss") == "true")
        raise NotDone(f"this pipeline does not know how to {one.kind} a table")

    # -- by itself ----------------------------------------------------------------------------------------------------

    async def _look_after(self, topic_id: bytes) -> None:
        topic, bound = self._replica.state.topics.by_id.get(topic_id), self._replica.state.catalog.of_topic(topic_id)
        now = self._clock.monotonic()
        if topic is None or bound is None:
            self._seen.pop(topic_id, None)
            return
        seen = self._seen.setdefault(topic_id, _Seen(orphans_s=self._began_s + self._schedule.orphans_first_s))
        if seen.location == bound.location and now < seen.again_s:
            return
        seen.location, seen.again_s = bound.location, now + self._schedule.again_s
        try:
            await self._care_for(topic, seen)
        except Exception as error:
            log_failure(error, "the table of topic %s is taken care of later: %s", topic.name, reason_of(error))
            seen.failures += 1
            if seen.failures >= IN_A_ROW:
                await self._note(topic_id, reason_of(error))
        else:
            seen.failures = 0
            await self._note(topic_id, "")

    async def _note(self, topic_id: bytes, reason: str) -> None:
        landing = self._replica.state.catalog.landings.get(topic_id)
        if landing is not None and landing.uncared != reason[:TEXT_MAX]:
            await self._replica.propose(NoteCare(topic_id, reason))

    async def _care_for(self, topic: Topic, seen: _Seen) -> None:
        table = await self._tables.table_of(topic.id)
        if isinstance(table, Failed) or table.metadata.current is None:
            return
        await self._settle(topic.id, quiet)
        await self._tidy_files(topic, table.metadata, seen)
        await self._retain(topic, seen)
        await self._expire(topic)
        if self._clock.monotonic() >= seen.orphans_s:
            seen.orphans_s = self._clock.monotonic() + self._schedule.orphans_every_s
            result = await self.remove_orphans(topic.id, None, dry_run=False)
            if result.figures["spared"]:
                seen.orphans_s = self._clock.monotonic() + self._jobs.grace_s

    async def _settle(self, topic_id: bytes, progress: Progress) -> None:
        table = await self._tables.table_of(topic_id)
        if not isinstance(table, Failed) and self.accounts.due(topic_id, table):
            result = await self.accounts.settle(topic_id, progress)
            log.info("accounted for snapshots of other engines: %s", result.figures)

    async def _tidy_files(self, topic: Topic, metadata: TableMetadata, seen: _Seen) -> None:
        """Plan a rewrite when there are as many new files as fill a tier, or new delete files."""
        files, deletes = _counts(metadata)
        if files - seen.files < self._limits.small_files and deletes == seen.deletes:
            seen.files = min(seen.files, files)
            return
        if self._engines_at_work(metadata) and files - seen.files < PILED_UP * self._limits.small_files:
            return
        result = await self._jobs.optimize(topic.id, quiet, asked=False)
        if result.figures:
            log.info("rewrote files of topic %s: %s", topic.name, result.figures)
        after = await self._tables.table_of(topic.id)
        seen.files, seen.deletes = _counts(after.metadata) if not isinstance(after, Failed) else (files, deletes)

    def _engines_at_work(self, metadata: TableMetadata) -> bool:
        """Whether another engine changed the table lately: its DELETE fails if we replace a file that it copies."""
        since_ms = self._clock.wall_ms() - self._schedule.others_rest_s * 1000
        recent = (head for head in metadata.snapshots[-RECENT_MAX:] if head.timestamp_ms > since_ms)
        return any(not is_ours(metadata.summary(head.snapshot_id)) for head in recent)

    async def _retain(self, topic: Topic, seen: _Seen) -> None:
        kept = keep_from(self._replica.state, topic)
        if kept == seen.kept:
            return
        result = await self._jobs.retain(topic.id, kept, quiet)
        seen.kept = kept
        if result.figures:
            log.info("rows of topic %s went by retention: %s", topic.name, result.figures)

    async def _expire(self, topic: Topic) -> None:
        """Expire the snapshots of an idle table; each landing does so for the others."""
        table = await self._tables.table_of(topic.id)
        if isinstance(table, Failed) or table.metadata.current is None:
            return
        idle = table.metadata.current.timestamp_ms < self._clock.wall_ms() - self._schedule.again_s * 1000
        if idle and self._tables.format.has_expired(topic.id, table):
            result = await self._jobs.expire(topic.id, None)
            log.info("expired snapshots of the idle topic %s: %s", topic.name, result.figures)

    # -- orphans and repair -------------------------------------------------------------------------------------------

    async def remove_orphans(self, topic_id: bytes, older_than_ms: int | None, *, dry_run: bool) -> Result:
        """Delete files that nothing leads to. List first, then fold to the end, then judge (T12).

        Files of ours may be the leftovers of an expiry a moment ago, by a pipeline that is dead now: they go when this
        pipeline has seen them unused for the readers' grace (T11), or at once if the request says an age.
        """
        tables, files = self._tables, self._tables.files
        listed = await files.off(_dated, files.store, f"{root_of(self._bound(topic_id).location)}/")
        await self._replica.catch_up()
        before_ms = self._clock.wall_ms() - (self._schedule.others_ms if older_than_ms is None else older_than_ms)
        found = await self._judge_orphans(topic_id, listed, before_ms)
        grace_s = self._jobs.grace_s if older_than_ms is None else 0.0
        ours = tables.unused.due(topic_id, ORPHANS, found.ours, grace_s)
        spared = len(found.ours) - len(ours)
        if ours and not dry_run and await tables.fence(topic_id):
            found = await self._judge_orphans(topic_id, listed, before_ms)
            ours = [uri for uri in ours if uri in found.ours]
        going = [*ours, *found.others]
        if not dry_run and going:
            await files.off(files.store.delete, going)
            log.info("removed %d unused files of ours and %d of other engines", len(ours), len(found.others))
        said = ["nothing was removed: a dry run"] if dry_run else []
        if spared:
            said.append(f"{spared} files of ours stay {grace_s:.0f} s more for their readers")
        size = sum(found.sizes[uri] for uri in going)
        figures = {"ours": len(ours), "others": len(found.others), "spared": spared, "bytes": size}
        return Result("; ".join(said), figures)

    async def remove_unbound(self) -> int:
        """Delete the tables that were never bound to a topic (abandoned_tables.py), and return their number."""
        files = self._tables.files
        place = f"{warehouse_uri(files.store.root, self._replica.state.cluster)}/{STREAMS}"
        found = await files.off(find_unbound, files.store, place, self._replica.state.catalog.places())
        await self._replica.catch_up()
        unbound = judge_unbound(found, self._replica.state)
        await files.off(files.store.delete, unbound)
        if unbound:
            log.info("removed the first files of %d tables that were never bound to their topics", len(unbound))
        return len(unbound)

    async def _judge_orphans(self, topic_id: bytes, listed: Listed, before_ms: int) -> Orphans:
        over = over_by(listed, self._replica.state)
        tables, location = self._tables, await self._tables.location_of(topic_id)
        known = await tables.files.off(reachable_from, tables.files.store, location)
        # An external catalog names the metadata files by its own rules.
        newest = "" if tables.is_external(topic_id) else location
        spared = tables.obsolete.waiting()
        return judge_orphans(listed, over, known, newest, before_ms=before_ms, spared=spared)

    async def repair(self, topic_id: bytes, *, accept_loss: bool) -> Result:
        """Mend the table, check all of its files, and release the topic. Raises NotDone with what is still wrong.

        Rows that are given up cannot be accounted for: the table is unproven from then on (T16).
        """
        tables, topic = self._tables, self._replica.state.topics.by_id[topic_id]
        tools = Tools(self._replica, tables, self._clock, self._random)
        done = await repair(tools, topic.name, accept_loss)
        await self._replica.catch_up()
        await self._settle(topic_id, quiet)
        found: Diagnosis = await tables.files.off(diagnose, tables, self._replica.state, topic, self._bound(topic_id))
        if not found.healthy:
            raise NotDone(found.text())
        result = Result(figures={"files": found.files, "rows": found.rows})
        said = [*done, "all files are there, and agree with the state"]
        if self._replica.state.catalog.landings[topic_id].held:
            await self._replica.propose(HoldTopic(topic_id, ""))
            said.append("released")
        result.text = "; ".join(said)
        return result

    def _bound(self, topic_id: bytes) -> CatalogTable:
        bound = self._replica.state.catalog.of_topic(topic_id)
        if bound is None:
            raise NotDone("the topic has no table")
        return bound


async def quiet(_: str) -> None:
    """The progress of care that was not requested: not reported."""


def _counts(metadata: TableMetadata) -> tuple[int, int]:
    """The numbers of data files and delete files, as the newest summary says."""
    summary = metadata.summary(metadata.current_snapshot_id) if metadata.current_snapshot_id is not None else {}
    totals = (summary.get(name, "") for name in ("total-data-files", "total-delete-files"))
    files, deletes = (int(text) if text.isdecimal() else 0 for text in totals)
    return files, deletes


def _dated(store: TableStore, prefix: str) -> list[tuple[str, int, int]]:
    """(URI, size, time of the last change) of each file. Files of a store without times count as new."""
    list_dated: Callable[[str], Sequence[tuple[str, int, int]]] | None = getattr(store, "list_dated", None)
    return list(list_dated(prefix)) if list_dated is not None else [(*one, NEVER_MS) for one in store.list(prefix)]


def _whole(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 15:
        raise NotDone(f"{text!r} is no number of milliseconds")
    return int(text)


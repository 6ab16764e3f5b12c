"""The driver of landing: rounds that bring waiting records into their tables, as often as freshness asks.

    follow the log -> due? -> choose -> workers write files -> each topic commits by one command -> tidy up -> again

The pipeline's only memory is the state: killed at any point and started again, it plans from the progress
of the last commits, and a sweep deletes the files that were written and not committed. Two pipelines at once do no harm
either: a commit whose premise is gone changes nothing (T7).
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lakestream.data.tables.files.slices import TailObject, source_of
from lakestream.errors import Fenced, LakestreamError
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.landed import HoldTopic
from lakestream.model.streams import WalObject
from lakestream.pipeline.landing.freshness import Freshness
from lakestream.pipeline.landing.lander import OUTRUN, Lander
from lakestream.pipeline.landing.planner import RoundLimits, TopicWork, choosing
from lakestream.pipeline.landing.round_names import RoundName
from lakestream.pipeline.landing.rounds import Engine, run_round
from lakestream.pipeline.landing.sweeper import Sweeper
from lakestream.pipeline.landing.tasks import RoundPlaces
from lakestream.pipeline.tables.failure import Failed
from lakestream.pipeline.tables.holds import HELD_BY_US, hold
from lakestream.pipeline.tables.waiting import waits
from lakestream.stream.long_work import chunks, run_in_steps

log = logging.getLogger(__name__)

TICK_S = 0.25
"""How soon a change of the state is looked at."""
IDLE_S = 5.0
ROUND_MEMORY = 0.3
"""The weight of the last round in the time that the next one is expected to take."""
REPORT_EVERY_S = 60.0
FAILURES_BEFORE_NOTE = 3
"""A failure that may pass is noted in the state only after so many in a row."""
MANY_TOPICS = 50
"""From so many topics on, the time of a round tells how long a topic takes."""
TOPIC_MAX_S = 0.05
WAVE_TOPICS = 128
"""Topics of a round that workers get at once: a Spark job costs a tenth of a second."""
EXPECTED_MAX_S = 4.0
"""A round that lands a backlog takes long; the small rounds after it do not."""


@dataclass(slots=True)
class LandingFigures:
    """Counts and times of this pipeline's rounds so far."""

    rounds: int = 0
    commits: int = 0
    failures: int = 0
    records: int = 0
    wal_bytes: int = 0
    files: int = 0
    round_s: float = 0.5
    """The expected time of a round of few topics."""
    topic_s: float = 0.005
    """The time that each topic adds to a round of many."""


class Driver:
    """Runs rounds until it is told to stop."""

    sweep_first_s = 10.0
    sweep_every_s = 300.0
    obsolete_grace_s = 600.0
    """How long readers of snapshots that expired have for their files."""

    def __init__(
        self, replica: Replica, lander: Lander, sweeper: Sweeper, engine: Engine, clock: Clock, freshness: Freshness,
        limits: RoundLimits, root: str,
    ) -> None:  # fmt: skip
        self.figures = LandingFigures()
        self.freshness = freshness
        self._replica = replica
        self._lander = lander
        self._tables = lander.tables
        self._sweeper = sweeper
        self._engine = engine
        self._clock = clock
        self._limits = limits
        self._root = root
        self._epoch = 0
        self._round = 0
        self._open: set[int] = set()
        self._folded = asyncio.Event()
        self._reported = clock.monotonic()
        self._reported_rounds = 0
        self._sweep_at = self._reported + self.sweep_first_s
        self._swept = 0
        self._untidy = False
        self._stopping = False
        self._sweeping: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._sweeping.set_result(0)
        replica.on_fold.append(self._folded.set)

    def settled(self) -> tuple[int, int]:
        """Up to which round of the epoch each file is committed or never will be, as heartbeats report it (T12)."""
        return min(self._open, default=self._round + 1) - 1 if self._replica.epoch == self._epoch else 0, 0

    def stop(self) -> None:
        """No further round after this one."""
        self._stopping = True
        self._folded.set()

    async def run(self) -> int:
        """Until stopped: 0. Raises JobFailed if the engine is dead, Halted if the replica is."""
        try:
            while not self._stopping:
                if self._replica.halted is not None:
                    raise self._replica.halted
                pause = await self.step() if self._replica.epoch else TICK_S
                await self._tidy()
                self._report()
                self._folded.clear()
                if pause:
                    idle_s = min(pause, IDLE_S, self._tables.catalogs.look_every_s)
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._folded.wait(), idle_s)
                    await asyncio.sleep(min(TICK_S, pause))
            return 0
        finally:
            self._sweeping.cancel()

    async def step(self) -> float:
        """Run one round if one is due; the seconds until the next one is."""
        await self._tables.catalogs.watch()
        state = self._replica.state
        await self._tables.make_all()
        if not self._replica.epoch:
            return TICK_S  # the epoch ended meanwhile
        now = self._clock.monotonic()
        await run_in_steps(self.freshness.looking(state, now))
        expected_s = self.expected_s(self.freshness.waiting)
        due, next_s = await run_in_steps(self.freshness.finding_due(state, now, expected_s))
        if not due:
            return next_s
        await self.round(due)
        return 0.0

    def expected_s(self, topics: int) -> float:
        """The expected seconds of a round of so many topics. A burst does not multiply the time of earlier rounds."""
        return min(max(self.figures.round_s, topics * self.figures.topic_s), EXPECTED_MAX_S)

    async def drain(self) -> int:
        """Land all records that wait now, whatever their freshness; the number of topics that could not be landed."""
        await self._replica.catch_up()
        await self._tables.catalogs.watch(at_once=True)
        await self._tables.make_all()
        bad: set[bytes] = set()
        while wanted := self.freshness.wanted(self._replica.state) - bad:
            bad |= wanted - await self.round(list(wanted))
        return len(bad & self._replica.state.topics.by_id.keys())

    async def sweep(self, grace_s: float = 0.0) -> int:
        """Delete unused files of rounds that are over (sweeper.py); how many files."""
        return await self._sweeper.sweep(grace_s)

    async def round(self, topic_ids: Sequence[bytes]) -> set[bytes]:
        """Run one round of these topics; the topics that landed. Raises Fenced without an epoch."""
        if not self._replica.epoch:
            raise Fenced("a round needs an epoch to belong to")
        name = self.open_round()
        landed = await self._land(name, topic_ids)
        # A round that was broken off stays open: its command may still be on its way until the epoch ends.
        self.close_round(name)
        return landed

    async def _land(self, name: RoundName, topic_ids: Sequence[bytes]) -> set[bytes]:
        began = self._clock.monotonic()
        since = self.freshness.began(topic_ids)
        state = self._replica.state
        works, objects = await run_in_steps(choosing(state, topic_ids, self._limits))
        # Objects as they were when they were chosen: if the mover replaces one, its bytes still stay for a grace.
        sources = sources_of(state.cluster, objects, works)
        works = [work for work in works if work.topic_id in self._replica.state.topics.by_id]
        folders, refused = await self._lander.open_round(name, works)
        ready = [work for work in works if work.topic_id in folders]
        where = RoundPlaces(self._root, sources, folders, self._tables.catalogs.store_options())
        found = await self._run_waves(name, ready, where)
        for work in works:
            if work.topic_id in refused:
                found[work.topic_id] = await self._lander.finish(work, refused[work.topic_id], "", name.epoch)
        results = [found[work.topic_id] for work in works]
        now = self._clock.monotonic()
        for work, failed in zip(works, results, strict=True):
            if failed is None:
                self.freshness.landed(self._replica.state, work.topic_id, began)
            else:
                self._untidy = True
                await self._set_back(failed, since.get(work.topic_id, began), now)
        landed = {work.topic_id for work, failed in zip(works, results, strict=True) if failed is None}
        self._count([work for work in works if work.topic_id in landed], len(works), now - began)
        return landed

    async def _run_waves(
        self, name: RoundName, works: Sequence[TopicWork], where: RoundPlaces
    ) -> dict[bytes, Failed | None]:
        """Run the round in waves and commit each; for each topic why it did not land, if not.

        One wave is committed while workers write the files of the next.
        """
        committing: list[asyncio.Future[list[Failed | None]]] = []
        try:
            for wave in chunks(works, WAVE_TOPICS):
                answers, whole = await run_round(self._engine, wave, self._limits, where)
                self._untidy |= not whole
                finishing = (
                    self._lander.finish(work, answers[work.topic_id], where.folders[work.topic_id], name.epoch)
                    for work in wave
                )
                committing.append(asyncio.gather(*finishing))
            outcomes = [one for done in committing for one in await done]
        except BaseException:
            for done in committing:
                done.cancel()
            await asyncio.gather(*committing, return_exceptions=True)
            raise
        return {work.topic_id: failed for work, failed in zip(works, outcomes, strict=True)}

    def open_round(self) -> RoundName:
        """Begin a round. Rounds are numbered in each epoch from 1, so a sweep can tell by both when a round is over.

        Jobs of care have rounds as well, which may outlast many rounds of landing.
        """
        if self._replica.epoch != self._epoch:
            self._epoch, self._round, self._open = self._replica.epoch, 0, set()
        self._round += 1
        self._open.add(self._round)
        return RoundName(self._replica.member_id, self._epoch, self._round)

    def untidy(self) -> None:
        """Ask for a sweep: a round left files behind."""
        self._untidy = True

    def close_round(self, name: RoundName) -> None:
        """End a round: no command will name its files any more."""
        if name.epoch == self._epoch:
            self._open.discard(name.round)

    async def _set_back(self, failed: Failed, since: float, now: float) -> None:
        """The topic waits, alone. A failure that does not pass by itself is noted in the state, for the operator."""
        setback = self.freshness.failed(failed.topic_id, failed.reason, since, now)
        topic = self._replica.state.topics.by_id.get(failed.topic_id)
        if topic is None:
            return
        noted = failed.lasting or (setback.failures >= FAILURES_BEFORE_NOTE and failed.reason != OUTRUN)
        say = log.error if noted and setback.failures in (1, FAILURES_BEFORE_NOTE) else log.warning
        say("topic %s waits and is tried again in %.0f s: %s", topic.name, setback.again_at - now, failed.reason)
        if noted:
            await hold(self._replica, failed.topic_id, failed.reason)

    def _count(self, landed: Sequence[TopicWork], topics: int, took_s: float) -> None:
        figures = self.figures
        figures.rounds += 1
        figures.commits += len(landed)
        figures.failures += topics - len(landed)
        figures.records += sum(one.end - one.start for work in landed for one in work.ranges)
        figures.wal_bytes += sum(work.size for work in landed)
        figures.round_s += (min(took_s, EXPECTED_MAX_S) - figures.round_s) * ROUND_MEMORY
        if topics >= MANY_TOPICS:
            figures.topic_s += (min(took_s / topics, TOPIC_MAX_S) - figures.topic_s) * ROUND_MEMORY
        log.debug("a round landed %d of %d topics in %.2f s", len(landed), topics, took_s)

    async def _tidy(self) -> None:
        """Between rounds: start a sweep if one is due, release holds, and delete files that commits made obsolete."""
        now, epochs = self._clock.monotonic(), self._replica.state.members.next_epoch
        if now >= self._sweep_at and (self._untidy or epochs != self._swept) and self._sweeping.done():
            self._sweep_at, self._swept, self._untidy = now + self.sweep_every_s, epochs, False
            self._sweeping = asyncio.ensure_future(self._sweep())
        await release_idle(self._replica)
        await self._tables.delete_obsolete(self.obsolete_grace_s)

    async def _sweep(self) -> int:
        found = await self.sweep(self.obsolete_grace_s)
        self._untidy |= self._sweeper.waits()
        return found

    def _report(self) -> None:
        now = self._clock.monotonic()
        figures = self.figures
        if now - self._reported >= REPORT_EVERY_S and figures.rounds != self._reported_rounds:
            self._reported, self._reported_rounds = now, figures.rounds
            log.info(
                "landed %d records in %d commits and %d rounds so far; a round takes %.2f s, the oldest waits %.1f s",
                figures.records, figures.commits, figures.rounds, figures.round_s, self.freshness.lag_s(now),
            )  # fmt: skip


def sources_of(cluster: str, objects: Mapping[int, WalObject], works: Sequence[TopicWork]) -> dict[int, TailObject]:
    """The WAL objects that hold the slices, by their numbers."""
    numbers = {one.object for work in works for one in work.slices}
    return {number: source_of(cluster, objects[number]) for number in numbers}


async def release_idle(replica: Replica) -> None:
    """Release the pipeline's holds of topics without waiting records: another pipeline may have landed them."""
    state = replica.state
    for topic_id, landing in list(state.catalog.landings.items()):
        topic = state.topics.by_id.get(topic_id)
        if topic is None or not landing.held.startswith(HELD_BY_US):
            continue
        if not any(waits(state.streams.by_id[one]) for one in topic.streams):
            try:
                await replica.propose(HoldTopic(topic_id, ""))
            except LakestreamError as error:
                log.warning("a topic that waits for nothing could not be released: %s", error)

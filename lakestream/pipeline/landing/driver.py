"""The pipeline's life: a member of the cluster that lands whatever waits, round after round, as freshness asks.

    follow the log -> due? -> choose -> workers write files -> each topic commits by one command -> tidy up -> again

Nothing is remembered but in the state: killed at any point and started again it plans from the progress that commits
have left, and what its last life wrote without committing is swept. Two at once do no harm either: a commit whose
premise is gone changes nothing (T7).
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lakestream.data.tables.files.slices import TailObject, source_of
from lakestream.errors import Fenced
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.streams import WalObject
from lakestream.pipeline.care.sweep import RoundName
from lakestream.pipeline.care.unused_since import SWEEP
from lakestream.pipeline.landing.freshness import Freshness
from lakestream.pipeline.landing.holds import release_idle
from lakestream.pipeline.landing.lander import OUTRUN, Lander
from lakestream.pipeline.landing.planner import RoundLimits, TopicWork, choosing
from lakestream.pipeline.landing.rounds import Engine, carry_out
from lakestream.pipeline.landing.tasks import Failed, Places
from lakestream.stream.long_work import chunks, run_in_steps

log = logging.getLogger(__name__)

TICK_S = 0.25
"""How soon a change of the state is looked at."""
IDLE_S = 5.0
ROUND_MEMORY = 0.3
"""How much the last round counts in what the next is expected to take."""
REPORT_EVERY_S = 60.0
FAILURES_UNTOLD = 3
"""A failure that may pass is told in the state only when it has come so often in a row."""
MANY_TOPICS = 50
"""From so many on, the time of a round says what a topic takes."""
TOPIC_MAX_S = 0.05
WAVE_TOPICS = 128
"""So many topics of a round are handed to workers at once: a job of Spark's costs a tenth of a second."""
EXPECTED_MAX_S = 4.0
"""A round that lands a backlog takes long, and says nothing of the small ones that follow."""


@dataclass(slots=True)
class Figures:
    """What the pipeline did so far."""

    rounds: int = 0
    commits: int = 0
    failures: int = 0
    records: int = 0
    wal_bytes: int = 0
    files: int = 0
    round_s: float = 0.5
    """What a round is expected to take, however few topics it has."""
    topic_s: float = 0.005
    """What each topic adds to a round of many."""


class Driver:
    """Runs rounds until it is told to stop."""

    sweep_first_s = 10.0
    sweep_every_s = 300.0
    obsolete_grace_s = 600.0
    """How long readers of snapshots that expired have for their files."""

    def __init__(
        self, replica: Replica, lander: Lander, engine: Engine, clock: Clock, freshness: Freshness, limits: RoundLimits,
        root: str,
    ) -> None:  # fmt: skip
        self.figures = Figures()
        self.freshness = freshness
        self._replica = replica
        self._lander = lander
        self._engine = engine
        self._clock = clock
        self._limits = limits
        self._root = root
        self._epoch = 0
        self._round = 0
        self._open: set[int] = set()
        self._folded = asyncio.Event()
        self._reported = clock.monotonic()
        self._told_rounds = 0
        self._sweep_at = self._reported + self.sweep_first_s
        self._swept = 0
        self._untidy = False
        self._stopping = False
        self._sweeping: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._sweeping.set_result(0)
        replica.on_fold.append(self._folded.set)

    def settled(self) -> tuple[int, int]:
        """Up to this round of the epoch all files are committed or nobody's, as heartbeats tell it (T12)."""
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
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._folded.wait(), min(pause, IDLE_S, self._lander.look_every_s))
                    await asyncio.sleep(min(TICK_S, pause))
            return 0
        finally:
            self._sweeping.cancel()

    async def step(self) -> float:
        """One round if one is due; how long there is time until the next."""
        await self._lander.follow()
        state = self._replica.state
        await self._lander.make_tables()
        if not self._replica.epoch:
            return TICK_S  # it ended meanwhile
        now = self._clock.monotonic()
        await run_in_steps(self.freshness.looking(state, now))
        expected_s = self.expected_s(self.freshness.waiting)
        due, next_s = await run_in_steps(self.freshness.finding_due(state, now, expected_s))
        if not due:
            return next_s
        await self.round(due)
        return 0.0

    def expected_s(self, topics: int) -> float:
        """What a round of so many topics will take. A burst is no multiple of what there was before."""
        return min(max(self.figures.round_s, topics * self.figures.topic_s), EXPECTED_MAX_S)

    async def drain(self) -> int:
        """Land everything that waits now, whatever its freshness; how many topics could not."""
        await self._replica.catch_up()
        await self._lander.follow(at_once=True)
        await self._lander.make_tables()
        bad: set[bytes] = set()
        while wanted := self.freshness.wanted(self._replica.state) - bad:
            bad |= wanted - await self.round(list(wanted))
        return len(bad & self._replica.state.topics.by_id.keys())

    async def sweep(self, grace_s: float = 0.0) -> int:
        """Remove what rounds that are over left behind, of this life and of earlier ones; how many files.

        `grace_s`: only what we have seen lie about for so long. Another pipeline may have let it go just now (T11).
        """
        topics = list(self._replica.state.catalog.landings)
        return sum([await self._lander.sweep_table(topic_id, grace_s) for topic_id in topics])

    async def round(self, topic_ids: Sequence[bytes]) -> set[bytes]:
        """One round of these topics; those that landed. Raises Fenced without an epoch."""
        if not self._replica.epoch:
            raise Fenced("a round needs an epoch to belong to")
        name = self.open_round()
        landed = await self._land(name, topic_ids)
        # Not if it was broken off: a command of it may still be on its way, and only the end of the epoch stops that.
        self.close_round(name)
        return landed

    async def _land(self, name: RoundName, topic_ids: Sequence[bytes]) -> set[bytes]:
        began = self._clock.monotonic()
        since = self.freshness.began(topic_ids)
        state = self._replica.state
        works, objects = await run_in_steps(choosing(state, topic_ids, self._limits))
        # As objects were when they were chosen: the mover may take an object's place, whose bytes stay for a grace.
        sources = sources_of(state.cluster, objects, works)
        works = [work for work in works if work.topic_id in self._replica.state.topics.by_id]
        folders, refused = await self._lander.open_round(name, works)
        ready = [work for work in works if work.topic_id in folders]
        where = Places(self._root, sources, folders, self._lander.elsewhere())
        found = await self._carried_out(name, ready, where)
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

    async def _carried_out(
        self, name: RoundName, works: Sequence[TopicWork], where: Places
    ) -> dict[bytes, Failed | None]:
        """Why topics did not land, if not. Of many topics some are committed while workers write files of the next."""
        committing: list[asyncio.Future[list[Failed | None]]] = []
        try:
            for wave in chunks(works, WAVE_TOPICS):
                answers, whole = await carry_out(self._engine, wave, self._limits, where)
                self._untidy |= not whole
                finishing = (
                    self._lander.finish(work, answers[work.topic_id], where.folders[work.topic_id], name.epoch)
                    for work in wave
                )
                committing.append(asyncio.gather(*finishing))
            told = [one for done in committing for one in await done]
        except BaseException:
            for done in committing:
                done.cancel()
            await asyncio.gather(*committing, return_exceptions=True)
            raise
        return {work.topic_id: failed for work, failed in zip(works, told, strict=True)}

    def open_round(self) -> RoundName:
        """Rounds are numbered in each epoch from 1: whoever sweeps can tell by both when one is over.

        Care has rounds of its own, which may go on while others come and go.
        """
        if self._replica.epoch != self._epoch:
            self._epoch, self._round, self._open = self._replica.epoch, 0, set()
        self._round += 1
        self._open.add(self._round)
        return RoundName(self._replica.member_id, self._epoch, self._round)

    def untidy(self) -> None:
        """Something was left behind that the next sweep should find."""
        self._untidy = True

    def close_round(self, name: RoundName) -> None:
        """No command will name its files any more."""
        if name.epoch == self._epoch:
            self._open.discard(name.round)

    async def _set_back(self, failed: Failed, since: float, now: float) -> None:
        """The topic waits, alone; people are told in the state when it does not go away by itself."""
        setback = self.freshness.failed(failed.topic_id, failed.reason, since, now)
        topic = self._replica.state.topics.by_id.get(failed.topic_id)
        if topic is None:
            return
        told = failed.lasting or (setback.failures >= FAILURES_UNTOLD and failed.reason != OUTRUN)
        say = log.error if told and setback.failures in (1, FAILURES_UNTOLD) else log.warning
        say("topic %s waits and is tried again in %.0f s: %s", topic.name, setback.again_at - now, failed.reason)
        if told:
            await self._lander.hold(failed.topic_id, failed.reason)

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
        """Beside the rounds: what those of ended epochs and failed ones left, and what commits made unreachable."""
        now, epochs = self._clock.monotonic(), self._replica.state.members.next_epoch
        if now >= self._sweep_at and (self._untidy or epochs != self._swept) and self._sweeping.done():
            self._sweep_at, self._swept, self._untidy = now + self.sweep_every_s, epochs, False
            self._sweeping = asyncio.ensure_future(self._sweep())
        await release_idle(self._replica)
        await self._lander.delete_obsolete(self.obsolete_grace_s)

    async def _sweep(self) -> int:
        found = await self.sweep(self.obsolete_grace_s)
        self._untidy |= self._lander.leftovers.wait(self._replica.state.catalog.landings, SWEEP)
        return found

    def _report(self) -> None:
        now = self._clock.monotonic()
        figures = self.figures
        if now - self._reported >= REPORT_EVERY_S and figures.rounds != self._told_rounds:
            self._reported, self._told_rounds = now, figures.rounds
            log.info(
                "landed %d records in %d commits and %d rounds so far; a round takes %.2f s, the oldest waits %.1f s",
                figures.records, figures.commits, figures.rounds, figures.round_s, self.freshness.lag_s(now),
            )  # fmt: skip


def sources_of(cluster: str, objects: Mapping[int, WalObject], works: Sequence[TopicWork]) -> dict[int, TailObject]:
    """The objects that the slices lie in, by their numbers."""
    numbers = {one.object for work in works for one in work.slices}
    return {number: source_of(cluster, objects[number]) for number in numbers}

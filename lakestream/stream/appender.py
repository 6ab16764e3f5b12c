"""The appender: gathers batches of all streams, writes them as one WAL object a tick, and appends one command for it.

    submit -> gathered -> tick (joined, released) -> Wal.put -> in order: propose Append -> fold -> done

A store without a price per object is written at once when idle, and gathers while a tick is under way; under a load of
bulk data it gathers for a few milliseconds more where that saves ticks (gathering.py). A store with a price gathers for
`linger_ms`, less when the senders fall silent. Ticks upload in parallel and are proposed in order; if one fails, later
batches of its streams that are under way fail too, so that order holds (L16). Data comes before metadata: a crash
leaves an object without entries, never a hole.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Any, cast

from lakestream.errors import Exists, Fenced, LakestreamError, Missing, NoRoom, Retry, Unknown
from lakestream.interfaces import Clock, Wal
from lakestream.metadata.replica import Replica
from lakestream.model.append_rows import AppendRow, pack_append
from lakestream.model.batches.header import stamp
from lakestream.model.batches.wal_object import HEADER_BYTES, header, lay_out, tick_tail, wal_key
from lakestream.model.cluster_time import stamp_time
from lakestream.model.commands import APPEND
from lakestream.model.levels import BOUNDED, FIRST
from lakestream.model.reasons import No
from lakestream.model.stamped_append import STAMPED_APPEND, pack_stamped
from lakestream.model.state import Outcome
from lakestream.process.store_room import StoreRoom
from lakestream.stream.append_stats import AppendStats
from lakestream.stream.batch_tables import JoinedTables, ManyBatches
from lakestream.stream.cache import Cache
from lakestream.stream.gathering import Gathering
from lakestream.stream.limits import AppendLimits
from lakestream.stream.stamping import give_later_times, stamp_times
from lakestream.stream.submissions import Batches, Submitted, streams_of

log = logging.getLogger(__name__)

class Tick:
    """One WAL object on its way. Its batches are in `rows` and `owners`; in `joined` if some of them came in tables."""

    __slots__ = (
        "body", "epoch", "failed", "joined", "number", "owners", "rows", "since", "size", "stamped", "submissions",
        "time_ms", "written",
    )  # fmt: skip

    def __init__(self, number: int, epoch: int, submissions: list[Submitted], since: float) -> None:
        self.number = number
        self.epoch = epoch
        self.submissions = submissions
        self.since = since
        self.rows: list[AppendRow] = []
        self.owners: list[tuple[Batches, int]] = []
        self.joined: JoinedTables | None = None
        self.body = bytearray()
        self.size = 0
        self.written = False
        self.failed: LakestreamError | None = None
        self.stamped: set[int] = set()
        """Streams whose batches were stamped with `time_ms`."""
        self.time_ms = 0

    def streams(self) -> set[int]:
        return {row[0] for row in self.rows} if self.joined is None else self.joined.streams()

    def payload(self) -> bytes:
        """The body of the `Append` that enters this object into the state."""
        if self.joined is not None:
            return self.joined.payload(self.number, self.size)
        return pack_append(self.number, self.size, self.rows)


class Appender:
    """The one way into the log."""

    def __init__(self, replica: Replica, wal: Wal, cache: Cache, clock: Clock, limits: AppendLimits) -> None:
        self._replica = replica
        self._wal = wal
        self._cache = cache
        self._clock = clock
        self._limits = limits
        self.stats = AppendStats()
        self.room = StoreRoom("the write-ahead log", clock)
        self.on_pressure: Callable[[bool], None] = lambda full: None
        """Called with True when too many bytes are under way, so that sockets pause, and then with False."""
        self._gathered: list[Submitted] = []
        self._gathered_bytes = 0
        self._under_way_bytes = 0
        self._full = False
        self._gathering = Gathering(limits)
        self._waits_for_more = False
        self._last_requests = 0
        self._paused = False
        self._unanswered = 0
        self._timer: asyncio.Handle | None = None
        self._writing = 0
        self._next_tick = 1
        self._settled = 0
        self._order: deque[Tick] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def submit(self, submission: Submitted) -> None:
        """Take the batches of one request, in the order of calls. Never blocks; watch `on_pressure`."""
        if not self._replica.epoch:
            submission.release()
            submission.done(Fenced("this broker has no epoch"))
            return
        if self._replica.room.why:
            # Each try would leave an object that cannot be collected before the command log has room again.
            submission.release()
            submission.done(NoRoom(f"the command log has no room: {self._replica.room.why}"))
            return
        self._gathering.last_arrival = now = self._clock.monotonic()
        if not self._gathered:
            self._gathering.oldest_arrival = now
        self._gathered.append(submission)
        self._gathered_bytes += submission.size
        self._under_way_bytes += submission.size
        if self._writing < self._limits.uploads:
            if self._timer is None:
                self._schedule()
            elif self._has_enough():
                self._schedule(now=True)
        if not self._full and self._under_way_bytes > self._limits.under_way_bytes:
            self._full = True
            self.on_pressure(True)

    def settled(self) -> int:
        """The last tick that is committed or given up, with all before it (L22)."""
        return self._settled

    @property
    def under_way_bytes(self) -> int:
        return self._under_way_bytes

    async def drain(self) -> None:
        """Wait until everything submitted has its answer."""
        await self._quiet.wait()

    # -- gathering --------------------------------------------------------------------------------------------------

    def _schedule(self, now: bool = False) -> None:
        loop = asyncio.get_running_loop()
        limits = self._limits
        if self._timer is not None:
            self._timer.cancel()
        self._quiet.clear()
        self._waits_for_more = False
        if now or self._gathered_bytes >= limits.tick_bytes:
            self._timer = loop.call_soon(self._tick)
        elif self._wal.linger_ms:
            self._gathering.oldest_arrival = self._gathering.last_arrival = self._clock.monotonic()
            self._gather(self._wal.linger_ms / 1000, limits.silence_s)
        elif self._last_requests >= limits.many_requests or self._unanswered:
            # A tick costs the same for ten requests or a thousand: while one is under way, wait for more requests.
            self._paused = True
            self._timer = loop.call_later(limits.pause_s, self._tick)
        elif self._gathering.asks(self._clock.monotonic(), self._gathered_bytes, len(self._gathered)):
            self._gather(limits.gather_s, limits.gather_silence_s)
        else:
            self._timer = loop.call_soon(self._tick)

    def _gather(self, linger_s: float, silence_s: float) -> None:
        """Wait on while batches keep coming, at most until the oldest has waited for the linger."""
        loop, now = asyncio.get_running_loop(), self._clock.monotonic()
        left = self._gathering.oldest_arrival + linger_s - now
        silence = now - self._gathering.last_arrival
        self._waits_for_more = left > 0 and silence < silence_s * 0.9
        if self._waits_for_more:
            self._timer = loop.call_later(min(left, silence_s - silence), self._gather, linger_s, silence_s)
        else:
            if left > 0:
                self._gathering.wasted(len(self._gathered))
            self._timer = loop.call_soon(self._tick)

    def _has_enough(self) -> bool:
        """Whether the tick may begin now."""
        if self._wal.linger_ms or not self._waits_for_more:
            return self._waits_for_more and self._gathered_bytes >= self._limits.tick_bytes
        return self._gathering.has_enough(self._gathered_bytes, len(self._gathered))

    def _tick(self) -> None:
        """Make a tick of what was gathered, and start to write it."""
        self._timer = None
        self._paused = False
        self._waits_for_more = False
        if not self._gathered or self._writing >= self._limits.uploads:
            return
        epoch = self._replica.epoch
        # Without an epoch all gathered batches fail: no later tick takes up the rest, and none may overtake (L16).
        taken = self._take(self._limits.tick_bytes if epoch else self._gathered_bytes)
        tick = Tick(self._next_tick, epoch, taken, self._clock.monotonic())
        self._last_requests = sum(len(one.table) if isinstance(one, ManyBatches) else 1 for one in tick.submissions)
        self._unanswered += 1
        self._next_tick += 1
        self._order.append(tick)
        if not tick.epoch:
            self._fail(tick, Fenced("this broker has no epoch"))
            self._release(tick.submissions)
            self._settle()
            return
        tick.time_ms = stamp_time(self._replica.state.members.time_ms, self._clock.wall_ms())
        tick.stamped = stamp_times(taken, tick.time_ms)
        tail = self._join(tick)
        self._gathering.ticked(tick.since, tick.size)
        self._writing += 1
        task = asyncio.create_task(self._write(tick, tail), name=f"tick-{tick.number}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self, most: int) -> list[Submitted]:
        """Take about `most` bytes from what was gathered: whole submissions, the oldest first."""
        if self._gathered_bytes <= most:
            taken, self._gathered = self._gathered, []
            self._gathered_bytes = 0
            return taken
        size = count = 0
        for submission in self._gathered:
            if count and size + submission.size > most:
                break
            size += submission.size
            count += 1
        taken, self._gathered = self._gathered[:count], self._gathered[count:]
        self._gathered_bytes -= size
        return taken

    def _join(self, tick: Tick) -> bytes:
        """Order the batches by stream, join them once, and release the buffers in which they came."""
        if any(isinstance(one, ManyBatches) for one in tick.submissions):
            return self._join_tables(tick)
        plain = cast(list[Batches], tick.submissions)
        items = [(row[0], one, index) for one in plain for index, row in enumerate(one.rows)]
        items.sort(key=itemgetter(0))
        parts: list[bytes | memoryview] = [header(self._replica.state.sequence)]
        lengths: list[list[int]] = []
        position, previous = HEADER_BYTES, -1
        rows, owners = tick.rows, tick.owners
        for stream, submission, index in items:
            _, count, length, timestamp, producer_id, epoch, sequence = submission.rows[index]
            rows.append((stream, count, position, length, timestamp, producer_id, epoch, sequence))
            owners.append((submission, index))
            parts.append(submission.views[index])
            if stream == previous:
                lengths[-1][1] += length
                lengths[-1][2] += 1
            else:
                lengths.append([stream, length, 1])
                previous = stream
            position += length
        tick.body = bytearray().join(parts)
        parts.clear()
        self._release(tick.submissions)
        tail = tick_tail(tick.body, lay_out((stream, length, batches) for stream, length, batches in lengths))
        tick.size = len(tick.body) + len(tail)
        return tail

    def _join_tables(self, tick: Tick) -> bytes:
        """As `_join`, for ticks with tables of small batches."""
        joined = tick.joined = JoinedTables(tick.submissions, self._replica.state.sequence)
        tick.body = joined.body
        self._release(tick.submissions)
        tail = tick_tail(tick.body, joined.slices)
        tick.size = len(tick.body) + len(tail)
        return tail

    def _release(self, submissions: list[Submitted]) -> None:
        for submission in submissions:
            if not isinstance(submission, ManyBatches):
                submission.views.clear()
            submission.release()

    # -- writing ----------------------------------------------------------------------------------------------------

    async def _write(self, tick: Tick, tail: bytes) -> None:
        key = wal_key(self._replica.state.cluster, self._replica.member_id, tick.epoch, tick.number)
        try:
            async with asyncio.timeout(self._limits.write_timeout_s):
                await self._wal.put(key, [tick.body, tail])
            tick.written = True
            self.room.taken()
        except NoRoom as error:
            self.room.refused(error)
            self._fail(tick, NoRoom(f"the write-ahead log has no room: {error}"))
        except (Retry, Unknown, Exists, Missing, TimeoutError) as error:
            log.warning("tick %d could not be written: %s", tick.number, error or "the write took too long")
            self._fail(tick, Retry(f"the write-ahead log cannot be written: {error or 'the write took too long'}"))
        except Exception as error:
            log.exception("tick %d failed", tick.number)
            self._fail(tick, Retry(f"the write-ahead log cannot be written: {error!r}"))
        self._writing -= 1
        self._settle()
        if self._gathered and self._timer is None:
            self._schedule()

    def _fail(self, tick: Tick, error: LakestreamError) -> None:
        """Give a tick up, and with it the later batches of its streams (L16)."""
        if tick.failed is not None:  # given up with an earlier tick, and so was everything behind it
            return
        tick.failed = error
        order = list(self._order)
        self._fail_behind(tick.streams(), order[order.index(tick) + 1 :], error)

    def _fail_behind(self, broken: set[int], behind: Iterable[Tick], error: LakestreamError) -> None:
        """Give up later ticks and gathered batches of the `broken` streams, which miss a batch in the log (L16)."""
        for later in behind:
            if later.failed is None and not broken.isdisjoint(later.streams()):
                broken |= later.streams()
                later.failed = error
        kept, self._gathered = self._gathered, []
        for submission in kept:
            if not broken.isdisjoint(streams_of(submission)):
                self._gathered_bytes -= submission.size
                self._release([submission])
                self._answer([submission], error)
            else:
                self._gathered.append(submission)

    def _settle(self) -> None:
        """Propose written ticks and answer failed ones, in the order of ticks."""
        order = self._order
        while order and (order[0].written or order[0].failed is not None):
            tick = order.popleft()
            if tick.failed is not None:
                self._finish(tick, tick.failed)
            elif tick.epoch != self._replica.epoch:
                self._finish(tick, Fenced("this broker's epoch has ended"))
            else:
                self._propose(tick)

    def _propose(self, tick: Tick) -> None:
        kind, payload, level = APPEND, tick.payload(), FIRST
        if tick.stamped and self._replica.state.level >= BOUNDED:
            kind, payload, level = STAMPED_APPEND, pack_stamped(tick.time_ms, tick.stamped, payload), BOUNDED
        self._replica.propose_later(kind, payload, partial(self._finish, tick), level)

    def _finish(self, tick: Tick, outcome: Outcome | LakestreamError) -> None:
        """Called while the command is being folded: the object it added is the newest one in the state."""
        self._settled = max(self._settled, tick.number)
        self.stats.ticks += 1
        self._unanswered -= 1
        if not self._unanswered and self._paused and self._last_requests < self._limits.many_requests:
            self._paused = False
            self._schedule()
        if isinstance(outcome, No):
            outcome = Retry(f"refused: {outcome.message}")
        if isinstance(outcome, LakestreamError):
            self.stats.failed_ticks += 1
            if tick.failed is None:
                self._fail_behind(tick.streams(), self._order, outcome)
            self._answer(tick.submissions, outcome)
            return
        self.stats.acked_records += self._stamp(tick, outcome) if tick.joined is None else tick.joined.settle(outcome)
        known = self._replica.state.streams.append_times.by_stream if tick.stamped else {}
        if later := {one: known[one] for one in tick.stamped if known.get(one, tick.time_ms) != tick.time_ms}:
            give_later_times(tick.body, tick.payload(), later)
        self.stats.acked_batches += len(outcome)
        self.stats.acked_bytes += len(tick.body)
        self._cache.add(self._replica.state.streams.next_object - 1, tick.body)
        self.stats.ack_seconds.observe(self._clock.monotonic() - tick.since)
        self._answer(tick.submissions, None)

    def _stamp(self, tick: Tick, outcome: list[int]) -> int:
        body, records = tick.body, 0
        for row, (submission, index), result in zip(tick.rows, tick.owners, outcome, strict=True):
            submission.results[index] = result
            if result >= 0:
                stamp(body, row[2], result)
                records += row[1]
        return records

    def _answer(self, submissions: list[Submitted], error: LakestreamError | None) -> None:
        for submission in submissions:
            self._under_way_bytes -= submission.size
            answer: Any = submission.results if error is None else error
            try:
                submission.done(answer)
            except Exception:  # this request gets no answer; the other requests of the tick do
                log.exception("the answer to a produce request failed")
        if self._full and self._under_way_bytes < self._limits.under_way_bytes // 2:
            self._full = False
            self.on_pressure(False)
        if not self._under_way_bytes and not self._gathered:
            self._quiet.set()

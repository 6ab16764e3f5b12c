"""One simulated broker: the real parts, put together as a broker does, behind a front door that speaks no protocol.

The front door does what the Kafka handlers do with the parts: batches enter the appender in the order in which they
came, a no is said only after a look at the end of the command log (L6), an unknown outcome is never called a no (L17).
"""

import asyncio
import struct
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, Fenced, Halted, LakestreamError, Rejected, Retry, Unknown
from lakestream.interfaces import Clock, CommandLog, Wal
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.model.append_rows import BatchRow
from lakestream.model.commands import (
    AdvanceLogStart,
    AllocateProducerId,
    AlterConfigs,
    Body,
    CreateTopic,
    DeleteTopic,
    Register,
)
from lakestream.model.groups.offsets import CommitOffsets
from lakestream.model.levels import NEWEST
from lakestream.model.reasons import No, Reason
from lakestream.model.state import Outcome
from lakestream.model.streams import Stream
from lakestream.settings import Settings
from lakestream.stream.appender import Answer, Appender, Submission
from lakestream.stream.cache import Cache
from lakestream.stream.groups.coordinator import GroupCoordinator, agreed
from lakestream.stream.groups.offsets import GroupOffsets
from lakestream.stream.history import History
from lakestream.stream.housekeeping.collector import Collector
from lakestream.stream.housekeeping.long_topics import LongTopics, create_topic
from lakestream.stream.housekeeping.merging import MoveLimits
from lakestream.stream.housekeeping.mover import Mover
from lakestream.stream.housekeeping.retention import Expiry, Retention
from lakestream.stream.housekeeping.upkeep import Schedule, Upkeep
from lakestream.stream.limits import AppendLimits, ReadLimits
from lakestream.stream.reader import Reader
from lakestream.stream.rules import Rules
from lakestream.stream.waiting import Waiting
from lakestream.testing.lake.node_catalog import NodeCatalog

CHECKPOINT_S = 0.3
SETTINGS = Settings(group_min_session_timeout_ms=100, group_initial_rebalance_delay_ms=200)
SCHEDULE = Schedule(collect_s=2.0, retention_s=1.5, move_s=0.7)
MOVE_LIMITS = MoveLimits(
    quiet_ms=500, many_entries=6, window_entries=3, growth=2, dead_age_ms=1000, dead_bytes=100, write_timeout_s=3.0
)
"""All that takes minutes in a real cluster takes seconds here."""
_HEADER = struct.Struct(">i8xqqhi")
"""Of a batch from byte 23: last offset delta, max timestamp, producer id, producer epoch, first sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """How the simulated brokers are set up."""

    timing: Timing
    append_limits: AppendLimits
    read_limits: ReadLimits
    cache_bytes: int = 1 << 20
    linger_ms: int = 0
    grace_ms: int = 3_000


@dataclass(frozen=True, slots=True)
class Classes:
    """What the parts are made of: a test that breaks a rule on purpose puts its own class here."""

    replica: type[Replica] = Replica
    appender: type[Appender] = Appender
    reader: type[Reader] = Reader
    collector: type[Collector] = Collector
    mover: type[Mover] = Mover
    history: type[History] = History
    long_topics: type[LongTopics] = LongTopics


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a reader gets: the log's bounds, and whole batches from the one that holds the offset."""

    start: int
    end: int
    data: bytes
    sequence: int
    """Up to where the broker had folded when it began to read."""


class Node:
    """The parts of one incarnation of a broker."""

    def __init__(
        self, broker_id: int, command_log: CommandLog, wal: Wal, clock: Clock, random: Random, options: NodeOptions,
        classes: Classes, tables: TableStore | None = None, level: int = NEWEST,
    ) -> None:  # fmt: skip
        self.id = broker_id
        self.serving = False
        self._log = command_log
        self._wal = wal
        self._random = random
        self._options = options
        self._clock = clock
        self.replica = classes.replica(command_log, wal, clock, broker_id, level)
        self.cache = Cache(options.cache_bytes)
        self.appender = classes.appender(self.replica, wal, self.cache, clock, options.append_limits)
        history = classes.history(self.replica, tables) if tables is not None else None
        self.reader = classes.reader(self.replica, wal, self.cache, options.read_limits, history)
        self.catalog = NodeCatalog(self.replica, tables, clock, random, options.grace_ms) if tables else None
        self.waiting = Waiting(self.replica)
        self.collector = classes.collector(self.replica, command_log, wal, self.cache, options.grace_ms)
        about = Register(b"", "", "broker", f"host-{broker_id}", 9092 + broker_id, "", broker_id, level)
        self.membership = Membership(self.replica, clock, random, about, options.timing)
        rules = Rules(self.replica, {})
        self.mover = classes.mover(self.replica, wal, self.cache, rules.of, MOVE_LIMITS)
        self.membership.settled = lambda: (self.appender.settled(), self.mover.settled())
        self.groups = GroupCoordinator(self.replica, SETTINGS, clock, random, lambda: self.membership.current)
        self.offsets = GroupOffsets(self.replica, self.groups)
        retention = Retention(self.replica, rules.of, clock, Expiry())
        purge = self.catalog.purge if self.catalog is not None else None
        long_topics = classes.long_topics(self.replica)
        self._upkeep = Upkeep(self.membership, self.collector, retention, self.mover, SCHEDULE, long_topics, purge)

    # -- life -------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Join and serve until killed. Returns, or raises, if the broker cannot even start, as its process would."""
        await self.replica.start()
        await self.membership.join()
        self.serving = True
        await asyncio.gather(self.membership.run(), self.groups.run(), self._checkpoint(), self._upkeep.run())

    async def _checkpoint(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            with suppress(Retry, Unknown, Fenced):
                await self.membership.checkpoint_if_due(self._log, self._wal)

    async def collect(self) -> int:
        return await self.collector.collect() if self.replica.epoch else 0

    def check_open(self) -> None:
        """A blind or starting broker has no connections (L8)."""
        if not self.serving or self.membership.blind:
            raise Retry("no connection")

    # -- produce ----------------------------------------------------------------------------------------------------

    async def produce(self, topic: bytes, partition: int, batch: bytes) -> int:
        """The base offset. Raises Rejected, Retry or Fenced if it is certainly not in the log, else Unknown."""
        stream = self._find(topic, partition) or await self._find_current(topic, partition)
        delta, timestamp, producer, epoch, sequence = _HEADER.unpack_from(batch, 23)
        row: BatchRow = (stream.id, delta + 1, len(batch), timestamp, producer, epoch, sequence)
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def done(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(list(answer) if isinstance(answer, list) else answer)

        self.appender.submit(Submission([row], [memoryview(batch)], _nothing, done))
        answer = await answered
        if isinstance(answer, LakestreamError):
            raise answer
        if answer[0] < 0:
            raise Rejected(-answer[0])
        return answer[0]

    async def allocate_producer(self) -> int:
        outcome: int = await self.propose(AllocateProducerId())
        return outcome

    # -- fetch ------------------------------------------------------------------------------------------------------

    async def fetch(self, topic: bytes, partition: int, offset: int, max_bytes: int, wait_s: float) -> Fetched:
        """Batches from `offset` on; waits for some if there are none. Raises Rejected, only when current."""
        deadline = self._clock.monotonic() + wait_s
        current = False
        while True:
            sequence = self.replica.state.sequence
            try:
                stream = self._find(topic, partition)
                if stream is None:
                    raise Rejected(Reason.UNKNOWN_TOPIC)
                seen = stream.next
                views = [] if offset == stream.next else await self._read(stream, offset, max_bytes)
            except Rejected:
                if current:
                    raise
                await self.replica.catch_up()
                current = True
                continue
            data = b"".join(views)
            left = deadline - self._clock.monotonic()
            if data or left <= 0:
                return Fetched(stream.start, stream.next, data, sequence)
            if self._find(topic, partition) is stream and stream.next == seen:
                await self.waiting.wait([stream.id], left)

    async def _read(self, stream: Stream, offset: int, max_bytes: int) -> list[memoryview]:
        views = self.reader.cached(stream, offset, max_bytes)
        return views if views is not None else await self.reader.read(stream, offset, max_bytes)

    async def bounds(self, topic: bytes, partition: int) -> tuple[int, int]:
        """Log start and end, current: a smaller end than one was acknowledged is a no (L6)."""
        stream = await self._find_current(topic, partition)
        return stream.start, stream.next

    # -- topics and groups ------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, topic_id: bytes, partitions: int, configs: dict[str, str]) -> None:
        agreed(await create_topic(self.replica, CreateTopic(name, topic_id, partitions, 1, configs)))

    async def bound_pieces(self, partitions: int) -> None:
        """From now on a command makes or deletes so many partitions at most."""
        await self.propose(AlterConfigs(b"", [("lakestream.command.partitions", str(partitions))]))

    async def delete_topic(self, topic_id: bytes) -> None:
        await self.propose(DeleteTopic(topic_id, again=True))

    async def delete_records(self, topic: bytes, partition: int, before: int) -> int:
        stream = await self._find_current(topic, partition)
        [start] = await self.propose(AdvanceLogStart([(stream.id, before)]))
        if start < 0:
            raise Rejected(-start)
        return int(start)

    async def commit(self, group: str, topic: bytes, partition: int, offset: int) -> None:
        stream = await self._find_current(topic, partition)
        [problem] = await self.propose(CommitOffsets(group, -1, "", None, [(stream.id, offset, -1, "")]))
        if problem:
            raise Rejected(problem)

    async def committed(self, group: str, topic: bytes, partition: int) -> int:
        """-1 if there is none; current (L6)."""
        stream = await self._find_current(topic, partition)
        found = self.replica.state.groups.by_name.get(group)
        commit = found.offsets.get(stream.id) if found is not None else None
        return commit.offset if commit is not None else -1

    async def propose(self, body: Body) -> Outcome:
        outcome = await self.replica.propose(body)
        if isinstance(outcome, No):
            raise Rejected(outcome.reason, outcome.message)
        return outcome

    # -- finding ----------------------------------------------------------------------------------------------------

    def _find(self, topic: bytes, partition: int) -> Stream | None:
        state = self.replica.state
        found = state.topics.by_id.get(topic)
        if found is None or partition >= len(found.streams):
            return None
        return state.streams.by_id[found.streams[partition]]

    async def _find_current(self, topic: bytes, partition: int) -> Stream:
        await self.replica.catch_up()
        stream = self._find(topic, partition)
        if stream is None:
            raise Rejected(Reason.UNKNOWN_TOPIC)
        return stream


CANNOT_START = (Retry, Unknown, Fenced, Corrupt, Halted)
"""What ends a broker's process while it starts."""


def _nothing() -> None:
    pass

"""One simulated broker: the real parts, put together as in a broker, with methods in place of a protocol.

The methods use the parts as the Kafka handlers do: batches enter the appender in the order of their arrival, a refusal
is given only after folding to the end of the command log (L6), and an unknown outcome is never a refusal (L17).
"""

import asyncio
import struct
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, Fenced, Halted, Rejected, Retry, Unknown
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
from lakestream.settings import Settings
from lakestream.stream.appender import Appender
from lakestream.stream.cache import Cache
from lakestream.stream.groups.coordinator import GroupCoordinator, agreed
from lakestream.stream.history import HistoryReader
from lakestream.stream.housekeeping.collector import Collector
from lakestream.stream.housekeeping.long_topics import LongTopics, create_topic
from lakestream.stream.housekeeping.merging import MoveLimits
from lakestream.stream.housekeeping.mover import Mover
from lakestream.stream.housekeeping.retention import Expiry, Retention
from lakestream.stream.housekeeping.upkeep import Upkeep, UpkeepSchedule
from lakestream.stream.limits import AppendLimits, ReadLimits
from lakestream.stream.reader import Reader
from lakestream.stream.rules import Rules
from lakestream.stream.streams import FrontDoor
from lakestream.stream.waiting import Waiting
from lakestream.testing.lake.node_catalog import NodeCatalog

CHECKPOINT_S = 0.3
SETTINGS = Settings(group_min_session_timeout_ms=100, group_initial_rebalance_delay_ms=200)
SCHEDULE = UpkeepSchedule(collect_s=2.0, retention_s=1.5, move_s=0.7)
MOVE_LIMITS = MoveLimits(
    quiet_ms=500, many_entries=6, window_entries=3, growth=2, dead_age_ms=1000, dead_bytes=100, write_timeout_s=3.0
)
"""Seconds here stand for minutes in a real cluster."""
_HEADER = struct.Struct(">i8xqqhi")
"""Of a batch from byte 23: last offset delta, max timestamp, producer id, producer epoch, first sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """The settings of the simulated brokers."""

    timing: Timing
    append_limits: AppendLimits
    read_limits: ReadLimits
    cache_bytes: int = 1 << 20
    linger_ms: int = 0
    grace_ms: int = 3_000


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes of the parts: a test that breaks a rule on purpose passes a class of its own."""

    replica: type[Replica] = Replica
    appender: type[Appender] = Appender
    reader: type[Reader] = Reader
    collector: type[Collector] = Collector
    mover: type[Mover] = Mover
    history: type[HistoryReader] = HistoryReader
    long_topics: type[LongTopics] = LongTopics


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The result of a fetch: the log's bounds, and whole batches from the one with the asked offset on."""

    start: int
    end: int
    data: bytes
    sequence: int
    """The last command that the broker had folded when it began to read."""


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
        self.streams = FrontDoor(self.replica, self.appender, self.reader, self.waiting, rules, self.groups)
        self.offsets = self.streams.offsets
        retention = Retention(self.replica, rules.of, clock, Expiry())
        purge = self.catalog.purge if self.catalog is not None else None
        long_topics = classes.long_topics(self.replica)
        self._upkeep = Upkeep(self.membership, self.collector, retention, self.mover, SCHEDULE, long_topics, purge)

    # -- life -------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Join and serve until killed. Returns or raises if the broker cannot start."""
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
        """Returns the base offset. Raises Rejected, Retry or Fenced if the batch is certainly not in the log, or
        Unknown."""
        stream = self.streams.stream(topic, partition) or await self.streams.current_stream(topic, partition)
        delta, timestamp, producer, epoch, sequence = _HEADER.unpack_from(batch, 23)
        row: BatchRow = (stream.id, delta + 1, len(batch), timestamp, producer, epoch, sequence)
        [result] = await self.streams.append([row], [memoryview(batch)])
        if result < 0:
            raise Rejected(-result)
        return result

    async def allocate_producer(self) -> int:
        outcome: int = await self.propose(AllocateProducerId())
        return outcome

    # -- fetch ------------------------------------------------------------------------------------------------------

    async def fetch(self, topic: bytes, partition: int, offset: int, max_bytes: int, wait_s: float) -> FetchResult:
        """Batches from `offset` on; waits up to `wait_s` for the first one. Raises Rejected by a current state only."""
        deadline = self._clock.monotonic() + wait_s
        current = False
        while True:
            sequence = self.replica.state.sequence
            try:
                stream = self.streams.stream(topic, partition)
                if stream is None:
                    raise Rejected(Reason.UNKNOWN_TOPIC)
                seen = stream.next
                views = [] if offset == stream.next else await self.streams.read(stream, offset, max_bytes)
            except Rejected:
                if current:
                    raise
                await self.replica.catch_up()
                current = True
                continue
            data = b"".join(views)
            left = deadline - self._clock.monotonic()
            if data or left <= 0:
                return FetchResult(stream.start, stream.next, data, sequence)
            if self.streams.stream(topic, partition) is stream and stream.next == seen:
                await self.streams.wait([stream.id], left)

    async def bounds(self, topic: bytes, partition: int) -> tuple[int, int]:
        """The start and end of the log, after folding to the end of the command log (L6)."""
        stream = await self.streams.current_stream(topic, partition)
        return stream.start, stream.next

    # -- topics and groups ------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, topic_id: bytes, partitions: int, configs: dict[str, str]) -> None:
        agreed(await create_topic(self.replica, CreateTopic(name, topic_id, partitions, 1, configs)))

    async def bound_pieces(self, partitions: int) -> None:
        """Limit the partitions that one command creates or deletes."""
        await self.propose(AlterConfigs(b"", [("lakestream.command.partitions", str(partitions))]))

    async def delete_topic(self, topic_id: bytes) -> None:
        await self.propose(DeleteTopic(topic_id, again=True))

    async def delete_records(self, topic: bytes, partition: int, before: int) -> int:
        stream = await self.streams.current_stream(topic, partition)
        [start] = await self.propose(AdvanceLogStart([(stream.id, before)]))
        if start < 0:
            raise Rejected(-start)
        return int(start)

    async def commit(self, group: str, topic: bytes, partition: int, offset: int) -> None:
        stream = await self.streams.current_stream(topic, partition)
        [problem] = await self.propose(CommitOffsets(group, -1, "", None, [(stream.id, offset, -1, "")]))
        if problem:
            raise Rejected(problem)

    async def committed(self, group: str, topic: bytes, partition: int) -> int:
        """The committed offset after folding to the end of the command log (L6); -1 if there is none."""
        stream = await self.streams.current_stream(topic, partition)
        found = self.replica.state.groups.by_name.get(group)
        commit = found.offsets.get(stream.id) if found is not None else None
        return commit.offset if commit is not None else -1

    async def propose(self, body: Body) -> Outcome:
        outcome = await self.replica.propose(body)
        if isinstance(outcome, No):
            raise Rejected(outcome.reason, outcome.message)
        return outcome


CANNOT_START = (Retry, Unknown, Fenced, Corrupt, Halted)
"""The errors that end a broker's process while it starts."""

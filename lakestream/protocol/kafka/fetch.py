"""Fetch (4-18): reads records. Long polls, sessions, byte limits; batches go out as they lie in memory.

Departures from Kafka: any broker serves any partition; the last stable offset is the end, until transactions come;
`preferred_read_replica` is never given, since no broker is nearer to the data than another.
"""

import asyncio

from lakestream.errors import LakestreamError, Rejected
from lakestream.interfaces import Buffer, Clock
from lakestream.model.batches.records import next_offset
from lakestream.model.streams import Stream
from lakestream.protocol.kafka.connections.calls import Handler, RequestContext
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.fetch_sessions import PARTITIONS_AT_ONCE, PartitionKey, Session, Sessions
from lakestream.protocol.kafka.wire.fast_answers import FetchedPartition, encode_fetch_response
from lakestream.protocol.kafka.wire.fast_requests import ParsedFetch, Topic, Wanted
from lakestream.protocol.serving.answer_budget import AnswerBudget
from lakestream.stream.long_work import Steps, run_in_steps
from lakestream.stream.streams import FrontDoor

FETCH = 1
READ_COMMITTED = 1
IDS_SINCE = 13
"""The first version that names topics by their ids."""

Seen = tuple[PartitionKey, Stream, int, int, int]
"""A stream as it was before it was read: its size in bytes, its log start, and how far it had landed."""


class FetchStats:
    """Plain figures that metrics read."""

    __slots__ = ("bytes", "waiting")

    def __init__(self) -> None:
        self.bytes = 0
        self.waiting = 0


class FetchApi:
    """Answers Fetch requests."""

    def __init__(self, streams: FrontDoor, sessions: Sessions, clock: Clock, room: AnswerBudget) -> None:
        self._streams = streams
        self._sessions = sessions
        self._clock = clock
        self._room = room
        self.stats = FetchStats()

    def handlers(self) -> dict[int, Handler]:
        return {FETCH: self.fetch}

    async def fetch(self, context: RequestContext, request: ParsedFetch) -> list[Buffer]:
        by_ids = context.version >= IDS_SINCE
        session, wanted, error = await run_in_steps(self._sessions.resolve(request, by_ids))
        if error:
            return encode_fetch_response(context.version, context.correlation_id, 0, error, 0, [])
        results = await self._gather(request, wanted)
        incremental = session is not None and request.session_epoch > 0
        topics: dict[Topic, list[FetchedPartition]] = {}
        for place, (key, fetched) in enumerate(results.items(), 1):
            if place % PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
            self.stats.bytes += sum(map(len, fetched.records))
            if self._is_news(session, key, fetched) or not incremental:
                topics.setdefault(key[0], []).append(fetched)
        session_id = session.id if session is not None else 0
        answer = (context.version, context.correlation_id, 0, 0, session_id, list(topics.items()))
        if len(results) < PARTITIONS_AT_ONCE:
            return encode_fetch_response(*answer)
        return await asyncio.to_thread(encode_fetch_response, *answer)

    def _is_news(self, session: Session | None, key: PartitionKey, fetched: FetchedPartition) -> bool:
        if session is None:
            return True
        changed = bool(fetched.records) or fetched.error_code != 0
        return session.news(key, fetched.high_watermark, fetched.log_start_offset, changed)

    async def _gather(
        self, request: ParsedFetch, wanted: dict[PartitionKey, Wanted]
    ) -> dict[PartitionKey, FetchedPartition]:
        """Read until there are `min_bytes`, a partition has an error, or the time is over."""
        deadline = self._clock.monotonic() + max(request.max_wait_ms, 0) / 1000
        enough = min(request.min_bytes, request.max_bytes)
        current = False
        while True:
            budget = self._room.take(request.max_bytes)
            try:
                results, seen, size = await self._read_all(request, wanted, budget)
            finally:
                # The results are sent without another wait, apart from the look at the log before a no, and from steps.
                self._room.give_back(budget)
            errors = size < 0
            if errors and not current:
                # A no has to be current (L6): fold to the end of the log, then look once more.
                await self._streams.catch_up()
                current = True
                continue
            left = deadline - self._clock.monotonic()
            if errors or size >= enough or left <= 0 or not wanted or self._streams.closing:
                return results
            # More bytes than there is room for never come. An empty answer waits: the client would ask again at once.
            if size and await run_in_steps(_filled(wanted, results, budget)) >= min(enough, budget):
                return results
            results = {}  # read again after the wait: meanwhile the pieces may leave the cache
            # Without room nothing was read: then any growth is a reason to read again.
            await self._wait(seen, enough - size if budget >= 0 else 1, deadline)

    async def _wait(self, seen: list[Seen], missing: int, deadline: float) -> None:
        """Wait until the streams grew by `missing` bytes, one of them changed otherwise, or the time is over.

        A request for many bytes that come in drops is not read again for each drop.
        """
        streams = [stream.id for _, stream, _, _, _ in seen]
        while (left := deadline - self._clock.monotonic()) > 0 and not self._streams.closing:
            if await run_in_steps(self._changed(seen, missing)):
                return
            self.stats.waiting += 1
            try:
                if len(seen) < PARTITIONS_AT_ONCE:
                    await self._streams.wait(streams, left)
                else:
                    await self._streams.wait_for_many(streams, left, lambda: self._changed(seen, missing))
            finally:
                self.stats.waiting -= 1

    def _changed(self, seen: list[Seen], missing: int) -> Steps[bool]:
        """Whether there are so many bytes more, or a stream is not what it was."""
        growth = 0
        for place, (key, stream, size, start, landed) in enumerate(seen, 1):
            if place % PARTITIONS_AT_ONCE == 0:
                yield
            growth += stream.size - size
            changed = self._streams.stream(*key) is not stream or stream.start != start or stream.landed != landed
            if changed or growth >= missing:
                return True
        return False

    async def _read_all(
        self, request: ParsedFetch, wanted: dict[PartitionKey, Wanted], budget: int
    ) -> tuple[dict[PartitionKey, FetchedPartition], list[Seen], int]:
        """The results, the streams that were read, and the size in bytes, or -1 if there are errors."""
        aborted: list[tuple[int, int]] | None = [] if request.isolation_level == READ_COMMITTED else None
        results: dict[PartitionKey, FetchedPartition] = {}
        seen: list[Seen] = []
        size, errors = 0, False
        for place, (key, one) in enumerate(wanted.items(), 1):
            if place % PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
            stream = self._streams.stream(*key)
            if stream is None:
                by_id = isinstance(key[0], bytes) and self._streams.topic(key[0]) is None
                unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                results[key] = FetchedPartition(one.partition, unknown, -1, -1, -1, aborted_transactions=[])
                errors = True
                continue
            seen.append((key, stream, stream.size, stream.start, stream.landed))
            views, code = await self._read(stream, one, budget - size, size == 0 and budget >= 0)
            if self._room.scarce:
                views = [memoryview(bytes(view)) for view in views]
            high, start = stream.next, stream.start
            errors = errors or code != 0
            size += sum(map(len, views))
            high = -1 if code else high
            results[key] = FetchedPartition(one.partition, code, high, high, -1 if code else start, views, aborted)
        return results, seen, -1 if errors else size

    async def _read(
        self, stream: Stream, wanted: Wanted, budget: int, at_least_one: bool
    ) -> tuple[list[memoryview], int]:
        if wanted.current_leader_epoch > 0:
            return [], int(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if wanted.fetch_offset == stream.next:
            return [], 0
        max_bytes = min(wanted.max_bytes, max(budget, 0))
        try:
            return await self._streams.read(stream, wanted.fetch_offset, max_bytes, at_least_one), 0
        except Rejected:
            return [], int(ErrorCode.OFFSET_OUT_OF_RANGE)
        except LakestreamError:
            return [], int(ErrorCode.KAFKA_STORAGE_ERROR)


def _filled(
    wanted: dict[PartitionKey, Wanted], results: dict[PartitionKey, FetchedPartition], budget: int
) -> Steps[int]:
    """How many bytes Kafka would have read: of a partition that goes on it takes all that it may, and cuts a batch."""
    filled = 0
    for place, (key, one) in enumerate(wanted.items(), 1):
        if place % PARTITIONS_AT_ONCE == 0:
            yield
        fetched = results[key]
        size = sum(map(len, fetched.records))
        end = next_offset(fetched.records[-1]) if fetched.records else one.fetch_offset
        filled += max(size, min(one.max_bytes, budget - filled)) if end < fetched.high_watermark else size
    return filled

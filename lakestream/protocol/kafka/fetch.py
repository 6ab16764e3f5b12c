"""Fetch (4-18): the way out. Long polls, sessions, byte limits; batches go out as they lie in memory.

Departures from Kafka: any broker serves any partition; the last stable offset is the end, until transactions come;
`preferred_read_replica` is never given, since no broker is nearer to the data than another.
"""

from lakestream.errors import LakestreamError, Rejected
from lakestream.interfaces import Buffer, Clock
from lakestream.metadata.replica import Replica
from lakestream.model.records import next_offset
from lakestream.model.streams import Stream
from lakestream.protocol.kafka.answer_room import AnswerRoom
from lakestream.protocol.kafka.calls import Handler, RequestContext
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.fetch_sessions import PartitionKey, Session, Sessions
from lakestream.protocol.kafka.hot import ParsedFetch, Topic, Wanted
from lakestream.protocol.kafka.hot_answers import Fetched, encode_fetch_response
from lakestream.stream.reader import Reader
from lakestream.stream.waiting import Waiting

FETCH = 1
READ_COMMITTED = 1


class FetchStats:
    """Plain figures that metrics read."""

    __slots__ = ("bytes", "waiting")

    def __init__(self) -> None:
        self.bytes = 0
        self.waiting = 0


class FetchApi:
    """Answers Fetch requests."""

    def __init__(
        self, replica: Replica, reader: Reader, waiting: Waiting, sessions: Sessions, clock: Clock, room: AnswerRoom
    ) -> None:
        self._replica = replica
        self._reader = reader
        self._waiting = waiting
        self._sessions = sessions
        self._clock = clock
        self._room = room
        self.stats = FetchStats()

    def handlers(self) -> dict[int, Handler]:
        return {FETCH: self.fetch}

    async def fetch(self, context: RequestContext, request: ParsedFetch) -> list[Buffer]:
        session, wanted, error = self._sessions.resolve(request)
        if error:
            return encode_fetch_response(context.version, context.correlation_id, 0, error, 0, [])
        results = await self._gather(request, wanted)
        incremental = session is not None and request.session_epoch > 0
        topics: dict[Topic, list[Fetched]] = {}
        for key, fetched in results.items():
            self.stats.bytes += sum(map(len, fetched.records))
            if self._is_news(session, key, fetched) or not incremental:
                topics.setdefault(key[0], []).append(fetched)
        session_id = session.id if session is not None else 0
        return encode_fetch_response(context.version, context.correlation_id, 0, 0, session_id, list(topics.items()))

    def _is_news(self, session: Session | None, key: PartitionKey, fetched: Fetched) -> bool:
        if session is None:
            return True
        changed = bool(fetched.records) or fetched.error_code != 0
        return session.news(key, fetched.high_watermark, fetched.log_start_offset, changed)

    async def _gather(self, request: ParsedFetch, wanted: dict[PartitionKey, Wanted]) -> dict[PartitionKey, Fetched]:
        """Read until there are `min_bytes`, or something is wrong, or the time is over."""
        deadline = self._clock.monotonic() + max(request.max_wait_ms, 0) / 1000
        enough = min(request.min_bytes, request.max_bytes)
        current = False
        while True:
            seen = {key: self._end(key) for key in wanted}
            budget = self._room.take(request.max_bytes)
            try:
                results, size, errors = await self._read_all(request, wanted, budget)
            finally:
                # What was read is sent without another wait, but for the short look at the log before a no.
                self._room.give_back(budget)
            if errors and not current:
                # A no has to be current (L6): fold to the end of the log, then look once more.
                await self._replica.catch_up()
                current = True
                continue
            left = deadline - self._clock.monotonic()
            if errors or size >= enough or left <= 0 or not wanted or self._waiting.closing:
                return results
            # More than there is room for never comes. Without anything it waits: it would ask again at once.
            if size and _filled(wanted, results, budget) >= min(enough, budget):
                return results
            if all(self._end(key) == end for key, end in seen.items()):
                self.stats.waiting += 1
                try:
                    streams = [stream.id for key in wanted if (stream := self._stream(key)) is not None]
                    await self._waiting.wait(streams, left)
                finally:
                    self.stats.waiting -= 1

    async def _read_all(
        self, request: ParsedFetch, wanted: dict[PartitionKey, Wanted], budget: int
    ) -> tuple[dict[PartitionKey, Fetched], int, bool]:
        aborted: list[tuple[int, int]] | None = [] if request.isolation_level == READ_COMMITTED else None
        results: dict[PartitionKey, Fetched] = {}
        size, errors = 0, False
        for key, one in wanted.items():
            stream = self._stream(key)
            if stream is None:
                by_id = isinstance(key[0], bytes) and key[0] not in self._replica.state.topics.by_id
                unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                results[key] = Fetched(one.partition, unknown, -1, -1, -1, aborted_transactions=[])
                errors = True
                continue
            views, code = await self._read(stream, one, budget - size, size == 0 and budget >= 0)
            if self._room.scarce:
                views = [memoryview(bytes(view)) for view in views]
            high, start = stream.next, stream.start
            errors = errors or code != 0
            size += sum(map(len, views))
            high = -1 if code else high
            results[key] = Fetched(one.partition, code, high, high, -1 if code else start, views, aborted)
        return results, size, errors

    async def _read(
        self, stream: Stream, wanted: Wanted, budget: int, at_least_one: bool
    ) -> tuple[list[memoryview], int]:
        if wanted.current_leader_epoch > 0:
            return [], int(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if wanted.fetch_offset == stream.next:
            return [], 0
        max_bytes = min(wanted.max_bytes, max(budget, 0))
        try:
            views = self._reader.cached(stream, wanted.fetch_offset, max_bytes, at_least_one)
            if views is None:
                views = await self._reader.read(stream, wanted.fetch_offset, max_bytes, at_least_one)
            return views, 0
        except Rejected:
            return [], int(ErrorCode.OFFSET_OUT_OF_RANGE)
        except LakestreamError:
            return [], int(ErrorCode.KAFKA_STORAGE_ERROR)

    def _stream(self, key: PartitionKey) -> Stream | None:
        topics = self._replica.state.topics
        topic = topics.by_name.get(key[0]) if isinstance(key[0], str) else topics.by_id.get(key[0])
        if topic is None or not 0 <= key[1] < len(topic.streams):
            return None
        return self._replica.state.streams.by_id[topic.streams[key[1]]]

    def _end(self, key: PartitionKey) -> int:
        stream = self._stream(key)
        return -1 if stream is None else stream.next


def _filled(wanted: dict[PartitionKey, Wanted], results: dict[PartitionKey, Fetched], budget: int) -> int:
    """How many bytes Kafka would have read: of a partition that goes on it takes all that it may, and cuts a batch."""
    filled = 0
    for key, one in wanted.items():
        fetched = results[key]
        size = sum(map(len, fetched.records))
        end = next_offset(fetched.records[-1]) if fetched.records else one.fetch_offset
        filled += max(size, min(one.max_bytes, budget - filled)) if end < fetched.high_watermark else size
    return filled

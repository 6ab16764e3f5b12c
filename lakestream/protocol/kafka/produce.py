"""Produce (0-13; 0-2 are advertised, as Kafka does for old clients, and refused): the way in.

Departures from Kafka: any broker takes any partition; records of message formats 0 and 1 are refused; acks=1 and
acks=all are the same, since nothing is acknowledged before it is durable.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lakestream.errors import LakestreamError, Rejected, Retry
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.batch import NO_TIMESTAMP, restamp_log_append_time
from lakestream.model.check import check_batch
from lakestream.model.streams import Stream
from lakestream.model.topics import Topic
from lakestream.protocol.kafka.calls import ProduceCall
from lakestream.protocol.kafka.errors import ErrorCode, code_of
from lakestream.protocol.kafka.hot import ParsedProduce
from lakestream.protocol.kafka.hot_answers import Produced, encode_one_produced, encode_produce_response
from lakestream.protocol.kafka.produce_runs import ProduceRun, RunFinder, told
from lakestream.protocol.kafka.slabs import Slab
from lakestream.stream.appender import Answer, Appender, BatchRow
from lakestream.stream.batch_tables import ManyBatches
from lakestream.stream.rules import Rules, TopicRules

if TYPE_CHECKING:
    from lakestream.protocol.kafka.connection import Connection

MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024
"""What a compressed batch may become; more is a bomb."""
THROTTLE_MS = 1000

Name = str | bytes
"""A topic's name, or its id."""


class Producing:
    """One Produce request until its answer: its batches for the appender, and what each partition is told."""

    __slots__ = ("acks", "api", "call", "refused", "results", "rows", "size", "views", "waiting")

    def __init__(self, api: "ProduceApi", call: ProduceCall, acks: int) -> None:
        self.api = api
        self.call = call
        self.acks = acks
        self.size = 0
        self.rows: list[BatchRow] = []
        self.views: list[memoryview] = []
        self.results: list[int] = []
        self.waiting: list[tuple[Name, int, Stream, int]] = []
        """Of each row: the topic as it was named, the partition, its stream, its log append time."""
        self.refused: list[tuple[Name, Produced]] = []

    def release(self) -> None:
        self.call.release()

    def done(self, answer: Answer) -> None:
        if not self.acks:
            self._unanswered(answer)
        elif type(answer) is list and len(answer) == 1 and answer[0] >= 0 and not self.refused:
            name, partition, stream, time_ms = self.waiting[0]
            call, throttle_ms = self.call, self.api.throttle_ms((stream,))
            frame = encode_one_produced(
                call.version, call.correlation_id, name, partition, 0, answer[0], time_ms, stream.start, throttle_ms
            )
            self._answer(frame, throttle_ms)
        else:
            self._answer_all(answer)

    def _unanswered(self, answer: Answer) -> None:
        """acks=0: there is no answer; that something went wrong shows as a closed connection, as in Kafka."""
        if self.refused or isinstance(answer, LakestreamError) or any(result < 0 for result in answer):
            self.call.connection.abort()
        self.call.answer(None)

    def _answer_all(self, answer: Answer) -> None:
        topics: dict[Name, list[Produced]] = {}
        for name, refused in self.refused:
            topics.setdefault(name, []).append(refused)
        for index, (name, partition, stream, time_ms) in enumerate(self.waiting):
            result = answer if isinstance(answer, LakestreamError) else answer[index]
            topics.setdefault(name, []).append(told(partition, stream, time_ms, result))
        call, throttle_ms = self.call, self.api.throttle_ms([stream for _, _, stream, _ in self.waiting])
        self._answer(
            encode_produce_response(call.version, call.correlation_id, list(topics.items()), throttle_ms), throttle_ms
        )

    def _answer(self, frame: bytes, throttle_ms: int) -> None:
        """Late, and saying so, if a topic holds too many entries (L20)."""
        if throttle_ms:
            asyncio.get_running_loop().call_later(throttle_ms / 1000, self.call.answer, frame)
        else:
            self.call.answer(frame)


class ProduceApi:
    """Checks batches, hands them to the appender, and answers when they are durable."""

    def __init__(self, replica: Replica, appender: Appender, rules: Rules, clock: Clock) -> None:
        self._replica = replica
        self._appender = appender
        self._rules = rules
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._late: dict[Connection, int] = {}
        """How many requests of a connection wait until we are current."""
        self._runs = RunFinder()
        self.refused = 0

    def __call__(self, call: ProduceCall) -> None:
        request: ParsedProduce = call.connection.parser.parse(call.view, call.start, call.end, call.version)
        topics = self._replica.state.topics
        if self._late and call.connection in self._late:
            self._later(call, request)
            return
        for name, partitions in request.topics:
            topic = topics.by_name.get(name) if isinstance(name, str) else topics.by_id.get(name)
            if topic is None:
                self._later(call, request)
                return
            known = len(topic.streams)
            for partition, _, _ in partitions:
                if partition >= known:
                    self._later(call, request)
                    return
        self._take(call, request)

    def take_run(self, connection: "Connection", slab: Slab, start: int, end: int, limit: int) -> int:
        """Take up a run of simple requests (produce_runs.py) that begins at `start`; where it ends: there if none is.

        Its slot is in the connection's order before it is submitted, since it may be answered at once.
        """
        prefix, topics = connection.parser.run_prefix(), self._replica.state.topics
        if prefix is None or connection in self._late:
            return start
        name = prefix.topic
        topic = topics.by_name.get(name) if isinstance(name, str) else topics.by_id.get(name)
        if topic is None:
            return start
        rules = self._rules.of(topic)
        if rules.log_append_time:
            return start
        now_ms = 0 if rules.any_time else self._clock.wall_ms()
        frame_bytes_max = connection.board.limits.max_frame_bytes
        found = self._runs.find(slab, start, end, limit, frame_bytes_max, prefix, topic, rules, now_ms)
        if found is None:
            return start
        table, stop, size = found
        run = ProduceRun(self, connection, slab, prefix, topic, table)
        slab.pins += 1
        connection.answers.append(run)
        connection.in_runs += run.count - 1
        connection.board.stats.requests[0] += run.count
        try:
            self._appender.submit(ManyBatches(table, size, run.release, run.done))
        except Exception:
            if run.slab is not None:
                run.release()
            raise
        return stop

    def _later(self, call: ProduceCall, request: ParsedProduce) -> None:
        """A topic that we do not know: look at the end of the command log before saying no (L6).

        Who asks to catch up first is served first, so requests that queue up behind such a one keep their order (L16).
        """
        connection = call.connection
        self._late[connection] = self._late.get(connection, 0) + 1

        async def take_when_current() -> None:
            try:
                await self._replica.catch_up()
            except Retry:
                connection.abort()
                call.release()
            else:
                self._take(call, request)
            finally:
                self._late[connection] -= 1
                if not self._late[connection]:
                    del self._late[connection]

        task = asyncio.create_task(take_when_current(), name="produce-to-unknown-topic")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self, call: ProduceCall, request: ParsedProduce) -> None:
        producing = Producing(self, call, request.acks)
        topics = self._replica.state.topics
        for name, partitions in request.topics:
            topic = topics.by_name.get(name) if isinstance(name, str) else topics.by_id.get(name)
            for partition, start, length in partitions:
                try:
                    stream = self.stream(topic, partition, name)
                    time_ms = self._check(producing, request, stream, start, length)
                except Rejected as error:
                    producing.refused.append((name, Produced(partition, error.reason, -1, -1, -1, str(error))))
                    self.refused += 1
                else:
                    producing.waiting.append((name, partition, stream, time_ms))
        if producing.rows:
            self._appender.submit(producing)
        else:
            call.release()
            producing.done([])

    def stream(self, topic: Topic | None, partition: int, name: Name) -> Stream:
        if topic is None:
            by_id = isinstance(name, bytes)
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise Rejected(code, "there is no such topic")
        if not 0 <= partition < len(topic.streams):
            raise Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic has {len(topic.streams)} partitions")
        return self._replica.state.streams.by_id[topic.streams[partition]]

    def _check(self, producing: Producing, request: ParsedProduce, stream: Stream, start: int, length: int) -> int:
        """Add the batch to what is submitted; returns its log append time. Raises Rejected with Kafka's code."""
        if request.acks not in (-1, 1, 0):
            raise Rejected(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}: it has to be 0, 1 or -1")
        if length <= 0:
            raise Rejected(ErrorCode.INVALID_RECORD, "no records")
        rules = self._rules.of(stream.topic)
        if length > rules.max_message_bytes:
            text = f"a batch of {length} bytes; max.message.bytes is {rules.max_message_bytes}"
            raise Rejected(ErrorCode.MESSAGE_TOO_LARGE, text)
        call = producing.call
        assert call.slab is not None, "the bytes are ours until they are released"
        try:
            info = check_batch(call.view, start, length, call.slab.address, MAX_DECOMPRESSED_BYTES)
        except Rejected as error:
            raise Rejected(code_of(error.reason), str(error)) from None
        if info.transactional or request.transactional_id is not None:
            raise Rejected(ErrorCode.INVALID_TXN_STATE, "transactions are not supported yet")
        time_ms, greatest = -1, info.max_timestamp
        if rules.log_append_time:
            time_ms = greatest = self._clock.wall_ms()
            restamp_log_append_time(call.view, start, length, time_ms)
        elif not rules.any_time:
            self._check_time(rules, info.min_timestamp, greatest)
        producing.rows.append(
            (stream.id, info.count, length, greatest, info.producer_id, info.producer_epoch, info.base_sequence)
        )
        producing.views.append(call.view[start : start + length])
        producing.results.append(0)
        producing.size += length
        return time_ms

    def _check_time(self, rules: TopicRules, least: int, greatest: int) -> None:
        now = self._clock.wall_ms()
        if greatest - now > rules.after_max_ms or (least != NO_TIMESTAMP and now - least > rules.before_max_ms):
            raise Rejected(ErrorCode.INVALID_TIMESTAMP, "a timestamp is too far from the broker's time")

    def throttle_ms(self, appended: Iterable[Stream]) -> int:
        """How long to wait with the answer: more the fuller a topic's share of entries is, from half of it on (L20)."""
        streams = self._replica.state.streams
        if streams.entries * 2 < streams.limit:
            return 0
        share = streams.share(len(self._replica.state.topics.by_id))
        fullest: int = max((stream.topic.entries for stream in appended), default=0)
        return max(0, (2 * fullest - share) * THROTTLE_MS // share)

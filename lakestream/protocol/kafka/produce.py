"""Produce (0-13; 0-2 are advertised, as Kafka does for old clients, and refused): the way in.

Departures from Kafka: any broker takes any partition; records of message formats 0 and 1 are refused; acks=1 and
acks=all are the same, since nothing is acknowledged before it is durable.
"""

import asyncio
from collections.abc import Callable

from lakestream.errors import Fenced, LakestreamError, Rejected, Retry
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.batch import NO_TIMESTAMP, restamp_log_append_time
from lakestream.model.check import check_batch
from lakestream.model.pointers import address_of
from lakestream.model.streams import Stream
from lakestream.model.topics import Topic
from lakestream.protocol.kafka.calls import ProduceCall
from lakestream.protocol.kafka.errors import ErrorCode, code_of
from lakestream.protocol.kafka.hot import ParsedProduce
from lakestream.protocol.kafka.hot_answers import Produced, encode_produce_response
from lakestream.stream.appender import Answer, Appender, BatchRow, Submission
from lakestream.stream.rules import Rules, TopicRules

MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024
"""What a compressed batch may become; more is a bomb."""
THROTTLE_MS = 1000



class Producing:
    """One Produce request until its answer: what each partition gets, and which of them wait for the log."""

    __slots__ = ("call", "handler", "topics", "waiting")

    def __init__(self, handler: "ProduceApi", call: ProduceCall) -> None:
        self.handler = handler
        self.call = call
        self.topics: list[tuple[str | bytes, list[Produced]]] = []
        self.waiting: list[tuple[list[Produced], int, Stream, int]] = []
        """Where the result goes, the partition, its stream, its log append time."""

    def done(self, answer: Answer) -> None:
        if isinstance(answer, LakestreamError):
            code = error_code(answer)
            for results, partition, stream, _ in self.waiting:
                results.append(Produced(partition, code, -1, -1, stream.start, str(answer)))
        else:
            for (results, partition, stream, time_ms), result in zip(self.waiting, answer, strict=True):
                if result >= 0:
                    results.append(Produced(partition, 0, result, time_ms, stream.start))
                else:
                    results.append(Produced(partition, code_of(-result), -1, -1, stream.start))
        self.handler.reply(self)


class ProduceApi:
    """Checks batches, hands them to the appender, and answers when they are durable."""

    def __init__(self, replica: Replica, appender: Appender, rules: Rules, clock: Clock) -> None:
        self._replica = replica
        self._appender = appender
        self._rules = rules
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused = 0

    def __call__(self, call: ProduceCall) -> None:
        request: ParsedProduce = call.connection.parser.parse(call.view, call.start, call.end, call.version)
        topics = self._replica.state.topics
        for topic, partitions in request.topics:
            found = topics.by_name.get(topic) if isinstance(topic, str) else topics.by_id.get(topic)
            if found is None or any(partition >= len(found.streams) for partition, _ in partitions):
                self._later(call, request)
                return
        self._take(call, request)

    def _later(self, call: ProduceCall, request: ParsedProduce) -> None:
        """A topic that we do not know: look at the end of the command log before saying no (L6)."""

        async def take_when_current() -> None:
            try:
                await self._replica.catch_up()
            except Retry:
                call.connection.abort()
                call.release()
                return
            self._take(call, request)

        task = asyncio.create_task(take_when_current(), name="produce-to-unknown-topic")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self, call: ProduceCall, request: ParsedProduce) -> None:
        producing = Producing(self, call)
        rows: list[BatchRow] = []
        views: list[memoryview] = []
        state = self._replica.state
        for topic, partitions in request.topics:
            results: list[Produced] = []
            producing.topics.append((topic, results))
            found = state.topics.by_name.get(topic) if isinstance(topic, str) else state.topics.by_id.get(topic)
            for partition, records in partitions:
                try:
                    stream = self._stream(found, partition, topic)
                    view, row, time_ms = self._check(request, stream, records)
                except Rejected as error:
                    results.append(Produced(partition, error.reason, -1, -1, -1, str(error)))
                    self.refused += 1
                else:
                    rows.append(row)
                    views.append(view)
                    producing.waiting.append((results, partition, stream, time_ms))
        if rows:
            self._appender.submit(Submission(rows, views, call.release, self._done(producing, request.acks)))
        else:
            call.release()
            self._done(producing, request.acks)([])

    def _done(self, producing: Producing, acks: int) -> Callable[[Answer], None]:
        if acks:
            return producing.done

        def unanswered(answer: Answer) -> None:
            """acks=0: there is no answer; that something went wrong shows as a closed connection, as in Kafka."""
            failed = any(one.error_code for _, results in producing.topics for one in results)
            if failed or isinstance(answer, LakestreamError) or any(result < 0 for result in answer):
                producing.call.connection.abort()
            producing.call.answer(None)

        return unanswered

    def _stream(self, topic: Topic | None, partition: int, name: str | bytes) -> Stream:
        if topic is None:
            by_id = isinstance(name, bytes)
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise Rejected(code, "there is no such topic")
        if not 0 <= partition < len(topic.streams):
            raise Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic has {len(topic.streams)} partitions")
        return self._replica.state.streams.by_id[topic.streams[partition]]

    def _check(
        self, request: ParsedProduce, stream: Stream, records: memoryview | None
    ) -> tuple[memoryview, BatchRow, int]:
        """The batch, its row for the command, and its log append time. Raises Rejected with Kafka's code."""
        if request.acks not in (0, 1, -1):
            raise Rejected(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}: it has to be 0, 1 or -1")
        if not records:
            raise Rejected(ErrorCode.INVALID_RECORD, "no records")
        rules = self._rules.of(stream.topic)
        if len(records) > rules.max_message_bytes:
            text = f"a batch of {len(records)} bytes; max.message.bytes is {rules.max_message_bytes}"
            raise Rejected(ErrorCode.MESSAGE_TOO_LARGE, text)
        try:
            info = check_batch(records, 0, len(records), address_of(records), MAX_DECOMPRESSED_BYTES)
        except Rejected as error:
            raise Rejected(code_of(error.reason), str(error)) from None
        if info.transactional or request.transactional_id is not None:
            raise Rejected(ErrorCode.INVALID_TXN_STATE, "transactions are not supported yet")
        time_ms, greatest = -1, info.max_timestamp
        if rules.log_append_time:
            time_ms = greatest = self._clock.wall_ms()
            if records.readonly:
                records = memoryview(bytearray(records))
            restamp_log_append_time(records, 0, len(records), time_ms)
        elif not rules.any_time:
            self._check_time(rules, info.min_timestamp, info.max_timestamp)
        row = (stream.id, info.count, info.length, greatest, info.producer_id, info.producer_epoch, info.base_sequence)
        return records, row, time_ms

    def _check_time(self, rules: TopicRules, least: int, greatest: int) -> None:
        now = self._clock.wall_ms()
        if greatest - now > rules.after_max_ms or (least != NO_TIMESTAMP and now - least > rules.before_max_ms):
            raise Rejected(ErrorCode.INVALID_TIMESTAMP, "a timestamp is too far from the broker's time")

    def reply(self, producing: Producing) -> None:
        """Answer; late, and saying so, if a topic holds more entries than half its share (L20)."""
        call = producing.call
        throttle_ms = self._throttle_ms(producing)
        frame = encode_produce_response(call.version, call.correlation_id, producing.topics, throttle_ms)
        if throttle_ms:
            asyncio.get_running_loop().call_later(throttle_ms / 1000, call.answer, frame)
        else:
            call.answer(frame)

    def _throttle_ms(self, producing: Producing) -> int:
        streams = self._replica.state.streams
        if streams.entries * 2 < streams.limit:
            return 0
        share = streams.share(len(self._replica.state.topics.by_id))
        fullest: int = max((stream.topic.entries for _, _, stream, _ in producing.waiting), default=0)
        return max(0, (2 * fullest - share) * THROTTLE_MS // share)


def error_code(error: LakestreamError) -> int:
    """Unknown is REQUEST_TIMED_OUT: never a code that means "not persisted" (L17)."""
    if isinstance(error, Fenced):
        return int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if isinstance(error, Retry):
        return int(ErrorCode.KAFKA_STORAGE_ERROR)
    return int(ErrorCode.REQUEST_TIMED_OUT)

"""Produce (0-13; 0-2 are advertised, as Kafka does for old clients, and refused): appends records.

Departures from Kafka: any broker takes any partition; records of message formats 0 and 1 are refused; acks=1 and
acks=all are the same, since nothing is acknowledged before it is durable.
"""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lakestream.errors import LakestreamError, Rejected, Retry
from lakestream.interfaces import Clock
from lakestream.model.append_rows import BatchRow
from lakestream.model.batches.check import check_batch
from lakestream.model.batches.compression import MAX_DECOMPRESSED_BYTES
from lakestream.model.batches.header import NO_TIMESTAMP, BatchInfo, Codec, Fault
from lakestream.model.batches.records import decode_columns
from lakestream.model.kernels.record_loops import KEY_SIZE
from lakestream.model.streams import Stream
from lakestream.model.topics import Topic
from lakestream.protocol.kafka.connections.calls import ProduceCall
from lakestream.protocol.kafka.connections.produce_runs import ProduceRuns, partition_answer
from lakestream.protocol.kafka.errors import ErrorCode, code_of
from lakestream.protocol.kafka.wire.fast_answers import Produced, encode_one_produced, encode_produce_response
from lakestream.protocol.kafka.wire.fast_requests import ParsedProduce
from lakestream.stream.rules import TopicRules
from lakestream.stream.streams import FrontDoor, TopicKey
from lakestream.stream.submissions import AppendAnswer

if TYPE_CHECKING:
    from lakestream.protocol.kafka.connections.connection import Connection

INLINE_DECOMPRESSED_BYTES = 4 * 1024 * 1024
"""Bodies up to this size are decompressed on the event loop; larger ones in a thread, so that no other client waits."""
CHECK_THREADS = 2
ZSTD_SINCE = 7
"""The first version whose clients know zstd."""
NAMED_RECORDS_MAX = 1000
"""Of a batch that is refused for some of its records: so many are looked at, to name those."""
IN_THE_LOG = (Fault.INVALID_RECORD, Fault.INVALID_TIMESTAMP, Fault.INVALID_EPOCH, Fault.NO_KEY)
"""Faults that Kafka finds only when it appends: its answer then has the log start."""


class Producing:
    """One Produce request until its answer: its batches for the appender, and the answer of each partition."""

    __slots__ = ("acks", "api", "call", "refused", "results", "rows", "size", "stamped", "views", "waiting")

    def __init__(self, api: "ProduceApi", call: ProduceCall, acks: int) -> None:
        self.api = api
        self.call = call
        self.acks = acks
        self.size = 0
        self.rows: list[BatchRow] = []
        self.views: list[memoryview] = []
        self.results: list[int] = []
        self.stamped: list[int] = []
        self.waiting: list[tuple[TopicKey, int, Stream]] = []
        """Of each row: the topic as it was named, the partition, its stream."""
        self.refused: list[tuple[TopicKey, Produced]] = []

    def release(self) -> None:
        self.call.release()

    def done(self, answer: AppendAnswer) -> None:
        if not self.acks:
            self._unanswered(answer)
        elif type(answer) is list and len(answer) == 1 and answer[0] >= 0 and not self.refused:
            name, partition, stream = self.waiting[0]
            time_ms = self.api.streams.append_time(stream, self.rows[0]) if self.stamped else -1
            call, throttle_ms = self.call, self.api.streams.throttle_ms((stream,))
            frame = encode_one_produced(
                call.version, call.correlation_id, name, partition, 0, answer[0], time_ms, stream.start, throttle_ms
            )
            self._answer(frame, throttle_ms)
        else:
            self._answer_all(answer)

    def _unanswered(self, answer: AppendAnswer) -> None:
        """acks=0: there is no answer; that something went wrong shows as a closed connection, as in Kafka."""
        if self.refused or isinstance(answer, LakestreamError) or any(result < 0 for result in answer):
            self.call.connection.abort()
        self.call.answer(None)

    def _answer_all(self, answer: AppendAnswer) -> None:
        topics: dict[TopicKey, list[Produced]] = {}
        for name, refused in self.refused:
            topics.setdefault(name, []).append(refused)
        stamped = set(self.stamped)
        for index, (name, partition, stream) in enumerate(self.waiting):
            time_ms = self.api.streams.append_time(stream, self.rows[index]) if index in stamped else -1
            result = answer if isinstance(answer, LakestreamError) else answer[index]
            topics.setdefault(name, []).append(partition_answer(partition, stream, time_ms, result))
        call, throttle_ms = self.call, self.api.streams.throttle_ms([stream for _, _, stream in self.waiting])
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
    """Checks batches, submits them, and answers when they are durable."""

    def __init__(self, streams: FrontDoor, clock: Clock) -> None:
        self.streams = streams
        self._submit = streams.submit
        self._rules = streams.rules
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._late: dict[Connection, deque[tuple[ProduceCall, ParsedProduce, bool]]] = {}
        """Requests that wait, until we are current or their bodies are checked, and all that came behind them."""
        self._checks = ThreadPoolExecutor(CHECK_THREADS, "produce-check")
        self.take_run = ProduceRuns(streams, clock, self._late).take
        self.refused = 0

    def __call__(self, call: ProduceCall) -> None:
        request: ParsedProduce = call.connection.parser.parse(call.view, call.start, call.end, call.version)
        if (self._late and call.connection in self._late) or not self._knows(request):
            self._later(call, request)
            return
        try:
            checked = self._checked(call, request, None)
        except _LargeBody:
            self._later(call, request, large=True)
        else:
            self._take(call, request, checked)

    def _knows(self, request: ParsedProduce) -> bool:
        """Whether all topics and partitions are in the state at hand."""
        for name, partitions in request.topics:
            topic = self.streams.topic(name)
            if topic is None:
                return False
            known = len(topic.streams)
            for partition, _, _ in partitions:
                if partition >= known:
                    return False
        return True

    def _later(self, call: ProduceCall, request: ParsedProduce, large: bool = False) -> None:
        """A request that cannot be taken up at once; those of its connection that come behind it wait too (L16).

        `large`: it was found to have a large body.
        """
        connection = call.connection
        waiting = self._late.get(connection)
        if waiting is not None:
            waiting.append((call, request, large))
            return
        self._late[connection] = deque([(call, request, large)])
        task = asyncio.create_task(self._take_late(connection), name="late-produce")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_late(self, connection: "Connection") -> None:
        """Take up what waits, in its order.

        For a topic that we do not know we look at the end of the command log before saying no (L6). A large body is
        decompressed and checked in a thread, so that no other client waits.
        """
        waiting = self._late[connection]
        try:
            while waiting:
                call, request, large = waiting[0]
                try:
                    if not self._knows(request):
                        await self.streams.catch_up()
                    self._take(call, request, await self._checked_late(call, request, large))
                except Retry:
                    connection.abort()
                    call.release()
                except Exception as error:
                    if call.slab is not None:
                        call.release()
                    connection.refuse("failure", "Produce failed", error)
                waiting.popleft()
        finally:
            del self._late[connection]

    async def _checked_late(
        self, call: ProduceCall, request: ParsedProduce, large: bool
    ) -> list[BatchInfo | Produced]:
        if not large:
            try:
                return self._checked(call, request, None)
            except _LargeBody:
                pass
        keyed = self._keyed(request)
        bodies = await asyncio.get_running_loop().run_in_executor(self._checks, _check_bodies, call, request, keyed)
        return self._checked(call, request, bodies)

    def _keyed(self, request: ParsedProduce) -> set[TopicKey]:
        """The topics of a request that take no records without a key."""
        topics = ((name, self.streams.topic(name)) for name, _ in request.topics)
        return {name for name, topic in topics if topic is not None and self._rules.of(topic).compacted}

    def _checked(
        self, call: ProduceCall, request: ParsedProduce, large: dict[int, BatchInfo | Rejected] | None
    ) -> list[BatchInfo | Produced]:
        """For each batch of the request its header, or the refusal that its partition gets.

        `large` has the results of a thread, by where each body starts. Without it, raises _LargeBody if a body needs
        a thread.
        """
        found: list[BatchInfo | Produced] = []
        for name, partitions in request.topics:
            topic = self.streams.topic(name)
            for partition, start, length in partitions:
                log_start = -1
                try:
                    stream = self.stream(topic, partition, name)
                    log_start = stream.start
                    found.append(self._check(call, request, self._rules.of(stream.topic), start, length, large))
                except Rejected as error:
                    found.append(_refusal(partition, log_start, error))
        return found

    def _check(
        self, call: ProduceCall, request: ParsedProduce, rules: TopicRules, start: int, length: int,
        large: dict[int, BatchInfo | Rejected] | None,
    ) -> BatchInfo:  # fmt: skip
        if request.acks not in (-1, 1, 0):
            raise Rejected(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; allowed are 0, 1 and -1")
        if length <= 0:
            raise Rejected(ErrorCode.INVALID_RECORD, "no records")
        if length > rules.max_message_bytes:
            text = f"a batch of {length} bytes; max.message.bytes is {rules.max_message_bytes}"
            raise Rejected(ErrorCode.MESSAGE_TOO_LARGE, text)
        assert call.slab is not None, "the bytes are ours until they are released"
        if large is None:
            try:
                info = check_batch(
                    call.view, start, length, call.slab.address, INLINE_DECOMPRESSED_BYTES, rules.compacted
                )
            except Rejected as error:
                if error.reason == Fault.TOO_LARGE:
                    raise _LargeBody from None
                if error.reason == Fault.NO_KEY:
                    raise _BadRecords(error.reason, str(error), _keyless(call.view[start : start + length])) from None
                raise
        else:
            known = large[start]
            if isinstance(known, Rejected):
                raise known
            info = known
        if info.transactional:
            raise Rejected(ErrorCode.INVALID_TXN_STATE, "transactions are not supported yet")
        if info.codec == Codec.ZSTD and call.version < ZSTD_SINCE:
            text = f"zstd came with version {ZSTD_SINCE} of Produce"
            raise Rejected(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text)
        if not (rules.log_append_time or rules.any_time):
            now = self._clock.wall_ms()
            if not _timely(rules, now, info.min_timestamp) or not _timely(rules, now, info.max_timestamp):
                named = large is None or not info.codec
                bad = _untimely(call.view[start : start + length], rules, now) if named else ()
                raise _BadRecords(Fault.INVALID_TIMESTAMP, "a timestamp is too far from the broker's time", bad)
        return info

    def _take(self, call: ProduceCall, request: ParsedProduce, checked: list[BatchInfo | Produced]) -> None:
        """Hand the batches that are fine to the appender."""
        producing = Producing(self, call, request.acks)
        at = 0
        for name, partitions in request.topics:
            topic = self.streams.topic(name)
            for partition, start, length in partitions:
                info = checked[at]
                at += 1
                if isinstance(info, Produced):
                    producing.refused.append((name, info))
                    self.refused += 1
                else:
                    stream = self.stream(topic, partition, name)
                    self._add(producing, stream, info, start, length)
                    producing.waiting.append((name, partition, stream))
        if producing.rows:
            self._submit(producing)
        else:
            call.release()
            producing.done([])

    def _add(self, producing: Producing, stream: Stream, info: BatchInfo, start: int, length: int) -> None:
        """Add the batch to what is submitted; the tick that takes it gives it its append time, if it wants one."""
        view = producing.call.view
        if self._rules.of(stream.topic).log_append_time:
            producing.stamped.append(len(producing.rows))
        producing.rows.append(
            (
                stream.id, info.count, length, info.max_timestamp, info.producer_id, info.producer_epoch,
                info.base_sequence,
            )
        )  # fmt: skip
        producing.views.append(view[start : start + length])
        producing.results.append(0)
        producing.size += length

    def stream(self, topic: Topic | None, partition: int, name: TopicKey) -> Stream:
        if topic is None:
            by_id = isinstance(name, bytes)
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise Rejected(code, "there is no such topic")
        if not 0 <= partition < len(topic.streams):
            raise Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic has {len(topic.streams)} partitions")
        return self.streams.state.streams.by_id[topic.streams[partition]]


class _BadRecords(Rejected):
    """A batch is refused for some of its records: these, by their places in it."""

    def __init__(self, fault: int, message: str, records: tuple[int, ...]) -> None:
        super().__init__(fault, message)
        self.records = records


def _timely(rules: TopicRules, now: int, timestamp: int) -> bool:
    return timestamp == NO_TIMESTAMP or -rules.before_max_ms <= timestamp - now <= rules.after_max_ms


def _untimely(batch: memoryview, rules: TopicRules, now: int) -> tuple[int, ...]:
    times = decode_columns(batch, MAX_DECOMPRESSED_BYTES).timestamps[:NAMED_RECORDS_MAX].tolist()
    return tuple(place for place, timestamp in enumerate(times) if not _timely(rules, now, timestamp))


def _keyless(batch: memoryview) -> tuple[int, ...]:
    sizes = decode_columns(batch, MAX_DECOMPRESSED_BYTES).fields[KEY_SIZE, :NAMED_RECORDS_MAX].tolist()
    return tuple(place for place, size in enumerate(sizes) if size < 0)


def _refusal(partition: int, log_start: int, error: Rejected) -> Produced:
    """The answer for a refused batch. The reason is a Fault, or already one of Kafka's codes."""
    code = code_of(error.reason) if isinstance(error.reason, Fault) else error.reason
    records = error.records if isinstance(error, _BadRecords) else ()
    return Produced(partition, code, -1, -1, log_start if error.reason in IN_THE_LOG else -1, str(error), records)


class _LargeBody(Exception):
    """A batch decompresses to more than INLINE_DECOMPRESSED_BYTES."""


def _check_bodies(
    call: ProduceCall, request: ParsedProduce, keyed: set[TopicKey]
) -> dict[int, BatchInfo | Rejected]:
    """For a thread: what the batches of a request are, by where they start, or what is wrong with them."""
    assert call.slab is not None, "the bytes are ours until they are released"
    found: dict[int, BatchInfo | Rejected] = {}
    for name, partitions in request.topics:
        for _, start, length in partitions:
            try:
                found[start] = check_batch(
                    call.view, start, length, call.slab.address, MAX_DECOMPRESSED_BYTES, name in keyed
                )
            except Rejected as error:
                found[start] = _bare(error)
    return found


def _bare(error: Rejected) -> Rejected:
    """The same without its traceback, which would hold all that was decompressed until the garbage collector comes."""
    return Rejected(error.reason, str(error))

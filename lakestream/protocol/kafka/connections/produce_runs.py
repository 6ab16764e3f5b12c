"""Runs: simple Produce requests that arrived together are taken up, appended and answered as one.

A client that pipelines tiny requests costs interpreter time for each of them, unless one receive's requests are taken
up together. A request is simple if it begins like the connection's last one and has one sound, uncompressed, small
batch that all rules allow. A run ends before the first other request, which goes the general way.
"""

import asyncio
from collections.abc import Container
from typing import TYPE_CHECKING, Final

import numpy as np

from lakestream.errors import Fenced, LakestreamError, Retry
from lakestream.interfaces import Clock
from lakestream.model.kernels.pointers import address_of
from lakestream.model.kernels.produce_loops import (
    COLUMNS,
    CORRELATION,
    LOG_START,
    PARTITION,
    STREAM,
    find_run,
    write_answers,
)
from lakestream.model.streams import Stream
from lakestream.model.topics import Topic
from lakestream.protocol.kafka.connections.calls import LEAST_RUN
from lakestream.protocol.kafka.errors import ErrorCode, code_of
from lakestream.protocol.kafka.wire.fast_answers import Produced, answer_template, encode_produce_response
from lakestream.protocol.kafka.wire.fast_requests import RunPrefix
from lakestream.protocol.serving.connection import AnswerSlot
from lakestream.protocol.serving.slabs import Slab
from lakestream.stream.batch_tables import ManyBatches, Numbers
from lakestream.stream.rules import TopicRules
from lakestream.stream.streams import FrontDoor

if TYPE_CHECKING:
    from lakestream.protocol.kafka.connections.connection import Connection

RUN_LIMIT: Final = 1024
"""Requests in one run."""
BATCH_BYTES_MAX: Final = 4096
"""Larger batches go the general way: the work for each is small beside their bytes."""
_AROUND: Final = 19
"""The most bytes of a frame, its length aside, that are neither prefix nor batch."""
_EARLIEST: Final = -(2**63)
_LATEST: Final = 2**63 - 1


class ProduceRun(AnswerSlot):
    """Some requests for one topic, until their answers."""

    __slots__ = ("_door", "_name", "_streams", "_table", "_version", "count", "slab")

    def __init__(
        self, door: FrontDoor, connection: "Connection", slab: Slab, prefix: RunPrefix, topic: Topic, table: Numbers
    ) -> None:
        super().__init__(connection)
        self._door = door
        self._version = prefix.version
        self._name = prefix.topic
        self._table = table
        self.count = len(table)
        self.slab: Slab | None = slab
        partitions = table[:, PARTITION].tolist()
        by_id = door.state.streams.by_id
        self._streams: dict[int, Stream] = {one: by_id[topic.streams[one]] for one in set(partitions)}
        table[:, STREAM] = [self._streams[one].id for one in partitions]

    def release(self) -> None:
        slab, self.slab = self.slab, None
        assert slab is not None, "a run is released once"
        slab.release()

    def done(self, answer: Numbers | LakestreamError) -> None:
        throttle_ms = self._door.throttle_ms(self._streams.values())
        if throttle_ms:
            reply = self._each(answer, throttle_ms)
            asyncio.get_running_loop().call_later(throttle_ms / 1000, self.answer, reply)
        elif isinstance(answer, LakestreamError):
            self.answer(self._each(answer, 0))
        else:
            self.answer(self._all_good(answer) or self._each(answer, 0))

    def _all_good(self, results: Numbers) -> bytes:
        """All answers; nothing if one of them is an error."""
        template, table = answer_template(self._version, self._name), self._table
        table[:, LOG_START] = [self._streams[one].start for one in table[:, PARTITION].tolist()]
        size = len(template.frame)
        reply = bytearray(size * self.count)
        written = write_answers(
            table.__array_interface__["data"][0], self.count, results.__array_interface__["data"][0], template.address,
            size, template.partition_at, template.log_start_at, address_of(reply),
        )  # fmt: skip
        return bytes(reply) if written else b""

    def _each(self, answer: Numbers | LakestreamError, throttle_ms: int) -> bytes:
        frames = []
        for index, (correlation_id, partition) in enumerate(self._table[:, (CORRELATION, PARTITION)].tolist()):
            result = answer if isinstance(answer, LakestreamError) else int(answer[index])
            produced = partition_answer(partition, self._streams[partition], -1, result)
            frames.append(
                encode_produce_response(self._version, correlation_id, [(self._name, [produced])], throttle_ms)
            )
        return b"".join(frames)


class ProduceRuns:
    """Finds runs in what connections received, and takes them up. One for all connections: it remembers nothing.

    `late`: the connections that have requests waiting, behind which nothing may be taken up (L16).
    """

    def __init__(self, streams: FrontDoor, clock: Clock, late: "Container[Connection]") -> None:
        self._streams = streams
        self._submit = streams.submit
        self._clock = clock
        self._late = late
        self._table: Numbers = np.zeros((RUN_LIMIT, COLUMNS), np.int64)
        self._address = int(self._table.ctypes.data)

    def take(self, connection: "Connection", slab: Slab, start: int, end: int, limit: int) -> int:
        """Take up the run that begins at `start`, and return where it ends: `start` if there is none.

        The run has its place in the connection's order before it is submitted, since it may be answered at once.
        """
        prefix = connection.parser.run_prefix()
        if prefix is None or connection in self._late:
            return start
        topic = self._streams.topic(prefix.topic)
        if topic is None:
            return start
        rules = self._streams.rules.of(topic)
        if rules.log_append_time or rules.compacted:
            return start
        now_ms = 0 if rules.any_time else self._clock.wall_ms()
        frame_bytes_max = connection.board.limits.max_frame_bytes
        found = self._find(slab, start, end, limit, frame_bytes_max, prefix, topic, rules, now_ms)
        if found is None:
            return start
        table, stop, size = found
        run = ProduceRun(self._streams, connection, slab, prefix, topic, table)
        slab.pins += 1
        connection.answers.append(run)
        connection.in_runs += run.count - 1
        connection.board.stats.requests[0] += run.count
        try:
            self._submit(ManyBatches(table, size, run.release, run.done))
        except Exception:
            if run.slab is not None:
                run.release()
            raise
        return stop

    def _find(
        self, slab: Slab, start: int, end: int, limit: int, frame_bytes_max: int, prefix: RunPrefix, topic: Topic,
        rules: TopicRules, now_ms: int,
    ) -> tuple[Numbers, int, int] | None:  # fmt: skip
        """The table of a run in slab[start:end], where it ends, and the bytes of its batches; None if there is none."""
        earliest, latest = _EARLIEST, _LATEST
        if not rules.any_time:
            earliest, latest = max(now_ms - rules.before_max_ms, _EARLIEST), min(now_ms + rules.after_max_ms, _LATEST)
        longest = min(rules.max_message_bytes, BATCH_BYTES_MAX, frame_bytes_max - prefix.size - _AROUND)
        count, stop, size = find_run(
            slab.address + start, slab.address + end, min(limit, RUN_LIMIT), prefix.version, prefix.address,
            prefix.size, len(topic.streams), longest, earliest, latest, self._address,
        )  # fmt: skip
        if count < LEAST_RUN:
            return None
        return self._table[:count].copy(), stop - slab.address, size


def partition_answer(partition: int, stream: Stream, time_ms: int, result: int | LakestreamError) -> Produced:
    """The answer for one partition whose batch was submitted."""
    if isinstance(result, LakestreamError):
        return Produced(partition, error_code(result), -1, -1, stream.start, str(result))
    if result >= 0:
        return Produced(partition, 0, result, time_ms, stream.start)
    return Produced(partition, code_of(-result), -1, -1, stream.start)


def error_code(error: LakestreamError) -> int:
    """Unknown is REQUEST_TIMED_OUT: never a code that means "not persisted" (L17)."""
    if isinstance(error, Fenced):
        return int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if isinstance(error, Retry):
        return int(ErrorCode.KAFKA_STORAGE_ERROR)
    return int(ErrorCode.REQUEST_TIMED_OUT)

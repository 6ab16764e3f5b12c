"""Where a log begins and ends: ListOffsets (versions 1 to 11), OffsetForLeaderEpoch (2 to 4).

Departures from Kafka: the leader epoch is 0 for ever (L7), so a client that knows a higher one is wrong. There is no
tiered log: the earliest local offset is the log start, and nothing is tiered or waits for it.
"""

import asyncio
from collections import Counter
from typing import NamedTuple

from lakestream.errors import LakestreamError
from lakestream.model.batches.header import LEADER_EPOCH
from lakestream.model.streams import Stream
from lakestream.protocol.kafka.connections.calls import Handler, RequestContext
from lakestream.protocol.kafka.connections.large_answers import ITEMS_AT_ONCE, large_answer
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.fetch import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochEnd,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from lakestream.protocol.kafka.refusals import Refusal, refusal, stale
from lakestream.stream.long_work import chunks
from lakestream.stream.streams import FrontDoor

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
SINCE_VERSION = {
    LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip
TRY_AGAIN = ErrorCode.LEADER_NOT_AVAILABLE


class Place(NamedTuple):
    """An answer of ListOffsets: an offset and its record's time, -1 where there is none."""

    offset: int = -1
    timestamp: int = -1
    epoch: int = -1


class OffsetApis:
    """Answers where logs begin and end, and which offset a time has."""

    def __init__(self, streams: FrontDoor) -> None:
        self._streams = streams

    def handlers(self) -> dict[int, Handler]:
        return {2: self.list_offsets, 23: self.offset_for_leader_epoch}

    async def list_offsets(self, context: RequestContext, request: ListOffsetsRequest) -> object:
        """Ends and noes are current: one look at the log's end serves the whole request (L6)."""
        failed = await stale(self._streams, TRY_AGAIN)
        asked = [(topic.name, partition) for topic in request.topics for partition in topic.partitions]
        times = Counter((name, partition.partition_index) for name, partition in asked)

        async def answer(name: str, partition: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
            index = partition.partition_index
            repeated = times[name, index] > 1
            found = failed or await self._place(name, partition, context.version, repeated)
            if isinstance(found, Refusal):
                return ListOffsetsPartitionResponse(partition_index=index, error_code=found.code)
            return ListOffsetsPartitionResponse(
                partition_index=index, timestamp=found.timestamp, offset=found.offset, leader_epoch=found.epoch
            )

        answers: list[ListOffsetsPartitionResponse] = []
        for some in chunks(asked, ITEMS_AT_ONCE):
            answers += await asyncio.gather(*(answer(*one) for one in some))
        topics: dict[str, dict[int, ListOffsetsPartitionResponse]] = {topic.name: {} for topic in request.topics}
        for (name, _), one in zip(asked, answers, strict=True):
            topics[name][one.partition_index] = one
        response = ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(name=name, partitions=list(answered.values()))
                for name, answered in topics.items()
            ]
        )
        return await large_answer(context, response, len(asked))

    async def _place(
        self, name: str, partition: ListOffsetsPartition, version: int, repeated: bool
    ) -> Place | Refusal:
        when = partition.timestamp
        if repeated:
            return Refusal(ErrorCode.INVALID_REQUEST, "a partition is asked for once")
        if when < 0 and version < SINCE_VERSION.get(when, version + 1):
            return Refusal(ErrorCode.UNSUPPORTED_VERSION, f"version {version} has no offset {when}")
        stream = self._stream(name, partition.partition_index, partition.current_leader_epoch)
        if isinstance(stream, ErrorCode):
            return Refusal(stream, "")
        if when == LATEST:
            return Place(stream.next, epoch=LEADER_EPOCH)
        if when in (EARLIEST, EARLIEST_LOCAL):
            return Place(stream.start, epoch=LEADER_EPOCH)
        if when in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return Place()
        try:
            latest = when == MAX_TIMESTAMP
            found = await (self._streams.find_latest(stream) if latest else self._streams.find_time(stream, when))
        except LakestreamError as error:
            return refusal(error, TRY_AGAIN)
        return Place() if found is None else Place(found.offset, found.timestamp, LEADER_EPOCH)

    async def offset_for_leader_epoch(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        failed = await stale(self._streams, TRY_AGAIN)
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic, partitions=[self._end(topic.topic, one, failed) for one in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    def _end(
        self, name: str, partition: OffsetForLeaderPartition, failed: Refusal | None
    ) -> OffsetForLeaderEpochEnd:
        index = partition.partition
        if failed is not None:
            return OffsetForLeaderEpochEnd(partition=index, error_code=failed.code)
        stream = self._stream(name, index, partition.current_leader_epoch)
        if isinstance(stream, ErrorCode):
            return OffsetForLeaderEpochEnd(partition=index, error_code=stream)
        if partition.leader_epoch != LEADER_EPOCH:
            return OffsetForLeaderEpochEnd(partition=index)
        return OffsetForLeaderEpochEnd(partition=index, leader_epoch=LEADER_EPOCH, end_offset=stream.next)

    def _stream(self, name: str, partition: int, known_epoch: int) -> Stream | ErrorCode:
        """The stream of a partition, if there is one and the client's idea of its leader epoch can be right."""
        stream = self._streams.stream(name, partition)
        if stream is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if known_epoch > LEADER_EPOCH:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if known_epoch < -1:
            return ErrorCode.FENCED_LEADER_EPOCH
        return stream

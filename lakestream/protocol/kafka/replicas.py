"""Replicas on disks: DescribeLogDirs (versions 1 to 5), ListPartitionReassignments (0).

Departures from Kafka: there is one copy of a partition, in the place that all brokers share, which is shown as one log
dir. The broker that Metadata names as the leader reports the copy, so that the sizes of all brokers add up to what is
stored. A size is that of the record batches in the write-ahead log: what has landed in a table is not in it. Free space
is known where the place is a folder. Nothing is ever reassigned.
"""

import asyncio
import os
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from lakestream.metadata.replica import Replica
from lakestream.model.placement import rankings
from lakestream.model.topics import Topic
from lakestream.protocol.kafka.connections.calls import Handler, RequestContext
from lakestream.protocol.kafka.connections.large_answers import ITEMS_AT_ONCE, large_answer
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.replicas import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from lakestream.protocol.kafka.refusals import stale

TOPICS_AT_ONCE = 100
UNKNOWN_SPACE = (-1, -1)


class ReplicaApis:
    """Shows where partitions lie. `place` is the URI of the store; a folder has a path too, whose disk is asked."""

    def __init__(self, replica: Replica, place: str, folder: Path | None) -> None:
        self._replica = replica
        self._log_dir = str(folder) if folder is not None else without_secrets(place)
        self._folder = folder

    def handlers(self) -> dict[int, Handler]:
        return {35: self.describe_log_dirs, 46: self.list_partition_reassignments}

    async def describe_log_dirs(self, context: RequestContext, request: DescribeLogDirsRequest) -> object:
        if await stale(self._replica) is not None:
            return DescribeLogDirsResponse(
                results=[DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=self._log_dir)]
            )
        result = DescribeLogDirsResult(log_dir=self._log_dir)
        result.total_bytes, result.usable_bytes = await self._space()
        shown = 0
        for number, (topic, wanted) in enumerate(self._asked(request)):
            if number % TOPICS_AT_ONCE == TOPICS_AT_ONCE - 1:
                await asyncio.sleep(0)
            partitions = await self._led(topic, wanted)
            shown += len(partitions)
            if partitions:
                result.topics.append(DescribeLogDirsTopic(name=topic.name, partitions=partitions))
        return await large_answer(context, DescribeLogDirsResponse(results=[result]), shown)

    def _asked(self, request: DescribeLogDirsRequest) -> list[tuple[Topic, set[int] | None]]:
        """The topics of a request that exist, with the partitions asked for; None for all of them."""
        topics = self._replica.state.topics.by_name
        if request.topics is None:
            return [(topic, None) for topic in topics.values()]
        asked: dict[str, set[int]] = {}
        for one in request.topics:
            asked.setdefault(one.topic, set()).update(one.partitions)
        return [(topics[name], wanted) for name, wanted in asked.items() if name in topics]

    async def _led(self, topic: Topic, wanted: set[int] | None) -> list[DescribeLogDirsPartition]:
        """The partitions of a topic that this broker leads, with their sizes."""
        state, own = self._replica.state, self._replica.member_id
        brokers = tuple(broker.id for broker in state.members.brokers())
        found = []
        for start in range(0, len(topic.streams), ITEMS_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            span = range(start, min(start + ITEMS_AT_ONCE, len(topic.streams)))
            for partition, order in zip(span, rankings(brokers, topic.id, span), strict=True):
                stream = state.streams.by_id.get(topic.streams[partition])
                if order[:1] == [own] and stream is not None and (wanted is None or partition in wanted):
                    found.append(DescribeLogDirsPartition(partition_index=partition, partition_size=stream.size))
        return found

    async def _space(self) -> tuple[int, int]:
        """Total and free bytes of the disk below the folder; -1 if unknown."""
        if self._folder is None:
            return UNKNOWN_SPACE
        try:
            status = await asyncio.to_thread(os.statvfs, self._folder)
        except OSError:
            return UNKNOWN_SPACE
        return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize

    async def list_partition_reassignments(
        self, context: RequestContext, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse()


def without_secrets(place: str) -> str:
    """A place without the user, password and query that its URI may have."""
    parts = urlsplit(place)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

"""DescribeTopicPartitions (version 0): topics in pages, ordered by name, with a cursor to the next page.

Departures from Kafka: those of Metadata. No replica is ever out of sync, so the lists of eligible leaders are empty.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from lakestream.metadata.replica import Replica
from lakestream.model.topics import Topic, name_problem
from lakestream.protocol.kafka.connections.calls import Handler, RequestContext
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.metadata import (
    DescribedPartition,
    DescribedTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    PartitionCursor,
)
from lakestream.protocol.kafka.metadata import INTERNAL_TOPICS, TOPIC_OPERATIONS, TRY_AGAIN, shown_partitions
from lakestream.protocol.kafka.refusals import stale

PAGE_PARTITIONS_MAX: Final = 2000
"""Kafka's `max.request.partition.size.limit`."""
NAMES_AT_ONCE: Final = 5000


class TopicPartitionApis:
    """Describes topics page by page."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def handlers(self) -> dict[int, Handler]:
        return {75: self.describe_topic_partitions}

    async def describe_topic_partitions(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse:
        asked = {one.name for one in request.topics}
        cursor = request.cursor or PartitionCursor()
        if _is_wrong(request.cursor, asked):
            return _all_refused(asked, ErrorCode.INVALID_REQUEST)
        if not asked:
            # An answer has no place for a code but its topics: without them no answer, as of Metadata, is better than
            # an empty list.
            await self._replica.catch_up()
        elif await stale(self._replica) is not None:
            return _all_refused(asked, TRY_AGAIN)
        by_name = self._replica.state.topics.by_name
        limit = max(1, min(request.response_partition_limit, PAGE_PARTITIONS_MAX))
        # Topics that are not there take no room on the page: the next one that is there is behind all of them.
        unknown = sum(name not in by_name for name in asked)
        names = await first_names(list(asked or by_name), cursor.topic_name, limit + 1 + unknown)
        answer = DescribeTopicPartitionsResponse()
        for name in names:
            if limit == 0:
                answer.next_cursor = PartitionCursor(topic_name=name, partition_index=0)
                break
            first = cursor.partition_index if name == cursor.topic_name else 0
            topic = by_name.get(name)
            if topic is not None:
                described = self._described(topic, first, limit)
                answer.topics.append(described)
                behind = first + len(described.partitions)
                if behind < len(topic.streams):
                    answer.next_cursor = PartitionCursor(topic_name=name, partition_index=behind)
                    break
                limit -= len(described.partitions)
            elif asked:
                answer.topics.append(_unknown(name))
        return answer

    def _described(self, topic: Topic, first: int, limit: int) -> DescribedTopic:
        brokers = tuple(broker.id for broker in self._replica.state.members.brokers())
        count = len(topic.streams)
        span = range(min(first, count), min(first + limit, count))
        return DescribedTopic(
            name=topic.name,
            topic_id=topic.id,
            partitions=[
                DescribedPartition(
                    error_code=one.error_code,
                    partition_index=one.partition_index,
                    leader_id=one.leader_id,
                    leader_epoch=one.leader_epoch,
                    replica_nodes=one.replica_nodes,
                    isr_nodes=one.isr_nodes,
                    eligible_leader_replicas=[],
                    last_known_elr=[],
                )
                for one in shown_partitions(topic, brokers, span)
            ],
            topic_authorized_operations=TOPIC_OPERATIONS,
        )


async def first_names(names: Sequence[str], start: str, limit: int) -> list[str]:
    """The first names from `start` on, in their order, without sorting all of very many in one go."""
    first: list[str] = []
    for at in range(0, len(names), NAMES_AT_ONCE):
        if at:
            await asyncio.sleep(0)
        first = sorted([*first, *(name for name in names[at : at + NAMES_AT_ONCE] if name >= start)])[:limit]
    return first


def _is_wrong(cursor: PartitionCursor | None, asked: set[str]) -> bool:
    """Whether the cursor names a topic that was not asked for, or no partition."""
    if cursor is None:
        return False
    return cursor.partition_index < 0 or (bool(asked) and cursor.topic_name not in asked)


def _all_refused(names: Iterable[str], code: ErrorCode) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[DescribedTopic(name=name, error_code=code) for name in sorted(names)]
    )


def _unknown(name: str) -> DescribedTopic:
    code = ErrorCode.INVALID_TOPIC_EXCEPTION if name_problem(name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    internal = name in INTERNAL_TOPICS
    return DescribedTopic(
        name=name, error_code=code, is_internal=internal, topic_authorized_operations=TOPIC_OPERATIONS
    )

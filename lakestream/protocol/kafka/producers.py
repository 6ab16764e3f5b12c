"""Producers: InitProducerId (versions 0 to 5), DescribeProducers (0).

Departures from Kafka: a transactional id is refused until transactions come. Any broker describes the producers of any
partition; the last timestamp is the cluster's time when the producer last wrote, to whichever partition.
"""

import asyncio
from collections.abc import Iterable
from itertools import islice

from lakestream.metadata.replica import Replica
from lakestream.model.commands import AllocateProducerId
from lakestream.model.producers import SEQUENCES
from lakestream.model.topics import name_problem
from lakestream.protocol.kafka.connections.calls import Handler, RequestContext
from lakestream.protocol.kafka.connections.large_answers import ITEMS_AT_ONCE, large_answer
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.produce import InitProducerIdRequest, InitProducerIdResponse
from lakestream.protocol.kafka.messages.producers import (
    DescribedProducer,
    DescribeProducersPartitionResult,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResult,
)
from lakestream.protocol.kafka.refusals import Refusal, propose, stale

NO_PRODUCER = (-1, -1)

TRY_AGAIN = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
"""On this code every client asks the same broker again; on other retriable codes some look for a coordinator."""

REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
"""The answer to a transactional id. Java's and librdkafka's producers fail at once and for good on this code; they
take most other codes for a temporary error and retry for ever."""


NO_COORDINATOR = -1
"""The coordinator's epoch of a producer without transactions."""


class ProducerApis:
    """Gives producer ids, and shows who wrote to a partition."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def handlers(self) -> dict[int, Handler]:
        return {22: self.init_producer_id, 61: self.describe_producers}

    async def init_producer_id(self, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
        if code := judge(request):
            return InitProducerIdResponse(error_code=code, producer_epoch=-1)
        outcome = await propose(self._replica, AllocateProducerId(), TRY_AGAIN)
        if isinstance(outcome, Refusal):
            # An id that was given and not heard of is lost, and nothing else: here "try again" is honest, always (L17).
            return InitProducerIdResponse(error_code=TRY_AGAIN, producer_epoch=-1)
        return InitProducerIdResponse(producer_id=outcome, producer_epoch=0)

    async def describe_producers(self, context: RequestContext, request: DescribeProducersRequest) -> object:
        failed = await stale(self._replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        results: dict[tuple[str, int], DescribeProducersPartitionResult] = {}
        streams: dict[int, DescribeProducersPartitionResult] = {}
        asked = ((topic.name, partition) for topic in request.topics for partition in topic.partition_indexes)
        while some := list(islice(asked, ITEMS_AT_ONCE)):
            for name, partition in some:
                found = failed or self._stream(name, partition)
                result = DescribeProducersPartitionResult(partition_index=partition)
                if isinstance(found, Refusal):
                    result.error_code, result.error_message = found.code, found.message
                elif found in streams:
                    continue
                else:
                    streams[found] = result
                results[name, partition] = result
            await asyncio.sleep(0)
        shown = await self._fill(streams)
        answer = DescribeProducersResponse(topics=await _by_topic([topic.name for topic in request.topics], results))
        return await large_answer(context, answer, shown + len(results) + len(answer.topics))

    def _stream(self, name: str, partition: int) -> int | Refusal:
        topic = self._replica.state.topics.by_name.get(name)
        if topic is not None and 0 <= partition < len(topic.streams):
            return topic.streams[partition]
        if problem := name_problem(name):
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "this server does not host this topic-partition")

    async def _fill(self, streams: dict[int, DescribeProducersPartitionResult]) -> int:
        """Add to each stream's result who wrote to the stream; returns how many producers are shown."""
        shown = 0
        producers = list(self._replica.state.producers.by_id.items()) if streams else []
        for start in range(0, len(producers), ITEMS_AT_ONCE):
            for id_, producer in producers[start : start + ITEMS_AT_ONCE]:
                for stream in streams.keys() & producer.streams.keys():
                    last = producer.streams[stream]
                    shown += 1
                    streams[stream].active_producers.append(
                        DescribedProducer(
                            producer_id=id_,
                            producer_epoch=last.epoch,
                            last_sequence=(last.next - 1) % SEQUENCES,
                            last_timestamp=producer.used_ms,
                            coordinator_epoch=NO_COORDINATOR,
                        )
                    )
            await asyncio.sleep(0)
        return shown


async def _by_topic(
    names: Iterable[str], results: dict[tuple[str, int], DescribeProducersPartitionResult]
) -> list[DescribeProducersTopicResult]:
    topics = {name: DescribeProducersTopicResult(name=name) for name in names}
    rest = iter(results.items())
    while some := list(islice(rest, ITEMS_AT_ONCE)):
        for (name, _), result in some:
            topics[name].partitions.append(result)
        await asyncio.sleep(0)
    return list(topics.values())


def judge(request: InitProducerIdRequest) -> ErrorCode:
    """Why there is no id for this request; NONE if there is one. A producer that has an id gets another one."""
    known = (request.producer_id, request.producer_epoch)
    if request.transactional_id == "" or (-1 in known and known != NO_PRODUCER):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE if request.transactional_id is None else REFUSED

"""Requests that a connection sends without waiting take effect in the order in which they were sent (L16)."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from lakestream.cli.client.connection import BrokerConnection, connect
from lakestream.model.batches.records import Record, encode_batch
from lakestream.process.ports import split_address
from lakestream.protocol.kafka.messages.produce import (
    InitProducerIdRequest,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from lakestream.protocol.kafka.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.support.serve_process import Cluster

LIMIT_S = 20.0
TOPICS, REQUESTS = 30, 40


@pytest.fixture
async def connections(cluster: Cluster) -> AsyncIterator[list[BrokerConnection]]:
    opened = [await connect(*split_address(address, 9092), LIMIT_S) for address in cluster.kafka]
    yield opened
    for connection in opened:
        await connection.close()


async def create(connection: BrokerConnection, topic: str) -> None:
    topics = [CreatableTopic(name=topic, num_partitions=1, replication_factor=1)]
    answer = await connection.call(CreateTopicsRequest(topics=topics, timeout_ms=5000), LIMIT_S)
    assert [one.error_code for one in answer.topics] == [0]


async def produce(connection: BrokerConnection, topic: str, producer: int, sequence: int) -> PartitionProduceResponse:
    record = Record(offset=0, timestamp=1_700_000_000_000, key=None, value=b"%d" % sequence, headers=())
    batch = encode_batch([record], producer_id=producer, producer_epoch=0, base_sequence=sequence)
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    answer = await connection.call(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data]), LIMIT_S)
    found: PartitionProduceResponse = answer.responses[0].partition_responses[0]
    return found


async def test_a_topic_that_was_just_made_by_another_broker_gets_its_records_in_order(
    connections: list[BrokerConnection], name: Callable[[], str]
) -> None:
    """The broker does not know the topic when the first request comes, and learns of it when some have come (L6)."""
    one, other = connections
    for _ in range(TOPICS):
        topic = name()
        producer = (await other.call(InitProducerIdRequest(transaction_timeout_ms=1000), LIMIT_S)).producer_id
        await create(one, topic)
        calls = []
        for sequence in range(REQUESTS):
            calls.append(asyncio.create_task(produce(other, topic, producer, sequence)))
            await asyncio.sleep(0)
        answers = await asyncio.gather(*calls)
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, i) for i in range(REQUESTS)]

"""The admin client of aiokafka. It changes configs by AlterConfigs, which is deprecated and not served."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import InvalidPartitionsError, OffsetOutOfRangeError

from tests.compatibility.clients.face import Client, Member, Record, produce, read
from tests.compatibility.conftest import Clients, TopicMaker
from tests.support.serve_process import eventually

pytestmark = pytest.mark.xdist_group("aiokafka")

UNKNOWN_TOPIC, INVALID_TOPIC, TOPIC_EXISTS, INVALID_CONFIG = 3, 17, 36, 40


@pytest.fixture
def client(clients: Clients) -> Client:
    return clients("aiokafka")


@pytest.fixture
async def ask(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    yield admin
    await admin.close()


async def create(ask: AIOKafkaAdminClient, topic: str, partitions: int = 1, **options: Any) -> int:
    answer = await ask.create_topics([NewTopic(topic, partitions, 1, **options)])
    ((_, code, *_),) = answer.topic_errors
    return int(code)


async def test_topics_come_and_go(ask: AIOKafkaAdminClient, name: Callable[[], str]) -> None:
    topic = name()
    assert await create(ask, topic, 5) == 0
    (described,) = await ask.describe_topics([topic])
    assert len(described["partitions"]) == 5
    assert await create(ask, topic) == TOPIC_EXISTS
    assert await create(ask, "bad/name") == INVALID_TOPIC
    assert await create(ask, name(), topic_configs={"retention.ms": "soon"}) == INVALID_CONFIG
    assert topic in await ask.list_topics()
    await ask.delete_topics([topic])
    assert topic not in await ask.list_topics()
    answer = await ask.delete_topics([topic])
    assert [code for _, code in answer.topic_error_codes] == [UNKNOWN_TOPIC]


async def test_configs_are_shown(ask: AIOKafkaAdminClient, make_topic: TopicMaker) -> None:
    topic = await asyncio.to_thread(make_topic, configs={"retention.ms": "5000000"})
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    (answer,) = await ask.describe_configs([resource])
    shown = {entry[0]: entry[1] for entry in answer.resources[0][4]}
    assert (shown["retention.ms"], shown["max.message.bytes"]) == ("5000000", "1048588")
    await ask.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7000000"})])
    for _ in range(100):
        # Another broker than the one that was told may be asked, and know a moment later.
        (answer,) = await ask.describe_configs([resource])
        shown = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        if shown["retention.ms"] == "7000000":
            break
        await asyncio.sleep(0.05)
    assert shown["retention.ms"] == "7000000"


async def test_partitions_are_added_and_never_taken(ask: AIOKafkaAdminClient, make_topic: TopicMaker) -> None:
    topic = await asyncio.to_thread(make_topic, 2)
    await ask.create_partitions({topic: NewPartitions(6)})
    for _ in range(100):
        # Another broker than the one that made them may be asked, and know a moment later.
        (described,) = await ask.describe_topics([topic])
        if len(described["partitions"]) != 2:
            break
        await asyncio.sleep(0.05)
    assert len(described["partitions"]) == 6
    with pytest.raises(InvalidPartitionsError):
        await ask.create_partitions({topic: NewPartitions(3)})


async def test_records_are_deleted(
    ask: AIOKafkaAdminClient, client: Client, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic = await asyncio.to_thread(make_topic)
    records = [Record(value=b"%d" % i) for i in range(5)]
    await asyncio.to_thread(produce, client, bootstrap, topic, records)
    place = TopicPartition(topic, 0)
    assert await ask.delete_records({place: RecordsToDelete(before_offset=3)}) == {place: 3}
    found = await asyncio.to_thread(read, client, bootstrap, {(topic, 0): 0}, 2)
    assert [stored.offset for stored in found] == [3, 4]
    with pytest.raises(OffsetOutOfRangeError):
        await ask.delete_records({place: RecordsToDelete(before_offset=100)})


async def test_the_cluster_is_described(ask: AIOKafkaAdminClient) -> None:
    found = await ask.describe_cluster()
    assert sorted(broker["node_id"] for broker in found["brokers"]) == [0, 1]


async def test_groups_are_listed_and_described(
    ask: AIOKafkaAdminClient, client: Client, bootstrap: str, make_topic: TopicMaker, name: Callable[[], str]
) -> None:
    topic, group = await asyncio.to_thread(make_topic, 2), name()

    def join() -> Member:
        produce(client, bootstrap, topic, [Record(value=b"v", partition=i) for i in range(2)])
        member = Member(client, bootstrap, group, [topic])
        eventually(lambda: len(member.seen) == 2, "both records are read")
        member.commit()
        return member

    member = await asyncio.to_thread(join)
    (answer,) = await ask.describe_consumer_groups([group])
    ((code, described, state, _, assignor, members, *_),) = answer.groups
    assert (code, described, state, assignor, len(members)) == (0, group, "Stable", "roundrobin", 1)
    assert group in {one[0] for one in await ask.list_consumer_groups()}
    offsets = await ask.list_consumer_group_offsets(group)
    assert {(place.partition, found.offset) for place, found in offsets.items()} == {(0, 1), (1, 1)}
    await asyncio.to_thread(member.leave)

"""One broker's cold Kafka APIs on a real replica in memory; every call goes through the wire's bytes in its version."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

from lakestream.data.memory import MemoryWal
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.batches.records import Record, encode_batch
from lakestream.model.commands import Register
from lakestream.model.levels import NEWEST
from lakestream.process.clock import SystemClock
from lakestream.protocol.kafka.acls import AclApis
from lakestream.protocol.kafka.configs import ConfigApis
from lakestream.protocol.kafka.connections.calls import Handler, RequestContext
from lakestream.protocol.kafka.creation import TokenBucket, TopicMaker
from lakestream.protocol.kafka.messages.topics import CreatableTopic, CreateTopicsRequest
from lakestream.protocol.kafka.metadata import MetadataApis
from lakestream.protocol.kafka.offsets import OffsetApis
from lakestream.protocol.kafka.producers import ProducerApis
from lakestream.protocol.kafka.quotas import QuotaApis
from lakestream.protocol.kafka.replicas import ReplicaApis
from lakestream.protocol.kafka.topic_partitions import TopicPartitionApis
from lakestream.protocol.kafka.topics import TopicApis
from lakestream.protocol.kafka.wire import codec, framing
from lakestream.protocol.kafka.wire.apis import APIS
from lakestream.stream.appender import Appender
from lakestream.stream.cache import Cache
from lakestream.stream.limits import AppendLimits
from lakestream.stream.submissions import Submission
from tests.support.front_door import front_door

BROKER_SETTINGS = {"num.partitions": "3", "auto.create.topics.enable": "true", "data": "s3://bucket?key=secret"}


class ColdBroker:
    """Made by `one_broker`."""

    def __init__(
        self, store: MemoryLogStore, wal: MemoryWal, broker_id: int = 0, settings: dict[str, str] | None = None
    ) -> None:
        settings = BROKER_SETTINGS if settings is None else settings
        self.log = MemoryLog(store)
        self.wal = wal
        self.replica = Replica(self.log, wal, SystemClock(), broker_id)
        self.appender = Appender(self.replica, wal, Cache(1 << 20), SystemClock(), AppendLimits())
        per_minute = TokenBucket(SystemClock(), 1000)
        maker = TopicMaker(self.replica, settings, Random(broker_id), per_minute, per_request=100)
        self.handlers: dict[int, Handler] = {}
        self.metadata = MetadataApis(self.replica, maker, lambda: self.handlers)
        for family in (
            self.metadata,
            TopicApis(self.replica, maker, settings),
            ConfigApis(self.replica, settings),
            OffsetApis(front_door(self.replica, wal=wal, appender=self.appender)),
            ProducerApis(self.replica),
            TopicPartitionApis(self.replica),
            ReplicaApis(self.replica, settings["data"], None),
            AclApis(),
            QuotaApis(),
        ):
            self.handlers.update(family.handlers())

    async def start(self) -> None:
        await self.replica.start()
        number = self.replica.member_id
        about = Register(b"%d" % number, "kin", "broker", f"host{number}", 9000 + number, f"http{number}", 77, NEWEST)
        await self.replica.register(about)

    async def stop(self) -> None:
        await self.replica.stop()

    async def call(self, key: int, request: Any, version: int | None = None) -> Any:
        """The handler's answer to the request, both sent through bytes; in the newest version unless told."""
        api = APIS[key]
        version = api.max_version if version is None else version
        flexible = api.is_flexible(version)
        request = codec.decode(api.request, version, flexible, codec.encode(request, version, flexible))
        response = await self.handlers[key](context(key, version), request)
        if isinstance(response, list):
            head = len(framing.begin_frame(framing.has_flexible_response_header(key, flexible)))
            return codec.decode(api.response, version, flexible, b"".join(response)[head:])
        return codec.decode(api.response, version, flexible, codec.encode(response, version, flexible))

    async def create(self, name: str, partitions: int = 1, replication: int = 1) -> bytes:
        """The new topic's id."""
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replication)
        (made,) = (await self.call(19, CreateTopicsRequest(topics=[topic]))).topics
        assert made.error_code == 0, made.error_message
        return bytes(made.topic_id)

    async def append(
        self, topic: str, partition: int, timestamps: list[int], producer: tuple[int, int, int] = (-1, -1, -1)
    ) -> int:
        """One batch with a record for each timestamp; its base offset. `producer`: its id, epoch and first sequence."""
        stream = self.replica.state.topics.by_name[topic].streams[partition]
        records = [Record(offset=i, timestamp=t, key=None, value=b"v", headers=()) for i, t in enumerate(timestamps)]
        batch = encode_batch(records)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        row = (stream, len(records), len(batch), max(timestamps), *producer)
        self.appender.submit(Submission([row], [memoryview(batch)], lambda: None, done.set_result))
        (base,) = await done
        return int(base)


def context(key: int, version: int) -> RequestContext:
    return RequestContext(
        api_key=key, version=version, correlation_id=1, client_id="t", client_host="h", connection=cast(Any, None)
    )


@asynccontextmanager
async def one_broker(**settings: str) -> AsyncIterator[ColdBroker]:
    async with brokers(1, **settings) as (broker,):
        yield broker


@asynccontextmanager
async def brokers(count: int, **settings: str) -> AsyncIterator[list[ColdBroker]]:
    """Brokers that share one log. Settings have underscores for dots."""
    given = {**BROKER_SETTINGS, **{name.replace("_", "."): value for name, value in settings.items()}}
    store, wal = MemoryLogStore(), MemoryWal()
    made = [ColdBroker(store, wal, number, given) for number in range(count)]
    for broker in made:
        await broker.start()
    for broker in made:
        await broker.replica.catch_up()
    try:
        yield made
    finally:
        for broker in made:
            await broker.stop()

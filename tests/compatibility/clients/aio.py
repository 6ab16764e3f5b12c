"""aiokafka, on an event loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import aiokafka
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from tests.compatibility.clients.face import LIMIT_S, Ack, Config, Record, Refused, Stored, underscored

OWN_ERROR = -1000
T = TypeVar("T")


class Loop:
    """Runs coroutines for threads that have no loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], limit_s: float = LIMIT_S) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(limit_s)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()


class Aiokafka:
    name = "aiokafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    nulls = False

    def __init__(self) -> None:
        self.loop = Loop()

    def producer(self, bootstrap: str, config: Config) -> "AiokafkaProducer":
        return AiokafkaProducer(self.loop, {"bootstrap_servers": bootstrap, "linger_ms": 5, **underscored(config)})

    def consumer(self, bootstrap: str, config: Config) -> "AiokafkaConsumer":
        return AiokafkaConsumer(self.loop, {"bootstrap_servers": bootstrap, **underscored(config)})

    def init_transactions(self, bootstrap: str, transactional_id: str) -> None:
        async def start() -> None:
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
            try:
                await asyncio.wait_for(producer.start(), 10)
            finally:
                await producer.stop()

        try:
            self.loop.run(start())
        except KafkaError as failure:
            raise refusal(failure) from failure

    def close(self) -> None:
        self.loop.close()


class AiokafkaProducer:
    def __init__(self, loop: Loop, config: Config) -> None:
        self._loop = loop
        self._config = {name: value for name, value in config.items() if (name, value) != ("compression_type", "none")}
        self._sent: list[asyncio.Future[Any] | KafkaError] = []
        self._producer: Any = self._loop.run(self._open())

    async def _open(self) -> Any:
        producer = aiokafka.AIOKafkaProducer(**self._config)
        await producer.start()
        return producer

    def send(self, topic: str, record: Record) -> None:
        self._loop.run(self._send(topic, record))

    async def _send(self, topic: str, record: Record) -> None:
        try:
            sent = await self._producer.send(
                topic, record.value, record.key, record.partition, record.timestamp_ms, list(record.headers)
            )
        except KafkaError as failure:
            sent = failure
        self._sent.append(sent)

    def finish(self) -> list[Ack | Refused]:
        async def finish() -> list[Ack | Refused]:
            answers = [await self._answer(sent) for sent in self._sent]
            await self._producer.stop()
            return answers

        return self._loop.run(finish(), 2 * LIMIT_S)

    @staticmethod
    async def _answer(sent: "asyncio.Future[Any] | KafkaError") -> Ack | Refused:
        try:
            if isinstance(sent, KafkaError):
                raise sent
            metadata = await sent
        except KafkaError as failure:
            return refusal(failure)
        # Without acks there is nothing to say.
        return Ack(metadata.partition, metadata.offset) if metadata is not None else Ack(-1, -1)


class AiokafkaConsumer:
    def __init__(self, loop: Loop, config: Config) -> None:
        self._loop = loop
        self._consumer: Any = self._loop.run(self._open(config))

    @staticmethod
    async def _open(config: Config) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(**config)
        await consumer.start()
        return consumer

    def assign(self, starts: Mapping[tuple[str, int], int | None]) -> None:
        async def assign() -> None:
            self._consumer.assign([TopicPartition(*place) for place in starts])
            for place, start in starts.items():
                if start is not None:
                    self._consumer.seek(TopicPartition(*place), start)

        self._loop.run(assign())

    def subscribe(self, topics: Sequence[str]) -> None:
        async def subscribe() -> None:
            self._consumer.subscribe(list(topics))

        self._loop.run(subscribe())

    def poll(self, wait_s: float) -> list[Stored]:
        polled = self._loop.run(self._consumer.getmany(timeout_ms=int(wait_s * 1000)))
        return [stored(record) for records in polled.values() for record in records]

    def assignment(self) -> set[tuple[str, int]]:
        return {(place.topic, place.partition) for place in self._consumer.assignment()}

    def commit(self) -> None:
        try:
            self._loop.run(self._consumer.commit())
        except KafkaError as failure:
            raise refusal(failure) from failure

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        place = TopicPartition(topic, partition)
        found = self._loop.run(self._consumer.offsets_for_times({place: timestamp_ms}))[place]
        return found.offset if found is not None else None

    def close(self) -> None:
        self._loop.run(self._consumer.stop())


def stored(record: Any) -> Stored:
    return Stored(
        topic=record.topic, partition=record.partition, offset=record.offset, key=record.key, value=record.value,
        headers=tuple(record.headers), timestamp_ms=record.timestamp, timestamp_type=record.timestamp_type,
    )  # fmt: skip


def refusal(failure: KafkaError) -> Refused:
    code = getattr(failure, "errno", None)
    return Refused(OWN_ERROR if code is None else code, repr(failure))

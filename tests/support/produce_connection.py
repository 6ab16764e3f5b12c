"""A connection to a broker in memory, fed by hand: what the client gets, and what is in the streams afterwards."""

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any

from lakestream.model.batches.header import CRC_POSITION, checksum
from lakestream.model.batches.records import Record, encode_batch
from lakestream.process.clock import SystemClock
from lakestream.protocol.kafka.connections.connection import Connection
from lakestream.protocol.kafka.connections.server import log
from lakestream.protocol.kafka.connections.shared_board import KafkaBoard
from lakestream.protocol.kafka.produce import ProduceApi
from lakestream.protocol.kafka.wire.framing import uvarint
from lakestream.protocol.serving.admission import Limits
from lakestream.protocol.serving.client_warnings import ClientWarnings
from lakestream.stream.batch_tables import ManyBatches
from tests.property.test_server_fuzz import Wire, feed, tiny_metadata
from tests.support.front_door import front_door
from tests.support.memory_broker import TestBroker, start_broker
from tests.support.toy_kafka_server import METADATA, PRODUCE, request

NOW_MS = 1_700_000_000_000
TOPICS = {
    "plain": {},
    "strict": {"max.message.bytes": "300", "message.timestamp.before.max.ms": "1000",
               "message.timestamp.after.max.ms": "1000"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
}  # fmt: skip
PARTITIONS = 3


class StoppedClock(SystemClock):
    """It is always the same time of day."""

    def wall_ms(self) -> int:
        return NOW_MS


class World:
    """One broker, one connection. `runs` counts the submissions that stood for several requests."""

    def __init__(self, broker: TestBroker, limits: Limits, with_runs: bool) -> None:
        self.broker = broker
        self.runs: list[int] = []
        submit: Callable[[Any], None] = broker.appender.submit

        def counted(submission: Any) -> None:
            if isinstance(submission, ManyBatches):
                self.runs.append(len(submission.table))
            submit(submission)

        broker.appender.submit = counted  # type: ignore[method-assign]
        streams = front_door(broker.replica, appender=broker.appender, reader=broker.reader)
        self.rules = streams.rules
        self.api = ProduceApi(streams, StoppedClock())
        self.board = KafkaBoard(
            limits=limits, handlers={METADATA: tiny_metadata}, produce=self.api, unsupported_version=None,
            warnings=ClientWarnings(SystemClock(), log),
        )  # fmt: skip
        self.board.loop = asyncio.get_running_loop()
        if not with_runs:
            self.board.take_run = None
        self.connection, self.wire = Connection(self.board), Wire()
        self.connection.connection_made(self.wire)

    @classmethod
    async def make(cls, limits: Limits | None = None, with_runs: bool = True, **broker: Any) -> "World":
        made = await start_broker(**({"clock": StoppedClock()} | broker))
        for name, configs in TOPICS.items():
            await made.topic(name, PARTITIONS, **configs)
        return cls(made, limits or Limits(), with_runs)

    async def send(self, data: bytes, chunks: Sequence[int] = ()) -> None:
        """Let all of it arrive, in chunks of these sizes, and wait for all that comes of it."""
        sizes = list(chunks)
        for _ in range(100_000):
            if not data or self.wire.closed:
                break
            size = sizes.pop(0) if sizes else len(data)
            data = feed(self.connection, self.wire, data[:size]) + data[size:]
            await asyncio.sleep(0 if self.wire.reading else 0.001)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5000):
            await self.broker.appender.drain()
            await asyncio.sleep(0.0005)
            idle = self.connection.idle and not self.connection.waiting
            if (self.wire.closed or idle) and not self.api._late:
                break
        assert self.board.pool.used_bytes == 0
        if self.connection.rest is None or self.wire.closed:
            assert self.board.pool.current.pins == 0

    def answers(self) -> list[bytes]:
        found, pos = [], 0
        while pos < len(self.wire.written):
            (size,) = struct.unpack_from(">i", self.wire.written, pos)
            found.append(bytes(self.wire.written[pos : pos + 4 + size]))
            pos += 4 + size
        return found

    async def streams(self) -> list[tuple[int, int, bytes]]:
        """Of each stream: its end, its size, and all bytes that a consumer gets."""
        found = []
        for stream in self.broker.replica.state.streams.by_id.values():
            offset, parts = stream.start, []
            while offset < stream.next:
                for view in await self.broker.reader.read(stream, offset, 1 << 20):
                    parts.append(bytes(view))
                    at = 0
                    while at < len(view):
                        base, length, last = struct.unpack_from(">qi11xi", view, at)
                        at, offset = at + 12 + length, base + last + 1
            found.append((stream.next, stream.size, b"".join(parts)))
        return found


def batch(*values: bytes, timestamp: int = NOW_MS, producer: int = -1, sequence: int = -1) -> bytearray:
    records = [Record(offset=i, timestamp=timestamp + i, key=None, value=v) for i, v in enumerate(values)]
    epoch = 0 if producer >= 0 else -1
    return bytearray(encode_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence))


def with_crc(data: bytearray) -> bytes:
    struct.pack_into(">I", data, CRC_POSITION, checksum(memoryview(data), 0, len(data)))
    return bytes(data)


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def produce(
    correlation_id: int, records: bytes | None, *, topic: str = "plain", partitions: Sequence[int] = (0,),
    version: int = 9, acks: int = -1, transactional: bytes | None = None, tags: bytes = b"\0",
) -> bytes:  # fmt: skip
    """A Produce request of any version with the same records for each partition."""
    flexible = version >= 9

    def count(number: int) -> bytes:
        return uvarint(number + 1) if flexible else struct.pack(">i", number)

    def text(value: bytes) -> bytes:
        return uvarint(len(value) + 1) + value if flexible else struct.pack(">h", len(value)) + value

    none = b"\0" if flexible else b"\xff\xff"
    body = (b"\0" if flexible else b"") + (none if transactional is None else text(transactional))
    body += struct.pack(">hi", acks, 30_000) + count(1)
    body += (topic_id(topic) if version >= 13 else text(topic.encode())) + count(len(partitions))
    for partition in partitions:
        body += struct.pack(">i", partition) + count(-1 if records is None else len(records)) + (records or b"")
        body += tags if flexible else b""
    body += b"\0\0" if flexible else b""
    return request(PRODUCE, version, correlation_id, body)

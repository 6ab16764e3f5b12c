"""A Kafka server with toy handlers, and a client that speaks bare frames; also a program, for tests that need a pid."""

import asyncio
import logging
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

from lakestream.process.clock import SystemClock
from lakestream.protocol.kafka.connections.calls import Handler, ProduceCall, ProduceHandler, RequestContext
from lakestream.protocol.kafka.connections.server import KafkaServer
from lakestream.protocol.kafka.messages import metadata
from lakestream.protocol.kafka.wire import apis
from lakestream.protocol.kafka.wire.fast_answers import Produced, encode_produce_response
from lakestream.protocol.kafka.wire.framing import uvarint
from lakestream.protocol.serving.admission import Limits

PRODUCE, FETCH, LIST_OFFSETS, METADATA, HEARTBEAT, API_VERSIONS = 0, 1, 2, 3, 12, 18


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(key: int, version: int, correlation_id: int, body: bytes = b"", client_id: bytes = b"test") -> bytes:
    """A request with the header of versions without tags."""
    return frame(struct.pack(">hhih", key, version, correlation_id, len(client_id)) + client_id + body)


def api_versions_request(correlation_id: int, version: int = 0) -> bytes:
    return request(API_VERSIONS, version, correlation_id)


def metadata_request(correlation_id: int) -> bytes:
    return request(METADATA, 1, correlation_id, struct.pack(">i", -1))


def produce_request(correlation_id: int, records: bytes, acks: int = -1, topic: bytes = b"topic") -> bytes:
    """Produce version 9: one topic, one partition, whatever bytes as records."""
    body = b"\0\0" + struct.pack(">hi", acks, 30_000) + b"\2" + uvarint(len(topic) + 1) + topic
    body += b"\2" + struct.pack(">i", 0) + uvarint(len(records) + 1) + records + b"\0\0\0"
    return request(PRODUCE, 9, correlation_id, body)


def acknowledge(call: ProduceCall, base_offset: int = 0) -> bytes:
    return encode_produce_response(call.version, call.correlation_id, [("topic", [Produced(0, 0, base_offset)])])


def records_of(call: ProduceCall) -> bytes:
    parsed = call.connection.parser.parse(call.view, call.start, call.end, call.version)
    ((_, ((_, start, size),)),) = parsed.topics
    return bytes(call.view[start : start + max(size, 0)])


class Gathered:
    """A produce handler that keeps its calls until the test answers them."""

    def __init__(self) -> None:
        self.calls: list[ProduceCall] = []

    def __call__(self, call: ProduceCall) -> None:
        self.calls.append(call)

    @property
    def correlation_ids(self) -> list[int]:
        return [call.correlation_id for call in self.calls]

    def answer(self, order: Callable[[Sequence[ProduceCall]], Any] = list) -> None:
        calls, self.calls = self.calls, []
        for call in order(calls):
            call.answer(acknowledge(call))
            call.release()


def answer_at_once(call: ProduceCall) -> None:
    call.connection.parser.parse(call.view, call.start, call.end, call.version)
    call.answer(acknowledge(call))
    call.release()


async def api_versions(_: RequestContext, __: Any) -> metadata.ApiVersionsResponse:
    return metadata.ApiVersionsResponse(api_keys=advertised())


async def unsupported_version(_: RequestContext, __: Any) -> metadata.ApiVersionsResponse:
    return metadata.ApiVersionsResponse(error_code=35, api_keys=advertised())


def advertised() -> list[metadata.ApiVersion]:
    return [
        metadata.ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
        for api in apis.APIS.values()
    ]


async def no_metadata(_: RequestContext, __: Any) -> metadata.MetadataResponse:
    return metadata.MetadataResponse()


HANDLERS: dict[int, Handler] = {API_VERSIONS: api_versions, METADATA: no_metadata}


def toy_server(
    produce: ProduceHandler = answer_at_once, handlers: dict[int, Handler] | None = None, limits: Limits | None = None
) -> KafkaServer:
    return KafkaServer(HANDLERS | (handlers or {}), produce, limits or Limits(), SystemClock(), unsupported_version)


class Client:
    """One connection that sends bytes and reads whole answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: tuple[str, int], buffer_bytes: int = 1 << 16) -> "Client":
        return cls(*await asyncio.open_connection(*address, limit=buffer_bytes))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, timeout_s: float = 10.0) -> tuple[int, bytes]:
        """The next answer: correlation id and what follows it."""
        async with asyncio.timeout(timeout_s):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            body = await self.reader.readexactly(size)
        return struct.unpack_from(">i", body)[0], body[4:]

    async def is_closed(self, timeout_s: float = 10.0) -> bool:
        """Whether the server closes the connection, by whichever means, without another byte."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    async def is_served(self) -> bool:
        await self.send(api_versions_request(77))
        correlation_id, body = await self.answer()
        return correlation_id == 77 and body[:2] == b"\0\0"

    def close(self) -> None:
        self.writer.transport.abort()


async def eventually(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Wait until something that nothing announces has come true."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def main() -> None:
    server = toy_server(limits=Limits(stall_timeout_s=2.0))
    host, port = await server.start()
    print(f"ready {host}:{port}", flush=True)
    # Whoever started this program keeps its standard input open for as long as it is needed.
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()


if __name__ == "__main__":
    import uvloop

    logging.basicConfig(level=logging.INFO)
    uvloop.run(main())

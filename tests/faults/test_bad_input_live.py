"""Hostile bytes at a live broker, while real clients work beside: C9, and the list in "Bad input"."""

import asyncio
import random
import ssl
import struct
from collections.abc import Callable

import pytest

from lakestream.model.batches.compression import compress
from lakestream.model.batches.header import Codec
from lakestream.model.batches.records import Record, encode_batch
from lakestream.protocol.kafka.messages import metadata
from tests.faults.test_bad_input_network import REFUSED
from tests.support.live_broker import Live, ask, decoded, produce, produced
from tests.support.toy_kafka_server import Client, request
from tests.unit.model.test_batch_check import BODIES, patched, with_body, with_crc

# One live broker serves all tests of the module, in one test process.
pytestmark = pytest.mark.xdist_group("bad input")

REJECTIONS = {2, 10, 32, 47, 76, 87}
"""CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, INVALID_PRODUCER_EPOCH, bad compression, INVALID_RECORD."""


async def test_every_refusal_of_the_bare_server_is_one_of_the_broker_too(live: Live) -> None:
    async with live.unharmed():
        for name, data in REFUSED.items():
            client = await live.connect()
            await client.send(data)
            assert await client.is_closed(), name
            client.close()


async def test_random_bytes_are_refused_or_waited_for(live: Live) -> None:
    rng = random.Random(3)

    async def babble() -> None:
        client = await live.connect()
        await client.send(rng.randbytes(rng.randrange(1, 20_000)))
        await client.is_closed(timeout_s=0.05)
        client.close()

    async with live.unharmed():
        for _ in range(20):
            await asyncio.gather(*(babble() for _ in range(20)))


async def test_a_real_tls_client_fails_at_once(live: Live) -> None:
    async with live.unharmed():
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with asyncio.timeout(10):
                await asyncio.open_connection(*live.address, ssl=ssl.create_default_context())


async def test_a_real_http_client_fails_at_once(live: Live) -> None:
    async with live.unharmed():
        client = await live.connect()
        await client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await client.is_closed()


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
async def test_an_unknown_version_of_api_versions_is_answered_in_version_0_with_error_35(
    live: Live, version: int
) -> None:
    async with live.unharmed():
        client = await live.connect()
        await client.send(request(18, version, 42, b"\x05test\x041.0\0"))
        correlation_id, body = await client.answer()
        answer = decoded(18, 0, body)
        assert (correlation_id, answer.error_code) == (42, 35)
        assert any(api.api_key == 18 for api in answer.api_keys)
        assert await client.is_served()


async def test_only_what_is_advertised_is_served_and_all_of_it_in_every_version(live: Live) -> None:
    client = await live.connect()
    answer = await ask(client, 18, 0, metadata.ApiVersionsRequest())
    advertised = {api.api_key for api in answer.api_keys}
    async with live.unharmed():
        for key in range(-2, 100):
            if key not in advertised:
                stranger = await live.connect()
                await stranger.send(request(key, 0, 1))
                assert await stranger.is_closed(), key


async def test_truncated_frames_of_clients_that_leave_append_nothing(live: Live) -> None:
    sound = produce([encode_batch([Record(timestamp=1, value=b"never" * 1000)])])
    async with live.unharmed():
        for cut in range(1, len(sound), 97):
            client = await live.connect()
            await client.send(sound[:cut])
            client.close()
        client = await live.connect()
        await client.send(sound[:-1])
        client.writer.write_eof()
        assert await client.is_closed()


async def refused_code(client: Client, data: bytes | bytearray) -> int:
    answer = await produced(client, bytes(data))
    assert answer.base_offset == -1
    return answer.error_code


HEADER_LIES: dict[str, Callable[[], bytes | bytearray]] = {
    "a wrong crc": lambda: flipped(encode_batch([Record(timestamp=5, value=b"x")]), 17),
    "a flipped bit in the body": lambda: flipped(encode_batch([Record(timestamp=5, value=b"x" * 50)]), -10),
    "no record": lambda: patched(57, ">i", 0),
    "a record too many": lambda: patched(57, ">i", 4),
    "two billion records": lambda: patched(57, ">i", 2**31 - 1),
    "a negative count": lambda: patched(57, ">i", -1),
    "a last offset delta too large": lambda: patched(23, ">i", 100),
    "a last offset delta of two billion": lambda: patched(23, ">i", 2**31 - 1),
    "a negative last offset delta": lambda: patched(23, ">i", -5),
    "message format 1": lambda: patched(16, ">b", 1),
    "an unknown codec": lambda: patched(21, ">h", 6),
    "a control batch": lambda: patched(21, ">h", 0x20),
    "a length that says less": lambda: lied_length(-3),
    "a length that says more": lambda: lied_length(40),
    "a length of 2 GB": lambda: lied_length(2**31 - 200),
    "half a header": lambda: encode_batch([Record(value=b"x")])[:30],
    "two batches in one": lambda: encode_batch([Record(value=b"x")]) * 2,
    "nothing but zeros": lambda: bytes(100),
}


def flipped(data: bytes, position: int) -> bytearray:
    changed = bytearray(data)
    changed[position] ^= 0x40
    return changed


def lied_length(difference: int) -> bytearray:
    data = bytearray(encode_batch([Record(timestamp=5, value=b"x" * 50)]))
    struct.pack_into(">i", data, 8, len(data) - 12 + difference)
    return data


async def test_a_batch_whose_header_lies_is_answered_with_an_error_and_the_connection_goes_on(live: Live) -> None:
    async with live.unharmed():
        client = await live.connect()
        for name, lie in HEADER_LIES.items():
            assert await refused_code(client, lie()) in REJECTIONS, name
        assert await client.is_served()


@pytest.mark.parametrize("codec", list(Codec))
async def test_a_batch_whose_body_lies_is_refused_also_when_compressed(live: Live, codec: Codec) -> None:
    async with live.unharmed():
        client = await live.connect()
        for name, body in BODIES.items():
            assert await refused_code(client, with_body(body, codec=codec)) in REJECTIONS, name
            assert await refused_code(client, with_body(body, count=1000, codec=codec)) in REJECTIONS, name
        assert await client.is_served()


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
async def test_compressed_bombs_are_refused_in_little_memory_and_time(live: Live, codec: Codec) -> None:
    """200 MB of zeros, or as much as the codec makes of what one batch may hold; eight at a time."""
    bomb = bomb_of(codec)
    assert len(bomb) < 1_000_000
    async with live.unharmed():
        clients = await live.connect_many(8)
        codes = await asyncio.gather(*(refused_code(client, bomb) for client in clients))
        assert set(codes) <= REJECTIONS
        assert await clients[0].is_served()
        for client in clients:
            client.close()


def bomb_of(codec: Codec) -> bytearray:
    size = 200 << 20
    while True:
        packed = compress(codec, bytes(size))
        if len(packed) < 990_000:
            break
        size = size * 9 // 10 * 980_000 // len(packed)
    data = bytearray(encode_batch([Record(offset=0, timestamp=0)]))
    struct.pack_into(">h", data, 21, codec)
    return with_crc(data[:61] + packed)


async def test_lies_beside_honest_batches_of_one_request_are_refused_alone(live: Live) -> None:
    honest, lie = encode_batch([Record(timestamp=1, value=b"honest")]), bytes(patched(57, ">i", 9))
    client = await live.connect()
    async with live.unharmed():
        await client.send(produce([lie, honest, lie], topic="nowhere"))
        answer = decoded(0, 9, (await client.answer())[1])
        assert {one.error_code for one in answer.responses[0].partition_responses} == {3}
    async with live.unharmed(appends=True):
        await client.send(produce([honest, lie]))
        answer = decoded(0, 9, (await client.answer())[1])
        codes = {one.index: one.error_code for one in answer.responses[0].partition_responses}
        assert codes == {0: 0, 1: 3}, "there is no partition 1"


async def test_an_oversized_batch_is_too_large_and_a_bad_acks_is_refused(live: Live) -> None:
    async with live.unharmed():
        client = await live.connect()
        large = encode_batch([Record(timestamp=1, value=bytes(1_100_000))])
        assert await refused_code(client, large) == 10
        await client.send(produce([encode_batch([Record(timestamp=1)])], acks=7))
        (partition,) = decoded(0, 9, (await client.answer())[1]).responses[0].partition_responses
        assert partition.error_code == 21
        assert await client.is_served()

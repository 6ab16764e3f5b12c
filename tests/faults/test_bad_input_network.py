"""Hostile bytes on the Kafka port: an error or a closed connection, memory bounded, and other clients served as ever.

By default against a server with toy handlers in a process of its own. LAKESTREAM_TARGET=HOST:PORT, or HOST:PORT:PID to
have its memory watched too, points the same tests at a running broker.
"""

import asyncio
import os
import random
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tests.support.toy_kafka_server import (
    Client,
    api_versions_request,
    frame,
    metadata_request,
    produce_request,
    request,
)

MB = 1 << 20
CLIENTS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Target:
    """A server to be hurt."""

    address: tuple[str, int]
    pid: int | None
    is_toy: bool

    async def connect(self) -> Client:
        return await Client.connect(self.address, buffer_bytes=1 << 12)

    async def connect_many(self, count: int) -> list[Client]:
        clients: list[Client] = []
        while len(clients) < count:
            some = min(CLIENTS_AT_ONCE, count - len(clients))
            clients += await asyncio.gather(*(self.connect() for _ in range(some)))
        return clients

    async def serves_others(self) -> bool:
        client = await self.connect()
        try:
            return await client.is_served()
        finally:
            client.close()

    def resident_bytes(self) -> int:
        """Of the server's process; 0 if nobody said which it is."""
        if self.pid is None:
            return 0
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def started() -> Iterator[Target]:
    given = os.environ.get("LAKESTREAM_TARGET")
    if given:
        host, port, *pid = given.split(":")
        yield Target((host, int(port)), int(pid[0]) if pid else None, False)
        return
    command = [sys.executable, "-m", "tests.support.toy_kafka_server"]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, **streams) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        host, port = process.stdout.readline().decode().split()[1].split(":")
        yield Target((host, int(port)), process.pid, True)
        # It ends with its standard input.
        process.stdin.close()


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with started() as running:
        yield running


@pytest.fixture
def fresh_target() -> Iterator[Target]:
    """One that nobody has talked to: what it allocates it really needs."""
    with started() as running:
        yield running


def header(size: int, key: int = 0, version: int = 9) -> bytes:
    return struct.pack(">ihhih", size, key, version, 1, -1)


REFUSED = {
    "a length of 2 GB": struct.pack(">i", 2**31 - 1),
    "a negative length": struct.pack(">i", -1),
    "a length of 0": struct.pack(">i", 0) + bytes(8),
    "a frame without room for a header": frame(b"abc") + bytes(8),
    "just above the largest frame": header(104_857_601),
    "http": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "an unknown api key": request(999, 0, 1),
    "a negative api key": request(-5, 0, 1),
    "an unknown version of Metadata": request(3, 99, 1),
    "a negative version of Metadata": request(3, -1, 1),
    "an unknown version of Produce": request(0, 99, 1),
    "Produce in a version of long ago": request(0, 1, 1),
    "an unknown key in an announced frame": header(50 * MB, key=4321),
    "a large frame of a small request": header(90 * MB, key=3, version=1),
    "a client id longer than its frame": frame(struct.pack(">hhih", 3, 1, 1, 30_000) + b"x"),
    "a client id of negative length": frame(struct.pack(">hhih", 3, 1, 1, -7) + b"x"),
    "a client id that is no text": frame(struct.pack(">hhih", 3, 1, 1, 2) + b"\xff\xfe" + struct.pack(">i", -1)),
    "an array that claims 2 billion items": request(3, 1, 1, struct.pack(">i", 2**31 - 1)),
    "a string that claims more than the frame holds": request(3, 1, 1, struct.pack(">ih", 1, 32_000) + b"abc"),
    "a request that ends too early": request(3, 1, 1, b"\0"),
    "a Produce that ends too early": request(0, 9, 1, b"\0\0"),
    "a Produce whose records claim more": request(
        0, 9, 1, b"\0\0" + struct.pack(">hi", 1, 1) + b"\2\2t\2\0\0\0\0\xff\xff\x7f" + b"abc"
    ),
    "a Produce with an endless varint": request(0, 9, 1, b"\0\0" + struct.pack(">hi", 1, 1) + b"\xff" * 20),
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
async def test_it_is_refused_and_nobody_else_notices(target: Target, data: bytes) -> None:
    bystander, client = await target.connect(), await target.connect()
    assert await bystander.is_served()
    await client.send(data)
    assert await client.is_closed()
    assert await bystander.is_served()
    assert await target.serves_others()


async def test_bytes_behind_the_last_field_are_ignored_as_in_kafka(target: Target) -> None:
    client = await target.connect()
    await client.send(request(3, 1, 5, struct.pack(">i", -1) + b"more"))
    assert (await client.answer())[0] == 5
    assert await client.is_served()


async def test_a_tls_handshake_fails_at_once_instead_of_hanging(target: Target) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        async with asyncio.timeout(10):
            await asyncio.open_connection(*target.address, ssl=ssl.create_default_context())
    assert await target.serves_others()


async def test_random_bytes_are_refused_or_waited_for(target: Target) -> None:
    rng = random.Random(20)
    for _ in range(60):
        client = await target.connect()
        await client.send(rng.randbytes(rng.randrange(1, 5000)))
        await client.is_closed(timeout_s=0.02)
        client.close()
    assert await target.serves_others()


async def test_truncated_frames_of_clients_that_leave_are_forgotten(target: Target) -> None:
    before = target.resident_bytes()
    data = produce_request(1, bytes(2 * MB))
    for cut in (1, 3, 4, 7, 12, 100, 20_000, MB, len(data) - 1):
        for _ in range(5):
            client = await target.connect()
            await client.send(data[:cut])
            client.close()
    assert await target.serves_others()
    assert target.resident_bytes() - before < 64 * MB


async def test_hundreds_of_announced_100_mb_frames_cost_no_memory(fresh_target: Target) -> None:
    before = fresh_target.resident_bytes()
    clients = await fresh_target.connect_many(400)
    for client in clients:
        await client.send(header(100 * MB) + bytes(30_000))
    assert await fresh_target.serves_others()
    assert fresh_target.resident_bytes() - before < 100 * MB
    for client in clients:
        client.close()


async def test_hundreds_of_half_sent_100_mb_frames_stay_within_the_memory_limit(fresh_target: Target) -> None:
    before = fresh_target.resident_bytes()
    clients = await fresh_target.connect_many(300)
    chunk, most = bytes(MB), 0
    for client in clients:
        client.writer.write(header(100 * MB))
    for _ in range(4):
        for client in clients:
            # Nobody waits for room: a server that has none reads no more, and the bytes stay with their sender.
            client.writer.write(chunk)
        await asyncio.sleep(0.1)
        most = max(most, fresh_target.resident_bytes() - before)
        assert await fresh_target.serves_others()
    assert most < 300 * MB
    for client in clients:
        client.close()


async def test_a_client_that_asks_without_end_and_reads_nothing_costs_little(target: Target) -> None:
    before = target.resident_bytes()
    clients = [await target.connect() for _ in range(20)]
    for client in clients:
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(b"".join(api_versions_request(n) for n in range(20_000)))
    await asyncio.sleep(0.5)
    assert await target.serves_others()
    assert target.resident_bytes() - before < 100 * MB
    for client in clients:
        client.close()


async def test_requests_one_byte_at_a_time_are_answered(target: Target) -> None:
    client = await target.connect()
    for byte in metadata_request(5) + api_versions_request(6):
        await client.send(bytes([byte]))
        await asyncio.sleep(0.001)
    assert (await client.answer())[0] == 5
    assert (await client.answer())[0] == 6


async def hold_idle(target: Target, count: int) -> None:
    bystander = await target.connect()
    assert await bystander.is_served()
    before = target.resident_bytes()
    clients = await target.connect_many(count)
    assert await clients[-1].is_served()
    assert await bystander.is_served()
    if target.is_toy:
        assert (target.resident_bytes() - before) / count < 5_000
    served = await asyncio.gather(*(client.is_served() for client in clients[:: count // 100]))
    assert all(served)
    for client in clients:
        client.close()


async def test_2000_idle_connections_cost_less_than_5_kb_each(fresh_target: Target) -> None:
    await hold_idle(fresh_target, 2_000)


@pytest.mark.long
async def test_10000_idle_connections_cost_less_than_5_kb_each(fresh_target: Target) -> None:
    await hold_idle(fresh_target, 10_000)

"""Many connections at a live broker that want its memory: announced frames, idle ones, clients that do not read."""

import asyncio
import resource
import socket
import struct
import time

import pytest

from lakestream.model.batches.records import Record, encode_batch
from lakestream.protocol.kafka.messages import fetch
from tests.support.acked_workload import create_topic
from tests.support.live_broker import MB, Live, encoded_request, produced
from tests.support.toy_kafka_server import api_versions_request

# One live broker serves all tests of the module, in one test process.
pytestmark = pytest.mark.xdist_group("crowds")

HUNDRED_MB = 100 * MB


def announcement(size: int = HUNDRED_MB) -> bytes:
    """The first bytes of a Produce request of this size."""
    return struct.pack(">ihhih", size, 0, 9, 1, 4) + b"test\0\0" + struct.pack(">hi", -1, 1000) + b"\2\7victim\2"


def connected(live: Live, count: int) -> list[socket.socket]:
    sockets = [socket.create_connection(live.address) for _ in range(count)]
    for one in sockets:
        one.setblocking(False)
    return sockets


def push(sockets: list[socket.socket], sent: dict[socket.socket, int], most: int) -> int:
    """Send to each whatever it takes, up to `most` bytes in all; returns how many bytes were taken."""
    chunk, taken = bytes(256 * 1024), 0
    for one in sockets:
        try:
            while sent[one] < most:
                count = one.send(chunk[: most - sent[one]])
                sent[one] += count
                taken += count
        except BlockingIOError:
            continue
        except OSError:
            sent[one] = most
    return taken


async def test_hundreds_of_connections_that_announce_100_mb_and_send_half_of_it(live: Live) -> None:
    async with live.unharmed() as memory:
        sockets = connected(live, 400)
        for one in sockets:
            one.send(announcement())
        halves, sent = sockets[:40], dict.fromkeys(sockets, 0)
        for _ in range(30):
            push(halves, sent, HUNDRED_MB // 2)
            push(sockets[40:], sent, 64 * 1024)
            await asyncio.sleep(0.1)
        client = await live.connect()
        assert await client.is_served()
        for one in sockets:
            one.close()
    print(f"{(memory.most - memory.first) // MB} MB more for {sum(sent.values()) // MB} MB sent")


async def test_frames_of_100_mb_that_are_sent_whole_are_refused_one_by_one_in_bounded_memory(live: Live) -> None:
    """They hold nothing but zeros where a batch should be."""
    async with live.unharmed():
        sockets = connected(live, 4)
        sent = dict.fromkeys(sockets, 0)
        for one in sockets:
            one.send(announcement())
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and min(sent.values()) < HUNDRED_MB:
            if not push(sockets, sent, HUNDRED_MB):
                await asyncio.sleep(0.01)
        assert min(sent.values()) >= HUNDRED_MB, f"frames do not get through: {[n // MB for n in sent.values()]} MB"
        for one in sockets:
            one.close()


async def hold_idle(live: Live, count: int) -> None:
    async with live.unharmed(bound=100 * MB + count * 6_000) as memory:
        before = memory.now()
        clients = await live.connect_many(count)
        served = await asyncio.gather(*(client.is_served() for client in clients[:: count // 100]))
        assert all(served)
        print(f"{(memory.now() - before) / count:.0f} bytes for each idle connection")
        for client in clients:
            client.close()


async def test_2000_idle_connections_disturb_nobody(live: Live) -> None:
    await hold_idle(live, 2_000)


@pytest.mark.long
async def test_10000_idle_connections_disturb_nobody(live: Live) -> None:
    """The client's ends take as many descriptors here: where these are too few, as many as there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        await hold_idle(live, min(10_000, hard - 1_000))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_clients_that_ask_without_end_and_read_nothing_are_held_back(live: Live) -> None:
    async with live.unharmed():
        sockets = connected(live, 30)
        requests = b"".join(api_versions_request(number) for number in range(5000))
        for _ in range(20):
            for one in sockets:
                try:
                    one.send(requests)
                except BlockingIOError:
                    continue
            await asyncio.sleep(0.05)
        for one in sockets:
            one.close()


def fetch_request(topic: str, size: int, offset: int = 0) -> bytes:
    partition = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=size)
    wanted = fetch.FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=size, session_epoch=-1,
        topics=[fetch.FetchTopic(topic=topic, partitions=[partition])],
    )  # fmt: skip
    return encoded_request(1, 11, 1, wanted)


async def test_slow_readers_of_large_fetches_cost_bounded_memory(live: Live) -> None:
    """More records than the cache holds, and many who ask for all of them and take next to nothing."""
    topic = "slowly"
    await asyncio.to_thread(create_topic, live.cluster.bootstrap, topic)
    client = await live.connect()
    batch = encode_batch([Record(timestamp=1, value=bytes(900_000))])
    for _ in range(60):
        assert (await produced(client, batch, topic)).error_code == 0
    async with live.unharmed() as memory:
        sockets = connected(live, 60)
        for one in sockets:
            one.send(fetch_request(topic, 50 * MB))
            await asyncio.sleep(0.05)
        await asyncio.sleep(2.0)
        print(f"{(memory.most - memory.first) // MB} MB more for 60 slow readers of 50 MB")
        for one in sockets:
            one.close()

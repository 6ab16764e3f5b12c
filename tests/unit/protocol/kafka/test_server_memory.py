"""The memory of the Kafka server: bounded whatever clients announce, and nobody is kept out by others for long."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lakestream.protocol.kafka.connections.calls import ProduceCall, ProduceHandler
from lakestream.protocol.kafka.connections.server import KafkaServer
from lakestream.protocol.serving.admission import Limits
from lakestream.protocol.serving.slabs import SlabPool
from tests.support.toy_kafka_server import (
    Client,
    Gathered,
    acknowledge,
    answer_at_once,
    eventually,
    produce_request,
    records_of,
    toy_server,
)

KB = 1 << 10


@asynccontextmanager
async def serving(
    produce: ProduceHandler, clients: int, **limits: Any
) -> AsyncIterator[tuple[KafkaServer, list[Client]]]:
    server = toy_server(produce, limits=Limits(**limits))
    address = await server.start()
    connected = [await Client.connect(address) for _ in range(clients)]
    try:
        yield server, connected
    finally:
        for client in connected:
            client.close()
        await server.stop()


def test_a_slab_is_used_again_only_when_nobody_needs_it() -> None:
    pool = SlabPool(4096)
    pool.room(100)
    first = pool.current
    first.pins += 1
    pool.position = 4000
    pool.room(100)
    assert pool.current is not first
    assert (pool.position, pool.used_bytes, pool.free_slabs) == (0, 4096, 0)
    first.release()
    assert (pool.used_bytes, pool.free_slabs) == (0, 1)
    pool.current.pins += 1
    pool.position = 4000
    pool.room(100)
    assert pool.current is first


def test_an_unpinned_current_slab_starts_over_so_that_little_memory_is_touched() -> None:
    pool = SlabPool(4096)
    pool.current.pins += 1
    pool.position = 3000
    pool.current.release()
    assert pool.position == 0


def test_free_slabs_that_nobody_wants_are_given_back() -> None:
    pool = SlabPool(4096)
    used = []
    for _ in range(9):
        used.append(pool.current)
        pool.current.pins += 1
        pool.position = 4096
        pool.room(1)
    for slab in used:
        slab.release()
    assert pool.free_slabs == 9
    for _ in range(6):
        pool.trim()
    assert pool.free_slabs == 0


async def test_frames_of_all_sizes_arrive_as_they_were_sent() -> None:
    seen: list[bytes] = []

    def produce(call: ProduceCall) -> None:
        seen.append(records_of(call))
        call.answer(acknowledge(call))
        call.release()

    sizes = [0, 1, 100, 4000, 20 * KB, 60 * KB, 70 * KB, 300 * KB, 1500 * KB, 5, 64 * KB, 200 * KB]
    limits = {"slab_bytes": 128 * KB, "receive_bytes": 48 * KB, "small_bytes": 4 * KB}
    async with serving(produce, 1, **limits) as (server, (client,)):
        sent = [bytes([n % 251]) * size for n, size in enumerate(sizes * 3)]
        await client.send(b"".join(produce_request(n, records) for n, records in enumerate(sent)))
        for n in range(len(sent)):
            assert (await client.answer())[0] == n
        assert seen == sent
        assert (server.held_bytes, server.in_flight_bytes) == (0, 0)


async def test_announcing_large_frames_costs_nothing_and_is_no_reason_to_wait() -> None:
    async with serving(answer_at_once, 200, memory_bytes=1 << 20) as (server, clients):
        head = struct.pack(">ihhih", 100 << 20, 0, 9, 1, 0)
        for client in clients:
            await client.send(head + bytes(1000))
        await asyncio.sleep(0.05)
        assert server.held_bytes == 0
        assert server.stats.connections == 200


async def test_when_memory_is_short_large_frames_get_through_one_after_the_other() -> None:
    held: list[int] = []
    seen: list[bytes] = []

    def produce(call: ProduceCall) -> None:
        seen.append(records_of(call))
        answer_at_once(call)

    limits = {"memory_bytes": 1024 * KB, "slab_bytes": 256 * KB, "small_bytes": 4 * KB, "receive_bytes": 64 * KB}
    async with serving(produce, 12, **limits) as (server, clients):
        frames = [produce_request(n, bytes([n]) * 400 * KB) for n in range(12)]
        # All begin, none ends.
        for client, data in zip(clients, frames, strict=True):
            await client.send(data[: 100 * KB])
        await asyncio.sleep(0.05)

        async def finish(client: Client, data: bytes) -> None:
            await client.send(data[100 * KB :])
            await client.answer()
            held.append(server.held_bytes)

        await asyncio.gather(*map(finish, clients, frames))
        assert sorted(seen) == [bytes([n]) * 400 * KB for n in range(12)]
        assert max(held) <= 1024 * KB
        assert server.held_bytes == 0


async def test_when_memory_is_short_stalled_frames_are_closed_and_others_go_on() -> None:
    limits = {"memory_bytes": 512 * KB, "small_bytes": 4 * KB, "stall_timeout_s": 0.3}
    async with serving(answer_at_once, 7, **limits) as (server, (small, large, *stalling)):
        for client in stalling:
            await client.send(produce_request(1, bytes(900 * KB))[: 200 * KB])
        await eventually(lambda: server.held_bytes > 256 * KB)
        assert server.held_bytes < 512 * KB
        for n in range(20):
            await small.send(produce_request(n, b"x" * 2000))
            assert (await small.answer())[0] == n
        sending = asyncio.create_task(large.send(produce_request(5, bytes(800 * KB))))
        for client in stalling:
            assert await client.is_closed()
        assert (await large.answer())[0] == 5
        await sending
        assert server.stats.closed == {"stalled": 5}
        assert server.held_bytes == 0


async def test_frames_in_flight_are_bounded_and_all_get_through() -> None:
    gathered = Gathered()
    limits = {"memory_bytes": 1024 * KB, "slab_bytes": 128 * KB, "small_bytes": 4 * KB, "receive_bytes": 32 * KB}
    async with serving(gathered, 6, **limits) as (server, clients):
        data = b"".join(produce_request(n, bytes(30 * KB)) for n in range(50))
        sending = [asyncio.create_task(client.send(data)) for client in clients]
        reading = [asyncio.create_task(answers(client, 50)) for client in clients]
        most = 0
        while not all(task.done() for task in reading):
            await asyncio.sleep(0.005)
            most = max(most, server.in_flight_bytes)
            gathered.answer()
        assert most <= (512 + 6 * 64 + 128) * KB
        assert all([await task == list(range(50)) for task in reading])
        await asyncio.gather(*sending)
        assert server.in_flight_bytes == 0


async def answers(client: Client, count: int) -> list[int]:
    return [(await client.answer())[0] for _ in range(count)]


async def test_a_frame_that_comes_slowly_does_not_keep_a_shared_slab() -> None:
    seen: list[bytes] = []

    def produce(call: ProduceCall) -> None:
        seen.append(records_of(call))
        answer_at_once(call)

    limits = {"slab_bytes": 256 * KB, "small_bytes": 4 * KB, "idle_timeout_s": 0.2}
    async with serving(produce, 1, **limits) as (server, (client,)):
        data = produce_request(1, bytes(range(256)) * 400)
        await client.send(data[: 60 * KB])
        await eventually(lambda: server.held_bytes == len(data))
        await client.send(data[60 * KB : 70 * KB])
        # Moved out, only what has arrived is counted.
        await eventually(lambda: server.held_bytes == 70 * KB)
        await client.send(data[70 * KB :])
        await client.answer()
        assert seen == [bytes(range(256)) * 400]


async def test_a_client_that_leaves_in_the_middle_of_a_frame_leaves_nothing_behind() -> None:
    gathered = Gathered()
    async with serving(gathered, 3, small_bytes=4 * KB) as (server, clients):
        data = produce_request(1, bytes(500 * KB))
        for client, size in zip(clients, (100, 50 * KB, 400 * KB), strict=True):
            await client.send(produce_request(0, b"x") + data[:size])
        await eventually(lambda: len(gathered.calls) == 3 and server.held_bytes >= 450 * KB)
        for client in clients:
            client.close()
        await eventually(lambda: server.stats.connections == 0)
        assert server.held_bytes == 0
        gathered.answer()
        assert server.in_flight_bytes == 0

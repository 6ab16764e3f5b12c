"""The Kafka server over loopback: who is served when, and in which order answers go out (L16)."""

import asyncio
import logging
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from lakestream.errors import Rejected
from lakestream.protocol.kafka.connections import calls
from lakestream.protocol.kafka.connections.calls import Handler, ProduceCall, ProduceHandler, RequestContext
from lakestream.protocol.kafka.connections.server import KafkaServer
from lakestream.protocol.serving.admission import Limits
from tests.support.toy_kafka_server import (
    API_VERSIONS,
    FETCH,
    HEARTBEAT,
    METADATA,
    Client,
    Gathered,
    acknowledge,
    answer_at_once,
    api_versions_request,
    eventually,
    metadata_request,
    produce_request,
    records_of,
    request,
    toy_server,
)

FETCH_4 = struct.pack(">iiiibi", -1, 100, 1, 1 << 20, 0, 0)
"""A Fetch request of version 4 that asks for no topic."""

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return request.param()


@asynccontextmanager
async def serving(
    produce: ProduceHandler = answer_at_once, handlers: dict[int, Handler] | None = None, **limits: Any
) -> AsyncIterator[tuple[KafkaServer, Callable[[], Any]]]:
    server = toy_server(produce, handlers, Limits(**limits))
    address = await server.start()
    clients: list[Client] = []

    async def connect() -> Client:
        clients.append(await Client.connect(address))
        return clients[-1]

    try:
        yield server, connect
    finally:
        for client in clients:
            client.close()
        await server.stop()


async def test_l16_produce_requests_wait_together_and_are_answered_in_order_of_arrival() -> None:
    gathered = Gathered()
    async with serving(gathered) as (_, connect):
        client = await connect()
        await client.send(b"".join(produce_request(n, b"r%d" % n) for n in range(100)))
        await eventually(lambda: len(gathered.calls) == 100)
        assert gathered.correlation_ids == list(range(100))
        assert [records_of(call) for call in gathered.calls] == [b"r%d" % n for n in range(100)]
        gathered.answer(order=reversed)
        assert [(await client.answer())[0] for _ in range(100)] == list(range(100))


async def test_l16_an_answer_is_held_back_until_those_before_it_are_there() -> None:
    gathered = Gathered()
    async with serving(gathered) as (_, connect):
        client = await connect()
        await client.send(produce_request(1, b"a") + produce_request(2, b"b"))
        await eventually(lambda: len(gathered.calls) == 2)
        first, second = gathered.calls
        second.answer(acknowledge(second))
        with pytest.raises(TimeoutError):
            await client.answer(timeout_s=0.05)
        first.answer(acknowledge(first))
        second.release()
        first.release()
        assert [(await client.answer())[0] for _ in range(2)] == [1, 2]


async def test_l16_any_other_request_waits_for_those_before_it_and_holds_back_those_behind_it() -> None:
    gathered, begun, let_go = Gathered(), asyncio.Event(), asyncio.Event()

    async def slow(context: RequestContext, _: Any) -> bytes:
        begun.set()
        await let_go.wait()
        return struct.pack(">ii", 4, context.correlation_id)

    async with serving(gathered, {METADATA: slow}) as (_, connect):
        client = await connect()
        await client.send(produce_request(1, b"a") + metadata_request(2) + produce_request(3, b"c" * 100_000))
        await eventually(lambda: gathered.calls)
        await asyncio.sleep(0.02)
        assert not begun.is_set()
        gathered.answer()
        await begun.wait()
        await asyncio.sleep(0.02)
        assert not gathered.calls
        let_go.set()
        await eventually(lambda: gathered.calls)
        assert records_of(gathered.calls[0]) == b"c" * 100_000
        gathered.answer()
        assert [(await client.answer())[0] for _ in range(3)] == [1, 2, 3]


async def test_l16_the_order_is_kept_in_a_long_mix_of_requests() -> None:
    loop_answers: list[ProduceCall] = []

    def produce(call: ProduceCall) -> None:
        loop_answers.append(call)
        asyncio.get_running_loop().call_later(0.0005 * (call.correlation_id % 5), finish, call)

    def finish(call: ProduceCall) -> None:
        call.answer(acknowledge(call))
        call.release()

    async with serving(produce, small_bytes=256) as (server, connect):
        client = await connect()
        made = [metadata_request(n) if n % 7 == 3 else produce_request(n, b"x" * (n * 37 % 3000)) for n in range(400)]
        sending = asyncio.create_task(client.send(b"".join(made)))
        assert [(await client.answer())[0] for _ in range(400)] == list(range(400))
        await sending
        assert server.stats.requests == {0: 343, METADATA: 57}


async def test_a_producer_that_wants_no_answer_gets_none_and_the_next_answer_is_not_held_back() -> None:
    def produce(call: ProduceCall) -> None:
        call.answer(None if call.correlation_id == 1 else acknowledge(call))
        call.release()

    async with serving(produce) as (_, connect):
        client = await connect()
        await client.send(produce_request(1, b"a", acks=0) + produce_request(2, b"b"))
        assert (await client.answer())[0] == 2


async def test_produce_requests_in_flight_are_bounded_for_each_connection() -> None:
    gathered = Gathered()
    async with serving(gathered, max_in_flight=4) as (_, connect):
        client = await connect()
        await client.send(b"".join(produce_request(n, b"r") for n in range(10)))
        await eventually(lambda: gathered.calls)
        for expected in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9]):
            await eventually(lambda expected=expected: gathered.correlation_ids == expected)
            await asyncio.sleep(0.01)
            assert gathered.correlation_ids == expected
            gathered.answer()
        assert [(await client.answer())[0] for _ in range(10)] == list(range(10))


async def test_a_handler_may_return_buffers_that_are_sent_as_they_are() -> None:
    async def fetch(context: RequestContext, parsed: Any) -> list[bytes | memoryview]:
        assert parsed.max_wait_ms == 100
        return [struct.pack(">ii", 7, context.correlation_id), memoryview(b"abc")]

    async with serving(handlers={FETCH: fetch}) as (server, connect):
        client = await connect()
        await client.send(request(FETCH, 4, 5, FETCH_4))
        assert await client.answer() == (5, b"abc")
        assert server.stats.bytes_out == 11


async def test_the_context_names_the_client() -> None:
    seen: list[RequestContext] = []

    async def heartbeat(context: RequestContext, _: Any) -> bytes:
        seen.append(context)
        return struct.pack(">ii", 4, context.correlation_id)

    async with serving(handlers={HEARTBEAT: heartbeat}) as (_, connect):
        body = struct.pack(">h", 1) + b"g" + struct.pack(">ih", 1, 1) + b"m"
        for client in (await connect(), await connect()):
            await client.send(request(HEARTBEAT, 0, 9, body, client_id=b"me"))
            await client.answer()
        context = seen[0]
        assert (context.api_key, context.version, context.correlation_id) == (HEARTBEAT, 0, 9)
        assert (context.client_id, context.client_host) == ("me", "127.0.0.1")
        assert seen[0].connection.id != seen[1].connection.id


@pytest.mark.parametrize("error", [Rejected(1, "no"), ValueError("broken")], ids=["rejected", "unexpected"])
@pytest.mark.parametrize("data", [metadata_request(1), produce_request(1, b"x")], ids=["metadata", "produce"])
async def test_a_handler_that_raises_costs_its_own_connection_only(
    error: Exception, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    def produce(call: ProduceCall) -> None:
        raise error

    async def handler(_: RequestContext, __: Any) -> None:
        raise error

    caplog.set_level(logging.INFO)
    async with serving(produce, {METADATA: handler}) as (server, connect):
        other, client = await connect(), await connect()
        await client.send(data)
        assert await client.is_closed()
        assert await other.is_served()
        assert sum(server.stats.errors.values()) == 1
    lines = [record for record in caplog.records if record.message.startswith("closing")]
    assert len(lines) == 1
    assert (lines[0].exc_info is not None) == isinstance(error, ValueError)


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0_with_error_35() -> None:
    async with serving() as (_, connect):
        client = await connect()
        await client.send(api_versions_request(5, version=99))
        correlation_id, body = await client.answer()
        error_code, count = struct.unpack_from(">hi", body)
        assert (correlation_id, error_code) == (5, 35)
        assert len(body) == 6 + 6 * count
        assert await client.is_served()


async def test_a_client_that_does_not_read_is_not_served_further_and_gets_everything_when_it_does() -> None:
    served = 0

    async def fetch(context: RequestContext, _: Any) -> list[bytes]:
        nonlocal served
        served += 1
        return [struct.pack(">ii", 4 + (1 << 20), context.correlation_id), bytes(1 << 20)]

    async with serving(handlers={FETCH: fetch}) as (_, connect):
        client = await connect()
        await client.send(b"".join(request(FETCH, 4, n, FETCH_4) for n in range(60)))
        await eventually(lambda: served)
        before = -1
        while before != served:
            before = served
            await asyncio.sleep(0.1)
        assert served < 30
        other = await connect()
        assert await other.is_served()
        for n in range(60):
            correlation_id, body = await client.answer()
            assert correlation_id == n
            assert len(body) == 1 << 20


async def test_paused_producers_are_not_read_and_others_are() -> None:
    gathered = Gathered()
    async with serving(gathered, max_in_flight=100_000) as (server, connect):
        producer, other = await connect(), await connect()
        await producer.send(produce_request(0, b"x"))
        await eventually(lambda: gathered.calls)
        server.hold_producers(True)
        await producer.send(produce_request(1, b"x"))
        await asyncio.sleep(0.05)
        assert gathered.correlation_ids == [0]
        assert await other.is_served()
        server.hold_producers(False)
        await eventually(lambda: gathered.correlation_ids == [0, 1])
        gathered.answer()
        assert [(await producer.answer())[0] for _ in range(2)] == [0, 1]


async def test_draining_answers_what_was_taken_up_and_accepts_nobody() -> None:
    gathered = Gathered()
    async with serving(gathered) as (server, connect):
        client, idle = await connect(), await connect()
        await client.send(produce_request(1, b"x") + produce_request(2, b"y"))
        await eventually(lambda: len(gathered.calls) == 2)
        draining = asyncio.create_task(server.drain(10.0))
        assert await idle.is_closed()
        await asyncio.sleep(0.02)
        assert not draining.done()
        gathered.answer()
        assert [(await client.answer())[0] for _ in range(2)] == [1, 2]
        assert await client.is_closed()
        await draining
        with pytest.raises(ConnectionError):
            await connect()


async def test_draining_ends_in_time_though_a_request_is_never_answered() -> None:
    async with serving(Gathered()) as (server, connect):
        client = await connect()
        await client.send(produce_request(1, b"x"))
        await asyncio.sleep(0.02)
        async with asyncio.timeout(5):
            await server.drain(0.1)
        assert await client.is_closed()


async def test_l8_a_blind_server_closes_all_connections_and_refuses_new_ones_until_it_sees_again() -> None:
    gathered = Gathered()
    async with serving(gathered) as (server, connect):
        client = await connect()
        await client.send(produce_request(1, b"x"))
        await eventually(lambda: gathered.calls)
        server.suspend()
        assert await client.is_closed()
        assert await (await connect()).is_closed()
        gathered.answer()
        server.resume()
        assert await (await connect()).is_served()


async def test_handlers_learn_that_their_client_left() -> None:
    lost = asyncio.Event()

    async def wait(context: RequestContext, _: Any) -> None:
        context.connection.when_lost(lost.set)
        await lost.wait()

    async with serving(handlers={METADATA: wait}) as (server, connect):
        client = await connect()
        await client.send(metadata_request(1))
        await eventually(lambda: METADATA in server.stats.requests)
        await asyncio.sleep(0.01)
        client.close()
        async with asyncio.timeout(5):
            await lost.wait()


async def test_answers_leave_without_delay() -> None:
    seen: list[int] = []

    async def look(context: RequestContext, _: Any) -> bytes:
        sock = context.connection.transport.get_extra_info("socket")
        seen.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return struct.pack(">ii", 4, context.correlation_id)

    async with serving(handlers={API_VERSIONS: look}) as (_, connect):
        client = await connect()
        await client.send(api_versions_request(1))
        await client.answer()
        assert seen[0]


async def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    gathered = Gathered()
    async with serving(gathered, idle_timeout_s=0.2) as (server, connect):
        idle, busy = await connect(), await connect()
        await busy.send(produce_request(1, b"x"))
        assert await idle.is_closed()
        await asyncio.sleep(0.2)
        gathered.answer()
        assert (await busy.answer())[0] == 1
        assert server.stats.closed == {"idle": 1}


async def test_connections_above_the_limit_are_closed_at_once() -> None:
    async with serving(max_connections=2) as (server, connect):
        first, second = await connect(), await connect()
        assert await second.is_served()
        assert await (await connect()).is_closed()
        assert await first.is_served()
        first.close()
        await eventually(lambda: server.stats.connections == 1)
        assert await (await connect()).is_served()


async def test_a_client_that_takes_no_answers_is_closed_when_too_much_is_unsent() -> None:
    async def fetch(context: RequestContext, _: Any) -> list[bytes]:
        return [struct.pack(">ii", 4 + (16 << 20), context.correlation_id), bytes(16 << 20)]

    async with serving(handlers={FETCH: fetch}, unsent_bytes=1 << 20, stall_timeout_s=0.2) as (server, connect):
        client, other = await connect(), await connect()
        await client.send(request(FETCH, 4, 1, FETCH_4))
        await eventually(lambda: server.stats.closed == {"slow": 1})
        assert await other.is_served()


async def test_a_flood_of_bad_clients_is_counted_in_full_and_logged_in_part(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as (server, connect):
        for _ in range(20):
            client = await connect()
            await client.send(b"GET / HTTP/1.1\r\n\r\n")
            assert await client.is_closed()
        assert server.stats.closed == {"http": 20}
    lines = [record.message for record in caplog.records if record.message.startswith("closing")]
    assert len(lines) == 5
    assert "HTTP" in lines[0]


async def test_a_long_request_is_decoded_in_a_thread_and_later_ones_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[bool] = []
    decode = calls.decode

    def noted(*asked: Any) -> Any:
        threads.append(threading.current_thread() is not threading.main_thread())
        return decode(*asked)

    monkeypatch.setattr(calls, "decode", noted)
    async with serving() as (_, connect):
        client = await connect()
        names = struct.pack(">i", 20_000) + b"\0\5topic" * 20_000
        await client.send(request(METADATA, 1, 1, names) + metadata_request(2))
        assert [(await client.answer())[0] for _ in range(2)] == [1, 2]
        assert threads == [True, False]
        await client.send(request(METADATA, 1, 3, names[:-1]))
        assert await client.is_closed()

"""The connection fed by hand, in chunks of any size: handlers see what was sent, as long as they need it."""

import asyncio
import contextlib
import struct
from collections import deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.process.clock import SystemClock
from lakestream.protocol.kafka.connections.calls import ProduceCall, RequestContext
from lakestream.protocol.kafka.connections.connection import Connection
from lakestream.protocol.kafka.connections.server import log
from lakestream.protocol.kafka.connections.shared_board import KafkaBoard
from lakestream.protocol.serving.admission import Limits
from lakestream.protocol.serving.client_warnings import ClientWarnings
from tests.support.toy_kafka_server import METADATA, metadata_request, produce_request, records_of, toy_server


class Wire(asyncio.Transport):
    """A transport without a socket: the test is the network."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.closed = False
        self.written = bytearray()
        self.writes = 0

    def write(self, data: Any) -> None:
        self.writes += 1
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def abort(self) -> None:
        self.closed = True

    close = abort

    def get_write_buffer_size(self) -> int:
        return 0

    def correlation_ids(self) -> list[int]:
        found, pos = [], 0
        while pos < len(self.written):
            size, correlation_id = struct.unpack_from(">ii", self.written, pos)
            found.append(correlation_id)
            pos += 4 + size
        return found


async def tiny_metadata(context: RequestContext, _: Any) -> bytes:
    await asyncio.sleep(0)
    return struct.pack(">ii", 4, context.correlation_id)


def make_board(produce: Any, limits: Limits) -> KafkaBoard:
    board = KafkaBoard(
        limits=limits,
        handlers={METADATA: tiny_metadata},
        produce=produce,
        unsupported_version=None,
        warnings=ClientWarnings(SystemClock(), log),
    )
    board.loop = asyncio.get_running_loop()
    return board


def feed(connection: Connection, wire: Wire, data: bytes) -> bytes:
    """Receive once, as a transport does; returns what did not fit."""
    if not wire.reading or wire.closed or not data:
        return data
    room = connection.get_buffer(-1)
    assert len(room) > 0
    count = min(len(room), len(data))
    room[:count] = data[:count]
    room.release()
    connection.buffer_updated(count)
    return data[count:]


SMALL = Limits(slab_bytes=4096, receive_bytes=1500, small_bytes=100, memory_bytes=16384, max_in_flight=5)


@given(data=st.data())
@settings(max_examples=150)
def test_l16_every_request_is_seen_whole_in_order_and_unharmed_until_released(data: st.DataObject) -> None:
    asyncio.run(scenario(data))


async def scenario(data: st.DataObject) -> None:
    held: deque[tuple[ProduceCall, bytes]] = deque()
    seen: dict[int, list[bytes]] = {}

    def produce(call: ProduceCall) -> None:
        records = records_of(call)
        seen.setdefault(call.connection.id, []).append(records)
        held.append((call, bytes(call.view[call.start : call.end])))

    board = make_board(produce, SMALL)
    sizes = st.lists(st.one_of(st.none(), st.integers(0, 300), st.integers(0, 9000)), min_size=1, max_size=12)
    clients = []
    for number in range(data.draw(st.integers(1, 3))):
        connection, wire = Connection(board), Wire()
        connection.connection_made(wire)
        sent = [None if size is None else bytes([number * 50 + n]) * size for n, size in enumerate(data.draw(sizes))]
        stream = b"".join(
            metadata_request(n) if records is None else produce_request(n, records) for n, records in enumerate(sent)
        )
        clients.append((connection, wire, sent, [stream]))
    rounds = 0
    while any(len(wire.correlation_ids()) < len(sent) for _, wire, sent, _ in clients):
        rounds += 1
        # Chance decides for a while; then everybody is served, and must come to an end.
        hurry = rounds > 60
        for connection, wire, _, stream in clients:
            chunk = len(stream[0]) if hurry else data.draw(st.integers(0, 3000))
            rest = feed(connection, wire, stream[0][:chunk])
            stream[0] = rest + stream[0][chunk:]
        for _ in range(len(held) if hurry else data.draw(st.integers(0, 3))):
            if held:
                finish(held, 0 if hurry else data.draw(st.integers(0, len(held) - 1)))
        if hurry or data.draw(st.booleans()):
            await asyncio.sleep(0)
        if data.draw(st.booleans()) and not hurry:
            for connection, *_ in clients:
                connection.move_out()
        assert rounds < 2000
    while held:
        finish(held, 0)
    for connection, wire, sent, _ in clients:
        assert wire.correlation_ids() == list(range(len(sent)))
        assert seen.get(connection.id, []) == [records for records in sent if records is not None]
        assert not wire.closed
    assert board.admission.held_bytes == 0
    assert board.pool.used_bytes == 0
    assert (board.pool.current.pins, board.pool.position) == (0, 0)


def finish(held: deque[tuple[ProduceCall, bytes]], index: int) -> None:
    call, frame = held[index]
    del held[index]
    assert bytes(call.view[call.start : call.end]) == frame, "the bytes changed while they were pinned"
    call.answer(struct.pack(">ii", 4, call.correlation_id))
    call.release()


@given(count=st.integers(1, 50))
@settings(max_examples=10)
def test_answers_that_become_ready_together_leave_in_one_write(count: int) -> None:
    async def run() -> None:
        calls: list[ProduceCall] = []
        board = make_board(calls.append, Limits())
        connection, wire = Connection(board), Wire()
        connection.connection_made(wire)
        feed(connection, wire, b"".join(produce_request(n, b"x") for n in range(count)))
        for call in reversed(calls):
            call.answer(struct.pack(">ii", 4, call.correlation_id))
        await asyncio.sleep(0)
        assert (wire.writes, wire.correlation_ids()) == (1, list(range(count)))

    asyncio.run(run())


@given(junk=st.binary(max_size=400), chunk=st.integers(1, 50))
@settings(max_examples=300)
def test_any_bytes_are_answered_waited_for_or_refused(junk: bytes, chunk: int) -> None:
    async def run() -> None:
        calls: list[ProduceCall] = []
        board = make_board(calls.append, SMALL)
        connection, wire = Connection(board), Wire()
        connection.connection_made(wire)
        rest = junk
        while rest and wire.reading and not wire.closed:
            rest = feed(connection, wire, rest[:chunk]) + rest[chunk:]
            await asyncio.sleep(0)
        connection.connection_lost(None)
        for call in calls:
            call.release()
        assert board.pool.used_bytes == board.admission.held_bytes == 0

    asyncio.run(run())


MUTATIONS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6)


@given(mutations=MUTATIONS, cut=st.integers(0, 200))
@settings(max_examples=100)
def test_mutated_requests_never_hurt_the_next_client(mutations: list[tuple[int, int]], cut: int) -> None:
    async def run() -> None:
        server = toy_server()
        address = await server.start()
        sound = [metadata_request(1), produce_request(2, b"abc" * 20), produce_request(3, b""), metadata_request(4)]
        requests = bytearray(b"".join(sound))
        for position, byte in mutations:
            requests[position % len(requests)] = byte
        reader, writer = await asyncio.open_connection(*address)
        writer.write(bytes(requests[: len(requests) - cut]))
        writer.write_eof()
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        writer.close()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(metadata_request(9))
        async with asyncio.timeout(5):
            await reader.readexactly(8)
        writer.close()
        await server.stop()

    asyncio.run(run())

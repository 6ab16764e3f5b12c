"""A protocol of its own on the shared connection and server: frames with a length in front, answered in order."""

import asyncio
import logging
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lakestream.process.clock import SystemClock
from lakestream.protocol.serving.admission import Limits
from lakestream.protocol.serving.board import ConnectionBoard
from lakestream.protocol.serving.client_warnings import ClientWarnings
from lakestream.protocol.serving.connection import AnswerSlot, FramedConnection
from lakestream.protocol.serving.server import ConnectionServer
from lakestream.protocol.serving.slabs import Slab

LENGTH = struct.Struct(">i")
log = logging.getLogger(__name__)


class Echo(AnswerSlot):
    """One request, whose answer is the request."""

    __slots__ = ()
    count = 1


class EchoConnection(FramedConnection):
    """Answers the requests of each receive in the opposite order: the connection has to put them right."""

    __slots__ = ()
    head_bytes = LENGTH.size

    def take_frames(self, slab: Slab, pos: int, end: int) -> int:
        if not self.produces:
            self.begin_producing()
        taken = []
        while end - pos >= LENGTH.size:
            (size,) = LENGTH.unpack_from(slab.view, pos)
            if end - pos < LENGTH.size + size:
                break
            taken.append((Echo(self), bytes(slab.view[pos : pos + LENGTH.size + size])))
            pos += LENGTH.size + size
        self.answers.extend(slot for slot, _ in taken)
        for slot, frame in reversed(taken):
            slot.answer(frame)
        return pos


@asynccontextmanager
async def serving(**limits: int) -> AsyncIterator[tuple[ConnectionServer, ConnectionBoard]]:
    clock = SystemClock()
    board = ConnectionBoard(Limits(**limits), ClientWarnings(clock, log))  # type: ignore[arg-type]
    server = ConnectionServer(board, lambda: EchoConnection(board), clock, log, host="127.0.0.1", port=0)
    try:
        yield server, board
    finally:
        await server.stop()


def frames(*payloads: bytes) -> bytes:
    return b"".join(LENGTH.pack(len(one)) + one for one in payloads)


@pytest.mark.parametrize("chunk", [1, 3, 7, 1000, 1 << 20])
async def test_frames_are_taken_up_whole_and_answered_in_order_however_they_arrive(chunk: int) -> None:
    sent = frames(b"", b"one", b"x" * 9000, b"two", b"y" * 300, b"three")
    async with serving(slab_bytes=4096, receive_bytes=1500, small_bytes=100) as (server, board):
        reader, writer = await asyncio.open_connection(*await server.start())
        for start in range(0, len(sent), chunk):
            writer.write(sent[start : start + chunk])
            await writer.drain()
        assert await asyncio.wait_for(reader.readexactly(len(sent)), 20) == sent
        assert board.stats.bytes_in == board.stats.bytes_out == len(sent)
        writer.close()


async def test_l8_a_suspended_server_closes_clients_until_it_resumes() -> None:
    async with serving() as (server, _):
        server.suspend()
        address = await server.start()
        reader, writer = await asyncio.open_connection(*address)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 20)
        writer.close()
        server.resume()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(frames(b"again"))
        assert await asyncio.wait_for(reader.readexactly(9), 20) == frames(b"again")
        writer.close()


async def test_producers_that_are_held_are_not_read_until_they_are_let_go() -> None:
    async with serving() as (server, _):
        reader, writer = await asyncio.open_connection(*await server.start())
        writer.write(frames(b"first"))
        await asyncio.wait_for(reader.readexactly(9), 20)
        server.hold_producers(True)
        writer.write(frames(b"second"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0.2)
        server.hold_producers(False)
        assert await asyncio.wait_for(reader.readexactly(10), 20) == frames(b"second")
        writer.close()

"""A command log in another process: the client of owner.py, which reconnects by itself."""

import asyncio
import os
from collections.abc import Sequence
from typing import cast

from lakestream.errors import Corrupt, Halted, LakestreamError, Retry, Unknown
from lakestream.interfaces import Appended, CheckpointNote, Logged
from lakestream.metadata.stores import wire
from lakestream.metadata.stores.limits import check_append
from lakestream.metadata.stores.wakeups import Wakeups
from lakestream.metadata.stores.wire import Frame, FrameKind, Frames

MAX_REQUESTS_IN_FLIGHT = 1024
RECONNECT_FIRST_S = 0.005
RECONNECT_MAX_S = 0.2


class SocketLog:
    """`CommandLog` through the owner's socket. `open` it; then it outlives the owner's restarts.

    A request that finds no owner for `connect_timeout_s` was not sent: Retry. An append that was sent and not
    answered, because the connection broke or for `answer_timeout_s`, is Unknown.
    """

    def __init__(self, path: str, *, connect_timeout_s: float, answer_timeout_s: float) -> None:
        self.path = path
        self.answer_timeout_s = answer_timeout_s
        self.wakeups = Wakeups()
        self._connect_timeout_s = connect_timeout_s
        self._connection: _Connection | None = None
        self._refused: LakestreamError | None = None
        self._usable = asyncio.Event()
        self._closed = False
        self._keeper = asyncio.create_task(self._keep_connected(), name="command-log-connection")

    @classmethod
    async def open(
        cls,
        socket_path: str | os.PathLike[str],
        *,
        connect_timeout_s: float = 5.0,
        answer_timeout_s: float = 10.0,
    ) -> "SocketLog":
        """Raises Retry if there is no owner in time, Halted if it speaks another version."""
        opened = cls(os.fspath(socket_path), connect_timeout_s=connect_timeout_s, answer_timeout_s=answer_timeout_s)
        try:
            await opened._connected()
        except BaseException:
            await opened.close()
            raise
        return opened

    async def append(self, commands: Sequence[bytes], after: int) -> Appended:
        check_append(commands)
        answer = await self._ask(FrameKind.APPEND, wire.encode_append(commands, after), FrameKind.APPENDED, Unknown)
        appended = Appended(wire.decode_sequence(answer), wire.decode_page(answer[8:]))
        if appended.tail and appended.tail[-1][0] > self.wakeups.last:  # the owner sends no news of what the tail shows
            self.wakeups.announce(appended.tail[-1][0])
        return appended

    async def read(self, after: int, limit: int) -> list[Logged]:
        return wire.decode_page(await self._ask(FrameKind.READ, wire.encode_read(after, limit), FrameKind.PAGE))

    async def wait(self, after: int, timeout_s: float) -> None:
        self._check_open()
        await self.wakeups.wait(after, timeout_s)

    async def save_checkpoint(self, note: CheckpointNote) -> None:
        await self._ask(FrameKind.SAVE_CHECKPOINT, wire.encode_notes([note]), FrameKind.DONE)

    async def checkpoints(self) -> list[CheckpointNote]:
        return wire.decode_notes(await self._ask(FrameKind.CHECKPOINTS, b"", FrameKind.NOTES))

    async def truncate(self, through: int) -> None:
        await self._ask(FrameKind.TRUNCATE, wire.encode_sequence(max(through, 0)), FrameKind.DONE)

    async def close(self) -> None:
        self._closed = True
        self._usable.set()
        self._keeper.cancel()
        await asyncio.wait([self._keeper])
        if self._connection is not None:
            self._connection.abort()
            await self._connection.lost
        self.wakeups.wake_all()

    async def _ask(
        self, kind: FrameKind, payload: bytes, expected: FrameKind, if_lost: type[LakestreamError] = Retry
    ) -> bytes:
        connection = await self._connected()
        answer = await connection.ask(kind, payload, if_lost)
        if answer.kind == FrameKind.FAILED:
            raise wire.decode_error(answer.payload)
        if answer.kind != expected:
            raise if_lost(f"the command log's owner answered {kind.name} with kind {answer.kind}")
        return answer.payload

    async def _connected(self) -> "_Connection":
        self._check_open()
        if self._connection is None:
            try:
                async with asyncio.timeout(self._connect_timeout_s):
                    await self._usable.wait()
            except TimeoutError:
                raise Retry(f"no owner of the command log at {self.path}") from None
            self._check_open()
            if self._connection is None:
                raise Retry(f"the owner of the command log at {self.path} came and went")
        return self._connection

    def _check_open(self) -> None:
        if self._closed:
            raise Retry("the command log is closed")
        if self._refused is not None:
            raise self._refused

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = RECONNECT_FIRST_S
        while self._refused is None:
            try:
                _, connection = await loop.create_unix_connection(lambda: _Connection(self), self.path)
            except OSError:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, RECONNECT_MAX_S)
                continue
            try:
                await asyncio.shield(connection.lost)
            except asyncio.CancelledError:
                connection.abort()
                raise
            await asyncio.sleep(RECONNECT_FIRST_S)
            pause_s = RECONNECT_FIRST_S

    # Called by the connection.

    def welcomed(self, connection: "_Connection", last: int) -> None:
        self._connection = connection
        self._usable.set()
        self.wakeups.announce(last)

    def refused(self, error: LakestreamError) -> None:
        self._refused = error
        self._usable.set()

    def lost(self, connection: "_Connection") -> None:
        if self._connection is connection:
            self._connection = None
            self._usable.clear()


class _Connection(asyncio.Protocol):
    """One connection to the owner: greets, sends requests, matches answers."""

    def __init__(self, client: SocketLog) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._frames = Frames(wire.MAX_ANSWER_BYTES)
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._next_request = 1
        self._transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[None] = self._loop.create_future()

    async def ask(self, kind: FrameKind, payload: bytes, if_lost: type[LakestreamError]) -> Frame:
        """The answer. Raises Retry if the request was not sent, `if_lost` if it was sent and its answer is lost."""
        if self._transport is None or self._transport.is_closing():
            raise Retry("the connection to the command log's owner is gone")
        if len(self._pending) >= MAX_REQUESTS_IN_FLIGHT:
            raise Retry(f"{MAX_REQUESTS_IN_FLIGHT} requests to the command log's owner are unanswered")
        request, self._next_request = self._next_request, self._next_request % 0xFFFF_FFFF + 1
        answer: asyncio.Future[Frame] = self._loop.create_future()
        self._pending[request] = answer
        self._transport.write(wire.frame(kind, request, payload))
        timer = self._loop.call_later(self._client.answer_timeout_s, self.abort)
        try:
            return await answer
        except ConnectionResetError:
            raise if_lost(f"the command log's owner did not answer {kind.name}") from None
        finally:
            timer.cancel()
            self._pending.pop(request, None)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.write(wire.frame(FrameKind.HELLO, 0, wire.encode_hello()))

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        try:
            while (frame := self._frames.next()) is not None:
                self._take(frame)
        except Corrupt:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._client.lost(self)
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError())
        if not self.lost.done():
            self.lost.set_result(None)

    def _take(self, frame: Frame) -> None:
        if frame.kind == FrameKind.NEWS:
            self._client.wakeups.announce(wire.decode_sequence(frame.payload))
        elif frame.kind == FrameKind.WELCOME:
            try:
                self._client.welcomed(self, wire.decode_hello(frame.payload))
            except Halted as error:
                self._client.refused(error)
                self.abort()
        elif frame.kind == FrameKind.FAILED and frame.request == 0:
            self._client.refused(wire.decode_error(frame.payload))
            self.abort()
        elif (answer := self._pending.get(frame.request)) is not None and not answer.done():
            answer.set_result(frame)

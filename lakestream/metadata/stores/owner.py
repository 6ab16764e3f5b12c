"""The process that owns a SQLite command log for several brokers of one machine, behind a Unix socket.

The owner is no broker: a frozen broker never holds the file, and a frozen client never delays the owner (L15). A single
broker owns the file in its own process, and serves the pipeline (`Owner.serve`).
Run it as `python -m lakestream.metadata.stores.owner DATABASE SOCKET`; the process prints `ready` when it serves.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import cast

import uvloop

from lakestream.errors import Corrupt, Halted, LakestreamError, Retry
from lakestream.metadata.stores import wire
from lakestream.metadata.stores.sqlite import SqliteLog
from lakestream.metadata.stores.wire import Frame, FrameKind, Frames
from lakestream.process.readiness import GIVE_UP

MAX_CLIENTS = 256
MAX_REQUESTS_IN_FLIGHT = 64
MAX_UNSENT_BYTES = 128 * 1024 * 1024
"""A client with more unread answers than this is disconnected; a client that reads again reconnects by itself."""
LOCK_WAIT_S = 5.0
DRAIN_S = 5.0
NEWS_POLL_S = 1.0

log = logging.getLogger(__name__)


class Owner:
    """Serves one log to every client of its socket. `open` or `serve`, then `close`."""

    def __init__(self, commands: SqliteLog, socket_path: str) -> None:
        self.commands = commands
        self.clients: set[_Client] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._socket_path = socket_path
        self._server: asyncio.AbstractServer | None = None
        self._news: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, database: str | os.PathLike[str], socket_path: str | os.PathLike[str]) -> "Owner":
        """Lock the file and listen. The holder of the lock may replace the socket of a dead owner."""
        commands = await _open_log(database)
        try:
            return await cls.serve(commands, socket_path)
        except BaseException:
            await commands.close()
            raise

    @classmethod
    async def serve(cls, commands: SqliteLog, socket_path: str | os.PathLike[str]) -> "Owner":
        """Share a log that is open in this process."""
        owner = cls(commands, os.fspath(socket_path))
        listener = _bind(owner._socket_path)
        owner._server = await asyncio.get_running_loop().create_unix_server(lambda: _Client(owner), sock=listener)
        owner._news = asyncio.create_task(owner._spread_news(), name="command-log-news")
        return owner

    async def close(self) -> None:
        """Answer the requests that have arrived, then close the socket and the file."""
        assert self._server is not None and self._news is not None
        self._server.close()
        self._news.cancel()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket_path)
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=DRAIN_S)
        for client in list(self.clients):
            client.close()
        await self.commands.close()

    async def _spread_news(self) -> None:
        told = self.commands.last
        with contextlib.suppress(Retry):  # a closed log has no more news
            while True:
                await self.commands.wait(told, NEWS_POLL_S)
                if self.commands.last != told:
                    told = self.commands.last
                    for client in list(self.clients):
                        client.tell(told)


class _Client(asyncio.Protocol):
    """One connection. Requests run at once, up to a limit. No request is read while answers wait to be read."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._frames = Frames(wire.MAX_REQUEST_BYTES)
        self._in_flight = 0
        self._appending = 0
        self._told = 0
        self._greeted = False
        self._stuck = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        if len(self._owner.clients) >= MAX_CLIENTS:
            log.warning("refused a client: %d are connected", MAX_CLIENTS)
            transport.abort()
        else:
            self._owner.clients.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._owner.clients.discard(self)

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        self._take_requests()

    def pause_writing(self) -> None:
        self._stuck = True
        self._take_requests()

    def resume_writing(self) -> None:
        self._stuck = False
        self.tell(self._owner.commands.last)
        self._take_requests()

    def tell(self, last: int) -> None:
        """Push a hint that the log has grown, unless the answer to an append is about to carry the news.

        A client that does not read gets one hint when it reads again.
        """
        if last > self._told and self._greeted and not self._stuck and not self._appending:
            self._told = last
            self._write(wire.frame(FrameKind.NEWS, 0, wire.encode_sequence(last)))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _take_requests(self) -> None:
        try:
            while not self._full() and (request := self._frames.next()) is not None:
                self._take(request)
        except LakestreamError as error:
            log.warning("dropped a client of the command log: %s", error)
            self._write(wire.frame(FrameKind.FAILED, 0, wire.encode_error(error)))
            self.close()
        if self._transport is not None and not self._transport.is_closing():
            if self._full():
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _full(self) -> bool:
        return self._stuck or self._in_flight >= MAX_REQUESTS_IN_FLIGHT or self._transport is None

    def _take(self, request: Frame) -> None:
        if not self._greeted:
            if request.kind != FrameKind.HELLO:
                raise Corrupt("the first frame is no greeting")
            wire.decode_hello(request.payload)
            self._greeted = True
            self._told = self._owner.commands.last
            self._write(wire.frame(FrameKind.WELCOME, request.request, wire.encode_hello(self._told)))
            return
        self._in_flight += 1
        self._appending += request.kind == FrameKind.APPEND
        task = asyncio.get_running_loop().create_task(self._answer(request))
        self._owner.tasks.add(task)
        task.add_done_callback(self._owner.tasks.discard)

    async def _answer(self, request: Frame) -> None:
        try:
            if request.kind == FrameKind.APPEND:
                kind, payload = FrameKind.APPENDED, await self._append(request.payload)
            else:
                kind, payload = await _act(self._owner.commands, request)
        except LakestreamError as error:
            kind, payload = FrameKind.FAILED, wire.encode_error(error)
        except (ValueError, OverflowError) as error:  # a limit that our own client checks before it sends
            kind, payload = FrameKind.FAILED, wire.encode_error(Halted(str(error)))
        self._in_flight -= 1
        self._appending -= request.kind == FrameKind.APPEND
        self._write(wire.frame(kind, request.request, payload))
        self.tell(self._owner.commands.last)
        self._take_requests()

    async def _append(self, payload: bytes) -> bytes:
        appended = await self._owner.commands.append(*wire.decode_append(payload))
        if appended.tail:
            self._told = max(self._told, appended.tail[-1][0])
        return wire.encode_sequence(appended.first) + wire.encode_page(appended.tail)

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            log.warning("dropped a client of the command log that does not fetch its answers")
            self._transport.abort()


async def _act(commands: SqliteLog, request: Frame) -> tuple[FrameKind, bytes]:
    match request.kind:
        case FrameKind.READ:
            return FrameKind.PAGE, wire.encode_page(await commands.read(*wire.decode_read(request.payload)))
        case FrameKind.SAVE_CHECKPOINT:
            for note in wire.decode_notes(request.payload):
                await commands.save_checkpoint(note)
            return FrameKind.DONE, b""
        case FrameKind.CHECKPOINTS:
            return FrameKind.NOTES, wire.encode_notes(await commands.checkpoints())
        case FrameKind.TRUNCATE:
            await commands.truncate(wire.decode_sequence(request.payload))
            return FrameKind.DONE, b""
    raise Halted(f"the command log's owner does not know requests of kind {request.kind}")


async def _open_log(database: str | os.PathLike[str]) -> SqliteLog:
    """Wait a little for the lock: the previous owner may be about to end."""
    deadline = asyncio.get_running_loop().time() + LOCK_WAIT_S
    while True:
        try:
            return await SqliteLog.open(database, inline=True)
        except Retry:
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(0.02)


def _bind(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        umask = os.umask(0o177)  # no other user may connect, not even between bind and chmod
        try:
            listener.bind(path)
        finally:
            os.umask(umask)
    except OSError as error:
        listener.close()
        raise Halted(f"cannot listen on {path}: {error}") from error
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _remove_stale(path: str) -> None:
    if not os.path.exists(path):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise Halted(f"{path} is the socket of another command log's owner, which is alive")


async def run_owner(database: str, socket_path: str) -> None:
    """Own the file and serve it until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    owner = await Owner.open(database, socket_path)
    print("ready", flush=True)
    await stop.wait()
    await owner.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lakestream.metadata.stores.owner", description=__doc__)
    parser.add_argument("database", help="the SQLite file; made if it is not there")
    parser.add_argument("socket", help="where to listen")
    given = parser.parse_args(arguments)
    try:
        uvloop.run(run_owner(given.database, given.socket))
    except (LakestreamError, OSError) as error:
        print(f"command log owner: {error}", file=sys.stderr)
        return GIVE_UP if isinstance(error, Corrupt) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

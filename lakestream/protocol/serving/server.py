"""A listener of framed connections: accepts, drains, and closes connections that idle, stall or take no answers.

What a client may do, and for how long, is in `Limits`.
"""

import asyncio
import contextlib
import logging
import resource
from collections.abc import Callable
from typing import Final

from lakestream.interfaces import Clock
from lakestream.protocol.serving.board import ConnectionBoard, ServerStats
from lakestream.protocol.serving.connection import FramedConnection

BACKLOG: Final = 4096
SWEEP_S: Final = 1.0
SPARE_FILES: Final = 256
"""Descriptors kept for everything that is not a client."""


class ConnectionServer:
    """One protocol on one address. Made and used on the event loop's thread.

    `connect` makes the protocol's connection on `board`. `address` is what clients should use, as HOST:PORT.
    """

    def __init__(
        self,
        board: ConnectionBoard,
        connect: Callable[[], FramedConnection],
        clock: Clock,
        log: logging.Logger,
        *,
        host: str,
        port: int,
        address: str = "",
    ) -> None:
        self._board = board
        self._connect = connect
        self._clock = clock
        self._log = log
        self._limits = board.limits
        self._host = host
        self._port = port
        self.address = address or f"{host}:{port}"
        self._listener: asyncio.AbstractServer | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._idle_checked_at = 0.0

    @property
    def stats(self) -> ServerStats:
        return self._board.stats

    @property
    def held_bytes(self) -> int:
        """Memory of requests that have not arrived completely."""
        return self._board.admission.held_bytes

    @property
    def in_flight_bytes(self) -> int:
        """Memory of requests that are not released yet, in whole slabs."""
        return self._board.pool.used_bytes

    @property
    def unsent_bytes(self) -> int:
        """Memory of answers that their clients do not take."""
        return self._board.unsent_bytes

    async def start(self) -> tuple[str, int]:
        """Listen; returns the address, whose port was chosen by the system if it was 0."""
        board = self._board
        board.loop = asyncio.get_running_loop()
        board.now = self._idle_checked_at = self._clock.monotonic()
        files = raise_open_files()
        if files < self._limits.max_connections + SPARE_FILES:
            board.max_connections = max(1, files - SPARE_FILES)
            text = "at most %d connections, because the limit of open files is %d"
            self._log.info(text, board.max_connections, files)
        self._listener = await board.loop.create_server(self._connect, self._host, self._port, backlog=BACKLOG)
        self._sweeper = board.loop.create_task(self._sweep_forever())
        address = self._listener.sockets[0].getsockname()
        return address[0], address[1]

    def hold_producers(self, held: bool) -> None:
        """While the appender has no room: read nothing from clients that produce."""
        self._board.admission.halt_producers(held)

    def suspend(self) -> None:
        """Fall silent (L8): close every connection, and each new one at once, until `resume`."""
        self._board.refusing = True
        for connection in list(self._board.connections):
            connection.abort()

    def resume(self) -> None:
        """Serve again after `suspend`."""
        self._board.refusing = False

    async def drain(self, timeout_s: float) -> None:
        """Accept and take up nothing more, answer what was taken up, close. After the timeout cut the rest off."""
        board = self._board
        if self._listener is not None:
            self._listener.close()
        board.draining = True
        board.last_lost = board.loop.create_future()
        for connection in list(board.connections):
            connection.finish()
        if board.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(board.last_lost, timeout_s)
        for connection in list(board.connections):
            connection.abort()

    async def stop(self) -> None:
        """Close everything at once, and wait until no handler runs any more."""
        board = self._board
        if self._listener is not None:
            self._listener.close()
        board.draining = True
        for connection in list(board.connections):
            connection.abort()
        ending = [*board.tasks]
        if self._sweeper is not None:
            ending.append(self._sweeper)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    # Upkeep

    async def _sweep_forever(self) -> None:
        interval = min(SWEEP_S, self._limits.stall_timeout_s / 4, self._limits.idle_timeout_s / 4)
        while True:
            await asyncio.sleep(interval)
            self._sweep(interval)

    def _sweep(self, interval: float) -> None:
        board = self._board
        now = board.now = self._clock.monotonic()
        board.pool.trim()
        for holder in board.admission.holders():
            assert isinstance(holder, FramedConnection)
            if now - holder.rest_at > 2 * interval:
                holder.move_out()
        for stalled in board.admission.choose_again(now, 2 * interval):
            assert isinstance(stalled, FramedConnection)
            stalled.refuse("stalled", f"{stalled.missing} bytes of a request do not come, and memory is short")
        self._look_after_slow_readers(now)
        if now - self._idle_checked_at >= self._limits.idle_timeout_s / 8:
            self._idle_checked_at = now
            for connection in list(board.connections):
                if connection.idle and now - connection.active_at > self._limits.idle_timeout_s:
                    connection.refuse("idle", f"nothing came for {self._limits.idle_timeout_s:g} s")

    def _look_after_slow_readers(self, now: float) -> None:
        board, limits = self._board, self._limits
        total = 0
        for connection, (before, _) in list(board.slow_readers.items()):
            unsent = connection.transport.get_write_buffer_size()
            total += unsent
            if unsent != before:
                board.note_unsent(connection, unsent)
        limit_s = limits.stall_timeout_s if total > limits.unsent_bytes else limits.idle_timeout_s
        for connection, (unsent, since) in list(board.slow_readers.items()):
            if now - since > limit_s:
                connection.refuse("slow", f"the client takes none of the {unsent} bytes of its answers")


def raise_open_files() -> int:
    """Allow this process as many open files as the machine does; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1 << 30

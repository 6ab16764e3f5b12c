"""One broker's life: listen, join, serve, fall silent when blind, drain, stop. It serves a list of listeners.

    listening, closed to clients -> fold the log -> join -> serve -> SIGTERM: finish what was begun -> leave -> close
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from lakestream.errors import Corrupt, Halted, LakestreamError
from lakestream.interfaces import CommandLog, ProbesRoom, Wal
from lakestream.metadata.checkpoint import Dump
from lakestream.metadata.membership import Membership
from lakestream.metadata.replica import Replica
from lakestream.process.readiness import GIVE_UP
from lakestream.stream.appender import Appender
from lakestream.stream.waiting import Waiting

log = logging.getLogger(__name__)

WATCH_S = 0.25
CHECKPOINT_S = 5.0
ROOM_S = 1.0


class Listener(Protocol):
    """One protocol on one address."""

    address: str
    """Where clients should connect, as HOST:PORT: part of the ready line."""

    async def start(self) -> object:
        """Listen. Raises OSError if the port is taken."""
        ...

    async def drain(self, timeout_s: float) -> None:
        """Take up nothing more and answer what was taken up; after the timeout cut the rest off."""
        ...

    async def stop(self) -> None:
        """Close everything, and return once no handler runs any more."""
        ...


@runtime_checkable
class StreamListener(Protocol):
    """A listener whose clients append and read records: it serves them only while the broker is current."""

    def suspend(self) -> None:
        """Close all connections, and each new one at once, until `resume` (L8)."""
        ...

    def resume(self) -> None: ...

    def hold_producers(self, held: bool) -> None:
        """While held, read nothing from clients that append."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a broker, built and not yet running."""

    command_log: CommandLog
    wal: Wal
    replica: Replica
    membership: Membership
    appender: Appender
    waiting: Waiting
    listeners: Sequence[Listener]
    """In the order in which they start, drain and stop."""
    background: Sequence[Callable[[], Awaitable[None]]]
    """Loops that run beside serving until they are cancelled: upkeep, group timers."""
    before_drain: Callable[[], Awaitable[None]]
    """Answers the clients that would wait for longer than a drain."""
    dump: Dump


class Broker:
    """Runs the parts."""

    def __init__(self, parts: Parts, drain_s: float) -> None:
        self._parts = parts
        self._drain_s = drain_s
        self._stopping = asyncio.Event()
        self._serving = False
        self._stream_listeners = [one for one in parts.listeners if isinstance(one, StreamListener)]
        self._stores = (parts.appender.room, parts.replica.room)
        self.state = "starting"

    def ready(self) -> str | None:
        """None while clients are served; else the reason why they are not, or why writes fail."""
        if not self._serving:
            return self.state
        full = [store for store in self._stores if store.why]
        return "; ".join(f"{one.store} has no room: {one.why}" for one in full) or None

    def stop(self) -> None:
        """Begin a draining stop."""
        self._stopping.set()

    async def listen(self) -> None:
        """Start the listeners. Connections of stream clients are refused until the broker has joined."""
        for stream_listener in self._stream_listeners:
            stream_listener.suspend()
        for listener in self._parts.listeners:
            await listener.start()

    async def run(self, on_ready: Callable[[], None]) -> int:
        """Serve until stopped; returns an exit code. The listeners are started before, by `listen`."""
        parts = self._parts
        parts.appender.on_pressure = self._on_pressure
        try:
            self.state = "reading the command log"
            await parts.replica.start()
            self.state = "joining the cluster"
            await parts.membership.join()
            self._resume()
            on_ready()
            await self._serve()
        except (Halted, Corrupt) as error:
            parts.replica.halt(error if isinstance(error, Halted) else Halted(str(error)))
        finally:
            await self._shut_down()
        halted = parts.replica.halted
        return 0 if halted is None else 3 if halted.restart_helps else GIVE_UP

    async def _serve(self) -> None:
        parts = self._parts
        loops = [
            asyncio.create_task(parts.membership.run(), name="membership"),
            *(asyncio.ensure_future(start()) for start in parts.background),
            asyncio.create_task(self._checkpoint(), name="checkpoint"),
            asyncio.create_task(self._watch(), name="watch"),
            asyncio.create_task(self._watch_room(), name="watch-room"),
        ]
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        try:
            done, _ = await asyncio.wait([stopping, *loops], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                if (error := task.exception()) is not None:
                    raise error
        finally:
            for task in (stopping, *loops):
                task.cancel()
            await asyncio.gather(stopping, *loops, return_exceptions=True)

    async def _watch(self) -> None:
        """Close the clients' connections while the broker is blind (L8); return when it is halted."""
        parts = self._parts
        while parts.replica.halted is None:
            blind = parts.membership.blind
            if blind and self._serving:
                log.warning("blind: nothing was folded for a session; connections are closed")
                self.state, self._serving = "blind: the command log cannot be read", False
                for listener in self._stream_listeners:
                    listener.suspend()
            elif not blind and not self._serving:
                log.info("current again: serving")
                self._resume()
            await asyncio.sleep(WATCH_S)

    def _resume(self) -> None:
        self._serving = True
        for listener in self._stream_listeners:
            listener.resume()

    async def _watch_room(self) -> None:
        """Probe a full write-ahead log for room: nothing is written meanwhile. Heartbeats probe the command log."""
        wal, room = self._parts.wal, self._parts.appender.room
        while True:
            await asyncio.sleep(ROOM_S)
            if room.why and (not isinstance(wal, ProbesRoom) or await wal.has_room()):
                room.taken()

    async def _checkpoint(self) -> None:
        parts = self._parts
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            try:
                if await parts.membership.checkpoint_if_due(parts.command_log, parts.wal, parts.dump):
                    log.info("checkpoint at command %d", parts.replica.state.sequence)
            except (LakestreamError, OSError) as error:
                log.warning("no checkpoint this time: %s", error)

    async def _shut_down(self) -> None:
        parts = self._parts
        self._serving, self.state = False, "stopping"
        await parts.before_drain()
        # Right before the drain: a client whose long poll is answered early sends the next one at once.
        parts.waiting.close()
        if parts.replica.halted is None:
            for listener in parts.listeners:
                await listener.drain(self._drain_s)
            try:
                await asyncio.wait_for(parts.appender.drain(), self._drain_s)
            except TimeoutError:
                log.warning("stopping with produce requests that are not answered")
            await parts.membership.leave()
        for listener in parts.listeners:
            await listener.stop()
        await parts.replica.stop()
        await parts.command_log.close()
        await parts.wal.close()

    def _on_pressure(self, full: bool) -> None:
        for listener in self._stream_listeners:
            listener.hold_producers(full)

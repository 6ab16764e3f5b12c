"""A client's connection whose frames carry their length in front: bytes to frames, answers to bytes in order (L16).

A protocol derives its own connection from this one and takes up frames in `take_frames`. Bytes that may not be taken up
yet stay where they were received, and the socket is paused.

A rest (`rest[start:end]`) is what was received and not taken up. There are three kinds:
- a few bytes, copied; the next receive puts them in front of what arrives (`room_end` is 0);
- a frame that is still arriving, in a place with room for all of it, up to `room_end`;
- complete frames that wait for those before them (`waiting`), left in place.
"""

import asyncio
import fcntl
import struct
import termios
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from lakestream.interfaces import Buffer
from lakestream.protocol.serving.board import ConnectionBoard
from lakestream.protocol.serving.slabs import Slab, small_copy

_LENGTH: Final = struct.Struct(">i")
_TRUSTED_SHARE: Final = 4
"""Once this part of a frame is there, its rest gets room in a shared slab."""

Reply = bytes | Sequence[Buffer] | None
"""Whole frames, their length in front; None for no answer at all."""
PENDING: Final[Any] = object()
"""The reply of a slot that is not answered yet."""


class AnswerSlot:
    """A place in the order of a connection's answers (L16), for `count` requests that came one behind the other."""

    __slots__ = ("connection", "reply")

    count: int

    def __init__(self, connection: "FramedConnection") -> None:
        self.connection = connection
        self.reply: Reply = PENDING

    def answer(self, reply: Reply) -> None:
        """Give the framed response; None if the client wants none. Answers go out in order, once a loop iteration."""
        assert self.reply is PENDING, "a request is answered once"
        self.reply = reply
        connection = self.connection
        answers = connection.answers
        if answers and answers[0] is self and not connection.queued:
            connection.queued = True
            connection.board.queue(connection)


_NO_ANSWERS: Final["deque[AnswerSlot]"] = deque(maxlen=0)


class FramedConnection(asyncio.BufferedProtocol):
    """See the module. All methods run on the event loop's thread."""

    __slots__ = (
        "active_at", "answers", "board", "busy", "closed", "end", "held", "id", "in_runs", "largest", "lost_callbacks",
        "missing", "produces", "queued", "reading", "rest", "rest_at", "room_end", "start", "transport", "waiting",
        "waits_for_memory", "write_paused",
    )  # fmt: skip

    head_bytes: int
    """A frame's first bytes, its length among them, without which nothing can be done with the frame."""

    def __init__(self, board: ConnectionBoard) -> None:
        self.board = board
        self.id = board.next_id()
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.answers = _NO_ANSWERS
        self.in_runs = 0
        """How many more requests than slots are in flight, because some slots stand for several requests."""
        self.lost_callbacks: list[Callable[[], None]] | None = None
        self.active_at = board.now
        self.busy = False
        """A request that has to be answered before the next one begins is being handled."""
        self.closed = False
        self.produces = False
        """The client appends records: its socket pauses while the appender or the memory is full."""
        self.queued = False
        self.reading = True
        self.write_paused = False
        self.rest: Slab | None = None
        self.start = self.end = self.room_end = 0
        self.rest_at = 0.0
        self.waiting = False
        self.waits_for_memory = False
        self.held = 0
        self.missing = 0
        self.largest = 0

    def take_frames(self, slab: Slab, pos: int, end: int) -> int:
        """Take up the frames in slab[pos:end] until one is incomplete or has to wait; returns where that one begins.

        Sets `waiting` if complete frames have to wait. A frame that stays in use keeps a pin on the slab.
        """
        raise NotImplementedError

    def begin_producing(self) -> "deque[AnswerSlot]":
        """From now on the client appends records, and its answers wait in order."""
        self.produces = True
        self.answers = deque()
        self.board.admission.add_producer(self)
        return self.answers

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        board = self.board
        if board.refusing or board.draining or len(board.connections) >= board.max_connections:
            self.closed = True
            self.transport.abort()
            if not board.refusing and not board.draining:
                board.warnings.warn("too many", self.peer, f"there are {len(board.connections)} already")
            return
        board.connections[self] = None
        board.stats.accepted += 1
        board.stats.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        board = self.board
        self._let_go()
        if self not in board.connections:
            return
        del board.connections[self]
        board.stats.connections -= 1
        board.forget_unsent(self)
        callbacks, self.lost_callbacks = self.lost_callbacks, None
        for callback in callbacks or ():
            callback()
        if board.last_lost is not None and not board.connections and not board.last_lost.done():
            board.last_lost.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        rest, pool = self.rest, self.board.pool
        if rest is None:
            view = pool.room(self.board.limits.small_bytes)
            start = pool.position
        elif self.room_end:
            return rest.view[self.end : self.room_end]
        else:
            size = self.end - self.start
            view = pool.room(size + self.board.limits.small_bytes)
            start = pool.position + size
            view[pool.position : start] = rest.view[self.start : self.end]
        return view[start : start + self._receive_bytes()]

    def buffer_updated(self, nbytes: int) -> None:
        board = self.board
        self.active_at = board.now
        board.stats.bytes_in += nbytes
        rest, pool = self.rest, board.pool
        if rest is not None and self.room_end:
            self.end += nbytes
            self.missing = self.room_end - self.end
            if self.missing:
                board.admission.hold(self, self.held if rest.used_bytes < 0 else self.end - self.start)
                return
            self.largest = max(self.largest, self.end - self.start)
            if rest.used_bytes == 0:
                pool.filled(rest)
            self.rest = None
            self._advance(rest, self.start, self.end)
            return
        begin = pool.position
        if rest is not None:
            nbytes += self.end - self.start
            self.rest = None
        slab = pool.current
        slab.pins += 1
        pool.position = begin + nbytes
        self._advance(slab, begin, begin + nbytes)

    def eof_received(self) -> bool:
        self._let_go()
        return False

    def pause_writing(self) -> None:
        self.write_paused = True
        self.board.note_unsent(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.write_paused = False
        self.board.forget_unsent(self)
        # The transport is in the middle of writing: waiting requests are taken up afterwards.
        self.board.loop.call_soon(self._go_on)

    # What handlers and the server use

    @property
    def peer(self) -> str:
        name = self.transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "a client"

    @property
    def host(self) -> str:
        name = self.transport.get_extra_info("peername")
        return str(name[0]) if name else ""

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call back once this connection is gone, so that a handler stops waiting for a client that left."""
        if self.closed:
            self.board.loop.call_soon(callback)
        elif self.lost_callbacks is None:
            self.lost_callbacks = [callback]
        else:
            self.lost_callbacks.append(callback)

    def abort(self) -> None:
        """Close without sending what is not sent yet."""
        self._let_go()
        self.transport.abort()

    def refuse(self, kind: str, reason: str, error: BaseException | None = None) -> None:
        """Close without an answer, and log the reason."""
        if not self.closed:
            self.board.warnings.warn(kind, self.peer, reason, error=error)
            self.abort()

    def finish(self) -> None:
        """While draining: close as soon as all requests that were taken up are answered."""
        if not self.closed and not self.answers and not self.busy:
            self._let_go()
            self.transport.close()
        self.update_reading()

    def flush(self) -> None:
        """Send the answers that are next in order and ready."""
        self.queued = False
        answers, out, joined = self.answers, [], True
        while answers:
            slot = answers[0]
            reply = slot.reply
            if reply is PENDING:
                break
            answers.popleft()
            self.in_runs -= slot.count - 1
            if type(reply) is bytes:
                out.append(reply)
            elif reply is not None:
                out.extend(cast(Sequence[bytes], reply))
                joined = False
        if out:
            self.send(out, joined)
        self._go_on()

    def update_reading(self) -> None:
        """Pause or resume the socket, as the waiting requests and the memory demand."""
        if self.closed:
            return
        admission = self.board.admission
        reading = not (
            self.waiting
            or self.waits_for_memory
            or self.board.draining
            or (self.produces and not self.missing and admission.producers_paused)
        )
        if reading != self.reading:
            self.reading = reading
            if reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def pending_bytes(self) -> int:
        """Received bytes that wait in the socket."""
        sock = self.transport.get_extra_info("socket")
        if self.closed or sock is None or sock.fileno() < 0:
            return 0
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.FIONREAD, b"\0\0\0\0"), "little")

    @property
    def idle(self) -> bool:
        """No request of this connection is being handled, and no answer waits to be sent."""
        return not self.answers and not self.busy and not self.write_paused

    def move_out(self) -> None:
        """Copy a rest that stays for long out of the shared slab, which could not be used again otherwise."""
        rest = self.rest
        if rest is None or rest.used_bytes >= 0 or rest.pool is None:
            return
        part = rest.view[self.start : self.end]
        home = self.board.pool.big(self.room_end - self.start) if self.room_end else small_copy(part)
        if self.room_end:
            home.view[: len(part)] = part
            self.room_end -= self.start
        self.rest, self.start, self.end = home, 0, len(part)
        rest.release()
        self.board.admission.hold(self, self.end)

    # Receiving

    def _receive_bytes(self) -> int:
        board = self.board
        if self.produces and board.admission.producers_paused:
            return max(1, min(self.missing, board.limits.receive_bytes))
        return board.limits.small_bytes if self.busy or board.admission.short else board.limits.receive_bytes

    def _advance(self, slab: Slab, start: int, end: int) -> None:
        """Take up the frames in slab[start:end] that need not wait, and keep the rest. Releases a pin of the caller."""
        self.waiting = False
        if self.busy or self.write_paused or self.board.draining:
            self.waiting = True
        else:
            start = self.take_frames(slab, start, end)
        if not self.closed:
            if start == end:
                self.missing = 0
                if self.held:
                    self.board.admission.hold(self, 0)
            elif self.waiting:
                self._keep(slab, start, end)
            else:
                self._await_frame(slab, start, end)
            self.board.admission.check_memory()
            self.update_reading()
        slab.release()

    def send(self, parts: Sequence[Buffer], joined: bool) -> None:
        if self.closed:
            return
        self.board.stats.bytes_out += sum(map(len, parts))
        self.active_at = self.board.now
        if len(parts) == 1:
            self.transport.write(parts[0])
        elif joined:
            self.transport.write(b"".join(parts))
        else:
            self.transport.writelines(parts)

    def _go_on(self) -> None:
        """Take up waiting requests: an answer was sent, or the socket takes bytes again."""
        if self.closed:
            return
        if self.board.draining:
            self.finish()
        elif self.waiting and not self.busy and not self.write_paused and self.rest is not None:
            rest, self.rest = self.rest, None
            self._advance(rest, self.start, self.end)

    # Keeping what cannot be taken up yet

    def _keep(self, slab: Slab, start: int, end: int) -> None:
        """Complete frames have to wait for those before them."""
        self.missing = 0
        if end - start <= self.board.limits.small_bytes:
            self._set_rest(small_copy(slab.view[start:end]), 0, end - start, 0, 0)
        else:
            slab.pins += 1
            self._set_rest(slab, start, end, 0, end - start)

    def _await_frame(self, slab: Slab, start: int, end: int) -> None:
        """The last frame is incomplete: find a place for all of it, or copy its few bytes."""
        size = end - start
        pool, limits = self.board.pool, self.board.limits
        frame_bytes = self.head_bytes
        if size >= 4:
            frame_bytes = 4 + int(_LENGTH.unpack_from(slab.view, start)[0])
        self.missing = frame_bytes - size
        if size <= limits.small_bytes:
            self._set_rest(small_copy(slab.view[start:end]), 0, size, 0, 0)
        elif frame_bytes > pool.slab_bytes or frame_bytes > max(_TRUSTED_SHARE * size, self.largest):
            home = pool.big(frame_bytes)
            home.view[:size] = slab.view[start:end]
            self._set_rest(home, 0, size, frame_bytes, size)
        else:
            if slab is not pool.current or end != pool.position or start + frame_bytes > pool.slab_bytes:
                room = pool.room(frame_bytes)
                room[pool.position : pool.position + size] = slab.view[start:end]
                start, slab = pool.position, pool.current
            slab.pins += 1
            pool.position = start + frame_bytes
            self._set_rest(slab, start, start + size, start + frame_bytes, frame_bytes)

    def _set_rest(self, slab: Slab, start: int, end: int, room_end: int, held: int) -> None:
        self.rest, self.start, self.end, self.room_end = slab, start, end, room_end
        self.rest_at = self.board.now
        if held or self.held:
            self.board.admission.hold(self, held)

    def _let_go(self) -> None:
        """From now on this connection takes up and answers nothing; release what it holds."""
        if self.closed:
            return
        self.closed = True
        self.answers = _NO_ANSWERS
        self.missing = 0
        rest, self.rest = self.rest, None
        if rest is not None:
            rest.release()
        self.board.admission.forget(self)

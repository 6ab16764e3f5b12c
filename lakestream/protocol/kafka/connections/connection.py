"""One client's connection: bytes to requests in arrival order, answers to bytes in the same order (L16).

Produce requests are taken up as they arrive, wait together, and are answered in order. Any other request begins when
all before it are answered, and those behind it wait until it is done, as in Kafka. Bytes that may not be looked at yet
stay where they were received, and the socket is paused.

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

from lakestream.errors import LakestreamError
from lakestream.interfaces import Buffer
from lakestream.protocol.kafka.connections import calls
from lakestream.protocol.kafka.connections.calls import PENDING, Handler, ProduceCall, RequestContext, Slot
from lakestream.protocol.kafka.connections.shared_board import Switchboard
from lakestream.protocol.kafka.connections.unknown_clients import unserved, what_it_looks_like
from lakestream.protocol.kafka.wire import apis, framing
from lakestream.protocol.kafka.wire.fast_requests import ProduceParser
from lakestream.protocol.serving.slabs import Slab, small_copy

_HEAD: Final = struct.Struct(">ihhi")
_LENGTH: Final = struct.Struct(">i")
_KEY: Final = struct.Struct(">hhi")
_LEAST_FRAME_BYTES: Final = 10
_TRUSTED_SHARE: Final = 4
"""Once this part of a frame is there, the rest of it is given room in a shared slab."""
_NO_ANSWERS: Final["deque[Slot]"] = deque(maxlen=0)


class Connection(asyncio.BufferedProtocol):
    """See the module. All methods run on the event loop's thread."""

    __slots__ = (
        "active_at", "answers", "board", "busy", "closed", "end", "held", "id", "in_runs", "largest", "lost_callbacks",
        "missing", "parser", "produces", "queued", "reading", "rest", "rest_at", "room_end", "start", "transport",
        "waiting", "waits_for_memory", "write_paused",
    )  # fmt: skip

    def __init__(self, board: Switchboard) -> None:
        self.board = board
        self.id = board.next_id()
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.answers = _NO_ANSWERS
        self.in_runs = 0
        """How many more requests than answers are in flight, because some stand for several."""
        self.parser: ProduceParser = cast(ProduceParser, None)
        """For the produce handler: it remembers this connection's last request. There from the first one on."""
        self.lost_callbacks: list[Callable[[], None]] | None = None
        self.active_at = board.now
        self.busy = False
        """A request other than Produce is being handled."""
        self.closed = False
        self.produces = False
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

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        board = self.board
        if board.refusing or board.draining or len(board.connections) >= board.max_connections:
            self.closed = True
            self.transport.abort()
            if not board.refusing and not board.draining:
                board.complaints.say("too many", self.peer, f"there are {len(board.connections)} already")
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
        # The transport is in the middle of writing: what waits is looked at afterwards.
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
        """Call back once this connection is gone, so that nobody waits on behalf of a client that left."""
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
        """Close, because there is no way to answer, and say why."""
        if not self.closed:
            self.board.complaints.say(kind, self.peer, reason, error=error)
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
            self._send(out, joined)
        self._go_on()

    def update_reading(self) -> None:
        """Pause or resume the socket as the state of things demands."""
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
        """Bytes that the client has sent and nobody has read."""
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

    # Taking up requests

    def _receive_bytes(self) -> int:
        board = self.board
        if self.produces and board.admission.producers_paused:
            return max(1, min(self.missing, board.limits.receive_bytes))
        return board.limits.small_bytes if self.busy or board.admission.short else board.limits.receive_bytes

    def _advance(self, slab: Slab, start: int, end: int) -> None:
        """Take up what may be taken up of slab[start:end], for which the caller holds a pin, and keep the rest."""
        self.waiting = False
        if self.busy or self.write_paused or self.board.draining:
            self.waiting = True
        else:
            start = self._take(slab, start, end)
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

    def _take(self, slab: Slab, pos: int, end: int) -> int:
        """Take up the frames in slab[pos:end] until one is incomplete or has to wait; returns where that one begins."""
        board, view, answers = self.board, slab.view, self.answers
        produce, largest, most = board.produce, board.limits.max_frame_bytes, board.limits.max_in_flight
        oldest, newest = board.produce_versions
        requests, take_run, next_try, patience = board.stats.requests, board.take_run, pos, 0
        while end - pos >= _HEAD.size:
            size, key, version, correlation_id = _HEAD.unpack_from(view, pos)
            if not _LEAST_FRAME_BYTES <= size <= largest:
                break
            stop: int = pos + 4 + size
            if key:
                if not self._take_other(view, pos + 4, stop, end):
                    return pos
                self.waiting = stop < end
                return stop
            if not oldest <= version <= newest:
                self.refuse("version", f"Produce version {version} is not supported")
                return end
            if stop > end:
                return pos
            if len(answers) + self.in_runs >= most:
                self.waiting = True
                return pos
            if not self.produces:
                answers = self._begin_producing()
            elif take_run is not None and pos >= next_try and calls.LEAST_RUN * size < end - pos:
                behind = self._take_run(take_run, slab, pos, end)
                if behind != pos:
                    pos = behind
                    continue
                # Where requests are not simple, asking each time would cost more than it saves.
                patience += size
                next_try = pos + patience
            call = ProduceCall(self, slab, pos + 12, stop, version, correlation_id)
            slab.pins += 1
            answers.append(call)
            requests[0] += 1
            try:
                produce(call)
            except Exception as error:
                if call.slab is not None:
                    call.release()
                self._failed(0, error)
            if self.closed:
                return end
            pos = stop
        if end - pos >= 4:
            (size,) = _LENGTH.unpack_from(view, pos)
            if not _LEAST_FRAME_BYTES <= size <= largest:
                self.refuse(*what_it_looks_like(bytes(view[pos : pos + 4]), size))
                return end
        return pos

    def _take_run(self, take_run: calls.RunTaker, slab: Slab, pos: int, end: int) -> int:
        try:
            pos = take_run(self, slab, pos, end, self.board.limits.max_in_flight - len(self.answers) - self.in_runs)
        except Exception as error:
            self._failed(0, error)
        return end if self.closed else pos

    def _begin_producing(self) -> "deque[Slot]":
        self.produces = True
        self.answers = deque()
        self.parser = ProduceParser()
        self.board.admission.add_producer(self)
        return self.answers

    def _take_other(self, view: memoryview, start: int, stop: int, end: int) -> bool:
        """Take up the request in view[start:stop], which is no Produce; False if it has to wait, or was refused."""
        board = self.board
        key, version, correlation_id = _KEY.unpack_from(view, start)
        handler, reading = board.handlers.get(key), version
        if handler is None:
            self.refuse("api", unserved(view, start, min(stop, end)))
            return False
        api = apis.APIS[key]
        if not api.reads(version):
            handler, reading = board.unsupported_version, 0
            if key != framing.API_VERSIONS or handler is None:
                self.refuse("version", f"{api.name} version {version} is not supported")
                return False
        if stop - start > board.limits.max_cold_frame_bytes:
            self.refuse("frame", f"{api.name} of {stop - start} bytes")
            return False
        if stop > end:
            return False
        if self.answers:
            self.waiting = True
            return False
        try:
            frame = bytes(view[start:stop])
            client_id, request = None, None
            if reading == version:
                header = framing.parse_header(frame, 0, len(frame), apis.FLEXIBLE_FROM)
                client_id = header.client_id
                request = calls.decode_or_put_off(api, version, frame, header.body)
        except Exception as error:
            self._failed(key, error)
            return False
        context = RequestContext(
            api_key=key,
            version=reading,
            correlation_id=correlation_id,
            client_id=client_id,
            client_host=self.host,
            connection=self,
        )
        self.busy = True
        board.stats.requests[key] = board.stats.requests.get(key, 0) + 1
        task = board.loop.create_task(self._serve(api, handler, context, request))
        board.tasks.add(task)
        task.add_done_callback(board.tasks.discard)
        return True

    async def _serve(self, api: apis.Api, handler: Handler, context: RequestContext, request: Any) -> None:
        """Have a request other than Produce handled and answer it; then go on with what waited."""
        try:
            if isinstance(request, calls.LongRequest):
                request = await request.decoded()
            response = await handler(context, request)
            if response is not None and not self.closed:
                self._send(*calls.framed(api, context, response))
        except Exception as error:
            self._failed(api.key, error)
        finally:
            self.busy = False
        self._go_on()

    def _failed(self, key: int, error: Exception) -> None:
        """A handler raised. Without its answer the client cannot go on; nobody else is concerned."""
        errors = self.board.stats.errors
        errors[key] = errors.get(key, 0) + 1
        if isinstance(error, LakestreamError):
            self.refuse("request", f"{apis.APIS[key].name}: {error}")
        else:
            self.refuse("failure", f"{apis.APIS[key].name} failed", error)

    def _send(self, parts: Sequence[Buffer], joined: bool) -> None:
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
        """Something that requests may wait for has happened."""
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
        """The last frame is incomplete: find a place for all of it, or put its few bytes aside."""
        size = end - start
        pool, limits = self.board.pool, self.board.limits
        frame_bytes = _HEAD.size
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
        """This connection takes up and answers nothing any more, and holds nothing."""
        if self.closed:
            return
        self.closed = True
        self.answers = _NO_ANSWERS
        self.missing = 0
        rest, self.rest = self.rest, None
        if rest is not None:
            rest.release()
        self.board.admission.forget(self)

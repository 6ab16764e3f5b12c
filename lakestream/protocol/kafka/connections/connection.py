"""A Kafka client's connection: frames to requests in the order of their arrival.

Produce requests are taken up as they arrive, wait together, and are answered in order. Any other request begins when
all before it are answered, and those behind it wait until it is done, as in Kafka.
"""

import struct
from collections import deque
from typing import Any, Final, cast

from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.connections import calls
from lakestream.protocol.kafka.connections.calls import Handler, ProduceCall, RequestContext
from lakestream.protocol.kafka.connections.shared_board import KafkaBoard
from lakestream.protocol.kafka.connections.unknown_clients import unserved, what_it_looks_like
from lakestream.protocol.kafka.wire import apis, framing
from lakestream.protocol.kafka.wire.fast_requests import ProduceParser
from lakestream.protocol.serving.connection import AnswerSlot, FramedConnection
from lakestream.protocol.serving.slabs import Slab

_HEAD: Final = struct.Struct(">ihhi")
_LENGTH: Final = struct.Struct(">i")
_KEY: Final = struct.Struct(">hhi")
_LEAST_FRAME_BYTES: Final = 10


class Connection(FramedConnection):
    """See the module. All methods run on the event loop's thread."""

    __slots__ = ("parser",)

    head_bytes = _HEAD.size
    board: KafkaBoard

    def __init__(self, board: KafkaBoard) -> None:
        super().__init__(board)
        self.parser: ProduceParser = cast(ProduceParser, None)
        """For the produce handler: it remembers this connection's last request. There from the first one on."""

    def take_frames(self, slab: Slab, pos: int, end: int) -> int:
        board, view, answers = self.board, slab.view, self.answers
        produce, largest, most = board.produce, board.limits.max_frame_bytes, board.limits.max_in_flight
        oldest, newest = board.produce_versions
        requests, take_run, next_try, skipped_bytes = board.stats.requests, board.take_run, pos, 0
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
                answers = self.begin_producing()
            elif take_run is not None and pos >= next_try and calls.LEAST_RUN * size < end - pos:
                behind = self._take_run(take_run, slab, pos, end)
                if behind != pos:
                    pos = behind
                    continue
                # Where requests are not simple, asking each time would cost more than it saves.
                skipped_bytes += size
                next_try = pos + skipped_bytes
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

    def begin_producing(self) -> "deque[AnswerSlot]":
        self.parser = ProduceParser()
        return super().begin_producing()

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
        if stop - start > board.limits.max_other_frame_bytes:
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
                self.send(*calls.framed(api, context, response))
        except Exception as error:
            self._failed(api.key, error)
        finally:
            self.busy = False
        self._go_on()

    def _failed(self, key: int, error: Exception) -> None:
        """Close the connection whose handler raised: without its answer the client cannot go on."""
        errors = self.board.stats.errors
        errors[key] = errors.get(key, 0) + 1
        if isinstance(error, LakestreamError):
            self.refuse("request", f"{apis.APIS[key].name}: {error}")
        else:
            self.refuse("failure", f"{apis.APIS[key].name} failed", error)

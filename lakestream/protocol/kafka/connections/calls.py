"""The types that handlers get: a request's context, and a Produce request as a call."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from lakestream.interfaces import Buffer
from lakestream.protocol.kafka.wire import apis
from lakestream.protocol.kafka.wire.fast_requests import parse_fetch
from lakestream.protocol.serving.connection import PENDING, AnswerSlot, Reply
from lakestream.protocol.serving.slabs import Slab

if TYPE_CHECKING:
    from lakestream.protocol.kafka.connections.connection import Connection

FETCH: Final = 1
LONG_REQUEST_BYTES: Final = 64 * 1024
LEAST_RUN: Final = 4
"""A run of fewer requests would cost more than single requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The client that asks, and the version of its request."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    connection: "Connection"


class ProduceCall(AnswerSlot):
    """A Produce request: `view[start:end]`, from the header's client id on. No Future, no Task: it is its own slot.

    The handler answers once, now or later, on the event loop's thread; it releases once, after which the bytes are
    overwritten. The two are independent of each other.
    """

    connection: "Connection"
    __slots__ = ("correlation_id", "end", "slab", "start", "version", "view")

    count = 1

    def __init__(
        self, connection: "Connection", slab: Slab, start: int, end: int, version: int, correlation_id: int
    ) -> None:
        self.connection = connection
        self.reply: Reply = PENDING
        self.slab: Slab | None = slab
        self.view = slab.view
        self.start = start
        self.end = end
        self.version = version
        self.correlation_id = correlation_id

    def release(self) -> None:
        """The bytes of the request are not needed any more."""
        slab = self.slab
        assert slab is not None, "a request is released once"
        self.slab = None
        slab.release()

    def pin(self) -> Slab:
        """Keep the bytes for longer than this call. The caller releases the slab once."""
        slab = self.slab
        assert slab is not None, "released bytes cannot be pinned"
        slab.pins += 1
        return slab


Handler = Callable[[RequestContext, Any], Awaitable[Any]]
"""Takes the decoded request; returns a response message, or buffers that are whole frames, or None for no answer."""
ProduceHandler = Callable[[ProduceCall], None]
RunTaker = Callable[["Connection", Slab, int, int, int], int]
"""See TakesRuns."""


@runtime_checkable
class TakesRuns(Protocol):
    """A produce handler that takes up many simple requests in one go."""

    def take_run(self, connection: "Connection", slab: Slab, start: int, end: int, limit: int) -> int:
        """Take up simple requests, `limit` at most, from `start` of what was received; where the first other begins."""
        ...


@dataclass(frozen=True, slots=True)
class LongRequest:
    """A request that takes so long to decode that a thread does it: no other client waits."""

    api: apis.Api
    version: int
    frame: bytes
    body: int

    async def decoded(self) -> Any:
        return await asyncio.to_thread(decode, self.api, self.version, self.frame, self.body)


def decode_or_put_off(api: apis.Api, version: int, frame: bytes, body: int) -> Any:
    """The request, or if it is long a LongRequest."""
    long = len(frame) - body > LONG_REQUEST_BYTES
    return LongRequest(api, version, frame, body) if long else decode(api, version, frame, body)


def decode(api: apis.Api, version: int, frame: bytes, body: int) -> Any:
    """The request in `frame` from `body` on: a `ParsedFetch`, or the message of another API."""
    if api.key == FETCH:
        return parse_fetch(memoryview(frame), body, len(frame), version)
    return apis.decode_request(api, version, frame, body)


def framed(api: apis.Api, context: RequestContext, response: Any) -> tuple[Sequence[Buffer], bool]:
    """A handler's response as buffers, and whether they are small enough to be joined."""
    if isinstance(response, (list, tuple)):
        return response, False
    if isinstance(response, (bytes, bytearray, memoryview)):
        return [response], True
    return [apis.encode_response(api, context.version, context.correlation_id, response)], True

"""A connection of the HTTP port: uvicorn's, counted among the open connections, and with deadlines.

Headers have a deadline from the connection or from their first byte on; the deadline of a body grows with the bytes
received. Uvicorn ends idle connections. A client that reads its answer slowly is not ended: it only uses up one of the
connections of its address.
"""

import asyncio
import logging
from typing import Any, Final

import h11
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from lakestream.protocol.http.crowd import Crowd
from lakestream.protocol.http.limits import HttpLimits

log = logging.getLogger(__name__)

_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
NOTHING, HEAD, BODY = "nothing", "headers", "a body"
"""What is awaited from the client."""


def protocol_class(crowd: Crowd, limits: HttpLimits, crowded: ASGIApp) -> type[asyncio.Protocol]:
    """Uvicorn makes one of these for each connection. `crowded` is the application beyond the limits."""

    class HttpConnection(LimitedConnection):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(crowd, limits, crowded, *args, **kwargs)

    return HttpConnection


class LimitedConnection(H11Protocol):
    """Knows at each moment what its client has to send, and since when."""

    def __init__(self, crowd: Crowd, limits: HttpLimits, crowded: ASGIApp, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._crowd = crowd
        self._limits = limits
        self._crowded: Any = crowded
        self._served = True
        self._awaited = NOTHING
        self._since = 0.0
        self._body_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        self._served = self._crowd.enter(self, address, transport.abort)
        if not self._served:
            self.app = self._crowded
        self._await(HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leave(self)
        self._await(NOTHING)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._awaited == BODY:
            self._body_bytes += len(data)
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        self._await(NOTHING)
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        """Sets the deadline for the part of a request that the client has begun and not ended."""
        theirs = self.conn.their_state
        if theirs is h11.SEND_BODY:
            self._await(BODY)
        elif theirs is h11.IDLE and self.conn.trailing_data[0]:
            self._await(HEAD)
        elif theirs is not h11.IDLE:
            self._await(NOTHING)

    def _await(self, what: str) -> None:
        if what == self._awaited:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._awaited, self._since, self._body_bytes = what, self.loop.time(), 0
        if what != NOTHING:
            self._timer = self.loop.call_later(self._allowed_s(), self._check)

    def _allowed_s(self) -> float:
        if not self._served:
            return self._limits.spare_s
        if self._awaited == HEAD:
            return self._limits.head_s
        return self._limits.body_s + self._body_bytes / self._limits.body_bytes_per_s

    def _check(self) -> None:
        """Ends the connection at its deadline, unless bytes came meanwhile, or we did not read."""
        left_s = self._since + self._allowed_s() - self.loop.time()
        if self.flow.read_paused:
            left_s = max(left_s, self._limits.head_s)
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._check)
            return
        log.info("closing a connection that takes too long for %s", self._awaited, extra={"client": self.client})
        if not self.transport.is_closing():
            if self.cycle is None or not self.cycle.response_started:
                self.transport.write(_TOO_SLOW)
            self.transport.close()

"""What all connections of one server share: memory, limits, counters, the connections, and the flush of answers."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from lakestream.protocol.serving.admission import Admission, Limits
from lakestream.protocol.serving.client_warnings import ClientWarnings
from lakestream.protocol.serving.slabs import SlabPool

if TYPE_CHECKING:
    from lakestream.protocol.serving.connection import FramedConnection


@dataclass(slots=True, kw_only=True)
class ServerStats:
    """Plain counters; all but `connections` only grow."""

    connections: int = 0
    accepted: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    requests: dict[int, int] = field(default_factory=dict)
    """By the protocol's number of the request's kind, as `errors`."""
    errors: dict[int, int] = field(default_factory=dict)
    """Requests whose handler failed."""
    closed: dict[str, int] = field(default_factory=dict)
    """Connections that the server closed, by reason."""


class ConnectionBoard:
    """Shared by all connections of one server. A protocol adds what its own connections share."""

    def __init__(self, limits: Limits, warnings: ClientWarnings) -> None:
        self.loop: asyncio.AbstractEventLoop = cast(asyncio.AbstractEventLoop, None)
        """Set when the server starts."""
        self.limits = limits
        self.max_connections = limits.max_connections
        self.warnings = warnings
        self.pool = SlabPool(limits.slab_bytes)
        self.admission = Admission(limits, self.pool)
        self.pool.freed = self.admission.check_memory
        self.stats = ServerStats(closed=warnings.counts)
        self.connections: dict[FramedConnection, None] = {}
        self.slow_readers: dict[FramedConnection, tuple[int, float]] = {}
        """Connections that do not take their answers: the unsent bytes, and since when this number has not changed."""
        self.unsent_bytes = 0
        """Of all slow readers together."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.now = 0.0
        """A coarse clock, moved by the server's sweep: precise enough for timeouts, and read at no cost."""
        self.refusing = False
        self.draining = False
        self.last_lost: asyncio.Future[None] | None = None
        """While the server drains: done when the last connection is gone."""
        self._queued: list[FramedConnection] = []
        self._next_id = 0

    def next_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def note_unsent(self, connection: "FramedConnection", size: int) -> None:
        self.forget_unsent(connection)
        self.slow_readers[connection] = (size, self.now)
        self.unsent_bytes += size

    def forget_unsent(self, connection: "FramedConnection") -> None:
        self.unsent_bytes -= self.slow_readers.pop(connection, (0, 0.0))[0]

    def queue(self, connection: "FramedConnection") -> None:
        """Flush the connection's answers at the end of this iteration of the loop, together with all others."""
        if not self._queued:
            self.loop.call_soon(self._flush)
        self._queued.append(connection)

    def _flush(self) -> None:
        queued, self._queued = self._queued, []
        for connection in queued:
            connection.flush()

"""What all connections of one server share, and where their answers meet to go out together."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from lakestream.protocol.kafka.connections.calls import Handler, ProduceHandler, RunTaker, TakesRuns
from lakestream.protocol.kafka.wire import apis
from lakestream.protocol.serving.admission import Admission, Limits
from lakestream.protocol.serving.client_warnings import Complaints
from lakestream.protocol.serving.slabs import SlabPool

if TYPE_CHECKING:
    from lakestream.protocol.kafka.connections.connection import Connection


@dataclass(slots=True, kw_only=True)
class ServerStats:
    """What happened, in plain numbers that only grow (`connections` aside)."""

    connections: int = 0
    accepted: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    requests: dict[int, int] = field(default_factory=dict)
    """By API key."""
    errors: dict[int, int] = field(default_factory=dict)
    """Requests whose handler failed, by API key."""
    closed: dict[str, int] = field(default_factory=dict)
    """Connections that we closed, by reason."""


class Switchboard:
    """What all connections of one server share."""

    def __init__(
        self,
        *,
        limits: Limits,
        handlers: Mapping[int, Handler],
        produce: ProduceHandler,
        unsupported_version: Handler | None,
        complaints: Complaints,
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = cast(asyncio.AbstractEventLoop, None)
        """Set when the server starts."""
        self.limits = limits
        self.max_connections = limits.max_connections
        self.handlers = handlers
        self.produce = produce
        self.take_run: RunTaker | None = produce.take_run if isinstance(produce, TakesRuns) else None
        self.unsupported_version = unsupported_version
        self.complaints = complaints
        self.pool = SlabPool(limits.slab_bytes)
        self.admission = Admission(limits, self.pool)
        self.pool.freed = self.admission.check_memory
        self.stats = ServerStats(closed=complaints.counts, requests={0: 0})
        self.connections: dict[Connection, None] = {}
        self.slow_readers: dict[Connection, tuple[int, float]] = {}
        """Connections that do not take their answers: how many bytes are unsent, and since when it is so many."""
        self.unsent_bytes = 0
        """Of all slow readers together."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.produce_versions = (max(apis.APIS[0].min_version, apis.APIS[0].readable_from), apis.APIS[0].max_version)
        self.now = 0.0
        """A coarse clock, moved by the sweep; good enough for timeouts, and free."""
        self.refusing = False
        self.draining = False
        self.last_lost: asyncio.Future[None] | None = None
        self._queued: list[Connection] = []
        self._next_id = 0

    def next_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def note_unsent(self, connection: "Connection", size: int) -> None:
        self.forget_unsent(connection)
        self.slow_readers[connection] = (size, self.now)
        self.unsent_bytes += size

    def forget_unsent(self, connection: "Connection") -> None:
        self.unsent_bytes -= self.slow_readers.pop(connection, (0, 0.0))[0]

    def queue(self, connection: "Connection") -> None:
        """Flush the connection's answers at the end of this iteration of the loop, together with all others."""
        if not self._queued:
            self.loop.call_soon(self._flush)
        self._queued.append(connection)

    def _flush(self) -> None:
        queued, self._queued = self._queued, []
        for connection in queued:
            connection.flush()

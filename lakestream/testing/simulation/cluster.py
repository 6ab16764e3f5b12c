"""A simulated cluster: brokers that are killed, paused and restarted around one command log and one object store.

Each broker id has a seat. Each start of the broker puts a new incarnation on the seat: a process of its own with its
own links to the stores. Clients reach an incarnation over a `Wire`, which delivers requests in order, loses answers,
and breaks when the incarnation dies.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, TypeVar

from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import LakestreamError, Retry, Unknown
from lakestream.metadata.replica import Replica
from lakestream.model.levels import NEWEST
from lakestream.testing.faults import NO_FAULTS, FaultyLog, FaultyWal, Link, StoreFaults
from lakestream.testing.simulation.event_loop import Process, SimClock, SimulatedLoop
from lakestream.testing.simulation.ledger import AuditedLog, AuditedWal, Auditor, BatchLedger, Violation
from lakestream.testing.simulation.node import CANNOT_START, Classes, Node, NodeOptions

T = TypeVar("T")
Request = Callable[[Node], Coroutine[Any, Any, T]]

CLIENT_LATENCY_S = (0.0002, 0.003)


class MemberProcess(Protocol):
    """The code that a member's process runs."""

    @property
    def replica(self) -> Replica: ...

    async def live(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFaults:
    """The faults between brokers and stores, and between clients and brokers."""

    log: StoreFaults = NO_FAULTS
    wal: StoreFaults = NO_FAULTS
    tables: StoreFaults = NO_FAULTS
    wire_lost: float = 0.0
    """The probability that an answer is lost on its way to the client."""
    skew_ms: int = 0
    restart_s: tuple[float, float] = (0.1, 2.0)


class Seat:
    """One broker id and its current incarnation, if one runs."""

    def __init__(self, member_id: int, clock: SimClock, name: str = "") -> None:
        self.id = member_id
        self.name = name or f"broker-{member_id}"
        self.clock = clock
        self.node: Node | None = None
        self.process: Process | None = None
        self.links: tuple[Link, ...] | None = None
        self.wires: dict[Wire, None] = {}
        self.incarnations = 0
        self.level = NEWEST
        """The newest feature level that this member's code knows; a restart brings the newest code."""


class SimulatedCluster:
    """The brokers, their stores, and the witnesses."""

    def __init__(
        self, loop: SimulatedLoop, seed: int | str, brokers: int, faults: ClusterFaults, options: NodeOptions,
        classes: Classes,
    ) -> None:  # fmt: skip
        self.loop = loop
        self.faults = faults
        self.violations: list[Violation] = []
        self.ledger = BatchLedger()
        self.auditor = Auditor(self.violations.append)
        self.log = AuditedLog(self.auditor)
        self.wal = AuditedWal(self.auditor, self.violations.append)
        self.seed = seed
        self.chance = Random(f"cluster-{seed}")
        self._options = options
        self._classes = classes
        self._links_of_dead: list[Link] = []
        self.seats = [
            Seat(number, SimClock(loop, self.chance.randint(-faults.skew_ms, faults.skew_ms)))
            for number in range(brokers)
        ]
        self.kills = 0

    @property
    def all_seats(self) -> list[Seat]:
        """The seats of all members, brokers and others."""
        return self.seats

    # -- life and death ---------------------------------------------------------------------------------------------

    def start(self, seat: Seat) -> None:
        """Start a new incarnation, without any memory of the one before."""
        if seat.process is not None:
            return
        seat.incarnations += 1
        if seat.incarnations > 1:
            seat.level = NEWEST
        process = seat.process = Process(f"{seat.name}.{seat.incarnations}", self.loop)
        process.start(self._live(seat, process, self._make_member(seat, process)))

    def _make_member(self, seat: Seat, process: Process) -> MemberProcess:
        """Make the member that the process runs."""
        log_link = self._link("log", self.faults.log, seat, process)
        wal_link = self._link("wal", self.faults.wal, seat, process)
        seat.links = (log_link, wal_link)
        seat.node = self._broker(seat, process, log_link, wal_link)
        return seat.node

    def _broker(
        self, seat: Seat, process: Process, log_link: Link, wal_link: Link, tables: TableStore | None = None
    ) -> Node:
        return Node(
            seat.id,
            FaultyLog(self.log, log_link),
            FaultyWal(self.wal, wal_link, self._options.linger_ms),
            seat.clock,
            Random(f"node-{process.name}-{self.seed}"),
            self._options,
            self._classes,
            tables,
            seat.level,
        )

    def _link(self, store: str, faults: StoreFaults, seat: Seat, process: Process) -> Link:
        chance = Random(f"{store}-{process.name}-{self.seed}")
        return Link(self.loop, process, chance, faults, lambda: self.kill(seat, process))

    async def _live(self, seat: Seat, process: Process, node: MemberProcess) -> None:
        name, replica = process.name, node.replica
        replica.on_fold.append(lambda: self._compare(name, node))
        try:
            await node.live()
        except CANNOT_START as error:
            if not _outdated(replica) and (replica.halted is not None or not isinstance(error, Retry | Unknown)):
                self.violations.append(Violation(f"{name} stopped for good: {error}"))
        except Violation as violation:
            self.violations.append(violation)
        self.kill(seat, process)

    def _compare(self, name: str, node: MemberProcess) -> None:
        if node.replica.halted is not None and not _outdated(node.replica):
            self.violations.append(Violation(f"{name} halted: {node.replica.halted}"))
        elif node.replica.halted is None:
            self.auditor.compare(name, node.replica)

    def kill(self, seat: Seat, process: Process | None = None) -> None:
        """End an incarnation at once, as kill -9 does; the next one starts after `restart_s`."""
        if seat.process is None or (process is not None and seat.process is not process):
            return
        self.kills += 1
        seat.process.kill()
        assert seat.links is not None
        self._links_of_dead.extend(seat.links)
        seat.process = seat.node = seat.links = None
        for wire in list(seat.wires):
            wire.break_off()
        delay = self.chance.uniform(*self.faults.restart_s)
        self.loop.call_later(delay, self.start, seat, context=self.loop.environment.context)

    def pause(self, seat: Seat, seconds: float) -> None:
        """Stop a process as SIGSTOP does, and let it go on after some seconds."""
        process = seat.process
        if process is not None and not process.paused:
            process.pause()
            self.loop.call_later(seconds, process.resume, context=self.loop.environment.context)

    def cut(self, seat: Seat, seconds: float, which: int) -> None:
        """Cut the link to the command log (0), the object store (1) or the tables (2) for some seconds."""
        if seat.links is not None:
            link = seat.links[which]
            link.cut = True
            self.loop.call_later(seconds, setattr, link, "cut", False, context=self.loop.environment.context)

    def heal(self) -> None:
        """End all faults: links work, paused processes go on, and dead members start."""
        self.faults = ClusterFaults(restart_s=(0.1, 0.2))
        for seat in self.all_seats:
            for link in seat.links or ():
                link.faults, link.cut = NO_FAULTS, False
            if seat.process is not None:
                seat.process.resume()
            if seat.level < NEWEST:
                self.kill(seat)
            self.start(seat)

    def under_way(self) -> int:
        """The number of requests on their way to a store, those of dead members included."""
        links = [link for seat in self.all_seats for link in seat.links or ()]
        return sum(link.under_way for link in [*links, *self._links_of_dead])

    def serving(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.node is not None and seat.node.serving]

    def check(self) -> None:
        """Raise the first violation that a witness noted."""
        if self.violations:
            raise self.violations[0]
        if self.loop.failures:
            raise Violation(f"an exception was not caught: {self.loop.failures[0]}")


def _outdated(replica: Replica) -> bool:
    """Whether the cluster's level is above the newest that this member knows, so that it has to stop (L3)."""
    return replica.state.level > replica.level


class Wire:
    """A client's connection to one incarnation of a broker. Requests arrive in order."""

    def __init__(self, cluster: SimulatedCluster, seat: Seat, chance: Random) -> None:
        self.seat = seat
        self._cluster = cluster
        self._loop = cluster.loop
        self._chance = chance
        self._process = seat.process
        self._node = seat.node
        self._arrival = 0.0
        self._waiting: dict[asyncio.Future[Any], bool] = {}
        seat.wires[self] = None

    @property
    def broken(self) -> bool:
        return self._process is None or not self._process.alive

    def close(self) -> None:
        self.seat.wires.pop(self, None)

    def break_off(self) -> None:
        """Answer all requests of a dead broker: Unknown for those that had arrived, Retry for the others."""
        self.close()
        for answer, arrived in self._waiting.items():
            error = Unknown("the connection broke") if arrived else Retry("the connection broke")
            if not answer.done():
                answer.set_result(error)
        self._waiting.clear()

    async def call(self, request: "Request[T]", timeout_s: float) -> T:
        """Raises Retry if the request was certainly not handled, Unknown without an answer, or the broker's error."""
        if self.broken:
            raise Retry("connection refused")
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._arrival = max(self._arrival + 1e-6, self._loop.time() + self._chance.uniform(*CLIENT_LATENCY_S))
        self._waiting[answer] = False
        self._loop.call_at(self._arrival, self._arrive, request, answer, context=self._loop.environment.context)
        try:
            async with asyncio.timeout(timeout_s):
                result = await answer
        except TimeoutError:
            raise Unknown("no answer in time") from None
        finally:
            self._waiting.pop(answer, None)
        if isinstance(result, LakestreamError):
            raise result
        return result  # type: ignore[no-any-return]

    def _arrive(self, request: "Request[T]", answer: "asyncio.Future[Any]") -> None:
        if self.broken:
            return
        assert self._process is not None
        if answer in self._waiting:
            self._waiting[answer] = True
        self._process.start(self._handle(request, answer))

    async def _handle(self, request: "Request[T]", answer: "asyncio.Future[Any]") -> None:
        """Handle a request in the broker's process, and send the answer."""
        assert self._node is not None
        result: T | LakestreamError
        try:
            self._node.check_open()
            result = await request(self._node)
        except LakestreamError as error:
            result = error
        if self._chance.random() >= self._cluster.faults.wire_lost:
            delay = self._chance.uniform(*CLIENT_LATENCY_S)
            self._loop.call_later(delay, _deliver, answer, result, context=self._loop.environment.context)


def _deliver(answer: "asyncio.Future[Any]", result: Any) -> None:
    if not answer.done():
        answer.set_result(result)

"""A broker serves a list of listeners, whatever their protocols: when they start, serve, hold, drain and stop."""

import asyncio
from collections.abc import Callable
from random import Random

from lakestream.broker import Broker, Parts
from lakestream.data.memory import MemoryWal
from lakestream.interfaces import Clock
from lakestream.metadata.checkpoint import dump_in_process
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.commands import Register
from lakestream.model.levels import NEWEST
from lakestream.process.clock import SystemClock
from lakestream.stream.appender import Appender
from lakestream.stream.cache import Cache
from lakestream.stream.limits import AppendLimits
from lakestream.stream.waiting import Waiting


class Plain:
    """A listener that answers whether or not the broker is current, as HTTP does."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.address = f"{name}:1"
        self.name = name
        self.calls = calls

    async def start(self) -> None:
        self.calls.append(f"{self.name} starts")

    async def drain(self, timeout_s: float) -> None:
        self.calls.append(f"{self.name} drains")

    async def stop(self) -> None:
        self.calls.append(f"{self.name} stops")


class OfStreams(Plain):
    """A listener whose clients append and read."""

    def suspend(self) -> None:
        self.calls.append(f"{self.name} is suspended")

    def resume(self) -> None:
        self.calls.append(f"{self.name} is resumed")

    def hold_producers(self, held: bool) -> None:
        self.calls.append(f"{self.name} holds producers: {held}")


def make_broker(calls: list[str]) -> tuple[Broker, Appender]:
    clock: Clock = SystemClock()
    log, wal = MemoryLog(MemoryLogStore()), MemoryWal()
    replica = Replica(log, wal, clock, 0)
    about = Register(b"", "", "broker", "127.0.0.1", 1, "", 1, NEWEST)
    appender = Appender(replica, wal, Cache(1 << 20), clock, AppendLimits())

    async def before_drain() -> None:
        calls.append("groups stop")

    parts = Parts(
        command_log=log,
        wal=wal,
        replica=replica,
        membership=Membership(replica, clock, Random(1), about, Timing()),
        appender=appender,
        waiting=Waiting(replica),
        listeners=[OfStreams("a", calls), OfStreams("b", calls), Plain("health", calls)],
        background=[],
        before_drain=before_drain,
        dump=dump_in_process,
    )
    return Broker(parts, 1.0), appender


async def lived(during: Callable[[Broker, Appender], None]) -> list[str]:
    """What the listeners of a broker are asked to do from its start to its end."""
    calls: list[str] = []
    broker, appender = make_broker(calls)
    await broker.listen()
    assert broker.ready() is not None

    def on_ready() -> None:
        assert broker.ready() is None
        calls.append("ready")
        during(broker, appender)
        broker.stop()

    assert await asyncio.wait_for(broker.run(on_ready), 30) == 0
    return calls


async def test_l8_listeners_of_streams_are_closed_until_the_broker_has_joined_and_all_drain_before_any_stops() -> None:
    assert await lived(lambda broker, appender: None) == [
        "a is suspended", "b is suspended", "a starts", "b starts", "health starts",
        "a is resumed", "b is resumed", "ready", "groups stop",
        "a drains", "b drains", "health drains", "a stops", "b stops", "health stops",
    ]  # fmt: skip


async def test_every_listener_of_streams_holds_its_producers_while_the_appender_is_full() -> None:
    def fill(_: Broker, appender: Appender) -> None:
        appender.on_pressure(True)
        appender.on_pressure(False)

    calls = await lived(fill)
    assert [one for one in calls if "holds" in one] == [
        "a holds producers: True", "b holds producers: True", "a holds producers: False", "b holds producers: False",
    ]  # fmt: skip

"""Stores that lie: what a broker sees of a command log and a WAL through a bad network, seeded.

An operation is a request that travels to the store, takes effect there, and an answer that travels back. All of that
happens outside of the broker's process, so that what was sent takes effect even if its sender is paused or dead by
then. Each request draws its fate:

    REFUSED         the store says no before anything happened                     Retry, every other time NoRoom
    REQUEST_LOST    it never arrives                                               Unknown, after a while
    ANSWER_LOST     it took effect, but nobody hears of it                         Unknown, after a while
    LATE            it takes effect long after the sender has given up hope        Unknown, after a while
    SLOW            it takes effect late, and the answer comes
    CRASH_BEFORE    the sender dies having sent it; it may still take effect
    CRASH_AFTER     it takes effect and the sender dies before the answer
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import IntEnum
from random import Random
from typing import Any, TypeVar

from lakestream.errors import LakestreamError, NoRoom, Retry, Unknown
from lakestream.interfaces import Appended, Buffer, CheckpointNote, CommandLog, Logged, StoredObject, Wal
from lakestream.testing.simulation.event_loop import Process, SimulatedLoop

T = TypeVar("T")


class Fate(IntEnum):
    """What becomes of one request."""

    FINE = 0
    REFUSED = 1
    REQUEST_LOST = 2
    ANSWER_LOST = 3
    LATE = 4
    SLOW = 5
    CRASH_BEFORE = 6
    CRASH_AFTER = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFaults:
    """How likely each fate is, for one kind of store, and how long things take."""

    latency_s: tuple[float, float] = (0.0005, 0.005)
    refused: float = 0.0
    request_lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    slow: float = 0.0
    crash_before: float = 0.0
    crash_after: float = 0.0
    patience_s: float = 0.5
    """After how long a lost answer shows as Unknown."""
    late_s: tuple[float, float] = (0.6, 6.0)
    hint_lost: float = 0.0
    """How often a wake-up does not come (L11)."""

    def draw(self, chance: Random) -> Fate:
        weights = (
            self.refused, self.request_lost, self.answer_lost, self.late, self.slow,
            self.crash_before, self.crash_after,
        )  # fmt: skip
        drawn = chance.random()
        for fate, weight in enumerate(weights, 1):
            drawn -= weight
            if drawn < 0:
                return Fate(fate)
        return Fate.FINE


NO_FAULTS = StoreFaults()


class Link:
    """The way from one broker's process to one store. `crash` kills the broker."""

    def __init__(
        self, loop: SimulatedLoop, process: Process, chance: Random, faults: StoreFaults, crash: Callable[[], None]
    ) -> None:
        self.faults = faults
        self.cut = False
        """A cut link refuses new requests and loses those under way."""
        self.under_way = 0
        self._full = False
        self._loop = loop
        self._process = process
        self._chance = chance
        self._crash = crash

    async def call(self, effect: Callable[[], T]) -> T:
        """Send a request whose arrival does `effect`; returns or raises what comes back."""
        fate = self.faults.draw(self._chance)
        answer: asyncio.Future[T | LakestreamError] = self._loop.create_future()
        if self.cut:
            self._later(self._delay(), answer_with, answer, Retry("the link is cut"))
        elif fate is Fate.REFUSED:
            self._full = not self._full
            refusal = NoRoom("the store is full") if self._full else Retry("refused by the store")
            self._later(self._delay(), answer_with, answer, refusal)
        else:
            self._send(fate, effect, answer)
        result = await answer
        if isinstance(result, LakestreamError):
            raise result
        return result

    def _send(self, fate: Fate, effect: Callable[[], T], answer: "asyncio.Future[T | LakestreamError]") -> None:
        lost = fate in (Fate.REQUEST_LOST, Fate.ANSWER_LOST, Fate.LATE)
        if fate is not Fate.REQUEST_LOST and not (fate is Fate.CRASH_BEFORE and self._chance.random() < 0.5):
            delay = self._chance.uniform(*self.faults.late_s) if fate in (Fate.LATE, Fate.SLOW) else self._delay()
            self.under_way += 1
            self._later(delay, self._arrive, effect, None if lost else answer, fate)
        if lost:
            self._later(self.faults.patience_s, answer_with, answer, Unknown("no answer from the store"))
        if fate is Fate.CRASH_BEFORE:
            self._crash()

    def _arrive(
        self, effect: Callable[[], T], answer: "asyncio.Future[T | LakestreamError] | None", fate: Fate
    ) -> None:
        self.under_way -= 1
        result: T | LakestreamError
        if self.cut:
            result = Unknown("the link broke")
        else:
            try:
                result = effect()
            except LakestreamError as error:
                result = error
        if fate is Fate.CRASH_AFTER and self._process.alive:
            self._crash()
        elif answer is not None:
            self._later(self._delay(), self._return, answer, result)

    def _return(self, answer: "asyncio.Future[T | LakestreamError]", result: T | LakestreamError) -> None:
        answer_with(answer, Unknown("the link broke") if self.cut else result)

    def _delay(self) -> float:
        return self._chance.uniform(*self.faults.latency_s)

    def _later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_later(delay_s, callback, *arguments, context=self._loop.outside.context)

    def hint_comes(self) -> bool:
        return self._chance.random() >= self.faults.hint_lost


def answer_with(answer: "asyncio.Future[T | LakestreamError]", result: T | LakestreamError) -> None:
    if not answer.done():
        answer.set_result(result)


def run_without_waiting(operation: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits: what a memory store does when a request arrives."""
    try:
        operation.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    operation.close()
    raise RuntimeError("a store in memory has to answer at once")


class FaultyLog:
    """interfaces.CommandLog as one broker sees it through a link."""

    def __init__(self, store: CommandLog, link: Link) -> None:
        self._store = store
        self.link = link

    async def append(self, commands: Sequence[bytes], after: int) -> Appended:
        sent = list(commands)
        return await self.link.call(lambda: run_without_waiting(self._store.append(sent, after)))

    async def read(self, after: int, limit: int) -> list[Logged]:
        return await self.link.call(lambda: run_without_waiting(self._store.read(after, limit)))

    async def wait(self, after: int, timeout_s: float) -> None:
        if not self.link.cut and self.link.hint_comes():
            await self._store.wait(after, timeout_s)
        else:
            await asyncio.sleep(timeout_s)

    async def save_checkpoint(self, note: CheckpointNote) -> None:
        await self.link.call(lambda: run_without_waiting(self._store.save_checkpoint(note)))

    async def checkpoints(self) -> list[CheckpointNote]:
        return await self.link.call(lambda: run_without_waiting(self._store.checkpoints()))

    async def truncate(self, through: int) -> None:
        await self.link.call(lambda: run_without_waiting(self._store.truncate(through)))

    async def close(self) -> None:
        pass


class FaultyWal:
    """interfaces.Wal as one broker sees it through a link."""

    def __init__(self, store: Wal, link: Link, linger_ms: int = 0) -> None:
        self.linger_ms = linger_ms
        self._store = store
        self.link = link

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        whole = [b"".join(parts)]
        await self.link.call(lambda: run_without_waiting(self._store.put(key, whole)))

    async def read(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytearray]:
        wanted = list(ranges)
        return await self.link.call(lambda: run_without_waiting(self._store.read(key, wanted)))

    async def list(self, prefix: str, after: str = "", limit: int = 0) -> list[StoredObject]:
        return await self.link.call(lambda: run_without_waiting(self._store.list(prefix, after, limit)))

    async def delete(self, keys: Sequence[str]) -> None:
        gone = [*keys]
        await self.link.call(lambda: run_without_waiting(self._store.delete(gone)))

    async def close(self) -> None:
        pass

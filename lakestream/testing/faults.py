"""Faulty stores: a command log and a WAL as a broker sees them through a bad network, with faults drawn from a seed.

A request travels to the store and takes effect there, and an answer travels back. All of this happens outside of the
broker's process: a request that was sent takes effect even if its sender is paused or dead by then. The fate of each
request is drawn; the right column shows the error that the sender gets:

    REFUSED         the store refuses the request, which has no effect             Retry, every other time NoRoom
    REQUEST_LOST    the request never arrives                                      Unknown, after `patience_s`
    ANSWER_LOST     the request takes effect, the answer is lost                   Unknown, after `patience_s`
    LATE            the request takes effect after the sender has given up         Unknown, after `patience_s`
    SLOW            the request takes effect late, and the answer arrives
    CRASH_BEFORE    the sender dies after sending; the request may take effect
    CRASH_AFTER     the request takes effect, and the sender dies before the answer
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
    """What happens to one request."""

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
    """The probability of each fate, for one kind of store, and the times in seconds."""

    latency_s: tuple[float, float] = (0.0005, 0.005)
    refused: float = 0.0
    request_lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    slow: float = 0.0
    crash_before: float = 0.0
    crash_after: float = 0.0
    patience_s: float = 0.5
    """The time after which a lost answer raises Unknown."""
    late_s: tuple[float, float] = (0.6, 6.0)
    hint_lost: float = 0.0
    """The probability that a waiting reader is not woken (L11)."""

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
    """The network between one broker's process and one store. `crash` kills the broker."""

    def __init__(
        self, loop: SimulatedLoop, process: Process, chance: Random, faults: StoreFaults, crash: Callable[[], None]
    ) -> None:
        self.faults = faults
        self.cut = False
        """A cut link refuses new requests and loses the requests under way."""
        self.under_way = 0
        self._full = False
        self._loop = loop
        self._process = process
        self._chance = chance
        self._crash = crash

    async def call(self, effect: Callable[[], T]) -> T:
        """Send a request that runs `effect` when it arrives; returns its result or raises its error."""
        fate = self.faults.draw(self._chance)
        answer: asyncio.Future[T | LakestreamError] = self._loop.create_future()
        if self.cut:
            self._later(self._delay(), set_answer, answer, Retry("the link is cut"))
        elif fate is Fate.REFUSED:
            self._full = not self._full
            refusal = NoRoom("the store is full") if self._full else Retry("refused by the store")
            self._later(self._delay(), set_answer, answer, refusal)
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
            self._later(self.faults.patience_s, set_answer, answer, Unknown("no answer from the store"))
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
        set_answer(answer, Unknown("the link broke") if self.cut else result)

    def _delay(self) -> float:
        return self._chance.uniform(*self.faults.latency_s)

    def _later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_later(delay_s, callback, *arguments, context=self._loop.environment.context)

    def wakes_up(self) -> bool:
        return self._chance.random() >= self.faults.hint_lost


def set_answer(answer: "asyncio.Future[T | LakestreamError]", result: T | LakestreamError) -> None:
    if not answer.done():
        answer.set_result(result)


def run_without_waiting(operation: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as those of a store in memory."""
    try:
        operation.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    operation.close()
    raise RuntimeError("a store in memory must not wait")


class FaultyLog:
    """A CommandLog as one broker sees it through a link."""

    def __init__(self, store: CommandLog, link: Link) -> None:
        self._store = store
        self.link = link

    async def append(self, commands: Sequence[bytes], after: int) -> Appended:
        sent = list(commands)
        return await self.link.call(lambda: run_without_waiting(self._store.append(sent, after)))

    async def read(self, after: int, limit: int) -> list[Logged]:
        return await self.link.call(lambda: run_without_waiting(self._store.read(after, limit)))

    async def wait(self, after: int, timeout_s: float) -> None:
        if not self.link.cut and self.link.wakes_up():
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
    """A Wal as one broker sees it through a link."""

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

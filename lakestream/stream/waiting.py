"""Waiting for news of streams: long polls sleep here until a fold moves the end of one of them, by any broker."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from lakestream.metadata.replica import Replica
from lakestream.stream.long_work import Steps, run_in_steps

STREAMS_AT_ONCE: Final = 1000
"""Streams of one long poll that are watched before the work yields to the event loop."""


class Waiting:
    """The waiters of each stream."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._waiters: dict[int, set[asyncio.Future[bool]]] = {}
        self._state = replica.state
        self.closing = False
        """A woken waiter is not to wait again."""
        replica.on_fold.append(self._folded)

    async def wait(self, streams: Iterable[int], timeout_s: float) -> bool:
        """True as soon as one of the streams moved; False after `timeout_s`."""
        moved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        ids = list(streams)
        for stream in ids:
            self._waiters.setdefault(stream, set()).add(moved)
        timer = asyncio.get_running_loop().call_later(max(timeout_s, 0), _time_out, moved)
        try:
            return await moved
        finally:
            timer.cancel()
            for stream in ids:
                others = self._waiters[stream]
                others.discard(moved)
                if not others:
                    del self._waiters[stream]

    async def wait_for_many(
        self, streams: Sequence[int], timeout_s: float, changed: Callable[[], Steps[bool]]
    ) -> None:
        """As `wait`, for very many streams: in steps, between which the event loop serves other clients.

        `changed` looks for what moved before all streams were watched.
        """
        moved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(max(timeout_s, 0), _time_out, moved)
        try:
            await run_in_steps(self._watch(streams, moved))
            if not self.closing and not await run_in_steps(changed()):
                await moved
        finally:
            timer.cancel()
            await run_in_steps(self._unwatch(streams, moved))

    def _watch(self, streams: Sequence[int], moved: asyncio.Future[bool]) -> Steps[None]:
        for place, stream in enumerate(streams, 1):
            self._waiters.setdefault(stream, set()).add(moved)
            if place % STREAMS_AT_ONCE == 0:
                yield

    def _unwatch(self, streams: Sequence[int], moved: asyncio.Future[bool]) -> Steps[None]:
        for place, stream in enumerate(streams, 1):
            waiters = self._waiters.get(stream)
            if waiters is not None:
                waiters.discard(moved)
                if not waiters:
                    del self._waiters[stream]
            if place % STREAMS_AT_ONCE == 0:
                yield

    def close(self) -> None:
        """The broker stops: wake all waiters, which are not to wait again."""
        self.closing = True
        self.wake_all()

    def wake_all(self) -> None:
        for stream in list(self._waiters):
            self._wake(stream)

    def _folded(self) -> None:
        state = self._replica.state
        if state is not self._state:
            self._state = state
            self.wake_all()
        if state.all_moved:
            state.all_moved = False
            self.wake_all()
        moved = state.moved
        if moved:
            if self._waiters:
                for stream in moved:
                    if stream in self._waiters:
                        self._wake(stream)
            moved.clear()

    def _wake(self, stream: int) -> None:
        for waiter in self._waiters.get(stream, ()):
            if not waiter.done():
                waiter.set_result(True)


def _time_out(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)

"""Callers that wait for the log to grow, and the hints that wake them."""

import asyncio


class Wakeups:
    """Waiting callers by the sequence that they have. They wake in the order in which they came."""

    def __init__(self) -> None:
        self.last = 0
        self._waiting: dict[asyncio.Future[None], int] = {}

    async def wait(self, after: int, timeout_s: float) -> None:
        """Return when the log is known to go beyond `after`, at the latest after `timeout_s`."""
        if self.last > after:
            return
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout_s, _resolve, woken)
        self._waiting[woken] = after
        try:
            await woken
        finally:
            timer.cancel()
            self._waiting.pop(woken, None)

    def announce(self, last: int) -> None:
        """The log ends at `last` now. A lower value than before means that another log took its place."""
        self.last = last
        for woken, after in self._waiting.items():
            if after < last:
                _resolve(woken)

    def wake_all(self) -> None:
        for woken in self._waiting:
            _resolve(woken)


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)

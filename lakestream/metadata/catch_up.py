"""Waiting until a member has folded the log to its end, before it says no from an old state (L6)."""

import asyncio
from collections.abc import Awaitable, Callable

from lakestream.errors import LakestreamError, Retry, Unknown


class CatchUp:
    """Callers that wait for the end of the log: one read serves all callers that came before it began."""

    def __init__(self, read_to_end: Callable[[], Awaitable[None]]) -> None:
        self._read_to_end = read_to_end
        self._callers: list[asyncio.Future[None]] = []
        self._called = asyncio.Event()

    async def wait(self) -> None:
        """Return when the log is folded to its end as it is now, or later. Raises Retry if it cannot be read."""
        caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._callers.append(caller)
        self._called.set()
        await caller

    async def run(self) -> None:
        """Read for the callers, until cancelled."""
        while True:
            await self._called.wait()
            self._called.clear()
            callers, self._callers = self._callers, []
            error: LakestreamError | None = Retry("this broker stops")
            try:
                await self._read_to_end()
                error = None
            except (Retry, Unknown) as failed:
                error = Retry(str(failed))
            finally:
                for caller in callers:
                    if not caller.done():
                        caller.set_exception(error) if error else caller.set_result(None)

    def fail(self, error: LakestreamError) -> None:
        """Callers whose read has not begun get a Retry."""
        callers, self._callers = self._callers, []
        for caller in callers:
            if not caller.done():
                caller.set_exception(Retry(str(error)))

"""The store that tables' files lie in, for coroutines: blocking calls run in threads of their own."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import LakestreamError

log = logging.getLogger(__name__)

COMMITS_AT_ONCE = 8

P = ParamSpec("P")
T = TypeVar("T")


class TableFiles:
    """A store and the threads that use it."""

    def __init__(self, store: TableStore) -> None:
        self.store = store
        self._pool = ThreadPoolExecutor(COMMITS_AT_ONCE, "tables")

    def close(self) -> None:
        self._pool.shutdown()

    async def off(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of work that blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*args, **kwargs))

    async def remove(self, uris: Sequence[str]) -> None:
        """Delete files that nothing refers to. A failure is only logged: a later sweep finds the files."""
        try:
            await self.off(self.store.delete, uris)
        except LakestreamError as error:
            log.warning("unused files are left for a later sweep: %s", error)

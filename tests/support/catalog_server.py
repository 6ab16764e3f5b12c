"""A broker's catalog on a real socket, in a thread of its own, so that blocking clients can be pointed at it."""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from lakestream.data.tables.stores.routed_store import RoutedStore
from lakestream.data.tables.stores.table_store import FolderTableStore
from lakestream.interfaces import CommandLog
from lakestream.metadata.stores.memory import MemoryLogStore
from lakestream.metrics import Metrics
from lakestream.model.catalog.names import Warehouse
from lakestream.model.levels import NEWEST
from lakestream.model.state import State
from lakestream.process.clock import SystemClock
from lakestream.protocol.http.iceberg.catalog import catalog_app
from lakestream.protocol.http.server import HttpServer, HttpSources
from tests.support.memory_broker import TestBroker, start_broker

T = TypeVar("T")


class CatalogServer:
    """One broker; several may share a log and a folder."""

    def __init__(
        self, folder: Path, log: MemoryLogStore | CommandLog | None = None, broker_id: int = 0,
        allowed: tuple[str, ...] = (), level: int = NEWEST,
    ) -> None:  # fmt: skip
        """`allowed` are folders elsewhere that users' tables may lie in; `level` is what the broker knows."""
        self._level = level
        self.store = RoutedStore(FolderTableStore(folder), lambda: allowed, dict)
        self.warehouse = Warehouse(self.store.root, allowed)
        self.loop = asyncio.new_event_loop()
        self._log = log
        self._id = broker_id
        self._thread = threading.Thread(target=self._run, name="catalog", daemon=True)
        self._started = threading.Event()

    def __enter__(self) -> "CatalogServer":
        self._thread.start()
        assert self._started.wait(20)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.call(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it in the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    @property
    def state(self) -> State:
        return self.broker.replica.state

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._start())
        self._started.set()
        self.loop.run_forever()

    async def _start(self) -> None:
        self.broker: TestBroker = await start_broker(self._log, broker_id=self._id, level=self._level)
        app = catalog_app(
            self.broker.replica, self.store, self.warehouse, clock=SystemClock(), random=Random(self._id + 1)
        )

        async def no_commands(after: int, limit: int, wait_s: float) -> bytes:
            return b""

        self._sources = HttpSources(
            ready=lambda: None,
            brokers=lambda: [],
            metadata=lambda: [b"{}"],
            commands=no_commands,
            metrics=Metrics(),
            mounts={"/iceberg": app},
        )
        await self._listen(0)

    async def _listen(self, port: int) -> None:
        self.http = HttpServer(self._sources, "127.0.0.1", port)
        _, self._port = await self.http.start()
        self.uri = f"http://127.0.0.1:{self._port}/iceberg"

    def down(self) -> None:
        """Nobody answers any more."""
        self.call(self.http.stop())

    def up(self) -> None:
        """At the same port as before."""
        self.call(self._listen(self._port))

    async def _stop(self) -> None:
        await self.http.stop()
        await self.broker.stop()

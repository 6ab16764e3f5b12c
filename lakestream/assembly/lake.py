"""A broker's parts for tables: the catalog, history, the tail, the purger and their figures.

It is made only with the setting `tables`. Where a cluster's tables lie is known when the broker has joined, and the
libraries are large, so each part is made by the first request that needs it.
"""

import asyncio
import importlib
import os
from collections.abc import Sequence
from random import Random
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from lakestream.assembly.publishing import publish_tables
from lakestream.data.tables.iceberg.metadata.files import MetadataFiles
from lakestream.data.tables.stores.allowed_locations import allowed_locations
from lakestream.data.tables.stores.engine_settings import engine_settings
from lakestream.data.tables.stores.routed_store import RoutedStore, external_roots, store_options
from lakestream.data.tables.stores.table_store import open_table_store
from lakestream.errors import Missing, Rejected
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.metrics import Metrics
from lakestream.model.catalog.care import KINDS, RequestCare
from lakestream.model.catalog.landed import HoldTopic
from lakestream.model.catalog.names import Warehouse, warehouse_uri
from lakestream.model.commands import Body
from lakestream.model.reasons import No, Reason
from lakestream.pipeline.lag import lag_s, lags
from lakestream.pipeline.listing import Listing, describe_request, pack
from lakestream.protocol.http.care import TableSources
from lakestream.settings import Settings, data_uri
from lakestream.stream.history import HistoryReader
from lakestream.stream.housekeeping.purger import Purger

TOPICS_MEASURED = 1000
"""Topics above this number have no metric of their own for the lag."""


class Lake:
    """The tables' part of one broker."""

    def __init__(self, settings: Settings, replica: Replica, clock: Clock, random: Random) -> None:
        self._root = data_uri(settings)
        self._replica = replica
        self._clock = clock
        self._random = random
        self._grace_ms = settings.collector_grace_ms
        self._allowed = allowed_locations(settings)
        self._store = RoutedStore(
            open_table_store(self._root),
            lambda: [*external_roots(replica.state.catalog), *self._allowed],
            lambda: _options_elsewhere(settings),
        )
        self._catalog: ASGIApp | None = None
        self._purger: Purger | None = None
        self._checking = asyncio.Lock()
        self._listing = Listing(self._store, settings.catalog_namespace)
        self.history = HistoryReader(replica, self._store)

    def publish(self, metrics: Metrics) -> None:
        def purged_files() -> int:
            return self._purger.purged_files if self._purger is not None else 0

        def topic_lags() -> dict[tuple[str, ...], float]:
            return {(lag.topic,): lag.waited_ms / 1000 for lag in lags(self._replica.state)[:TOPICS_MEASURED]}

        publish_tables(metrics, self.history, lambda: lag_s(self._replica.state), purged_files, topic_lags)

    async def catalog(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The Iceberg REST catalog, as an application to be mounted."""
        if self._catalog is None:
            if not self._replica.state.cluster:
                await PlainTextResponse("the broker has not joined yet\n", status_code=503)(scope, receive, send)
                return
            module = await _imported("lakestream.protocol.http.iceberg.catalog")
            self._catalog = self._catalog or module.catalog_app(
                self._replica, self._store, self._warehouse(), clock=self._clock, random=self._random,
                defaults=engine_settings(self._root, os.environ),
            )  # fmt: skip
        await self._catalog(scope, receive, send)

    async def tail(self, topic: str) -> bytes:
        """Where a topic's records are at this moment. Raises Missing if there is no such topic."""
        module = await _imported("lakestream.data.tables.reading.tail")
        await self._replica.catch_up()
        packed: bytes = module.pack_tail(module.describe_tail(self._replica.state, topic, self._root))
        return packed

    async def tails(self, topics: Sequence[str]) -> bytes:
        """As `tail`, for the existing ones of some topics, all at one moment."""
        module = await _imported("lakestream.data.tables.reading.tail")
        await self._replica.catch_up()
        state = self._replica.state
        known = [topic for topic in dict.fromkeys(topics) if topic in state.topics.by_name]
        packed: bytes = module.pack_tail([module.describe_tail(state, topic, self._root) for topic in known])
        return packed

    def table_sources(self) -> TableSources:
        return TableSources(self.tables, self.ask_care, self.care_answer)

    async def tables(self, topic: str | None) -> bytes:
        """The description of every topic's table, or of one. Raises Missing if there is no such topic."""
        return pack(await asyncio.to_thread(self._listing.tables, self._replica.state, topic))

    async def ask_care(self, topic: str, kind: str, arguments: dict[str, str]) -> bytes:
        """Note a request for the pipeline. To release a topic needs no pipeline: that is done at once."""
        await self._replica.catch_up()
        found = self._replica.state.topics.by_name.get(topic)
        if found is None:
            raise Missing(f"there is no topic {topic!r}")
        if kind == "release":
            await self._propose(HoldTopic(found.id, ""))
            return pack({"status": "done", "kind": kind, "topic": topic, "text": "released", "figures": {}})
        if kind not in KINDS:
            raise Rejected(Reason.INVALID_REQUEST, f"there is no such care; there is {', '.join(sorted(KINDS))}")
        if kind == "delete":
            await self._check_condition(arguments.get("where", ""))
        request = self._random.randbytes(16)
        await self._propose(RequestCare(request, found.id, kind, arguments))
        return await self.care_answer(request.hex())

    async def _check_condition(self, where: str) -> None:
        """Raises Rejected. A process of its own checks it, one condition at a time."""
        module = await _imported("lakestream.data.tables.conditions.process")
        async with self._checking:
            problem = await asyncio.to_thread(module.check_apart, where)
        if problem:
            message = f"this is no condition over the table's rows: {problem}"
            raise Rejected(Reason.INVALID_REQUEST, message)

    async def care_answer(self, request: str) -> bytes:
        """The progress of a request. Raises Missing if the request is unknown or was forgotten."""
        try:
            wanted = bytes.fromhex(request)
        except ValueError:
            raise Missing(f"there is no request {request!r}") from None
        if wanted not in self._replica.state.care.requests:
            await self._replica.catch_up()
        return pack(describe_request(self._replica.state, wanted))

    async def _propose(self, body: Body) -> None:
        outcome = await self._replica.propose(body)
        if isinstance(outcome, No):
            raise Rejected(outcome.reason, outcome.message)

    async def purge(self) -> int:
        if self._purger is None:
            files = MetadataFiles(self._store, self._random)
            self._purger = Purger(self._replica, self._store, files, self._warehouse(), self._grace_ms)
        return await self._purger.purge()

    def _warehouse(self) -> Warehouse:
        return Warehouse(warehouse_uri(self._root, self._replica.state.cluster), self._allowed)


def _options_elsewhere(settings: Settings) -> dict[str, str]:
    """The options of object stores in which another catalog placed tables. Only such a catalog imports PyIceberg."""
    if not settings.catalog:
        return {}
    from lakestream.data.tables.iceberg.pyiceberg_catalog import address_of

    address = address_of(settings.catalog, settings.catalog_namespace, settings.catalog_properties)
    return store_options(address.all_properties()) if address is not None else {}


async def _imported(name: str) -> Any:
    """A module, imported in a thread so that the event loop is not held."""
    return await asyncio.to_thread(importlib.import_module, name)

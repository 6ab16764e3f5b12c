"""The watch over tables in an external catalog: commits of other engines are noticed, tables of deleted topics go.

An external catalog does not notify, so every table is looked at every few seconds. Rows that an engine deleted are gone
for consumers after that look (C7), and a topic is released when the cause of its hold is gone (T9, T13).
"""

import asyncio
import logging

from lakestream.data.tables.iceberg.progress import PROGRESS_PROPERTY
from lakestream.data.tables.iceberg.topic_table import TOPIC_ID_PROPERTY
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.landed import Departed
from lakestream.model.catalog.tables import TablesPurged
from lakestream.model.topics import Topic
from lakestream.pipeline.tables.external_catalog import ExternalCatalog
from lakestream.pipeline.tables.failure import Failed
from lakestream.pipeline.tables.holds import hold

log = logging.getLogger(__name__)

WATCH_EVERY_S = 2.0
AT_ONCE = 8


class ExternalWatch:
    """Watches all tables of one external catalog."""

    def __init__(self, replica: Replica, catalog: ExternalCatalog) -> None:
        self._replica = replica
        self._catalog = catalog
        self._clock = catalog.clock
        self._again_at = 0.0
        self._looking: asyncio.Future[None] | None = None
        self._reasons: dict[bytes, str] = {}

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    async def tick(self, at_once: bool) -> None:
        """Begin to look at all tables, if it is time to. The first look ends here, so that rounds plan from it."""
        if self._looking is None or at_once:
            self._looking = asyncio.ensure_future(self.look_at_all())
            await self._looking
        elif self._looking.done() and self._clock.monotonic() >= self._again_at:
            self._looking.result()
            self._looking = asyncio.ensure_future(self.look_at_all())

    async def look_at_all(self) -> None:
        """Look at every table once."""
        state = self._replica.state
        landings = state.catalog.landings
        topics = [state.topics.by_id[one] for one, landing in list(landings.items()) if landing.location]
        slots = asyncio.Semaphore(AT_ONCE)

        async def look(topic: Topic) -> None:
            async with slots:
                await self._look(topic)

        await asyncio.gather(*(look(topic) for topic in topics))
        for uuid, departed in list(state.catalog.departed.items()):
            await self._release_table(uuid, departed)
        self._again_at = self._clock.monotonic() + WATCH_EVERY_S

    async def _look(self, topic: Topic) -> None:
        if topic.id not in self._replica.state.topics.by_id:
            return
        table = await self._catalog.table(topic)
        if not isinstance(table, Failed):
            if self._reasons.pop(topic.id, ""):
                log.info("topic %s: its table is as it should be again", topic.name)
            return
        self._catalog.committer.forget()
        if self._reasons.get(topic.id) != table.reason:
            self._reasons[topic.id] = table.reason
            say = log.error if table.lasting else log.warning
            say("topic %s waits: %s", topic.name, table.reason)
        if table.lasting:
            await hold(self._replica, topic.id, table.reason)

    # -- deleted topics ------------------------------------------------------------------------------------------------

    async def _release_table(self, uuid: str, departed: Departed) -> None:
        """Drop the table of a deleted topic, or keep it under another name, bound to no topic."""
        external = self._catalog
        try:
            await self._drop_or_keep(uuid, departed)
            await self._replica.propose(TablesPurged([uuid]))
        except LakestreamError as error:
            log.warning("the table of the deleted topic %s is left in %r: %s", departed.name, external.catalog, error)

    async def _drop_or_keep(self, uuid: str, departed: Departed) -> None:
        external = self._catalog
        try:
            found = await external.asked(external.catalog.load, departed.name)
        except Missing:
            return
        if str(found.handle.metadata.table_uuid) != uuid:
            return
        if not departed.keep:
            await external.asked(external.catalog.drop, departed.name)
            return
        unbound = {"action": "remove-properties", "removals": [TOPIC_ID_PROPERTY, PROGRESS_PROPERTY]}
        await external.asked(external.catalog.commit, found.handle, [], [unbound])
        kept = f"{departed.name}-{departed.topic_id.hex()}"
        await external.asked(external.catalog.rename, departed.name, kept)

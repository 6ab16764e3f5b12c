"""The sweep beside the rounds: data files of rounds that are over, which no table refers to and none ever will (T12).

    list a table's files -> fold to the end -> files of rounds that are over -> delete those not in the table
"""

import logging
from collections.abc import Sequence

from lakestream.data.tables.iceberg.reachable_files import reachable_from
from lakestream.errors import LakestreamError
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.names import root_of
from lakestream.pipeline.landing.round_names import candidates
from lakestream.pipeline.tables.topic_tables import TopicTables
from lakestream.pipeline.tables.unused_files import SWEEP

log = logging.getLogger(__name__)


class Sweeper:
    """Sweeps the tables of one pipeline."""

    def __init__(self, replica: Replica, tables: TopicTables) -> None:
        self._replica = replica
        self._tables = tables

    async def sweep(self, grace_s: float) -> int:
        """Delete unused files of rounds that are over, of this pipeline and of earlier ones; how many files.

        `grace_s`: only files that this pipeline has seen unused for so long. Another one may have let them go just now
        (T11).
        """
        topics = list(self._replica.state.catalog.landings)
        return sum([await self.sweep_table(topic_id, grace_s) for topic_id in topics])

    def waits(self) -> bool:
        """Whether there are files whose grace was not over when they were found."""
        return self._tables.unused.wait(self._replica.state.catalog.landings, SWEEP)

    async def sweep_table(self, topic_id: bytes, grace_s: float = 0.0) -> int:
        """Delete the orphans of one table; how many. List first, then fold to the end, then judge (T12)."""
        bound = self._replica.state.catalog.of_topic(topic_id)
        if bound is None:
            return 0
        tables, files = self._tables, self._tables.files
        try:
            found = await files.off(files.store.list, f"{root_of(bound.location)}/data/")
            await self._replica.catch_up()
            suspects = candidates([uri for uri, _ in found], self._replica.state)
            orphans = tables.unused.due(topic_id, SWEEP, await self._unknown(topic_id, suspects), grace_s)
            if orphans and await tables.fence(topic_id):
                orphans = await self._unknown(topic_id, orphans)
            await files.off(files.store.delete, orphans)
        except LakestreamError as error:
            log.warning("a table could not be swept: %s", error)
            return 0
        if orphans:
            log.info("removed %d files of rounds that did not end", len(orphans))
        return len(orphans)

    async def _unknown(self, topic_id: bytes, suspects: Sequence[str]) -> list[str]:
        """The files that the table does not refer to, and that had their grace."""
        if not suspects or self._replica.state.catalog.of_topic(topic_id) is None:
            return []
        tables = self._tables
        known = await tables.files.off(reachable_from, tables.files.store, await tables.location_of(topic_id))
        later = tables.obsolete.waiting()
        return [uri for uri in suspects if uri not in known and uri not in later]

"""The catalog of a topic's table: it says which metadata file is the current one, and makes a commit current.

There are two kinds. Our own catalog is part of the state: one command swaps the pointer and notes the landed ranges
(own_catalog.py). An external catalog is committed to first, and the state is told afterwards (external_catalog.py).
Landing and care do not ask which of the two they work with; TableCatalogs knows it for each topic.
"""

from collections.abc import Sequence
from typing import Protocol

from lakestream.data.tables.iceberg.commit import Commit
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.metadata.replica import Replica
from lakestream.model.reasons import No
from lakestream.model.topics import Topic
from lakestream.pipeline.tables.external_catalog import ExternalCatalog
from lakestream.pipeline.tables.external_watch import WATCH_EVERY_S, ExternalWatch
from lakestream.pipeline.tables.failure import Failed
from lakestream.pipeline.tables.own_catalog import OwnCatalog


class TableCatalog(Protocol):
    """The catalog of a table, as landing and care use it."""

    external: bool
    """The catalog writes the metadata files itself, and the state is told of a commit only after it was made."""

    async def table(self, topic: Topic) -> Table | Failed:
        """The topic's table as the catalog has it now, made if there is none; or why nothing can be committed to it.

        May raise any LakestreamError: a failure that passes.
        """
        ...

    async def commit(self, topic: Topic, commit: Commit) -> int | No:
        """Make a commit the current version and let the state know, or refuse it (T7).

        Raises Unknown if the commit may have been made, any other LakestreamError if it certainly was not.
        """
        ...

    def take_obsolete(self, topic: Topic, commit: Commit) -> Sequence[str]:
        """The files that nothing leads to now that the commit has won; they are deleted after a grace (T11)."""
        ...

    async def fence(self, topic: Topic) -> bool:
        """Make commits impossible that a member of an ended epoch planned; whether that took a commit. Raises Retry."""
        ...


class NoExternalCatalog:
    """Stands for the external catalog of a table where the setting `catalog` is empty."""

    external = True

    async def table(self, topic: Topic) -> Table | Failed:
        return Failed(topic.id, "the table is in an external catalog, and the setting `catalog` is empty", True)

    async def commit(self, topic: Topic, commit: Commit) -> int | No:
        raise AssertionError("without a table there is no commit")

    def take_obsolete(self, topic: Topic, commit: Commit) -> Sequence[str]:
        return ()

    async def fence(self, topic: Topic) -> bool:
        return False


class TableCatalogs:
    """The catalog of each topic's table: a table stays in the catalog that it was made in."""

    def __init__(self, replica: Replica, own: OwnCatalog, external: ExternalCatalog | None) -> None:
        """`external`: where new tables are made, if the setting `catalog` names one."""
        self.own = own
        self.external = external
        self._replica = replica
        self._watch = ExternalWatch(replica, external) if external is not None else None

    def of(self, topic_id: bytes) -> TableCatalog:
        landing = self._replica.state.catalog.landings.get(topic_id)
        if landing is None or not landing.uuid:
            return self.own if self.external is None else self.external
        if not landing.location:
            return self.own
        return self.external if self.external is not None else NoExternalCatalog()

    @property
    def look_every_s(self) -> float:
        """How often `watch` should be called."""
        return float("inf") if self._watch is None else WATCH_EVERY_S

    async def watch(self, at_once: bool = False) -> None:
        """Look at the tables in the external catalog, if there is one: when it is time to, or at once."""
        if self._watch is not None:
            await self._watch.tick(at_once)

    def store_options(self) -> dict[str, str]:
        """Options for workers to open the object stores where the external catalog has placed tables."""
        return self.external.store.options() if self.external is not None else {}

    def close(self) -> None:
        if self._watch is not None and self.external is not None:
            self._watch.close()
            self.external.close()

"""Iceberg as the format of topics' tables: the TableFormat of landing and care.

    plan: the committer writes manifests, their list and the metadata file; nothing refers to them yet
    commit: the table's catalog makes the metadata file the current one (table_catalog.py)

Landing and care only describe a change. This module adds, once for both, whether the catalog writes the metadata file,
and which snapshots must not expire yet.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakestream.data.tables.iceberg.commit import Commit
from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.expiry import to_expire
from lakestream.data.tables.iceberg.live_files import LiveFiles
from lakestream.data.tables.iceberg.manifests.files import NewFile
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.iceberg.progress import PROGRESS_PROPERTY, OffsetRange, pack_digests, unpack_progress
from lakestream.data.tables.iceberg.snapshots_since import protected_snapshots
from lakestream.data.tables.iceberg.summaries import CARE_KEY, DIGESTS_KEY
from lakestream.interfaces import Clock, TableFormat
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.landed import LandedRange
from lakestream.model.reasons import No, Reason
from lakestream.pipeline.tables.own_catalog import TOO_LATE
from lakestream.pipeline.tables.table_catalog import TableCatalogs


@dataclass(frozen=True, slots=True)
class Append:
    """Files with new rows; the progress moves over the ranges, even where these have no row."""

    files: Sequence[NewFile]
    landed: Sequence[LandedRange]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """New files replace old ones, as these were at a base snapshot (T8)."""

    base: int
    gone: frozenset[str]
    """Data and delete files, by URI."""
    files: Sequence[NewFile]
    operation: str
    why: str
    """Which job of care does it, as the snapshot's summary says."""
    removed: Sequence[LandedRange] = ()
    """The rows that go for good (T16)."""


class IcebergFormat(TableFormat[Table, Append | Rewrite, Commit, LiveFiles]):
    """Plans and commits of all topics' tables."""

    def __init__(self, replica: Replica, committer: Committer, catalogs: TableCatalogs, clock: Clock) -> None:
        self.committer = committer
        self._replica = replica
        self._catalogs = catalogs
        self._clock = clock
        self._bases: dict[bytes, int] = {}

    def plan(self, topic_id: bytes, table: Table, change: Append | Rewrite) -> Commit:
        """One snapshot. Raises Stale if a snapshot of another writer lies between a rewrite and its base."""
        external, now_ms = self._catalogs.of(topic_id).external, self._clock.wall_ms()
        protected = self.protected(topic_id, table)
        if isinstance(change, Append):
            # The commit itself does not tell the state what landed in an external catalog: the snapshot's summary does.
            digests = [(one.records, one.digest) for one in change.landed]
            notes = {DIGESTS_KEY: pack_digests(digests)} if external else None
            commit = self.committer.append(
                table, change.files, [OffsetRange(one.partition, one.start, one.end) for one in change.landed],
                now_ms=now_ms, notes=notes, protected=protected,
                write_metadata=not external,
            )  # fmt: skip
            return dataclasses.replace(commit, landed=change.landed, removed=())
        commit = self.committer.rewrite(
            table, change.base, change.gone, change.files, now_ms=now_ms, operation=change.operation,
            notes={CARE_KEY: change.why}, protected=protected, write_metadata=not external,
        )  # fmt: skip
        return dataclasses.replace(commit, removed=change.removed)

    async def commit(self, topic_id: bytes, commit: Commit, epoch: int) -> int | No:
        topic = self._replica.state.topics.by_id.get(topic_id)
        if topic is None:
            return No(Reason.UNKNOWN_TOPIC, "the topic was deleted")
        if self._replica.epoch != epoch:
            return TOO_LATE
        return await self._catalogs.of(topic_id).commit(topic, commit)

    def progress(self, table: Table) -> Mapping[int, int]:
        packed = table.metadata.properties.get(PROGRESS_PROPERTY, "")
        return {partition: landed.end for partition, landed in unpack_progress(packed).items()}

    def files(self, table: Table, version: int | None = None) -> LiveFiles:
        return self.committer.live_files(table, version)

    def expire(self, topic_id: bytes, table: Table, older_than_ms: int | None = None) -> Commit | None:
        commit = self.committer.expire(
            table, now_ms=self._clock.wall_ms(), older_than_ms=older_than_ms, protected=self.protected(topic_id, table),
            write_metadata=not self._catalogs.of(topic_id).external,
        )  # fmt: skip
        return dataclasses.replace(commit, removed=()) if commit is not None else None

    def has_expired(self, topic_id: bytes, table: Table) -> bool:
        """Whether `expire` would forget snapshots, by the table's own age."""
        history = None if self._catalogs.of(topic_id).external else self.committer.history
        now_ms = self._clock.wall_ms()
        return bool(to_expire(table.metadata, now_ms, self.protected(topic_id, table), history=history))

    def protected(self, topic_id: bytes, table: Table) -> frozenset[int]:
        """Snapshots that must not expire yet: the state does not know what they removed (T16), or a job needs one."""
        landing = self._replica.state.catalog.landings.get(topic_id)
        if landing is None:
            return frozenset()
        base = self._bases.get(topic_id)
        needed = frozenset() if base is None else frozenset((base,))
        external = self._catalogs.of(topic_id).external
        return needed | protected_snapshots(table.metadata, landing.accounted, external=external)

    def protect(self, topic_id: bytes, snapshot_id: int | None) -> None:
        """A job of care that may take long works from this snapshot, which stays until the job is over (None)."""
        if snapshot_id is None:
            self._bases.pop(topic_id, None)
        else:
            self._bases[topic_id] = snapshot_id

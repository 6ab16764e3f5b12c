"""Accounting: rows that other engines removed or changed are noted in the state before the snapshots expire (T16).

The same holds for our own snapshots that removed rows from a table in an external catalog, if the state was not told of
them (snapshots_since.py). Neighbouring snapshots are compared, as one, with the snapshot before them: one commit may be
several snapshots, one that removes rows and one that adds them again, changed. The rows of all files that differ are
counted and hashed on both sides, by partition. Missing rows are removed ones; a changed row counts as no row less, and
as the difference of the two hashes. Rewrites cancel out. If a snapshot expired before it was compared, that is noted.
"""

import logging
from collections.abc import Iterable, Sequence

from lakestream.data.tables.iceberg.live_files import LiveFile, LiveFiles
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.iceberg.snapshots_since import SnapshotRun, runs_to_compare, unaccounted_snapshots
from lakestream.data.tables.reading.position_deletes import parse_deletes
from lakestream.errors import Corrupt, Missing
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.landed import LandedRange, NoteRemoved
from lakestream.model.reasons import No
from lakestream.pipeline.care.results import Lost, NotDone, Progress, Result
from lakestream.pipeline.care.task_runs import CareRuns
from lakestream.pipeline.care.tasks import DIGEST, CareFile, CountedRows
from lakestream.pipeline.tables.failure import Failed
from lakestream.pipeline.tables.topic_tables import TopicTables

log = logging.getLogger(__name__)

Span = tuple[int, int]


class Accounts:
    """Accounts for the snapshots of all tables."""

    def __init__(self, replica: Replica, tables: TopicTables, runs: CareRuns) -> None:
        self._replica = replica
        self._tables = tables
        self._runs = runs

    def due(self, topic_id: bytes, table: Table) -> bool:
        """Whether the table has snapshots that are not accounted for."""
        landing = self._replica.state.catalog.landings.get(topic_id)
        if landing is None:
            return False
        unaccounted = unaccounted_snapshots(table.metadata, landing.accounted)
        external = self._tables.is_external(topic_id)
        runs = runs_to_compare(unaccounted, table.metadata, landing.accounted, external=external)
        return not unaccounted.complete or bool(runs)

    async def settle(self, topic_id: bytes, progress: Progress) -> Result:
        """Account for all snapshots of the table, one run after the other."""
        result = Result()
        table = await self._tables.table_of(topic_id)
        if isinstance(table, Failed):
            raise NotDone(table.reason)
        metadata = table.metadata
        landing = self._replica.state.catalog.landings[topic_id]
        unaccounted = unaccounted_snapshots(metadata, landing.accounted)
        external = self._tables.is_external(topic_id)
        # Each note names the account that it continues: another pipeline may account for the same snapshots meanwhile.
        accounted, unproven = landing.accounted, not unaccounted.complete
        for run in runs_to_compare(unaccounted, metadata, landing.accounted, external=external):
            removed, sure = await self._judge(table, run, progress)
            note = NoteRemoved(topic_id, accounted, run.last.sequence_number, removed, unproven or not sure)
            await self._note(note)
            accounted, unproven = run.last.sequence_number, False
            result.count(snapshots=1, rows_removed=sum(one.records for one in removed))
        if unproven and unaccounted.heads:
            await self._note(NoteRemoved(topic_id, accounted, unaccounted.heads[-1].sequence_number, [], True))
        return result

    async def _judge(self, table: Table, run: SnapshotRun, progress: Progress) -> tuple[list[LandedRange], bool]:
        """The rows that a run of snapshots removed, and whether that is certain."""
        if not run.known:
            return [], False
        off, files_of = self._tables.files.off, self._tables.format.files
        try:
            before = await off(files_of, table, run.base) if run.base is not None else LiveFiles({}, ())
            after = await off(files_of, table, run.last.snapshot_id)
            differ = await off(self._differing, before, after)
            had = await self._rows(table, before, differ, progress)
            has = await self._rows(table, after, differ, progress)
        except (Missing, Corrupt, Lost) as error:
            log.warning("a snapshot of another engine cannot be accounted for: %s", error)
            return [], False
        return difference(had, has, rewritten=not after.data.keys() <= before.data.keys())

    def _differing(self, before: LiveFiles, after: LiveFiles) -> set[str]:
        """Data files that are in one snapshot only, or that a delete file of only one snapshot names."""
        differ = before.data.keys() ^ after.data.keys()
        known = {one.path for one in before.deletes} ^ {one.path for one in after.deletes}
        for path in known:
            differ |= parse_deletes(self._tables.files.store.get(path)).keys()
        return set(differ)

    async def _rows(self, table: Table, side: LiveFiles, differ: set[str], progress: Progress) -> list[CountedRows]:
        files = [file for path, file in sorted(side.data.items()) if path in differ]
        tasks = [
            self._runs.task(table, number, DIGEST, [_source(side, file) for file in some])
            for number, some in enumerate(self._runs.by_bytes(files))
        ]
        answers = await self._runs.run_all(tasks, progress, "compared")
        return [rows for answer in answers for rows in answer.rows]

    async def _note(self, note: NoteRemoved) -> None:
        outcome = await self._replica.propose(note)
        if isinstance(outcome, No):
            raise NotDone(outcome.message)


def _source(side: LiveFiles, file: LiveFile) -> CareFile:
    return CareFile(file.path, file.size, file.rows, [one.path for one in side.deletes_of(file)])


def difference(
    had: Iterable[CountedRows], has: Iterable[CountedRows], *, rewritten: bool
) -> tuple[list[LandedRange], bool]:
    """The rows that are gone or changed; and False if there are more rows than before, which cannot be.

    `rewritten`: there are new files, so any row of the old files may be a changed one now. Else rows were only removed,
    and the difference is that of the removed rows.
    """
    before, after = _summed(had), _summed(has)
    found: list[LandedRange] = []
    sure = after.keys() <= before.keys()
    for partition, old in sorted(before.items()):
        new = after.get(partition, CountedRows(partition, [], 0, 0))
        records, digest = old.records - new.records, (old.digest - new.digest) % 2**64
        sure &= records >= 0
        if records < 0 or (records == 0 and digest == 0):
            continue
        gone = old.offsets if rewritten else minus(old.offsets, new.offsets) or old.offsets
        found.append(LandedRange(partition, gone[0][0], gone[-1][1], records, digest))
    return found, sure


def _summed(parts: Iterable[CountedRows]) -> dict[int, CountedRows]:
    found: dict[int, CountedRows] = {}
    for rows in parts:
        known = found.get(rows.partition, CountedRows(rows.partition, [], 0, 0))
        offsets = joined([*known.offsets, *rows.offsets])
        found[rows.partition] = CountedRows(
            rows.partition, offsets, known.records + rows.records, (known.digest + rows.digest) % 2**64
        )
    return found


def joined(spans: Iterable[Span]) -> list[Span]:
    """The same offsets as few spans in order, none of which touch."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def minus(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """The offsets of `spans` that are not in `others`; both are in order."""
    found: list[Span] = []
    at = 0
    for start, end in spans:
        while at < len(others) and others[at][1] <= start:
            at += 1
        place = at
        while place < len(others) and others[place][0] < end:
            if others[place][0] > start:
                found.append((start, others[place][0]))
            start = max(start, others[place][1])
            place += 1
        if start < end:
            found.append((start, end))
    return found

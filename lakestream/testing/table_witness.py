"""The witness of the tables: looks at each commit the moment it is folded, by reading the table in the plainest way.

    landing         exactly the rows of its ranges came, each as it was sent; nothing else changed (T6, T7)
    anything else   no row came (T8, T13), those went or changed that its author said would
    always          no offset twice; all files are there; the progress in the table is the state's; digests add up (T16)

What a table needs may not be deleted as long as its metadata leads to it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from lakestream.data.memory import MemoryWal
from lakestream.data.tables.arrow_view import digest_rows
from lakestream.data.tables.file_stats import Digest, add_digests
from lakestream.data.tables.progress import PROGRESS_PROPERTY, unpack_progress
from lakestream.data.tables.table_metadata import TableMetadata
from lakestream.errors import Missing
from lakestream.model.catalog import CommitTables, TableChange
from lakestream.model.catalog_landing import LandedRange
from lakestream.model.commands import ENVELOPE
from lakestream.model.state import Outcome, State
from lakestream.testing.ledger import Auditor, Violation
from lakestream.testing.live_files import LiveFile, Rows, live_files, reachable, read_rows
from lakestream.testing.record_ledger import Content, RecordLedger
from lakestream.testing.table_store import MemoryTables

Cell = tuple[int, int]
"""A partition and an offset."""
_COMMIT = msgspec.msgpack.Decoder(CommitTables)


class AuditedTables(MemoryTables):
    """The one warehouse of a simulation: deleting what a table needs is a violation."""

    def __init__(self, wal: MemoryWal, report: Callable[[Violation], None]) -> None:
        super().__init__(wal)
        self.needed: Callable[[], set[str]] = set
        self._report = report

    def delete(self, uris: Sequence[str]) -> None:
        for uri in self.needed().intersection(uris):
            self._report(Violation(f"{uri} was deleted, but its table needs it"))
        super().delete(uris)


@dataclass(slots=True)
class Watched:
    """What is known of one topic's table."""

    location: str = ""
    snapshot: int | None = None
    cells: dict[Cell, Content] = field(default_factory=dict)
    landed: dict[Cell, Content] = field(default_factory=dict)
    """All that ever landed."""
    ranges: list[LandedRange] = field(default_factory=list)
    needed: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Intent:
    """What the author of a snapshot does to rows."""

    removed: frozenset[Cell] = frozenset()
    changed: dict[Cell, Content] = field(default_factory=dict)


class TableWitness:
    """See above."""

    def __init__(
        self, tables: AuditedTables, auditor: Auditor, ledger: RecordLedger, report: Callable[[Violation], None]
    ) -> None:
        self.watched: dict[bytes, Watched] = {}
        self.intents: dict[int, Intent] = {}
        """By snapshot, told before it is committed."""
        self.commits = {"landing": 0, "other": 0}
        self._tables = tables
        self._auditor = auditor
        self._ledger = ledger
        self._report = report
        self._files: dict[str, tuple[Rows, list[tuple[Cell, Content]]]] = {}
        tables.needed = self.needed
        auditor.watchers.append(self.watch)

    def needed(self) -> set[str]:
        topics = self._auditor.state.topics.by_id
        live = [one for topic_id, one in self.watched.items() if topic_id in topics]
        return set().union(*(one.needed | {one.location} for one in live))

    def watch(self, sequence: int, command: bytes, outcome: Outcome) -> None:
        if command[1] != CommitTables.KIND or not isinstance(outcome, int):
            return
        for change in _COMMIT.decode(command[ENVELOPE.size :]).changes:
            table = self._auditor.state.catalog.tables.get((change.namespace, change.name))
            if table is None or not table.topic_id:
                continue
            try:
                self._look(sequence, self._auditor.state, table.topic_id, change)
            except Violation as violation:
                self._report(violation)
            except Missing as error:
                self._report(Violation(f"a table was committed at {sequence} without all its files: {error}"))

    def _look(self, sequence: int, state: State, topic_id: bytes, change: TableChange) -> None:
        before = self.watched.setdefault(topic_id, Watched())
        metadata = TableMetadata.parse(self._tables.get(change.location))
        files = live_files(self._tables, metadata)
        cells = self._cells(files)
        removed = {cell: content for cell, content in before.cells.items() if cell not in cells}
        added = {cell: content for cell, content in cells.items() if cell not in before.cells}
        changed = {cell for cell, content in cells.items() if before.cells.get(cell, content) != content}
        intent = Intent()
        if metadata.current_snapshot_id not in (None, before.snapshot):
            intent = self.intents.get(metadata.current_snapshot_id or 0, intent)
        who = f"the commit at {sequence}"
        if removed.keys() != intent.removed:
            wrong = sorted(removed.keys() ^ intent.removed)
            raise Violation(f"{who} removed other rows than its author says: {wrong[:5]} ({len(wrong)})")
        if {cell: cells[cell] for cell in changed} != intent.changed:
            raise Violation(f"{who} changed other rows than its author says: {sorted(changed)[:5]}")
        landed = {(one.partition, offset) for one in change.landed for offset in range(one.start, one.end)}
        if added.keys() != landed:
            wrong = sorted(added.keys() ^ landed)
            raise Violation(f"{who} lands {len(landed)} rows, but {len(added)} came: {wrong[:5]}")
        self._note(sequence, topic_id, intent, added)
        self._check_digests(who, [one for one in files if one.path not in before.needed], change.landed)
        self._check_progress(who, state, topic_id, metadata)
        before.cells, before.location, before.snapshot = cells, change.location, metadata.current_snapshot_id
        before.landed |= added
        before.ranges += change.landed
        before.needed = reachable(self._tables, metadata)
        self.commits["landing" if change.landed else "other"] += 1

    def _note(self, sequence: int, topic_id: bytes, intent: Intent, added: dict[Cell, Content]) -> None:
        for (partition, offset), content in added.items():
            self._ledger.place(((topic_id, partition), offset), content)
        for partition, offset in intent.removed:
            self._ledger.change(((topic_id, partition), offset), sequence, None)
        for (partition, offset), content in intent.changed.items():
            self._ledger.change(((topic_id, partition), offset), sequence, content)

    def _check_digests(self, who: str, files: list[LiveFile], landed: list[LandedRange]) -> None:
        if not landed:
            return
        found = add_digests(digest_rows(self._file(one.path)[0]) for one in files)
        told = {one.partition: Digest(one.records, one.digest) for one in landed}
        if found != told:
            raise Violation(f"{who} tells the digests {told}, but its rows have {found}")

    def _check_progress(self, who: str, state: State, topic_id: bytes, metadata: TableMetadata) -> None:
        progress = unpack_progress(metadata.properties[PROGRESS_PROPERTY])
        streams = [state.streams.by_id[one] for one in state.topics.by_id[topic_id].streams]
        told = {partition: landed.end for partition, landed in progress.items()}
        true = {stream.partition: stream.landed for stream in streams if stream.landed}
        if told != true:
            raise Violation(f"after {who} the table's progress is {told}, and the state's {true}")

    def _cells(self, files: list[LiveFile]) -> dict[Cell, Content]:
        found: dict[Cell, Content] = {}
        for file in files:
            dead = file.dead(self._tables)
            for at, (cell, content) in enumerate(self._file(file.path)[1]):
                if at in dead:
                    continue
                if cell in found:
                    raise Violation(f"the row {cell} is in the table twice")
                found[cell] = content
        return found

    def _file(self, path: str) -> tuple[Rows, list[tuple[Cell, Content]]]:
        """Of files that are there: they never change."""
        data = self._tables.get(path)
        if path not in self._files:
            rows = read_rows(data)
            self._files[path] = rows, contents(rows)
        return self._files[path]


def contents(rows: Rows) -> list[tuple[Cell, Content]]:
    """Rows as records, without the product's code."""
    columns = [rows.column(name) for name in ("stream_partition", "stream_offset", "stream_key", "value")]
    partitions, offsets, keys, values = (column.to_pylist() for column in columns)
    times = rows.column("stream_timestamp").cast("int64").to_pylist()
    headers = rows.column("stream_headers").to_pylist()
    return [
        (
            (partition, offset),
            Content(
                time // 1000 if time is not None else -1,
                key,
                value,
                tuple((header["key"], header["value"]) for header in some or ()),
            ),
        )
        for partition, offset, time, key, some, value in zip(
            partitions, offsets, times, keys, headers, values, strict=True
        )
    ]

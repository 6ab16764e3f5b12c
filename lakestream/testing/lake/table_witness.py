"""The witness of the tables: checks each commit when it is folded, by reading the table in the plainest way.

    landing         adds exactly the rows of its ranges, each as it was sent, and changes no other row (T6, T7)
    care            adds and changes no row; removes rows that an operator or retention wants removed (T14, T21)
    anything else   adds no row (T8, T13); removes and changes the rows that its author noted
    always          no offset is there twice; all files exist; the table's progress is the state's; the rows are those
                    that landed, less those that the state knows to be removed (T16)

A file may not be deleted while a table's metadata leads to it, and our own code may not delete it before readers had
their grace.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from lakestream.data.memory import MemoryWal
from lakestream.data.tables.files.arrow_view import row_hashes
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.iceberg.progress import PROGRESS_PROPERTY, unpack_progress
from lakestream.data.tables.iceberg.summaries import CARE_KEY
from lakestream.errors import Missing
from lakestream.model.catalog.landed import LandedMark, LandedRange, NoteRemoved
from lakestream.model.catalog.tables import CommitTables, TableChange
from lakestream.model.commands import ENVELOPE
from lakestream.model.state import Outcome, State
from lakestream.testing.lake.care_witness import CareWitness
from lakestream.testing.lake.live_files import Rows, SnapshotFile, live_files, reachable, read_rows
from lakestream.testing.lake.record_ledger import Content, RecordLedger
from lakestream.testing.lake.table_store import MemoryTables
from lakestream.testing.simulation.ledger import Auditor, Violation

Cell = tuple[int, int]
"""A partition and an offset."""
Sums = dict[int, tuple[int, int]]
"""By partition: how many rows, and the sum of their hashes."""
_COMMIT = msgspec.msgpack.Decoder(CommitTables)
_NOTE = msgspec.msgpack.Decoder(NoteRemoved)


class AuditedTables(MemoryTables):
    """The warehouse of a simulation: to delete a file that a table or a reader may need is a violation."""

    def __init__(self, wal: MemoryWal, report: Callable[[Violation], None], grace_ms: int) -> None:
        super().__init__(wal)
        self.needed: Callable[[], set[str]] = set
        self.left_ms: dict[str, int] = {}
        """The time since which no metadata leads to a file, by URI."""
        self.grace_ms = grace_ms
        self._report = report

    def delete(self, uris: Sequence[str]) -> None:
        """Delete files by our own code, after a grace."""
        for uri in uris:
            if self.now_ms() - self.left_ms.get(uri, 0) < self.grace_ms:
                self._report(Violation(f"{uri} was deleted, but a reader may still need it"))
        self.delete_at_once(uris)

    def delete_at_once(self, uris: Sequence[str]) -> None:
        """Delete files by another engine, without a grace."""
        for uri in self.needed().intersection(uris):
            self._report(Violation(f"{uri} was deleted, but its table needs it"))
        super().delete(uris)


@dataclass(slots=True)
class Watched:
    """The content of one topic's table after its last commit, and all that ever landed in it."""

    location: str = ""
    snapshot: int | None = None
    sequence: int = 0
    cells: dict[Cell, Content] = field(default_factory=dict)
    landed: dict[Cell, Content] = field(default_factory=dict)
    """All rows that ever landed."""
    hashes: dict[Cell, int] = field(default_factory=dict)
    landed_ms: dict[Cell, int] = field(default_factory=dict)
    """The cluster time at which each row landed."""
    ranges: list[LandedRange] = field(default_factory=list)
    needed: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Intent:
    """The rows that the author of a snapshot removes and changes."""

    removed: frozenset[Cell] = frozenset()
    changed: dict[Cell, Content] = field(default_factory=dict)


class TableWitness:
    """Checks every commit to topics' tables."""

    def __init__(
        self, tables: AuditedTables, auditor: Auditor, ledger: RecordLedger, report: Callable[[Violation], None]
    ) -> None:
        self.watched: dict[bytes, Watched] = {}
        self.intents: dict[int, Intent] = {}
        """The intents by snapshot id, noted before the commit."""
        self.commits: Counter[str] = Counter()
        self.care = CareWitness()
        self.unprovable = False
        """Whether other engines expire snapshots before they are accounted for."""
        self._tables = tables
        self._auditor = auditor
        self._ledger = ledger
        self._report = report
        self._files: dict[str, tuple[list[tuple[Cell, Content]], list[int]]] = {}
        tables.needed = self.needed
        auditor.watchers.append(self.watch)

    def needed(self) -> set[str]:
        topics = self._auditor.state.topics.by_id
        live = [one for topic_id, one in self.watched.items() if topic_id in topics]
        return set().union(*(one.needed | {one.location} for one in live))

    def watch(self, sequence: int, command: bytes, outcome: Outcome) -> None:
        state = self._auditor.state
        try:
            self.care.watch(command, outcome, {topic: set(one.cells) for topic, one in self.watched.items()})
            if command[1] == NoteRemoved.KIND and outcome is None:
                topic_id = _NOTE.decode(command[ENVELOPE.size :]).topic_id
                self._check_accounts(f"the note at {sequence}", state, topic_id)
        except Violation as violation:
            self._report(violation)
        if command[1] != CommitTables.KIND or not isinstance(outcome, int):
            return
        for change in _COMMIT.decode(command[ENVELOPE.size :]).changes:
            table = self._auditor.state.catalog.tables.get((change.namespace, change.name))
            if table is None or not table.topic_id:
                continue
            try:
                self._check_commit(sequence, self._auditor.state, table.topic_id, change)
            except Violation as violation:
                self._report(violation)
            except Missing as error:
                self._report(Violation(f"a table was committed at {sequence} without all its files: {error}"))

    def _check_commit(self, sequence: int, state: State, topic_id: bytes, change: TableChange) -> None:
        before = self.watched.setdefault(topic_id, Watched())
        metadata = TableMetadata.parse(self._tables.get(change.location))
        files = live_files(self._tables, metadata)
        cells, hashes = self._cells(files)
        removed = {cell: content for cell, content in before.cells.items() if cell not in cells}
        added = {cell: content for cell, content in cells.items() if cell not in before.cells}
        changed = {cell for cell, content in cells.items() if before.cells.get(cell, content) != content}
        intent = Intent()
        if metadata.current_snapshot_id not in (None, before.snapshot):
            intent = self.intents.get(metadata.current_snapshot_id or 0, intent)
        who = f"the commit at {sequence}"
        care = ""
        if metadata.current_snapshot_id not in (None, before.snapshot):
            care = metadata.summary(metadata.current_snapshot_id or 0).get(CARE_KEY, "")
        if care:
            self.care.check_removed(state, topic_id, care, removed.keys(), before.landed_ms)
            intent = Intent(frozenset(removed))
        told = {one.partition: (one.records, one.digest) for one in change.removed}
        if told != (sums(removed, before.hashes) if care else {}):
            raise Violation(f"{who} tells that {told} went, but {sums(removed, before.hashes)} did")
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
        told = {one.partition: (one.records, one.digest) for one in change.landed if one.records}
        if told != sums(added, hashes):
            raise Violation(f"{who} tells the digests {told}, but its rows have {sums(added, hashes)}")
        self._check_progress(who, state, topic_id, metadata)
        before.cells, before.location, before.snapshot = cells, change.location, metadata.current_snapshot_id
        before.hashes, before.sequence = hashes, metadata.last_sequence_number
        before.landed |= added
        before.landed_ms |= dict.fromkeys(added, state.members.time_ms)
        before.ranges += change.landed
        self._note_unneeded(before, reachable(self._tables, metadata) | {change.location})
        self._check_accounts(who, state, topic_id)
        self.commits["landing" if change.landed else care or "other"] += 1

    def _note_unneeded(self, watched: Watched, needed: set[str]) -> None:
        """Note files that are no longer needed, but not metadata files: any commit deletes the twentieth before it."""
        left = (uri for uri in watched.needed - needed if not uri.endswith(".metadata.json"))
        self._tables.left_ms |= dict.fromkeys(left, self._tables.now_ms())
        watched.needed = needed

    def _check_accounts(self, who: str, state: State, topic_id: bytes) -> None:
        """If all snapshots are accounted for, the rows are those that landed less those removed (T16)."""
        landing, watched = state.catalog.landings.get(topic_id), self.watched.get(topic_id)
        if landing is None or watched is None:
            return
        if landing.unproven and not self.unprovable:
            raise Violation(f"since {who} the table's history counts as unproven, but no snapshot was lost")
        if landing.unproven or landing.accounted < watched.sequence:
            return
        there = sums(watched.cells, watched.hashes)
        for partition in range(len(state.topics.by_id[topic_id].streams)):
            landed, removed = total(landing.marks(partition)), total(landing.removed.get(partition, ()))
            left = landed[0] - removed[0], (landed[1] - removed[1]) % 2**64
            if left != there.get(partition, (0, 0)):
                raise Violation(f"after {who} the state accounts for {left} of partition {partition}: {there}")

    def _note(self, sequence: int, topic_id: bytes, intent: Intent, added: dict[Cell, Content]) -> None:
        for (partition, offset), content in added.items():
            self._ledger.place(((topic_id, partition), offset), content)
        for partition, offset in intent.removed:
            self._ledger.change(((topic_id, partition), offset), sequence, None)
        for (partition, offset), content in intent.changed.items():
            self._ledger.change(((topic_id, partition), offset), sequence, content)

    def _check_progress(self, who: str, state: State, topic_id: bytes, metadata: TableMetadata) -> None:
        progress = unpack_progress(metadata.properties[PROGRESS_PROPERTY])
        streams = [state.streams.by_id[one] for one in state.topics.by_id[topic_id].streams]
        told = {partition: landed.end for partition, landed in progress.items()}
        true = {stream.partition: stream.landed for stream in streams if stream.landed}
        if told != true:
            raise Violation(f"after {who} the table's progress is {told}, and the state's {true}")

    def _cells(self, files: list[SnapshotFile]) -> tuple[dict[Cell, Content], dict[Cell, int]]:
        """The rows of these files, and their hashes."""
        found: dict[Cell, Content] = {}
        hashes: dict[Cell, int] = {}
        for file in files:
            dead = file.dead(self._tables)
            rows, own = self._file(file.path)
            for at, (cell, content) in enumerate(rows):
                if at in dead:
                    continue
                if cell in found:
                    raise Violation(f"the row {cell} is in the table twice")
                found[cell], hashes[cell] = content, own[at]
        return found, hashes

    def _file(self, path: str) -> tuple[list[tuple[Cell, Content]], list[int]]:
        """The rows of a file and their hashes, from a cache, since files never change. Raises Missing."""
        data = self._tables.get(path)
        if path not in self._files:
            rows = read_rows(data)
            hashes = [row_hashes(batch).tolist() for batch in rows.to_batches()]
            self._files[path] = contents(rows), [one for some in hashes for one in some]
        return self._files[path]


def sums(cells: Iterable[Cell], hashes: dict[Cell, int]) -> Sums:
    found: Sums = {}
    for cell in cells:
        count, total = found.get(cell[0], (0, 0))
        found[cell[0]] = count + 1, (total + hashes[cell]) % 2**64
    return found


def total(marks: Iterable[LandedMark]) -> tuple[int, int]:
    known = list(marks)
    return sum(mark.records for mark in known), sum(mark.digest for mark in known) % 2**64


def contents(rows: Rows) -> list[tuple[Cell, Content]]:
    """Rows as records, converted without the product's code."""

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

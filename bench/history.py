"""The cost of freshness: a day of commits every five seconds, over injected time, in bytes, requests and sizes.

    python -m bench.history [hours]

The commits are real, and so is the care that joins small files; only the data files are not there, and the store counts
what a real one would be asked for. Nothing waits, so a day takes a minute. Before the history was thinned and packed a
commit wrote 510 KB with the hour of snapshots that it kept (a soak of 20 topics, 100 records/s each).
"""

import random
import sys
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.figures import Figure, at_most
from bench.yard import Yard
from lakestream.data.memory import MemoryWal
from lakestream.data.tables.files.file_stats import FileStats, Run
from lakestream.data.tables.iceberg.commit import Commit
from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.expiry import AGE_PROPERTY
from lakestream.data.tables.iceberg.manifests.files import NewFile
from lakestream.data.tables.iceberg.metadata.names import is_metadata_file
from lakestream.data.tables.iceberg.progress import OffsetRange
from lakestream.data.tables.iceberg.snapshot_history import SnapshotHistory
from lakestream.data.tables.iceberg.summaries import CARE_KEY, OPTIMIZE
from lakestream.data.tables.iceberg.topic_table import STREAM_ORDER, new_topic_table
from lakestream.testing.lake.table_store import MemoryTables

NOW_MS = 1_700_000_000_000
ROUND_MS = 5_000
JITTER_MS = 300
GRACE_MS = 600_000
SMALL_FILES = 32
LEVELS = 2
RECORDS = 500
FORMER_COMMIT_BYTES = 510_000
NEWEST_BAR_BYTES = 30_000
SHARE_BAR = 0.05


def measure(yard: Yard) -> list[Figure]:
    hours = 3 if yard.quick else 24
    topic = Topic()
    for _ in range(hours * 3_600_000 // ROUND_MS):
        topic.round(ROUND_MS)
    return figures(topic, hours)


def figures(topic: "Topic", hours: float) -> list[Figure]:
    counted, name = topic.store, f"{hours:g} h of commits every 5 s"
    left = Counter(kind_of(uri) for uri in counted.files)
    note = ", ".join(f"{count} {kind}" for kind, count in sorted(left.items()))
    asked = ", ".join(f"{count / hours:.0f} {verb}" for verb, count in sorted(counted.requests.items()))
    return [
        Figure(
            name=f"{name}: newest metadata file", unit="bytes", ours=[topic.newest_bytes],
            bar=at_most(NEWEST_BAR_BYTES), note=f"{topic.snapshots} snapshots",
        ),
        Figure(
            name=f"{name}: written per commit", unit="bytes", ours=[counted.written / topic.commits],
            base_name="before", base=[FORMER_COMMIT_BYTES], bar=at_most(SHARE_BAR), note="without data files",
        ),
        Figure(name=f"{name}: written", unit="MB/topic-hour", ours=[counted.written / hours / 1e6], note=note),
        Figure(
            name=f"{name}: requests", unit="/topic-hour", ours=[sum(counted.requests.values()) / hours], note=asked
        ),
    ]  # fmt: skip


class CountedTables(MemoryTables):
    """A store in memory that counts its requests, without those for data files."""

    def __init__(self) -> None:
        super().__init__(MemoryWal())
        self.written = 0
        self.requests: Counter[str] = Counter()

    def put(self, uri: str, data: bytes) -> None:
        self.requests["put"] += 1
        self.written += len(data)
        super().put(uri, data)

    def get(self, uri: str) -> bytes:
        self.requests["get"] += 1
        return super().get(uri)

    def delete(self, uris: Sequence[str]) -> None:
        self.requests["delete"] += len(uris)
        super().delete(uris)


@dataclass
class Topic:
    """A topic that lands in one round after the other, and whose small files are joined."""

    history: SnapshotHistory = field(default_factory=SnapshotHistory)
    store: CountedTables = field(default_factory=CountedTables)
    now_ms: int = NOW_MS
    commits: int = 0
    _offset: int = 0
    _unreached: deque[tuple[int, list[str]]] = field(default_factory=deque)
    _levels: list[list[FileStats]] = field(default_factory=lambda: [[] for _ in range(LEVELS)])

    def __post_init__(self) -> None:
        self.chance = random.Random(1)
        self.committer = Committer(self.store, self.chance, lambda: "1000000-1", self.history)
        self.table = self.committer.create(
            new_topic_table(
                table_uuid="00000000-0000-4000-8000-000000000001", topic_id=bytes(16),
                location=f"{self.store.root}/tables/streams/clicks-00000000", now_ms=self.now_ms,
                properties={AGE_PROPERTY: str(self.history.age_ms)},
            )
        )  # fmt: skip

    @property
    def newest_bytes(self) -> int:
        return len(self.store.files[self.table.metadata_location])

    @property
    def snapshots(self) -> int:
        return len(self.table.metadata.snapshots)

    def round(self, step_ms: int) -> None:
        """Land some records, a while after the last round; then join files if there are enough."""
        self.now_ms += step_ms
        rows = RECORDS + self.chance.randrange(-RECORDS // 2, RECORDS // 2)
        file = self._file(0, rows)
        landed = OffsetRange(0, self._offset, self._offset + rows)
        self._offset += rows
        now_ms = self.now_ms + self.chance.randrange(JITTER_MS)
        self._won(self.committer.append(self.table, [file], [landed], now_ms=now_ms))
        self.commits += 1
        self._levels[0].append(file.stats)
        for level in range(LEVELS):
            if len(self._levels[level]) == SMALL_FILES:
                self._join(level)

    def _join(self, level: int) -> None:
        joined, self._levels[level] = self._levels[level], []
        file = self._file(level + 1, sum(stats.rows for stats in joined))
        base = self.table.metadata.current_snapshot_id
        assert base is not None
        gone = frozenset(stats.path for stats in joined)
        notes = {CARE_KEY: OPTIMIZE}
        self._won(self.committer.rewrite(self.table, base, gone, [file], now_ms=self.now_ms, notes=notes))
        if level + 1 < LEVELS:
            self._levels[level + 1].append(file.stats)

    def _won(self, commit: Commit) -> None:
        """Delete files as the pipeline does: metadata files at once, other files after a grace."""
        self.table = commit.table
        self.store.delete([uri for uri in commit.obsolete if is_metadata_file(uri)])
        self._unreached.append((self.now_ms, [uri for uri in commit.obsolete if not is_metadata_file(uri)]))
        while self._unreached and self._unreached[0][0] <= self.now_ms - GRACE_MS:
            self.store.delete(self._unreached.popleft()[1])

    def _file(self, level: int, rows: int) -> NewFile:
        uri = f"{self.table.metadata.location}/data/1000000-1-{self.commits}/{level:05d}-0-0.parquet"
        size = rows * 30 + self.chance.randrange(3_000)
        stats = FileStats(
            path=uri, rows=rows, bytes=size, column_sizes={1: 100, 2: rows, 8: size}, value_counts={1: rows, 2: rows},
            null_counts={1: 0, 2: 0}, lower_bounds={1: b"\0" * 4, 2: self._offset.to_bytes(8, "little")},
            upper_bounds={1: b"\0" * 4, 2: (self._offset + rows).to_bytes(8, "little")}, split_offsets=[4],
            runs=[[Run(0, self._offset, self._offset + rows - 1, self.now_ms, rows)]],
        )  # fmt: skip
        return NewFile(stats=stats, sort_order_id=STREAM_ORDER)


def kind_of(uri: str) -> str:
    if is_metadata_file(uri):
        return "metadata files"
    return "manifest lists" if "/snap-" in uri else "manifests"


def main() -> None:
    hours = float(sys.argv[1]) if len(sys.argv) > 1 else 24.0
    topic = Topic()
    for _ in range(int(hours * 3_600_000 / ROUND_MS)):
        topic.round(ROUND_MS)
    for figure in figures(topic, hours):
        print(figure, flush=True)


if __name__ == "__main__":
    main()

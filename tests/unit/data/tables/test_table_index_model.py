"""Whatever happens to a table's files, reading by offset gives what a plain model of the rows says (T3, T13)."""

import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakestream.data.tables.reading.table_reader import FoundRow, ReadCaches, TableReader
from lakestream.data.tables.stores.small_files import SmallFiles
from tests.support.iceberg_tables import NOW_MS, Lake, OtherEngine, make_rows, timestamp_of

PARTITIONS = 3
STEPS = st.lists(
    st.sampled_from(["append", "append", "append", "rewrite", "delete", "compact", "read"]), min_size=3, max_size=14
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.integers(0, 2**32))
def test_reading_equals_a_model_after_appends_rewrites_sorts_and_deletes(steps: list[str], seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        Story(Path(folder), chance).play(steps)


class Story:
    """A lake, another engine at work in it, and what the rows should be."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.chance = chance
        self.lake = Lake(folder, row_group_bytes=chance.choice([300, 1000, 8 << 20]))
        self.engine = OtherEngine(self.lake, chance)
        self.next = [0] * PARTITIONS
        self.live: set[tuple[int, int]] = set()
        caches = ReadCaches(row_group_bytes=chance.choice([0, 2000, 1 << 20]))
        self.reader = TableReader(self.lake.store, SmallFiles(self.lake.store), caches, lambda: self.lake.location)

    def play(self, steps: list[str]) -> None:
        for step in [*steps, "read"]:
            getattr(self, step)()
        assert self.lake.cells() == sorted(self.live), "PyIceberg agrees with the model"

    def append(self) -> None:
        ranges = []
        for partition in self.chance.sample(range(PARTITIONS), self.chance.randint(1, PARTITIONS)):
            start = self.next[partition] + self.chance.choice([0, 0, 7])
            self.next[partition] = start + self.chance.randint(0, 25)
            ranges.append((partition, start, self.next[partition]))
        self.lake.append(sorted(ranges))
        self.live.update((partition, at) for partition, start, end in ranges for at in range(start, end))

    def rewrite(self) -> None:
        """Another engine: any files, any order, any cuts."""
        paths = [entry.data_file.file_path for _, entry in self.engine.live()]
        if paths:
            chosen = set(self.chance.sample(paths, self.chance.randint(1, len(paths))))
            self.engine.rewrite(chosen, pieces=self.chance.randint(1, 3), shuffled=self.chance.random() < 0.7)

    def delete(self) -> None:
        """Another engine: some rows of some files, by position; some of them were deleted before."""
        chosen: dict[str, list[int]] = {}
        for _, entry in self.engine.live():
            if self.chance.random() < 0.5:
                places = list(range(entry.data_file.record_count))
                chosen[entry.data_file.file_path] = self.chance.sample(places, self.chance.randint(1, len(places)))
        if chosen:
            for path, places in chosen.items():
                self.live -= {self._cells(path)[place] for place in places}
            self.engine.delete(chosen)

    def compact(self) -> None:
        """Our own rewrite of everything into one sorted file."""
        base = self.lake.table.metadata.current_snapshot_id
        paths = frozenset(entry.data_file.file_path for _, entry in self.engine.live())
        if base is not None and paths:
            files = [self.lake.write(sorted(self.live))] if self.live else []
            self.lake.table = self.lake.committer.rewrite(
                self.lake.table, base, paths, files, now_ms=self.lake.now_ms
            ).table

    def read(self) -> None:
        partition = self.chance.randrange(PARTITIONS)
        upto = self.next[partition] + self.chance.choice([0, 5])
        start = at = self.chance.randint(0, upto)
        expected = sorted(cell for cell in self.live if cell[0] == partition and start <= cell[1] < upto)
        found = []
        while at < upto:
            part = self.reader.read_rows(partition, at, upto, self.chance.choice([1, 200, 10**6]))
            assert part.start == at < part.end
            assert part.rows.combine_chunks().equals(
                make_rows([cell for cell in expected if at <= cell[1] < part.end]).combine_chunks()
            )
            found += part.rows["stream_offset"].to_pylist()
            at = part.end
        assert found == [offset for _, offset in expected]
        self._find_times(partition, start, upto, expected)

    def _find_times(self, partition: int, start: int, upto: int, expected: list[tuple[int, int]]) -> None:
        rows = [FoundRow(offset, NOW_MS + timestamp_of(partition, offset)) for _, offset in expected]
        wanted = NOW_MS + self.chance.randint(-50, 10 * upto + 50)
        first = next((row for row in rows if row.timestamp >= wanted), None)
        assert self.reader.find_time(partition, wanted, start, upto) == first
        latest = min(rows, key=lambda row: (-row.timestamp, row.offset), default=None)
        assert self.reader.latest_time(partition, start, upto) == latest

    def _cells(self, path: str) -> list[tuple[int, int]]:
        import pyarrow.parquet as pq

        rows = pq.read_table(path.removeprefix("file://"), columns=["stream_partition", "stream_offset"])
        return list(zip(rows["stream_partition"].to_pylist(), rows["stream_offset"].to_pylist(), strict=True))

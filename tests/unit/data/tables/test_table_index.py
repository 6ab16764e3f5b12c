"""Reading a table by partition and offset, whoever wrote its files (T3, T4, T5, T13)."""

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from lakestream.data.tables.files.runs import pack_runs, run_matrix, runs_of_rows, unpack_runs
from lakestream.data.tables.iceberg.manifests.files import read_manifest, read_manifest_list
from lakestream.data.tables.reading.table_reader import FoundRow, PartitionRows, ReadCaches, RowGroup, TableReader
from lakestream.data.tables.reading.table_readers import TableReaders, TableReadLimits
from lakestream.data.tables.stores.lru import Lru
from lakestream.data.tables.stores.small_files import SmallFiles
from lakestream.errors import Corrupt, Missing, Rejected
from tests.support.iceberg_tables import NOW_MS, Lake, OtherEngine, add_column, make_rows, timestamp_of
from tests.support.serve_process import eventually

ALL = 10**9


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "warehouse", row_group_bytes=2000)


def reader_of(lake: Lake) -> TableReader:
    return TableReader(lake.store, SmallFiles(lake.store), ReadCaches(), lambda: lake.location)


def offsets(found: PartitionRows) -> list[int]:
    return found.rows["stream_offset"].to_pylist()


def paths(lake: Lake) -> list[str]:
    return [task.file.file_path for task in lake.read_by_pyiceberg().scan().plan_files()]


def test_rows_come_back_as_they_were_written_and_in_order(lake: Lake) -> None:
    lake.append([(0, 0, 100), (1, 0, 50)])
    lake.append([(1, 50, 120)])
    found = reader_of(lake).read_rows(1, 30, 120, ALL)
    assert (found.start, found.end) == (30, 120)
    assert found.rows.equals(make_rows([(1, offset) for offset in range(30, 120)]))


def test_a_read_is_cut_by_bytes_and_goes_on_where_it_ended(lake: Lake) -> None:
    lake.append([(0, 0, 200)])
    lake.append([(0, 200, 400)])
    reader = reader_of(lake)
    at, seen = 0, []
    while at < 400:
        found = reader.read_rows(0, at, 400, 1500)
        assert 0 < found.rows.num_rows < 60
        seen += offsets(found)
        at = found.end
    assert seen == list(range(400))


def test_one_row_at_least_however_large_it_is(lake: Lake) -> None:
    lake.append([(0, 0, 3)], value_bytes=50_000)
    found = reader_of(lake).read_rows(0, 1, 3, 10)
    assert offsets(found) == [1]
    assert found.end == 2


def test_reading_ends_at_what_has_landed_for_the_caller(lake: Lake) -> None:
    lake.append([(0, 0, 50)])
    found = reader_of(lake).read_rows(0, 10, 20, ALL)
    assert offsets(found) == list(range(10, 20))
    assert found.end == 20


def test_a_stretch_without_rows_is_covered_all_the_same(lake: Lake) -> None:
    """Aborted, compacted or deleted: every client moves on over the gap."""
    lake.append([(0, 0, 10)])
    lake.append([(0, 10, 90)] and [(0, 50, 60)])
    reader = reader_of(lake)
    assert offsets(reader.read_rows(0, 20, 90, ALL)) == list(range(50, 60))
    nothing = reader.read_rows(0, 60, 90, ALL)
    assert (nothing.rows.num_rows, nothing.start, nothing.end) == (0, 60, 90)
    assert reader.read_rows(7, 0, 30, ALL).end == 30


def test_the_index_moves_by_the_difference_of_snapshots_T3(lake: Lake) -> None:
    for start in range(0, 100, 10):
        lake.append([(0, start, start + 10)])
    read: list[str] = []
    files = SmallFiles(lake.store)
    get_all = files.get_all
    files.get_all = lambda uris: read.extend(uris) or get_all(uris)  # type: ignore[method-assign, func-returns-value]
    reader = TableReader(lake.store, files, ReadCaches(), lambda: lake.location)
    reader.read_rows(0, 0, 100, 1)
    read.clear()
    lake.append([(0, 100, 110)])
    assert offsets(reader.read_rows(0, 95, 110, ALL)) == list(range(95, 110))
    assert len(read) == 2, "the new list and the one new manifest"


def test_an_offset_is_found_in_one_file_of_many_with_many_partitions_T3(lake: Lake) -> None:
    """Bounds of single columns would match nearly every file: partitions stand at very different offsets."""
    ends = {partition: 1000 * partition for partition in range(8)}
    for partition, end in ends.items():
        lake.append([(partition, end, end)])
    for _ in range(20):
        lake.append([(partition, end, end + 5) for partition, end in ends.items()])
        ends = {partition: end + 5 for partition, end in ends.items()}
    view = reader_of(lake).view()
    assert not view.unresolved
    for partition in range(8):
        groups = view.window(partition, 1000 * partition + 42, ALL, 100).groups
        assert len({file.path for file, _ in groups}) == 1


def test_manifests_carry_runs_and_foreign_ones_are_looked_up_in_the_files_T3(lake: Lake) -> None:
    lake.append([(0, 0, 60), (1, 0, 60)])
    lake.append([(0, 60, 80)])
    OtherEngine(lake, random.Random(1)).rewrite({paths(lake)[0]}, pieces=3)
    reader = reader_of(lake)
    assert len(reader.view().unresolved) >= 3
    assert offsets(reader.read_rows(0, 0, 80, ALL)) == list(range(80))
    assert offsets(reader.read_rows(1, 0, 60, ALL)) == list(range(60))
    assert not reader.view().unresolved


def test_a_foreign_sort_is_sorted_back_T4(lake: Lake) -> None:
    lake.append([(0, 0, 100), (1, 0, 100)])
    lake.append([(0, 100, 200)])
    OtherEngine(lake, random.Random(2)).rewrite(set(paths(lake)), pieces=4)
    reader = reader_of(lake)
    expected = make_rows([(0, offset) for offset in range(200)])
    assert reader.read_rows(0, 0, 200, ALL).rows.combine_chunks().equals(expected.combine_chunks())
    assert reader.overlapping(0, 100) > 1
    seen, at = [], 0
    while at < 200:
        found = reader.read_rows(0, at, 200, 700)
        seen += offsets(found)
        at = found.end
    assert seen == list(range(200))


def test_rows_deleted_by_position_are_not_there_T13(lake: Lake) -> None:
    lake.append([(0, 0, 100), (1, 0, 100)])
    [path] = paths(lake)
    reader = reader_of(lake)
    assert reader.read_rows(0, 0, 100, ALL).rows.num_rows == 100
    engine = OtherEngine(lake, random.Random(3))
    engine.delete({path: [0, 5, 99, 100, 150]})
    engine.delete({path: [6, 7]})
    assert offsets(reader.read_rows(0, 0, 100, ALL)) == sorted(set(range(100)) - {0, 5, 6, 7, 99})
    assert offsets(reader.read_rows(1, 0, 100, ALL)) == sorted(set(range(100)) - {0, 50})
    assert lake.cells() == [(0, at) for at in range(100) if at not in {0, 5, 6, 7, 99}] + [
        (1, at) for at in range(100) if at not in {0, 50}
    ]


def test_an_added_column_changes_nothing_T13(lake: Lake) -> None:
    lake.append([(0, 0, 20)])
    add_column(lake)
    OtherEngine(lake, random.Random(4)).rewrite(set(paths(lake)), extra_column=True)
    lake.append([(0, 20, 30)])
    found = reader_of(lake).read_rows(0, 0, 30, ALL)
    assert found.rows.combine_chunks().equals(make_rows([(0, at) for at in range(30)]).combine_chunks())


def test_an_offset_that_is_there_twice_is_never_served(lake: Lake) -> None:
    lake.append([(0, 0, 10)])
    lake.append([(1, 0, 0)])
    commit = lake.committer.append(lake.table, [lake.write([(0, 4)])], [], now_ms=lake.now_ms)
    lake.table = commit.table
    with pytest.raises(Corrupt, match="offset 4 of partition 0 twice"):
        reader_of(lake).read_rows(0, 0, 10, ALL)


def test_a_file_that_is_gone_in_the_middle_makes_the_table_be_loaded_again_once_T5(lake: Lake) -> None:
    lake.append([(0, 0, 50)])
    stale = lake.location
    old = paths(lake)
    OtherEngine(lake, random.Random(5)).rewrite(set(old))
    lake.store.delete(old)
    asked = []

    def current() -> str:
        asked.append(lake.location)
        return stale if len(asked) == 1 else lake.location

    reader = TableReader(lake.store, SmallFiles(lake.store), ReadCaches(), current)
    assert offsets(reader.read_rows(0, 0, 50, ALL)) == list(range(50))
    lake.store.delete(paths(lake))
    fresh = reader_of(lake)
    with pytest.raises(Missing):
        fresh.read_rows(0, 0, 50, ALL)


def test_a_path_outside_the_warehouse_is_refused(lake: Lake) -> None:
    for uri in (
        "file:///etc/passwd",
        f"{lake.store.root}/../secret",
        f"{lake.store.root}-other/x",
        f"file:{lake.store.root[7:]}/../x",
    ):
        with pytest.raises(Rejected):
            lake.store.get(uri)


# -- times ------------------------------------------------------------------------------------------------------------


def test_the_first_row_not_older_than_a_time_is_found(lake: Lake) -> None:
    lake.append([(0, 0, 60)])
    lake.append([(0, 60, 150)])
    reader = reader_of(lake)
    times = {offset: NOW_MS + timestamp_of(0, offset) for offset in range(150)}
    for wanted in (NOW_MS - 5, NOW_MS + 333, NOW_MS + 1000, NOW_MS + 1490):
        expected = next((offset for offset in range(150) if times[offset] >= wanted), None)
        found = reader.find_time(0, wanted, 0, 150)
        assert found == (None if expected is None else FoundRow(expected, times[expected]))
    assert reader.find_time(0, NOW_MS + 10**9, 0, 150) is None
    assert reader.find_time(0, NOW_MS - 5, 70, 150) == FoundRow(70, times[70])


def test_the_greatest_time_is_found_though_rows_were_deleted_and_files_shuffled(lake: Lake) -> None:
    lake.append([(0, 0, 60)])
    times = {offset: NOW_MS + timestamp_of(0, offset) for offset in range(60)}
    best = max(times, key=lambda offset: times[offset])
    reader = reader_of(lake)
    assert reader.latest_time(0, 0, 60) == FoundRow(best, times[best])
    engine = OtherEngine(lake, random.Random(6))
    engine.delete({paths(lake)[0]: [best]})
    del times[best]
    best = max(times, key=lambda offset: times[offset])
    assert reader.latest_time(0, 0, 60) == FoundRow(best, times[best])
    engine.rewrite(set(paths(lake)), pieces=3)
    assert reader_of(lake).latest_time(0, 0, 60) == FoundRow(best, times[best])


# -- runs -------------------------------------------------------------------------------------------------------------


def test_runs_survive_packing_and_rubbish_is_no_runs() -> None:
    first = run_matrix([(0, 0, 5, 9, NOW_MS, 5), (1, -1, 2**62, 2**62 + 7, -1, 8)])
    packed = pack_runs([first, None, run_matrix([])])
    one, nobody_knows, none = unpack_runs(packed)
    assert one is not None and none is not None
    assert np.array_equal(one, first) and nobody_knows is None and len(none) == 0
    assert unpack_runs(b"") == unpack_runs("AAAA") == unpack_runs("!") == []


def test_runs_of_rows_in_any_order_are_right() -> None:
    found = runs_of_rows(3, np.array([1, 0, 1, 1]), np.array([9, 4, 2, 5]), np.array([7, 1, 9, -1]))
    assert found.tolist() == [[3, 0, 4, 4, 1, 1], [3, 1, 2, 9, 9, 3]]


def test_our_manifests_tell_the_runs_of_their_files_after_merging_too(lake: Lake) -> None:
    for start in range(40):
        lake.append([(0, start, start + 1), (1, start, start + 1)])
    head = lake.table.metadata.current
    assert head is not None
    for listed in read_manifest_list(lake.store.get(head.manifest_list)):
        manifest = read_manifest(lake.store.get(listed.path), listed)
        assert all(runs is not None and len(runs) == 2 for runs in manifest.runs)


# -- from the event loop ----------------------------------------------------------------------------------------------


async def test_a_sequential_reader_finds_the_next_row_group_decoded(lake: Lake) -> None:
    lake.append([(0, 0, 2000)])
    readers = TableReaders(lake.store)
    try:
        at, seen = 0, []
        while at < 2000:
            found = await readers.rows("t", lambda: lake.location, 0, at, 2000, 4000)
            seen += offsets(found)
            at = found.end
        assert seen == list(range(2000))
        assert await readers.find_time("t", lambda: lake.location, 0, NOW_MS, 0, 2000) is not None
        assert await readers.latest_time("t", lambda: lake.location, 0, 0, 2000) is not None
    finally:
        await readers.close()


async def test_row_groups_are_dropped_when_nobody_reads_any_more(lake: Lake) -> None:
    lake.append([(0, 0, 2000)])
    readers = TableReaders(lake.store, TableReadLimits(idle_s=1.0))
    try:
        await readers.rows("t", lambda: lake.location, 0, 0, 2000, 4000)
        assert readers.held_bytes
        await asyncio.to_thread(eventually, lambda: not readers.held_bytes, "row groups are kept", 30.0)
        again = await readers.rows("t", lambda: lake.location, 0, 0, 2000, 4000)
        assert offsets(again)[0] == 0 and readers.held_bytes
    finally:
        await readers.close()


async def test_nothing_is_read_ahead_while_too_many_are_replayed_at_once(lake: Lake) -> None:
    lake.append([(partition, 0, 300) for partition in range(6)])
    for streams, warmed in ((6, True), (3, False)):
        readers = TableReaders(lake.store, TableReadLimits(ahead_streams=streams))
        ahead: list[int] = []
        readers._read_ahead = lambda *asked, ahead=ahead: ahead.append(asked[1])  # type: ignore[method-assign]
        ends = dict.fromkeys(range(6), 0)
        try:
            for _ in range(2):
                for partition, at in ends.items():
                    found = await readers.rows("t", lambda: lake.location, partition, at, 300, 2000)
                    ends[partition] = found.end
            assert bool(ahead) == warmed
        finally:
            await readers.close()


def test_a_row_group_is_decoded_once_however_many_want_it_at_once(lake: Lake) -> None:
    lake.append([(0, 0, 100)])
    whole = reader_of(lake)
    held = whole._group(*whole.view().window(0, 0, 100, 100).groups[0])
    caches, began, go_on = ReadCaches(), threading.Event(), threading.Event()
    decoded: list[int] = []

    def decode() -> RowGroup:
        decoded.append(1)
        began.set()
        go_on.wait(10)
        return held

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(caches.group, ("file", 0), decode)
        assert began.wait(10)
        others = [pool.submit(caches.group, ("file", 0), decode) for _ in range(3)]
        go_on.set()
        assert all(one.result(10) is held for one in [first, *others])
    assert decoded == [1]


def test_one_that_cannot_be_decoded_is_tried_again_by_the_next() -> None:
    caches = ReadCaches()

    def fail() -> RowGroup:
        raise Missing("gone")

    for _ in range(2):
        with pytest.raises(Missing):
            caches.group(("file", 0), fail)


def test_a_cache_lets_go_of_what_was_cooled_first_and_of_everything_at_once() -> None:
    cache: Lru[str, int] = Lru(3)
    for name in "abc":
        cache.put(name, 1, 1)
    cache.cool("c")
    cache.put("d", 1, 1)
    assert [name for name in "abcd" if name in cache] == ["a", "b", "d"]
    assert cache.clear() == 3 and "a" not in cache
    cache.put("a", 1, 3)
    assert "a" in cache

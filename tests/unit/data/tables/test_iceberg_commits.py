"""The committer: what it writes is a normal table to PyIceberg, and its rules hold (T2, T4, T6, T7, T8, T11, T14)."""

import random
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from lakestream.data.tables.iceberg.commit import Stale
from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.manifests.files import read_manifest_list
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.iceberg.progress import LandedOffsets, OffsetRange, unpack_progress, unpack_ranges
from lakestream.errors import Missing
from tests.support.iceberg_tables import NOW_MS, TOPIC_ID, Lake, OtherEngine, iceberg_schema, reachable, stored

HOUR_MS = 3_600_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "warehouse")


def summary(lake: Lake) -> dict[str, str]:
    snapshot = lake.table.metadata.current_snapshot_id
    assert snapshot is not None
    return lake.table.metadata.summary(snapshot)


# -- birth ------------------------------------------------------------------------------------------------------------


def test_a_new_table_is_empty_and_bound_to_its_topic_T2(lake: Lake) -> None:
    table = lake.read_by_pyiceberg()
    assert table.scan().to_arrow().num_rows == 0
    assert table.format_version == 2
    assert table.properties["lakestream.topic-id"].replace("-", "") == TOPIC_ID.hex()
    assert unpack_progress(table.properties["lakestream.progress"]) == {}


def test_its_schema_is_that_of_the_files_and_later_columns_start_at_100_T1(lake: Lake) -> None:
    table = lake.read_by_pyiceberg()
    assert table.schema() == iceberg_schema()
    assert table.metadata.last_column_id == 99


def test_its_properties_tell_other_engines_how_to_write_T4_T11_T14(lake: Lake) -> None:
    properties = lake.read_by_pyiceberg().properties
    assert properties["write.parquet.row-group-size-bytes"] == str(8 << 20)
    assert properties["history.expire.max-snapshot-age-ms"] == str(HOUR_MS)
    for change in ("delete", "update", "merge"):
        assert properties[f"write.{change}.isolation-level"] == "snapshot"
    for column in ("partition", "offset", "timestamp", "flags"):
        assert properties[f"write.metadata.metrics.column.stream_{column}"] == "full"


# -- appends ----------------------------------------------------------------------------------------------------------


def test_what_was_appended_is_read_by_pyiceberg(lake: Lake) -> None:
    lake.append([(0, 0, 5), (2, 0, 3)])
    lake.append([(0, 5, 9)])
    assert lake.cells() == [(0, offset) for offset in range(9)] + [(2, offset) for offset in range(3)]
    rows = lake.scan().to_pylist()
    assert rows[0]["stream_headers"] == [] and rows[1]["stream_headers"] == [{"key": "h", "value": b""}]
    assert rows[3]["stream_key"] is None


def test_bounds_let_engines_skip_files(lake: Lake) -> None:
    for start in range(0, 100, 10):
        lake.append([(0, start, start + 10)])
    scan = lake.read_by_pyiceberg().scan(row_filter="stream_offset = 55")
    assert len(list(scan.plan_files())) == 1
    assert scan.to_arrow()["stream_offset"].to_pylist() == [55]


def test_duckdb_reads_the_data_files_with_its_own_reader(lake: Lake) -> None:
    duckdb = pytest.importorskip("duckdb")
    lake.append([(0, 0, 50), (1, 0, 50)])
    files = [task.file.file_path.removeprefix("file://") for task in lake.read_by_pyiceberg().scan().plan_files()]
    query = "select count(*), sum(stream_offset), min(stream_partition) from read_parquet(?)"
    assert duckdb.execute(query, [files]).fetchone() == (100, 2 * sum(range(50)), 0)


def test_progress_moves_with_the_rows_and_the_summary_has_only_its_own_ranges_T6(lake: Lake) -> None:
    lake.append([(0, 0, 5), (1, 0, 2)])
    lake.append([(1, 2, 6)])
    progress = unpack_progress(lake.read_by_pyiceberg().properties["lakestream.progress"])
    assert progress == {0: LandedOffsets(5), 1: LandedOffsets(6)}
    assert unpack_ranges(summary(lake)["lakestream.ranges"]) == [OffsetRange(1, 2, 6)]


def test_a_round_with_nothing_in_it_still_is_a_snapshot_T7(lake: Lake) -> None:
    lake.append([(0, 0, 0)])
    first = lake.table.metadata.current_snapshot_id
    lake.append([(0, 0, 4)])
    before = lake.table.metadata.current_snapshot_id
    lake.append([])
    assert len({first, before, lake.table.metadata.current_snapshot_id}) == 3
    assert len(lake.cells()) == 4
    assert summary(lake)["total-records"] == "4"


def test_a_range_that_landed_before_is_refused_T7(lake: Lake) -> None:
    lake.append([(0, 0, 5)])
    with pytest.raises(ValueError, match="does not follow"):
        lake.append([(0, 3, 8)])


def test_a_commit_names_what_must_still_be_current_T7(lake: Lake) -> None:
    lake.append([(0, 0, 5)])
    base = lake.table
    commit = lake.append([(0, 5, 6)])
    assert commit.base == base.metadata_location
    assert {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": base.metadata.current_snapshot_id} in (
        commit.requirements
    )
    assert all(uri in stored(lake) for uri in commit.written)


def test_other_catalogs_come_to_the_same_table_by_the_commits_updates(lake: Lake) -> None:
    """A commit prepared for another catalog, applied by PyIceberg, is what our own metadata file would have been."""
    for start in range(40):
        lake.append([(0, start, start + 1)], step_ms=HOUR_MS // 10)
    base = TableMetadataUtil.parse_obj(lake.table.metadata.value_all())
    commit = lake.committer.append(
        lake.table, [lake.write([(0, 40)])], [OffsetRange(0, 40, 41)], now_ms=lake.now_ms + HOUR_MS,
        write_metadata=False,
    )
    assert commit.table.metadata_location == ""
    for requirement in TypeAdapter(list[TableRequirement]).validate_python(list(commit.requirements)):
        requirement.validate(base)
    theirs = update_table_metadata(base, tuple(TypeAdapter(list[TableUpdate]).validate_python(list(commit.updates))))
    ours = TableMetadataUtil.parse_obj(commit.table.metadata.value_all())
    assert {each.snapshot_id for each in theirs.snapshots} == {each.snapshot_id for each in ours.snapshots}
    assert len(ours.snapshots) < len(base.snapshots)
    for name in ("current_snapshot_id", "last_sequence_number", "properties", "refs", "partition_specs", "schemas"):
        assert getattr(theirs, name) == getattr(ours, name), name


def test_fields_and_properties_of_others_survive_our_commits(lake: Lake) -> None:
    lake.append([(0, 0, 5)])
    metadata = lake.table.metadata
    extra = {"properties": {**metadata.properties, "owner": "me"}, "statistics": [], "a-field-of-tomorrow": {"x": [1]}}
    uri = f"{metadata.location}/metadata/00007-x.metadata.json"
    lake.store.put(uri, metadata.replaced(extra).encode())
    lake.table = lake.committer.load(uri)
    lake.append([(0, 5, 6)])
    assert lake.table.metadata.properties["owner"] == "me"
    assert lake.table.metadata.value("a-field-of-tomorrow") == {"x": [1]}


def test_appends_stay_unpartitioned_when_a_user_partitions_the_table_T19(lake: Lake) -> None:
    lake.append([(0, 0, 5)])
    field = {"source-id": 3, "field-id": 1000, "name": "day", "transform": "day"}
    specs = [{"spec-id": 0, "fields": []}, {"spec-id": 4, "fields": [field]}]
    partitioned = {"partition-specs": specs, "default-spec-id": 4, "last-partition-id": 1000}
    lake.table = Table(lake.location, lake.table.metadata.replaced(partitioned))
    lake.append([(0, 5, 9)])
    assert len(lake.cells()) == 9
    assert lake.table.metadata.value("default-spec-id") == 4


def test_an_unpartitioned_spec_is_added_where_there_is_none(lake: Lake) -> None:
    field = {"source-id": 3, "field-id": 1000, "name": "day", "transform": "day"}
    only = {"partition-specs": [{"spec-id": 4, "fields": [field]}], "default-spec-id": 4, "last-partition-id": 1000}
    lake.table = Table(lake.location, lake.table.metadata.replaced(only))
    commit = lake.append([(0, 0, 3)])
    assert commit.updates[0] == {"action": "add-spec", "spec": {"spec-id": 5, "fields": []}}
    assert len(lake.cells()) == 3


# -- manifests and snapshots stay few ---------------------------------------------------------------------------------


def test_manifests_are_merged_so_that_their_number_stays_small_T11(lake: Lake) -> None:
    for start in range(300):
        lake.append([(0, start, start + 1)])
    head = lake.table.metadata.current
    assert head is not None
    manifests = read_manifest_list(lake.store.get(head.manifest_list))
    assert len(manifests) <= 48
    assert sum(listed.live_files for listed in manifests) == 300
    assert len(lake.cells()) == 300
    assert len(list(lake.read_by_pyiceberg().scan(row_filter="stream_offset = 17").plan_files())) == 1


def test_merged_files_keep_the_sequence_and_snapshot_of_their_commit(lake: Lake) -> None:
    for start in range(17):
        lake.append([(0, start, start + 1)])
    entries = lake.read_by_pyiceberg().inspect.entries()
    assert sorted(entries["sequence_number"].to_pylist()) == list(range(1, 18))
    assert len(set(entries["snapshot_id"].to_pylist())) == 17


def test_snapshots_expire_after_an_hour_and_their_files_are_named_T11(lake: Lake) -> None:
    """What is left after deleting what the commits named is exactly what the table's snapshots need."""
    for start in range(70):
        commit = lake.append([(0, start, start + 1)], step_ms=HOUR_MS // 20)
        lake.store.delete(commit.obsolete)
    oldest = lake.table.metadata.snapshots[0].timestamp_ms
    assert lake.now_ms - oldest <= HOUR_MS * 1.6
    assert stored(lake) == reachable(lake)
    for head in lake.table.metadata.snapshots[::7]:
        rows = lake.read_by_pyiceberg().scan(snapshot_id=head.snapshot_id).to_arrow()
        assert rows.num_rows == head.sequence_number


def test_files_that_a_rewrite_replaced_are_named_once_nobody_can_reach_them_T11(lake: Lake) -> None:
    chance = random.Random(3)
    for start in range(60):
        commit = lake.append([(0, start, start + 1)], step_ms=HOUR_MS // 20)
        lake.store.delete(commit.obsolete)
        if start in (10, 25):
            engine = OtherEngine(lake, chance)
            engine.rewrite({entry.data_file.file_path for _, entry in engine.live()[:5]}, pieces=2)
    lake.append([(0, 60, 61)], step_ms=3 * HOUR_MS)
    lake.store.delete(lake.append([(0, 61, 62)], step_ms=3 * HOUR_MS).obsolete)
    assert len(lake.cells()) == 62
    missing = reachable(lake) - stored(lake)
    assert not missing


def test_a_tagged_snapshot_is_kept_with_its_files(lake: Lake) -> None:
    for start in range(5):
        lake.append([(0, start, start + 1)])
    tagged = lake.table.metadata.current_snapshot_id
    refs = {**lake.table.metadata.refs, "audit": {"snapshot-id": tagged, "type": "tag"}}
    lake.table = Table(lake.location, lake.table.metadata.replaced({"refs": refs}))
    for start in range(5, 60):
        lake.store.delete(lake.append([(0, start, start + 1)], step_ms=HOUR_MS // 10).obsolete)
    assert len(lake.table.metadata.snapshots) < 40
    assert lake.read_by_pyiceberg().scan(snapshot_id=tagged).to_arrow().num_rows == 5
    assert not reachable(lake) - stored(lake)


def test_a_protected_snapshot_is_not_expired_nor_what_leads_back_to_it_T16(lake: Lake) -> None:
    lake.append([(0, 0, 1)])
    lake.append([(0, 1, 2)])
    wanted = lake.table.metadata.current_snapshot_id
    assert wanted is not None
    for start in range(2, 6):
        lake.append([(0, start, start + 1)])
    commit = lake.committer.append(
        lake.table, [], [], now_ms=lake.now_ms + 10 * HOUR_MS, protected=frozenset([wanted])
    )
    assert commit.table.metadata.snapshot(wanted) is not None
    assert len(commit.table.metadata.snapshots) == 6, "all but the one before it"


def test_what_came_after_a_protected_snapshot_is_not_taken_for_unreachable_T11(lake: Lake) -> None:
    for number in range(4):
        lake.append([(0, number * 10, number * 10 + 10)])
    protected = lake.table.metadata.snapshots[0].snapshot_id
    lake.now_ms += 2 * 3_600_000
    commit = lake.committer.append(
        lake.table, [lake.write([(0, 40)])], [OffsetRange(0, 40, 41)], now_ms=lake.now_ms,
        protected=frozenset([protected]),
    )
    lake.table = commit.table
    assert len(commit.table.metadata.snapshots) == 5, "all of them lead back to it"
    lake.store.delete(commit.obsolete)
    assert len(lake.cells()) == 41


def test_a_table_whose_newest_snapshot_cannot_be_read_takes_no_commit(lake: Lake) -> None:
    for start in range(4):
        lake.append([(0, start, start + 1)])
    lake.append([(0, 4, 5)], step_ms=2 * HOUR_MS)
    kept = lake.table.metadata.current
    assert kept is not None
    lake.store.delete([kept.manifest_list])
    with pytest.raises(Missing):
        Committer(lake.store, random.Random(1)).append(lake.table, [], [], now_ms=lake.now_ms + HOUR_MS)


def test_metadata_files_beyond_the_last_twenty_are_named(lake: Lake) -> None:
    named = [uri for start in range(30) for uri in lake.append([(0, start, start + 1)]).obsolete]
    assert len(named) == 10
    assert all(uri.endswith(".metadata.json") for uri in named)


# -- rewrites ---------------------------------------------------------------------------------------------------------


def test_a_rewrite_replaces_files_over_appends_that_came_meanwhile_T8(lake: Lake) -> None:
    for start in range(0, 40, 10):
        lake.append([(0, start, start + 10)])
    base = lake.table
    old = frozenset(task.file.file_path for task in lake.read_by_pyiceberg().scan().plan_files())
    lake.append([(0, 40, 50)])
    merged = lake.write([(0, offset) for offset in range(40)])
    assert base.metadata.current_snapshot_id is not None
    commit = lake.committer.rewrite(
        lake.table, base.metadata.current_snapshot_id, old, [merged], now_ms=lake.now_ms + 1
    )
    lake.table = commit.table
    assert lake.cells() == [(0, offset) for offset in range(50)]
    assert len(list(lake.read_by_pyiceberg().scan().plan_files())) == 2
    assert summary(lake)["operation"] == "replace"
    assert summary(lake)["total-records"] == "50"
    assert unpack_progress(lake.table.metadata.properties["lakestream.progress"]) == {0: LandedOffsets(50)}


def test_a_rewrite_is_thrown_away_if_somebody_deleted_rows_meanwhile_T8(lake: Lake) -> None:
    lake.append([(0, 0, 10)])
    base = lake.table.metadata.current_snapshot_id
    assert base is not None
    [path] = [task.file.file_path for task in lake.read_by_pyiceberg().scan().plan_files()]
    OtherEngine(lake, random.Random(1)).delete({path: [3]})
    lake.append([(0, 10, 12)])
    with pytest.raises(Stale):
        lake.committer.rewrite(
            lake.table, base, frozenset([path]), [lake.write([(0, at) for at in range(10)])], now_ms=lake.now_ms
        )


def test_files_below_a_log_start_are_removed_by_a_rewrite_without_new_ones_T21(lake: Lake) -> None:
    for start in range(0, 30, 10):
        lake.append([(0, start, start + 10)])
    base = lake.table.metadata.current_snapshot_id
    assert base is not None
    tasks = lake.read_by_pyiceberg().scan(row_filter="stream_offset < 10").plan_files()
    gone = frozenset(task.file.file_path for task in tasks)
    lake.table = lake.committer.rewrite(
        lake.table, base, gone, [], now_ms=lake.now_ms, operation="delete"
    ).table
    assert lake.cells() == [(0, offset) for offset in range(10, 30)]
    assert summary(lake)["deleted-records"] == "10"


def test_a_rewrite_of_a_file_that_is_gone_is_refused_T8(lake: Lake) -> None:
    lake.append([(0, 0, 10)])
    base = lake.table.metadata.current_snapshot_id
    assert base is not None
    with pytest.raises(Stale):
        lake.committer.rewrite(lake.table, base, frozenset(["file:///elsewhere.parquet"]), [], now_ms=lake.now_ms)


def test_time_never_goes_back_in_a_table_whatever_the_clock_says(lake: Lake) -> None:
    lake.append([(0, 0, 1)])
    commit = lake.committer.append(lake.table, [], [], now_ms=NOW_MS - HOUR_MS)
    times = [head.timestamp_ms for head in commit.table.metadata.snapshots]
    assert times == sorted(times)
    assert StaticTable.from_metadata(commit.table.metadata_location).current_snapshot() is not None

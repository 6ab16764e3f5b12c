"""What stays of a table's past, and what a commit costs: thinned history, packed metadata, what goes when (T11)."""

import gzip
import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

from bench.history import NEWEST_BAR_BYTES, CountedTables, Topic
from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.expiry import AGE_PROPERTY, to_expire
from lakestream.data.tables.iceberg.metadata.names import CODEC_PROPERTY, METADATA_BYTES_MAX, packed, unpacked
from lakestream.data.tables.iceberg.metadata.table_metadata import Table, TableMetadata
from lakestream.data.tables.iceberg.pinned_files import pinned
from lakestream.data.tables.iceberg.snapshot_history import DAY_MS, HOUR_MS, MINUTE_MS, THINNED_TAG, SnapshotHistory
from lakestream.data.tables.iceberg.summaries import CARE_KEY, OPTIMIZE
from lakestream.errors import Corrupt
from lakestream.pipeline.tables.obsolete_files import ObsoleteFiles
from lakestream.testing.simulation.event_loop import SimClock, SimulatedLoop
from tests.support.iceberg_tables import NOW_MS, Lake, OtherEngine, reachable, stored

COMMIT_BYTES_MAX = 25_000
"""A twentieth of what a commit wrote when all snapshots of an hour were kept, as plain JSON."""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """With a history of seconds and minutes instead of minutes, hours and days."""
    made = Lake(tmp_path / "warehouse")
    quick = SnapshotHistory(all_ms=60_000, tiers=((600_000, 30_000), (3_000_000, 300_000)), removed_ms=300_000)
    made.committer = Committer(made.store, random.Random(7), history=quick)
    return made


def land(lake: Lake, rounds: int, *, step_ms: int = 5_000, removing: bool = True) -> None:
    for _ in range(rounds):
        start = lake.table.metadata.last_sequence_number
        commit = lake.append([(0, start, start + 1)], step_ms=step_ms)
        if removing:
            lake.store.delete(commit.obsolete)


# -- what a commit costs ----------------------------------------------------------------------------------------------


def aged_topic() -> Topic:
    """As after a day of commits every five seconds: of older hours and minutes only the last is left anyway."""
    topic = Topic()
    for rounds, step_ms in ((23, HOUR_MS), (50, MINUTE_MS), (130, 5_000)):
        for _ in range(rounds):
            topic.round(step_ms)
    return topic


def test_after_a_day_a_commit_writes_a_twentieth_of_what_it_did_and_the_newest_file_is_small() -> None:
    topic = aged_topic()
    written, commits = topic.store.written, topic.commits
    for _ in range(100):
        topic.round(5_000)
    assert topic.newest_bytes <= NEWEST_BAR_BYTES
    assert (topic.store.written - written) / (topic.commits - commits) <= COMMIT_BYTES_MAX
    heads = topic.table.metadata.snapshots
    assert heads[-1].timestamp_ms - heads[0].timestamp_ms > 23 * HOUR_MS
    assert 150 < len(heads) < 230


def test_a_commit_asks_a_store_for_few_things_and_leaves_few_files() -> None:
    topic = aged_topic()
    topic.store.requests.clear()
    commits = topic.commits
    for _ in range(100):
        topic.round(5_000)
    assert sum(topic.store.requests.values()) / (topic.commits - commits) <= 8
    metadata_files = [uri for uri in topic.store.files if uri.endswith(".metadata.json")]
    assert len(metadata_files) == 21, "the current one, and as many before it as the table's property says"
    assert len(topic.store.files) < 1_000


# -- which snapshots stay ---------------------------------------------------------------------------------------------


def test_of_older_minutes_hours_and_days_the_last_snapshot_stays() -> None:
    topic = Topic(SnapshotHistory(all_ms=10 * MINUTE_MS))
    for step_ms in (HOUR_MS // 3,) * 90 + (20_000,) * 200:
        topic.round(step_ms)
    now_ms = topic.table.metadata.snapshots[-1].timestamp_ms
    for head, newer in pairwise(topic.table.metadata.snapshots):
        age_ms = now_ms - head.timestamp_ms
        slack = 1.3  # what goes waits a little for company
        for upto_ms, width_ms in ((HOUR_MS, MINUTE_MS), (DAY_MS, HOUR_MS)):
            since_ms = {MINUTE_MS: 10 * MINUTE_MS, HOUR_MS: HOUR_MS}[width_ms]
            if since_ms * slack < age_ms <= upto_ms:
                assert head.timestamp_ms // width_ms != newer.timestamp_ms // width_ms
    young = [head for head in topic.table.metadata.snapshots if now_ms - head.timestamp_ms < 10 * MINUTE_MS]
    assert all(later.parent_snapshot_id == earlier.snapshot_id for earlier, later in pairwise(young))


def test_time_travel_to_the_end_of_a_kept_minute_is_exact_and_in_between_it_is_the_snapshot_before(lake: Lake) -> None:
    land(lake, 80, step_ms=10_000)
    width_ms, table = 30_000, lake.read_by_pyiceberg()
    end_ms = (lake.now_ms - 300_000) // width_ms * width_ms
    found = table.snapshot_as_of_timestamp(end_ms, inclusive=False)
    assert found is not None and found.sequence_number == (end_ms - 1 - NOW_MS) // 10_000
    assert table.scan(snapshot_id=found.snapshot_id).to_arrow().num_rows == found.sequence_number
    between = table.snapshot_as_of_timestamp(end_ms + width_ms // 2)
    assert between is not None and between.snapshot_id == found.snapshot_id


def test_thinning_names_exactly_the_files_that_nobody_needs_any_more(lake: Lake) -> None:
    for turn in range(8):
        land(lake, 15, step_ms=8_000)
        live = lake.committer.live_files(lake.table).data
        base = lake.table.metadata.current_snapshot_id
        assert base is not None
        joined = lake.write([(0, offset) for offset in range(1_000 * turn, 1_000 * turn + 9)])
        commit = lake.committer.rewrite(
            lake.table, base, frozenset(live), [joined], now_ms=lake.now_ms, notes={CARE_KEY: OPTIMIZE}
        )
        lake.table = commit.table
        lake.store.delete(commit.obsolete)
    assert len(lake.table.metadata.snapshots) < 70
    assert stored(lake) == reachable(lake)


def test_snapshots_of_tags_and_branches_stay_with_all_their_files(lake: Lake) -> None:
    land(lake, 12)
    tagged, branched = (lake.table.metadata.snapshots[at].snapshot_id for at in (4, 11))
    refs = {
        **lake.table.metadata.refs, "audit": {"snapshot-id": tagged, "type": "tag"},
        "try": {"snapshot-id": branched, "type": "branch", "max-snapshot-age-ms": 1},
    }  # fmt: skip
    lake.table = Table(lake.location, lake.table.metadata.replaced({"refs": refs}))
    land(lake, 60, step_ms=12_000)
    assert len(lake.table.metadata.snapshots) < 50
    assert lake.read_by_pyiceberg().scan(snapshot_id=tagged).to_arrow().num_rows == 5
    assert lake.read_by_pyiceberg().scan(snapshot_id=branched).to_arrow().num_rows == 12
    assert stored(lake) == reachable(lake)


def test_others_snapshots_stay_longer_than_ours_and_files_they_replaced_go_with_the_last_that_needs_them(
    lake: Lake,
) -> None:
    land(lake, 10)
    engine = OtherEngine(lake, random.Random(3))
    engine.rewrite({entry.data_file.file_path for _, entry in engine.live()[:5]}, pieces=2)
    theirs = lake.table.metadata.current_snapshot_id
    assert theirs is not None
    land(lake, 40)
    assert lake.table.metadata.snapshot(theirs) is not None, "ours of that time were thinned"
    land(lake, 40, step_ms=120_000)
    assert lake.table.metadata.snapshot(theirs) is None
    assert not reachable(lake) - stored(lake)


def test_rows_that_were_removed_are_gone_when_their_time_is_over(lake: Lake) -> None:
    """However long the history is, no snapshot keeps what somebody deleted."""
    land(lake, 30)
    doomed = next(iter(lake.committer.live_files(lake.table).data))
    base = lake.table.metadata.current_snapshot_id
    assert base is not None
    commit = lake.committer.rewrite(
        lake.table, base, frozenset([doomed]), [], now_ms=lake.now_ms, operation="delete", notes={CARE_KEY: "delete"}
    )
    lake.table = commit.table
    lake.store.delete(commit.obsolete)
    land(lake, 29, step_ms=10_000)
    assert doomed in stored(lake), "who reads an older snapshot has his time"
    land(lake, 15, step_ms=10_000)
    assert doomed not in stored(lake)
    removed_ms = commit.table.metadata.snapshots[-1].timestamp_ms
    assert all(head.timestamp_ms >= removed_ms for head in lake.table.metadata.snapshots)
    assert stored(lake) == reachable(lake)


def test_rows_deleted_by_position_are_gone_when_their_time_is_over_since_a_rewrite_left_them_out(lake: Lake) -> None:
    """Snapshots between the DELETE and the rewrite still lead to the file that has the rows."""
    land(lake, 30)
    engine = OtherEngine(lake, random.Random(3))
    doomed = next(iter(lake.committer.live_files(lake.table).data))
    engine.delete({doomed: [0]})
    land(lake, 20)
    base = lake.table.metadata.current_snapshot_id
    assert base is not None
    live = lake.committer.live_files(lake.table)
    joined = lake.write([(0, offset) for offset in range(5_000, 5_000 + len(live.data) - 1)])
    replaced = frozenset([*live.data, *(one.path for one in live.deletes)])
    commit = lake.committer.rewrite(
        lake.table, base, replaced, [joined], now_ms=lake.now_ms, notes={CARE_KEY: OPTIMIZE}
    )
    lake.table = commit.table
    lake.store.delete(commit.obsolete)
    land(lake, 29, step_ms=10_000)
    assert doomed in stored(lake), "who reads an older snapshot has his time"
    land(lake, 15, step_ms=10_000)
    assert doomed not in stored(lake)
    assert not reachable(lake) - stored(lake)


def test_a_snapshot_that_main_was_never_at_keeps_removed_rows_no_longer_than_others(lake: Lake) -> None:
    land(lake, 30)
    staged = lake.table.metadata
    land(lake, 1, removing=False)
    theirs = lake.table.metadata.snapshots[-1]
    aside = staged.replaced(
        {"snapshots": [*staged.raw_snapshots, lake.table.metadata.raw_snapshots[-1]]},
        {name: getattr(staged, name) for name in ("raw_log", "log_ids")},
    )
    lake.table = Table(lake.location, aside)
    lake.now_ms += 1
    land(lake, 40, step_ms=5_000)
    assert lake.table.metadata.snapshot(theirs.snapshot_id) is not None
    land(lake, 20, step_ms=10_000)
    assert lake.table.metadata.snapshot(theirs.snapshot_id) is None


def test_a_history_with_gaps_has_a_tag_that_keeps_no_snapshot_so_that_javas_library_looks_before_it_deletes(
    lake: Lake,
) -> None:
    land(lake, 12)
    assert THINNED_TAG not in lake.table.metadata.refs, "nothing was thinned yet"
    land(lake, 60)
    tag = lake.table.metadata.refs[THINNED_TAG]
    assert (tag["type"], tag["snapshot-id"]) == ("tag", lake.table.metadata.current_snapshot_id)
    idle = lake.committer.expire(lake.table, now_ms=lake.now_ms + 20_000, older_than_ms=0)
    assert idle is not None and len(idle.table.metadata.snapshots) == 1
    assert THINNED_TAG not in idle.table.metadata.refs
    assert "main" in idle.table.metadata.refs


def test_a_snapshot_of_a_clock_that_is_far_ahead_ends_nobodys_history(lake: Lake) -> None:
    land(lake, 60)
    kept = len(lake.table.metadata.snapshots)
    engine, right_ms = OtherEngine(lake, random.Random(3)), lake.now_ms
    lake.now_ms += 365 * DAY_MS
    engine.rewrite({entry.data_file.file_path for _, entry in engine.live()[:2]})
    lake.now_ms = right_ms
    land(lake, 1)
    assert len(lake.table.metadata.snapshots) > kept - 16
    assert not reachable(lake) - stored(lake)


def test_a_tables_own_age_ends_all_of_its_history(lake: Lake) -> None:
    properties = {**lake.table.metadata.properties, AGE_PROPERTY: "120000"}
    lake.table = Table(lake.location, lake.table.metadata.replaced({"properties": properties}))
    land(lake, 40, step_ms=10_000)
    assert lake.now_ms - lake.table.metadata.snapshots[0].timestamp_ms < 120_000 * 1.3


def test_a_protected_snapshot_and_all_after_it_are_not_thinned_T16(lake: Lake) -> None:
    land(lake, 10)
    wanted = lake.table.metadata.snapshots[3].snapshot_id
    land(lake, 60, removing=False)
    metadata = lake.table.metadata
    assert metadata.snapshot(wanted) is None, "the one that nobody protects goes"
    kept = metadata.snapshots[-20].snapshot_id
    going = to_expire(metadata, lake.now_ms + 1_000_000, frozenset([kept]), history=lake.committer.history)
    assert going and not going & {head.snapshot_id for head in metadata.snapshots[-20:]}


def test_what_snapshots_pin_is_what_the_current_one_does_not_need(lake: Lake) -> None:
    land(lake, 8)
    assert pinned(lake.store, lake.table.metadata).files == 0
    live = lake.committer.live_files(lake.table).data
    base = lake.table.metadata.current_snapshot_id
    assert base is not None
    joined = lake.write([(0, offset) for offset in range(8)])
    lake.table = lake.committer.rewrite(
        lake.table, base, frozenset(live), [joined], now_ms=lake.now_ms, notes={CARE_KEY: OPTIMIZE}
    ).table
    found = pinned(lake.store, lake.table.metadata)
    assert (found.files, found.bytes) == (8, sum(file.size for file in live.values()))
    assert found.metadata_bytes > 0


# -- metadata files ---------------------------------------------------------------------------------------------------


def test_a_metadata_file_is_packed_and_called_as_the_tables_property_says(lake: Lake) -> None:
    land(lake, 1)
    assert lake.location.endswith(".gz.metadata.json")
    data = lake.store.get(lake.location)
    assert json.loads(gzip.decompress(data))["format-version"] == 2
    assert lake.read_by_pyiceberg().scan().to_arrow().num_rows == 1
    properties = {name: value for name, value in lake.table.metadata.properties.items() if name != CODEC_PROPERTY}
    lake.table = Table(lake.location, lake.table.metadata.replaced({"properties": properties}))
    land(lake, 1)
    assert lake.location.endswith(".metadata.json") and ".gz" not in lake.location
    assert json.loads(lake.store.get(lake.location))["format-version"] == 2
    assert lake.read_by_pyiceberg().scan().to_arrow().num_rows == 2
    assert TableMetadata.parse(data).uuid == lake.table.metadata.uuid


def test_a_packed_metadata_file_that_is_damaged_or_a_bomb_is_corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    data = packed(b'{"a": 1}' * 1000, {CODEC_PROPERTY: "gzip"})
    for broken in (data[:-9], data[:20] + b"\xff\xff\xff" + data[23:]):
        with pytest.raises(Corrupt):
            unpacked(broken)
    assert METADATA_BYTES_MAX > 1 << 20
    monkeypatch.setattr("lakestream.data.tables.iceberg.metadata.names.METADATA_BYTES_MAX", 100)
    with pytest.raises(Corrupt, match="more than"):
        unpacked(data)


def test_metadata_files_go_at_once_and_other_files_after_their_grace() -> None:
    files = ObsoleteFiles(SimClock(SimulatedLoop(1), NOW_MS))
    files.add(["file:///t/metadata/00001-a.gz.metadata.json", "file:///t/data/1-1-1/a.parquet"])
    assert len(files.waiting()) == 2
    assert files.take(600.0) == ["file:///t/metadata/00001-a.gz.metadata.json"]
    assert files.waiting() == {"file:///t/data/1-1-1/a.parquet"}
    assert files.take(0.0) == ["file:///t/data/1-1-1/a.parquet"]
    assert not files and not files.waiting()


def test_a_metadata_log_that_leads_elsewhere_makes_nobody_delete_there(lake: Lake) -> None:
    places = [f"{lake.table.metadata.location}/data/{number}.parquet" for number in range(19)]
    places.append(f"{lake.store.root}/other/metadata/1.metadata.json")
    forged = [{"metadata-file": place, "timestamp-ms": 1} for place in places]
    lake.table = Table(lake.location, lake.table.metadata.replaced({"metadata-log": forged}))
    named = [uri for start in range(25) for uri in lake.append([(0, start, start + 1)]).obsolete]
    assert named and all(uri.startswith(f"{lake.table.metadata.location}/metadata/") for uri in named)


def test_the_store_of_the_benchmark_counts_what_it_is_asked_for() -> None:
    store = CountedTables()
    store.put(f"{store.root}/a", b"12")
    assert store.get(f"{store.root}/a") == b"12"
    store.delete([f"{store.root}/a"])
    assert (store.written, dict(store.requests)) == (2, {"put": 1, "get": 1, "delete": 1})

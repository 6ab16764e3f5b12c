"""The catalog in the state machine: namespaces, pointers, landing, holding, topics' tables."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from lakestream.model import state, topics
from lakestream.model.append_rows import pack_append
from lakestream.model.catalog import tables
from lakestream.model.catalog.landed import (
    GRAIN_MS,
    MARKS_KEPT,
    RANGES_KEPT,
    Departed,
    HoldTopic,
    Land,
    LandedRange,
    Landing,
    NoteRemoved,
)
from lakestream.model.catalog.names import Warehouse, name_problem, namespace_problem, overlap, root_of
from lakestream.model.catalog.namespaces import CreateNamespace, DropNamespace, UpdateNamespace
from lakestream.model.catalog.rebinding import Rebind
from lakestream.model.catalog.tables import CatalogTable, CommitTables, Purge, TableChange, TablesPurged
from lakestream.model.commands import AdvanceLogStart, CreateTopic, DeleteTopic
from lakestream.model.levels import BOUNDED, FIRST
from lakestream.model.members import Member
from lakestream.model.reasons import No, Reason
from lakestream.model.state import FAMILIES, State, dump, load
from lakestream.model.streams import append

TOPIC = b"t" * 16
RULES: dict[type, Any] = {body: rule for family in FAMILIES for body, rule in family.RULES}


class World:
    """A state, and a member that says things to it."""

    def __init__(self) -> None:
        self.state = State()
        self.member = Member(1)
        self.tick = 0

    def say(self, body: Any) -> Any:
        return RULES[type(body)](self.state, self.member, body)

    def topic(self, name: str = "orders", partitions: int = 2, topic_id: bytes = TOPIC, **configs: str) -> None:
        made = topics.Topic(topic_id, name, 1, {key.replace("_", "."): value for key, value in configs.items()})
        self.state.topics.add(made)
        topics.grow(self.state, made, partitions)

    def append(self, stream: int, records: int) -> None:
        """Each record an entry of its own."""
        for _ in range(records):
            self.tick += 1
            append(self.state, self.member, memoryview(pack_append(self.tick, 9, [(stream, 1, 0, 9, 0, -1, -1, -1)])))

    def table(self, name: str = "orders", **more: Any) -> Any:
        change = TableChange("streams", name, "u1", "", "m0", topic_id=TOPIC, **more)
        return self.say(CommitTables([change]))

    def land(self, *ranges: LandedRange, expected: str = "m0", location: str = "m1") -> Any:
        change = TableChange("streams", "orders", "u1", expected, location, topic_id=TOPIC, landed=list(ranges))
        return self.say(CommitTables([change]))


@pytest.fixture
def world() -> World:
    world = World()
    world.topic()
    world.append(1, 10)
    world.append(2, 4)
    assert world.table() == 1
    return world


def reason(outcome: Any) -> int:
    assert isinstance(outcome, No), outcome
    return outcome.reason


def test_namespaces_nest_and_go_when_they_are_empty() -> None:
    world = World()
    assert list(world.state.catalog.namespaces) == ["streams"]
    assert reason(world.say(CreateNamespace("a\x1fb", {}))) == Reason.UNKNOWN_NAMESPACE
    assert world.say(CreateNamespace("a", {"x": "1", "y": "2"})) is None
    assert world.say(CreateNamespace("a\x1fb", {})) is None
    assert reason(world.say(CreateNamespace("a", {}))) == Reason.NAMESPACE_EXISTS
    assert world.say(UpdateNamespace("a", ["x", "z", "x"], {"y": "3"})) == ["x"]
    assert world.state.catalog.namespaces["a"] == {"y": "3"}
    assert reason(world.say(UpdateNamespace("a", [], {"big": "x" * 100_000}))) == Reason.INVALID_REQUEST
    assert reason(world.say(DropNamespace("a"))) == Reason.NAMESPACE_NOT_EMPTY
    assert reason(world.say(DropNamespace("streams"))) == Reason.TABLE_BOUND
    assert world.say(DropNamespace("a\x1fb")) is None and world.say(DropNamespace("a")) is None
    assert reason(world.say(DropNamespace("a"))) == Reason.UNKNOWN_NAMESPACE


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\nb", "a\x00", "x" * 256, "\ud800"])
def test_names_that_could_lead_elsewhere_are_none(name: str) -> None:
    assert name_problem(name) and namespace_problem(f"a\x1f{name}")
    world = World()
    assert reason(world.say(CreateNamespace(name, {}))) == Reason.INVALID_REQUEST


def test_a_pointer_moves_from_where_it_is_supposed_to_be_and_not_otherwise() -> None:
    """T17."""
    world = World()
    world.say(CreateNamespace("a", {}))
    make = TableChange("a", "t", "u", "", "m0")
    assert world.say(CommitTables([make])) == 1
    assert reason(world.say(CommitTables([make]))) == Reason.TABLE_EXISTS
    assert reason(world.say(CommitTables([TableChange("a", "s", "u", "", "m0")]))) == Reason.TABLE_EXISTS
    assert reason(world.say(CommitTables([TableChange("b", "t", "v", "", "m0")]))) == Reason.UNKNOWN_NAMESPACE
    assert reason(world.say(CommitTables([TableChange("a", "x", "u", "m0", "m1")]))) == Reason.UNKNOWN_TABLE
    assert reason(world.say(CommitTables([TableChange("a", "t", "u", "m9", "m1")]))) == Reason.STALE_PREMISE
    assert reason(world.say(CommitTables([TableChange("a", "t", "other", "m0", "m1")]))) == Reason.STALE_PREMISE
    assert world.say(CommitTables([TableChange("a", "t", "u", "m0", "m1")])) == 1
    assert world.state.catalog.tables == {("a", "t"): CatalogTable("u", "m1")}


def test_all_changes_of_a_command_are_made_or_none() -> None:
    world = World()
    world.say(CreateNamespace("a", {}))
    world.say(CommitTables([TableChange("a", f"t{n}", f"u{n}", "", "m") for n in range(2)]))
    before = dump(world.state)
    moves = [TableChange("a", "t0", "u0", "m", "m2"), TableChange("a", "t1", "u1", "wrong", "m2")]
    assert reason(world.say(CommitTables(moves))) == Reason.STALE_PREMISE
    assert dump(world.state) == before
    swap = [
        TableChange("a", "t0", "u0", "m", "m", ("a", "tmp")), TableChange("a", "t1", "u1", "m", "m", ("a", "t0")),
        TableChange("a", "tmp", "u0", "m", "m3", ("a", "t1")), TableChange("a", "new", "u9", "", "m"),
    ]  # fmt: skip
    assert world.say(CommitTables(swap)) == 4
    assert {key[1]: (table.uuid, table.location) for key, table in world.state.catalog.tables.items()} == {
        "t0": ("u1", "m"), "t1": ("u0", "m3"), "new": ("u9", "m"),
    }  # fmt: skip
    assert world.state.catalog.keys == {"u1": ("a", "t0"), "u0": ("a", "t1"), "u9": ("a", "new")}


def test_a_dropped_table_is_purged_only_if_that_was_asked() -> None:
    world = World()
    world.say(CreateNamespace("a", {}))
    world.say(CommitTables([TableChange("a", f"t{n}", f"u{n}", "", f"m{n}") for n in range(2)]))
    plain, purged = TableChange("a", "t0", "u0", "m0", ""), TableChange("a", "t1", "u1", "m1", "", purge=True)
    assert world.say(CommitTables([plain, purged])) == 2
    assert not world.state.catalog.tables and world.state.catalog.purges == {"u1": Purge("m1", 0)}
    assert world.say(TablesPurged(["u1", "u7"])) == 1 and not world.state.catalog.purges


def test_landing_moves_the_progress_and_drops_the_entries_below(world: World) -> None:
    """T6: the pointer, the progress, the digests and the dropped entries are one step."""
    assert world.land(LandedRange(0, 0, 6, 6, 11), LandedRange(1, 0, 4, 4, 2**64 - 1)) == 1
    first, second = world.state.streams.by_id[1], world.state.streams.by_id[2]
    assert (first.landed, list(first.bases)) == (6, [6, 7, 8, 9])
    assert (second.landed, list(second.bases), second.next) == (4, [], 4)
    assert world.state.topics.by_id[TOPIC].entries == 4 == world.state.streams.entries
    assert len(world.state.streams.dead) == 10
    landing = world.state.catalog.landings[TOPIC]
    assert [tuple(mark)[:4] for mark in landing.marks(1)] == [(0, 4, 4, 2**64 - 1)]
    assert world.land(LandedRange(0, 6, 10, 4, 5), expected="m1", location="m2") == 1


def test_an_entry_that_landed_in_part_stays(world: World) -> None:
    world.tick += 1
    append(world.state, world.member, memoryview(pack_append(world.tick, 9, [(2, 5, 0, 9, 0, -1, -1, -1)])))
    world.land(LandedRange(1, 0, 6, 6, 0))
    stream = world.state.streams.by_id[2]
    assert (stream.landed, list(stream.bases), stream.entry(0).end) == (6, [4], 9)


@pytest.mark.parametrize(
    ("landed", "why"),
    [
        (LandedRange(0, 1, 6, 5, 0), Reason.STALE_PREMISE),
        (LandedRange(0, 0, 11, 11, 0), Reason.OFFSET_OUT_OF_RANGE),
        (LandedRange(0, 0, 4, 5, 0), Reason.OFFSET_OUT_OF_RANGE),
        (LandedRange(2, 0, 1, 1, 0), Reason.MALFORMED),
    ],
)
def test_a_range_lands_where_the_last_one_ended_and_within_the_stream(
    world: World, landed: LandedRange, why: Reason
) -> None:
    before = dump(world.state)
    assert reason(world.land(landed)) == why
    assert dump(world.state) == before


def test_two_rounds_at_once_cannot_both_win(world: World) -> None:
    """T7."""
    assert world.land(LandedRange(0, 0, 6, 6, 0)) == 1
    assert reason(world.land(LandedRange(0, 0, 6, 6, 0))) == Reason.STALE_PREMISE
    again = world.land(LandedRange(0, 0, 6, 6, 0), expected="m1", location="m2")
    assert reason(again) == Reason.STALE_PREMISE


def test_landing_may_start_at_a_log_start_that_moved(world: World) -> None:
    rules: dict[type, Any] = dict(state.streams.RULES)
    rules[AdvanceLogStart](world.state, world.member, AdvanceLogStart([(1, 5)]))
    assert world.land(LandedRange(0, 5, 8, 3, 0)) == 1
    assert world.state.streams.by_id[1].landed == 8


def test_t2_a_topic_is_bound_to_one_table_and_the_table_to_it(world: World) -> None:
    other = TableChange("streams", "orders2", "u2", "", "m", topic_id=TOPIC)
    assert reason(world.say(CommitTables([other]))) == Reason.TABLE_BOUND
    for change in (
        TableChange("streams", "orders", "u1", "m0", ""),
        TableChange("streams", "orders", "u1", "m0", "m0", ("streams", "x")),
        TableChange("streams", "orders", "u1", "m0", "m1", topic_id=b"x" * 16),
        TableChange("streams", "mine", "u3", "", "m"),
    ):
        assert reason(world.say(CommitTables([change]))) == Reason.TABLE_BOUND
    unknown = TableChange("streams", "none", "u4", "", "m", topic_id=b"x" * 16)
    assert reason(world.say(CommitTables([unknown]))) == Reason.UNKNOWN_TOPIC


def test_t2_a_held_topic_lands_nothing_until_it_is_released(world: World) -> None:
    assert world.say(HoldTopic(TOPIC, "its table was dropped")) is None
    refused = world.land(LandedRange(0, 0, 1, 1, 0))
    assert reason(refused) == Reason.TOPIC_HELD and "dropped" in refused.message
    assert world.say(HoldTopic(TOPIC, "")) is None
    assert world.land(LandedRange(0, 0, 1, 1, 0)) == 1
    assert reason(world.say(HoldTopic(b"x" * 16, "no"))) == Reason.UNKNOWN_TOPIC


def test_a_topic_lands_in_somebody_elses_catalog() -> None:
    world = World()
    world.topic()
    world.append(1, 3)
    assert world.say(Land(TOPIC, "ext", 77, [LandedRange(0, 0, 3, 3, 1)])) == 1
    assert world.state.catalog.landings[TOPIC].snapshot == 77 and world.state.streams.by_id[1].landed == 3
    assert reason(world.say(Land(TOPIC, "another", 78, []))) == Reason.TABLE_BOUND
    assert reason(world.say(Land(TOPIC, "ext", 78, [LandedRange(0, 0, 3, 3, 1)]))) == Reason.STALE_PREMISE


def test_a_deleted_topic_takes_its_table_along(world: World) -> None:
    world.say(DeleteTopic(TOPIC))
    assert not world.state.catalog.tables and world.state.catalog.purges == {"u1": Purge("m0", 0)}
    assert not world.state.catalog.landings


def test_a_deleted_topic_leaves_its_table_if_that_was_asked() -> None:
    world = World()
    world.topic(lakestream_table_on_delete="keep")
    world.table()
    world.say(DeleteTopic(TOPIC))
    assert world.state.catalog.tables == {("streams", f"orders-{TOPIC.hex()}"): CatalogTable("u1", "m0")}
    assert not world.state.catalog.purges
    world.topic(topic_id=b"n" * 16)
    made = TableChange("streams", "orders", "u2", "", "m", topic_id=b"n" * 16)
    assert world.say(CommitTables([made])) == 1


def test_topics_whose_names_differ_in_case_only_are_refused() -> None:
    world = World()
    assert world.say(CreateTopic("Orders", b"1" * 16, 1, 1, {})) == 1
    assert reason(world.say(CreateTopic("orders", b"2" * 16, 1, 1, {}))) == Reason.INVALID_TOPIC_NAME
    assert reason(world.say(CreateTopic("Orders", b"2" * 16, 1, 1, {}))) == Reason.TOPIC_EXISTS
    world.say(DeleteTopic(b"1" * 16))
    assert world.say(CreateTopic("orders", b"2" * 16, 1, 1, {})) == 1


def test_t16_old_ranges_are_merged_and_their_sums_stay() -> None:
    landing, total = Landing(), 0
    for number in range(1000):
        landed = LandedRange(0, number * 10, number * 10 + 10, 9, 2**63 + number)
        landing.note_landed(landed, number * 5000, FIRST, 0)
        total += 2**63 + number
    marks = list(landing.marks(0))
    assert len(marks) == RANGES_KEPT
    assert (marks[0].start, marks[-1].end) == (0, 10_000)
    assert all(one.end == two.start and one.time_ms < two.time_ms for one, two in pairwise(marks))
    assert sum(mark.records for mark in marks) == 9000 and sum(mark.digest for mark in marks) % 2**64 == total % 2**64
    blurs = [(two.time_ms - one.time_ms) / (999 * 5000 - one.time_ms) for one, two in pairwise(marks)]
    assert max(blurs[:-4]) < 0.5, "what is old is known coarsely, but not too coarsely (T21)"


def test_t16_removals_are_remembered_once_each(world: World) -> None:
    gone = [LandedRange(0, 5, 9, 2, 7)]
    assert world.say(NoteRemoved(TOPIC, 0, 4, gone)) is None
    assert reason(world.say(NoteRemoved(TOPIC, 0, 4, gone))) == Reason.STALE_PREMISE
    more = [LandedRange(0, 8, 20, 1, 2**64 - 1), LandedRange(0, 50, 60, 3, 1)]
    assert world.say(NoteRemoved(TOPIC, 4, 5, more)) is None
    landing = world.state.catalog.landings[TOPIC]
    assert [tuple(mark)[:4] for mark in landing.removed[0]] == [(5, 20, 3, 6), (50, 60, 3, 1)]
    for number in range(100):
        landing.note_removed(LandedRange(0, 1000 + number * 10, 1000 + number * 10 + 3, 1, 1), 0, FIRST)
    assert len(landing.removed[0]) == RANGES_KEPT and sum(mark.records for mark in landing.removed[0]) == 106
    landing.note_removed(LandedRange(0, 5000, 5003, 1, 1), 0, BOUNDED)
    assert len(landing.removed[0]) == MARKS_KEPT and sum(mark.records for mark in landing.removed[0]) == 107


@pytest.mark.parametrize("log_start", [0, 600_000])
def test_t21_from_level_bounded_on_marks_are_half_as_many_and_tell_a_weeks_ages_apart(log_start: int) -> None:
    landing, week_s, total = Landing(), 7 * 86_400, 0
    for number in range(week_s // 5):
        landed = LandedRange(0, number * 10, number * 10 + 10, 9, 2**63 + number)
        landing.note_landed(landed, number * 5000, BOUNDED, log_start)
        total += 2**63 + number
    marks = list(landing.marks(0))
    assert len(marks) == MARKS_KEPT and (marks[0].start, marks[-1].end) == (0, week_s * 2)
    assert all(one.end == two.start and one.time_ms < two.time_ms for one, two in pairwise(marks))
    assert sum(mark.records for mark in marks) == week_s // 5 * 9
    assert sum(mark.digest for mark in marks) % 2**64 == total % 2**64
    assert log_start == 0 or marks[0].end <= log_start < marks[1].end, "below the log start one mark is enough"
    now = marks[-1].time_ms
    blurs = [(two.time_ms - one.time_ms) / (now - two.time_ms + GRAIN_MS) for one, two in pairwise(marks)]
    assert max(blurs) < 1.0, "rows outlive their retention by as long again at most"


def test_a_checkpoint_holds_the_catalog_and_an_older_one_has_none(world: World) -> None:
    world.land(LandedRange(0, 0, 6, 6, 11))
    world.say(NoteRemoved(TOPIC, 0, 4, [LandedRange(0, 5, 9, 2, 7)]))
    world.say(CreateNamespace("a", {"x": "y"}))
    world.state.catalog.purges["u"] = Purge("m", 3)
    again = load(dump(world.state))
    assert dump(again) == dump(world.state)
    assert again.catalog.of_topic(TOPIC) == CatalogTable("u1", "m1", TOPIC)
    assert again.streams.by_id[1].landed == 6


def test_a_checkpoint_from_before_the_catalog_can_be_loaded() -> None:
    world = World()
    world.topic()
    whole = dump(world.state)
    fields = msgspec.msgpack.decode(whole[state.CHECKPOINT.size :])[:9]
    fields[6][5] = [stream[:8] for stream in fields[6][5]]
    body = msgspec.msgpack.encode(fields)
    old = state.CHECKPOINT.pack(state.CHECKPOINT_MAGIC, state.CHECKPOINT_VERSION, state.crc32c(body)) + body
    again = load(old)
    assert again.streams.by_id[1].landed == 0 and list(again.catalog.namespaces) == ["streams"]
    assert dump(again) == whole


@pytest.mark.parametrize(
    "place",
    [
        "file:///lake", "file:///lake/", "file:///lakes/t", "file:///lake/../etc", "file:///lake/a/../../etc",
        "file:///lake//t", "file:///lake/./t", "s3://lake/t", "/lake/t", "file:///lake/t?x", "file:///lake/a\\b", "",
        "file:///lake/" + "x" * 3000,
    ],
)  # fmt: skip
def test_places_that_are_not_plainly_in_the_warehouse_are_outside(place: str) -> None:
    assert Warehouse("file:///lake").path_of(place) is None


def test_places_are_known_by_other_spellings() -> None:
    assert Warehouse("file:///lake/").path_of("file:/lake/a/t/") == "a/t"
    assert Warehouse("s3://bucket/lake").path_of("s3a://bucket/lake/t") == "t"
    assert Warehouse("file:///lake").place_for("a\x1fb c", "..t/ü", "u") == "file:///lake/a/b_c/t__-u"
    assert root_of("file:///lake/t/metadata/0.metadata.json") == "file:///lake/t"
    assert overlap("a/b", "a/b/c") and overlap("a/b/", "a/b") and not overlap("a/b", "a/bc")


# -- tables in somebody else's catalog -------------------------------------------------------------------------------


@pytest.fixture
def outside() -> World:
    """A topic with three records, whose table is in another catalog, at the metadata file f0."""
    world = World()
    world.topic()
    world.append(1, 3)
    assert world.say(Land(TOPIC, "ext", 0, [], "f0", "")) == 0
    return world


def test_brokers_are_told_where_a_table_in_another_catalog_is(outside: World) -> None:
    assert outside.state.catalog.of_topic(TOPIC) == CatalogTable("ext", "f0", TOPIC)
    assert outside.say(Land(TOPIC, "ext", 7, [LandedRange(0, 0, 2, 2, 1)], "f1", "f0")) == 1
    assert outside.say(Land(TOPIC, "ext", 0, [], "f2", "f1")) == 0
    assert outside.state.catalog.of_topic(TOPIC) == CatalogTable("ext", "f2", TOPIC)
    assert outside.state.catalog.landings[TOPIC].snapshot == 7 and not outside.state.catalog.tables


def test_who_knows_an_older_metadata_file_tells_nothing(outside: World) -> None:
    assert outside.say(Land(TOPIC, "ext", 0, [], "f1", "f0")) == 0
    late = Land(TOPIC, "ext", 0, [LandedRange(0, 0, 1, 1, 1)], "f9", "f0")
    assert reason(outside.say(late)) == Reason.STALE_PREMISE
    assert outside.state.catalog.landings[TOPIC].location == "f1" and outside.state.streams.by_id[1].landed == 0


def test_a_held_topics_table_is_still_followed(outside: World) -> None:
    outside.say(HoldTopic(TOPIC, "somebody added rows"))
    assert reason(outside.say(Land(TOPIC, "ext", 7, [LandedRange(0, 0, 2, 2, 1)], "f1", "f0"))) == Reason.TOPIC_HELD
    assert outside.say(Land(TOPIC, "ext", 0, [], "f1", "f0")) == 0


def test_a_lost_table_is_replaced_by_another_and_what_landed_is_given_up(outside: World) -> None:
    outside.say(Land(TOPIC, "ext", 7, [LandedRange(0, 0, 2, 2, 1)], "f1", "f0"))
    assert reason(outside.say(Rebind(TOPIC, "wrong", "new", "g0"))) == Reason.STALE_PREMISE
    assert reason(outside.say(Rebind(b"x" * 16, "ext", "new", "g0"))) == Reason.UNKNOWN_TABLE
    assert reason(outside.say(Rebind(TOPIC, "ext", "", "g0"))) == Reason.MALFORMED
    assert outside.say(Rebind(TOPIC, "ext", "new", "g0")) is None
    assert outside.state.catalog.of_topic(TOPIC) == CatalogTable("new", "g0", TOPIC)
    assert outside.state.streams.by_id[1].landed == 2 and not list(outside.state.catalog.landings[TOPIC].marks(0))
    assert outside.say(Land(TOPIC, "new", 8, [LandedRange(0, 2, 3, 1, 1)], "g1", "g0")) == 1


def test_a_table_of_our_own_catalog_is_not_rebound(world: World) -> None:
    assert reason(world.say(Rebind(TOPIC, "u1", "new", "g0"))) == Reason.UNKNOWN_TABLE


@pytest.mark.parametrize("keep", [False, True])
def test_the_table_of_a_deleted_topic_departs_from_the_other_catalog(keep: bool) -> None:
    world = World()
    world.topic(**({"lakestream_table_on_delete": "keep"} if keep else {}))
    world.say(Land(TOPIC, "ext", 0, [], "f0", ""))
    world.say(DeleteTopic(TOPIC))
    assert world.state.catalog.departed == {"ext": Departed("orders", TOPIC, keep)}
    assert not world.state.catalog.purges and not world.state.catalog.landings
    assert load(dump(world.state)).catalog.departed == world.state.catalog.departed
    assert world.say(TablesPurged(["ext"])) == 1 and not world.state.catalog.departed


def test_a_checkpoint_keeps_where_outside_tables_are_and_one_from_before_there_were_any_loads(outside: World) -> None:
    again = load(dump(outside.state))
    assert again.catalog.of_topic(TOPIC) == CatalogTable("ext", "f0", TOPIC) and dump(again) == dump(outside.state)
    assert Landing.load(Landing("u").dump()[:6]).location == ""
    assert tables.Catalog.load(tables.Catalog().dump()[:4]).departed == {}

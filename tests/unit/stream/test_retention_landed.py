"""Retention of records that are rows: by the time they landed and the bytes they had; and how long rows stay."""

from lakestream.model.catalog.landed import LandedRange
from lakestream.model.catalog.tables import CommitTables, TableChange
from lakestream.model.commands import AlterConfigs, Heartbeat, pack
from lakestream.model.configs import TABLE_RETENTION, TOPIC_CONFIGS
from lakestream.pipeline.care.kept_rows import keep_from
from lakestream.stream.housekeeping.retention import Trim, due
from lakestream.stream.rules import TopicRules
from tests.support.planned_state import World

MINUTE = 60_000


def rules(retention_ms: int = -1, retention_bytes: int = -1) -> TopicRules:
    return TopicRules(
        max_message_bytes=1, log_append_time=False, compacted=False, before_max_ms=0, after_max_ms=0,
        retention_ms=retention_ms, retention_bytes=retention_bytes,
    )  # fmt: skip


class Landed(World):
    """A topic of two partitions whose partition 0 lands a hundred records of 1,000 bytes a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.id = self.topic("orders", 2)
        self.metadata = "m0"
        self.commit(TableChange("streams", "orders", "u1", "", "m0", topic_id=self.id))

    def commit(self, change: TableChange) -> None:
        assert self.command(CommitTables.KIND, pack(CommitTables([change]))) == 1

    def beat(self, now_ms: int) -> None:
        self.command(Heartbeat.KIND, pack(Heartbeat(now_ms, 0, 0, 0)))

    def land(self, minute: int) -> None:
        self.beat(minute * MINUTE)
        stream = self.state.streams.by_id[self.stream(self.id)]
        start = stream.next
        self.append((self.id, 0, 100, 1000))
        after = f"m{minute}"
        landed = [LandedRange(0, start, start + 100, 100, 7, 1000)]
        self.commit(TableChange("streams", "orders", "u1", self.metadata, after, topic_id=self.id, landed=landed))
        self.metadata = after

    def due(self, chosen: TopicRules) -> list[Trim]:
        topic = self.state.topics.by_id[self.id]
        return due(self.state, [topic], lambda _: chosen, self.state.members.time_ms)

    def configure(self, value: str) -> None:
        self.command(AlterConfigs.KIND, pack(AlterConfigs(self.id, [(TABLE_RETENTION, value)])))


def landed(minutes: int) -> Landed:
    world = Landed()
    for minute in range(1, minutes + 1):
        world.land(minute)
    return world


def test_t21_the_log_start_follows_the_time_of_landing() -> None:
    world = landed(10)
    stream = world.stream(world.id)
    assert world.due(rules()) == [] and world.due(rules(retention_ms=20 * MINUTE)) == []
    assert world.due(rules(retention_ms=4 * MINUTE)) == [Trim(stream, 500, 0)]
    world.advance(world.id, 500)
    assert world.due(rules(retention_ms=4 * MINUTE)) == []
    world.beat(12 * MINUTE)
    assert world.due(rules(retention_ms=4 * MINUTE)) == [Trim(stream, 700, 0)]


def test_t21_of_a_large_log_at_least_the_limit_stays_rows_and_tail_together() -> None:
    world = landed(10)
    world.append((world.id, 0, 10, 1500))
    stream = world.stream(world.id)
    assert world.due(rules(retention_bytes=20_000)) == []
    assert world.due(rules(retention_bytes=5000)) == [Trim(stream, 600, 0)], "4,000 as rows and 1,500 in the tail"
    assert world.due(rules(retention_bytes=0)) == [Trim(stream, 1010, 1)]
    world.advance(world.id, 650)
    assert world.due(rules(retention_bytes=5000)) == [], "half of a range that is cut counts half"


def test_t21_entries_go_only_after_all_rows_and_not_before_they_are_rows_where_those_outlive_them() -> None:
    world = landed(3)
    world.append((world.id, 0, 10, 1500))
    stream = world.stream(world.id)
    world.beat(60 * MINUTE)
    assert world.due(rules(retention_ms=MINUTE)) == [Trim(stream, 310, 1)]
    world.configure(str(600 * MINUTE))
    assert world.due(rules(retention_ms=MINUTE)) == [Trim(stream, 300, 0)]


def test_t21_rows_follow_the_log_start_or_stay_as_long_as_the_table_says() -> None:
    world = landed(10)
    topic = world.state.topics.by_id[world.id]
    assert keep_from(world.state, topic) == {}
    world.advance(world.id, 650)
    assert keep_from(world.state, topic) == {0: 650}
    world.configure("-1")
    assert keep_from(world.state, topic) == {}
    world.configure(str(7 * MINUTE))
    assert keep_from(world.state, topic) == {0: 200}, "what landed more than seven minutes ago"
    world.beat(100 * MINUTE)
    assert keep_from(world.state, topic) == {0: 650}, "never what the stream still shows"


def test_the_configs_of_tables_are_checked() -> None:
    def problem(name: str, value: str) -> str:
        return TOPIC_CONFIGS.problem(f"lakestream.table.{name}", value)

    for name, good, bad in (
        ("retention.ms", "-2", "-3"), ("retention.ms", "0", "soon"), ("enabled", "false", "maybe"),
        ("freshness.ms", "0", "-1"), ("on.delete", "keep", "burn"),
    ):  # fmt: skip
        assert not problem(name, good) and problem(name, bad), name

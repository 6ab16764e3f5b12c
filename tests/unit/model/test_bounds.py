"""L20: what the state may hold at most, and what is said, or goes, where a limit is reached."""

from typing import Any

import pytest

from lakestream.model.bounds import CONFIGS, Bounds, bounds_of
from lakestream.model.commands import (
    AllocateProducerId,
    AlterConfigs,
    CreatePartitions,
    ExpireProducers,
    RaiseLevel,
)
from lakestream.model.configs import CLUSTER_CONFIGS
from lakestream.model.groups.group import MemberRow
from lakestream.model.groups.membership import DeleteGroup, NewGeneration
from lakestream.model.groups.offsets import CommitOffsets, DeleteOffsets, ExpireGroups
from lakestream.model.levels import BOUNDED, FIRST
from lakestream.model.producers import AHEAD_MAX, EXPIRED_AT_ONCE
from lakestream.model.reasons import No, Reason
from lakestream.model.state import dump, load
from lakestream.protocol.kafka.errors import ErrorCode, code_of
from tests.support.bounded_state import BoundedState


def reason(outcome: Any) -> int:
    assert isinstance(outcome, No), outcome
    return outcome.reason


def test_every_limit_is_a_config_of_the_cluster_with_the_default_of_the_level() -> None:
    assert set(CONFIGS.values()) == set(Bounds._fields)
    for name, field in CONFIGS.items():
        assert CLUSTER_CONFIGS.keys[name].default == str(getattr(Bounds(), field))
        assert getattr(bounds_of({name: "7"}), field) == 7
        assert bounds_of({name: "many"}) == bounds_of({name: "0"}) == bounds_of({name: "-1"}) == Bounds()


def test_a_limit_is_proposed_at_the_level_that_knows_it() -> None:
    assert AlterConfigs(b"", [("num.partitions", "3")]).needed_level() == FIRST
    assert AlterConfigs(b"", [("lakestream.max.topics", "3")]).needed_level() == BOUNDED
    below = BoundedState(level=FIRST)
    assert reason(below.say(AlterConfigs(b"", [("lakestream.max.topics", "1")]))) == Reason.NEWER_LEVEL
    assert below.topic("a") == below.topic("b") == 1


def test_more_topics_or_partitions_than_allowed_are_refused_and_nothing_else() -> None:
    cluster = BoundedState(max_topics=3, max_partitions=10)
    assert cluster.topic("a", 4) == 4
    assert reason(cluster.topic("b", 7)) == Reason.TOO_MANY_PARTITIONS
    assert cluster.topic("b", 5) == 5
    grown = cluster.say(CreatePartitions(cluster.state.topics.by_name["b"].id, 7))
    assert reason(grown) == Reason.TOO_MANY_PARTITIONS and "lakestream.max.partitions" in grown.message
    assert cluster.topic("c", 1) == 1
    refused = cluster.topic("d", 1)
    assert reason(refused) == Reason.TOO_MANY_TOPICS and "lakestream.max.topics" in refused.message
    assert {code_of(Reason.TOO_MANY_TOPICS), code_of(Reason.TOO_MANY_PARTITIONS)} == {ErrorCode.POLICY_VIOLATION}
    cluster.limit("max.topics", 4)
    assert reason(cluster.topic("d", 1)) == Reason.TOO_MANY_PARTITIONS


def commit(group: str, *offsets: tuple[int, str]) -> CommitOffsets:
    return CommitOffsets(group, -1, "", None, [(stream, 5, 0, note) for stream, note in offsets])


def test_a_group_more_than_allowed_is_refused_whether_it_joins_or_commits() -> None:
    cluster = BoundedState(max_groups=2)
    cluster.topic("t", 3)
    assert cluster.say(commit("a", (1, ""))) == [0]
    member = MemberRow("m", None, "client", "/host", 10_000, 10_000, [("range", b"")])
    assert cluster.say(NewGeneration("b", 0, 0, "consumer", [member], [])) == 1
    assert cluster.say(commit("c", (1, ""), (99, ""))) == [Reason.TOO_MANY_GROUPS, Reason.UNKNOWN_STREAM]
    assert reason(cluster.say(NewGeneration("c", 0, 0, "consumer", [member], []))) == Reason.TOO_MANY_GROUPS
    assert cluster.say(commit("a", (1, ""), (2, ""))) == [0, 0]
    assert cluster.say(DeleteGroup("a")) is None
    assert cluster.say(commit("c", (1, ""))) == [0]
    assert code_of(Reason.TOO_MANY_GROUPS) == ErrorCode.POLICY_VIOLATION


def test_committed_offsets_are_counted_over_all_groups_and_known_ones_move_on() -> None:
    cluster = BoundedState(max_committed_offsets=3)
    cluster.topic("t", 4)
    assert cluster.say(commit("a", (1, ""), (2, ""))) == [0, 0]
    assert cluster.say(commit("b", (1, ""), (2, ""))) == [0, Reason.TOO_MANY_OFFSETS]
    assert cluster.say(commit("a", (1, ""), (2, ""))) == [0, 0]
    assert cluster.say(DeleteOffsets("a", [1])) == [0]
    assert cluster.say(commit("b", (2, ""))) == [0]
    assert cluster.state.groups.offsets == load(dump(cluster.state)).groups.offsets == 3


def test_the_notes_of_all_commits_have_a_limit_in_bytes() -> None:
    cluster = BoundedState(max_offset_note_bytes=10)
    cluster.topic("t", 4)
    assert cluster.say(commit("a", (1, "12345"), (2, "éé"))) == [0, 0]
    assert cluster.say(commit("a", (3, "12"), (3, "1"))) == [Reason.TOO_MANY_NOTES, 0]
    assert cluster.say(commit("a", (1, "54321"), (4, ""))) == [0, 0]
    assert cluster.say(commit("a", (1, "1"), (3, "12345"))) == [0, 0]
    assert cluster.state.groups.note_bytes == load(dump(cluster.state)).groups.note_bytes == 10
    assert cluster.say(ExpireGroups(1, ["a", "nobody"])) == [4, 1]
    assert (cluster.state.groups.note_bytes, cluster.state.groups.offsets) == (0, 0)


def test_producers_that_were_not_used_for_longest_are_forgotten_first() -> None:
    cluster = BoundedState(max_producers=3)
    cluster.topic("t")
    [stream] = cluster.streams("t")
    for time_ms, producer in ((1000, 0), (2000, 1), (3000, 2)):
        cluster.clock(time_ms)
        assert cluster.append((stream, producer, 0))[0] >= 0
    cluster.clock(4000)
    assert cluster.append((stream, 0, 1))[0] >= 0
    assert cluster.say(AllocateProducerId()) == 3
    assert cluster.producers == [2, 0, 3]
    assert cluster.append((stream, 7, 0))[0] >= 0
    assert cluster.producers == [0, 3, 7]
    assert cluster.append((stream, 0, 1))[0] == 3, "a retry of one that is remembered"


def test_a_forgotten_producer_goes_on_where_it_is() -> None:
    cluster = BoundedState(max_producers=1)
    cluster.topic("t")
    [stream] = cluster.streams("t")
    assert cluster.append((stream, 0, 0), (stream, 1, 0), (stream, 0, 1)) == [0, 1, 2]
    assert cluster.producers == [0]


def test_partitions_of_producers_are_bounded_too_and_who_writes_now_is_never_forgotten() -> None:
    cluster = BoundedState(max_producer_partitions=4)
    cluster.topic("t", 6)
    first, *others = cluster.streams("t")
    assert cluster.append((first, 1, 0)) == [0]
    assert cluster.append(*((one, 2, 0) for one in others)) == [0] * 5
    assert cluster.producers == [2] and cluster.state.producers.sequences == 5
    assert load(dump(cluster.state)).producers.sequences == 5


def test_r9_an_id_that_was_never_given_out_is_given_to_nobody_else() -> None:
    cluster = BoundedState()
    cluster.topic("t")
    [stream] = cluster.streams("t")
    assert cluster.say(AllocateProducerId()) == 0
    assert cluster.append((stream, 5, 0)) == [0]
    assert cluster.say(AllocateProducerId()) == 6


def test_r9_one_huge_id_neither_moves_the_counter_nor_overflows_it() -> None:
    cluster = BoundedState()
    cluster.topic("t")
    [stream] = cluster.streams("t")
    for huge in (2**63 - 1, AHEAD_MAX):
        assert cluster.append((stream, huge, 0)) == [-Reason.UNKNOWN_PRODUCER]
    assert cluster.append((stream, AHEAD_MAX - 1, 0)) == [0]
    assert cluster.say(AllocateProducerId()) == AHEAD_MAX
    assert code_of(Reason.UNKNOWN_PRODUCER) == ErrorCode.UNKNOWN_PRODUCER_ID


def test_r9_ids_from_before_the_level_are_kept_and_skipped() -> None:
    cluster = BoundedState(level=FIRST)
    cluster.topic("t")
    [stream] = cluster.streams("t")
    assert cluster.append((stream, 0, 0), (stream, 3, 0), (stream, 2**62, 0)) == [0, 1, 2]
    assert cluster.say(AllocateProducerId()) == 0, "the rule of the first level"
    assert cluster.say(RaiseLevel(BOUNDED)) == BOUNDED
    assert cluster.say(AllocateProducerId()) == 4
    assert cluster.append((stream, 2**62, 1)) == [3]


def test_producers_expire_a_few_at_a_time_those_first_that_were_not_used_for_longest() -> None:
    cluster = BoundedState(max_producers=EXPIRED_AT_ONCE * 2)
    cluster.clock(1000)
    for _ in range(EXPIRED_AT_ONCE + 10):
        cluster._fold(AllocateProducerId())
    cluster.clock(2000)
    cluster.say(AllocateProducerId())
    assert cluster.say(ExpireProducers(1500)) == EXPIRED_AT_ONCE
    assert cluster.say(ExpireProducers(1500)) == 10
    assert cluster.producers == [EXPIRED_AT_ONCE + 10]


@pytest.mark.parametrize("level", [FIRST, BOUNDED])
def test_a_topic_of_many_active_partitions_gets_most_entries_from_the_level_on(level: int) -> None:
    cluster = BoundedState(level=level)
    cluster.topic("wide", 100)
    cluster.topic("narrow", 1)
    state = cluster.state
    wide, [narrow] = cluster.streams("wide"), cluster.streams("narrow")
    state.streams.limit = 4000
    taken = 0
    for _ in range(60):
        taken += sum(base >= 0 for base in cluster.append((narrow, -1, -1), *((one, -1, -1) for one in wide))[1:])
    share = 4000 * 100 // 101 if level == BOUNDED else 2000
    assert share - 100 <= taken <= share + 100
    assert cluster.append((narrow, -1, -1)) == [60], "its neighbour goes on"
    assert (state.streams.active, state.topics.by_name["wide"].active) == (101, 100)
    again = load(dump(state)).streams
    assert (again.active, again.entries) == (state.streams.active, state.streams.entries)


def test_a_loaded_state_gives_out_the_producer_ids_that_the_folded_one_does() -> None:
    """An id that was brought along at level 1, far above the counter, moves the counter once at most."""
    cluster = BoundedState(level=FIRST)
    cluster.topic("a")
    stream = cluster.streams("a")[0]
    cluster.append((stream, 1_500_000, 0))
    cluster.say(RaiseLevel(BOUNDED))
    cluster.append((stream, 600_000, 0))
    loaded = load(dump(cluster.state))
    assert dump(loaded) == dump(cluster.state)
    assert loaded.producers.next_id == cluster.state.producers.next_id == 600_001


def test_a_known_producer_id_that_level_1_gives_out_again_is_counted_once() -> None:
    cluster = BoundedState(level=FIRST)
    cluster.topic("a", 3)
    cluster.append(*((stream, 0, 0) for stream in cluster.streams("a")))
    cluster.say(AllocateProducerId())
    cluster.say(RaiseLevel(BOUNDED))
    assert cluster.state.producers.sequences == load(dump(cluster.state)).producers.sequences == 0

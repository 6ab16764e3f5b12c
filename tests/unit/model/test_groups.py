"""The rules of consumer groups in the state machine."""

import random
import struct
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.model.commands import (
    Body,
    CreateTopic,
    DeleteTopic,
    Expire,
    Heartbeat,
    Register,
    encode,
    pack,
)
from lakestream.model.groups import group as group_rules
from lakestream.model.groups.group import (
    MAX_GROUP_BYTES,
    GroupState,
    MemberRow,
    group_topics,
    select_protocol,
    subscribed_topics,
)
from lakestream.model.groups.membership import (
    Assign,
    DeleteGroup,
    NewGeneration,
    RemoveMembers,
    ReplaceMember,
    coordinator,
)
from lakestream.model.groups.offsets import CommitOffsets, DeleteOffsets, ExpireOffsets, overdue
from lakestream.model.reasons import No, Reason
from lakestream.model.state import State, apply, dump, load

TOPIC_ID = b"t" * 16


class Cluster:
    """A state, and members that propose in turn."""

    def __init__(self, brokers: int = 1) -> None:
        self.state = State()
        self.n = Counter[int]()
        self.epochs: dict[int, int] = {}
        self.commands: list[bytes] = []
        for broker in range(brokers):
            self.register(broker)

    def register(self, broker: int) -> None:
        body = Register(bytes([broker, self.epochs.get(broker, 0)]), "c", "broker", "h", 9092 + broker, "", 1, 1)
        self.n[broker] = 0
        self.epochs[broker] = self.fold(encode(1, Register.KIND, broker, 0, 0, pack(body)))

    def fold(self, command: bytes) -> Any:
        self.commands.append(command)
        return apply(self.state, self.state.sequence + 1, command)

    def say(self, body: Body, broker: int = 0) -> Any:
        self.n[broker] += 1
        return self.fold(encode(1, body.KIND, broker, self.epochs[broker], self.n[broker], pack(body)))

    def ask(self, body: Body) -> Any:
        """Say it as the coordinator of its group."""
        owner = coordinator(self.state, body.group)  # type: ignore[attr-defined]
        assert owner is not None
        return self.say(body, owner)

    def topic(self, name: str = "t", partitions: int = 2, topic_id: bytes = TOPIC_ID) -> list[int]:
        assert self.say(CreateTopic(name, topic_id, partitions, 1, {})) == partitions
        return self.state.topics.by_name[name].streams

    def generation(self, *rows: MemberRow, kept: tuple[str, ...] = (), group: str = "g") -> Any:
        there = self.state.groups.by_name.get(group)
        generation, changed = (there.generation, there.changed) if there else (0, 0)
        return self.ask(NewGeneration(group, generation, changed, "consumer", list(rows), list(kept)))

    def stable(self, *rows: MemberRow, group: str = "g") -> int:
        generation = self.generation(*rows, group=group)
        assert self.ask(Assign(group, generation, self.group(group).leader, [(row.id, b"x") for row in rows])) > 0
        return int(generation)

    def group(self, name: str = "g") -> Any:
        return self.state.groups.by_name[name]

    def refused(self, body: Body, reason: Reason, broker: int | None = None) -> None:
        """The proposal is refused, and changes nothing but the proposer's number and the digest (L2)."""
        owner = coordinator(self.state, body.group) if broker is None else broker  # type: ignore[attr-defined]
        assert owner is not None
        before = self.state.groups.dump()
        outcome = self.say(body, owner)
        assert isinstance(outcome, No), outcome
        assert outcome.reason == reason
        assert self.state.groups.dump() == before


def subscription(*topics: str) -> bytes:
    return struct.pack(">hi", 0, len(topics)) + b"".join(
        struct.pack(">h", len(topic)) + topic.encode() for topic in topics
    )


def row(member_id: str, instance: str | None = None, *names: str, topics: tuple[str, ...] = ("t",)) -> MemberRow:
    protocols = [(name, subscription(*topics)) for name in names or ("range",)]
    return MemberRow(member_id, instance, "client", "/host", 10_000, 60_000, protocols)


def test_every_broker_knows_the_same_coordinator_and_groups_are_spread_evenly() -> None:
    cluster = Cluster(3)
    owners = Counter(coordinator(cluster.state, f"group-{number}") for number in range(3000))
    assert set(owners) == {0, 1, 2}
    assert min(owners.values()) > 850


def test_few_groups_move_when_a_broker_goes() -> None:
    cluster = Cluster(4)
    names = [f"group-{number}" for number in range(2000)]
    before = {name: coordinator(cluster.state, name) for name in names}
    heard = cluster.state.members.by_id[2].heard
    assert cluster.say(Expire(2, cluster.epochs[2], heard)) is None
    for name in names:
        after = coordinator(cluster.state, name)
        assert after == before[name] if before[name] != 2 else after != 2
    cluster.register(2)
    assert {name: coordinator(cluster.state, name) for name in names} == before


def test_without_a_live_broker_there_is_no_coordinator() -> None:
    assert coordinator(State(), "g") is None


def test_l30_a_generation_is_made_only_from_the_one_before_it() -> None:
    cluster = Cluster()
    assert cluster.generation(row("a"), row("b")) == 1
    group = cluster.group()
    assert (group.state, group.leader, group.protocol) == (GroupState.COMPLETING, "a", "range")
    stale = NewGeneration("g", 0, 0, "consumer", [row("z")], [])
    cluster.refused(stale, Reason.STALE_PREMISE)
    cluster.refused(NewGeneration("g", 1, group.changed - 1, "consumer", [row("z")], []), Reason.STALE_PREMISE)
    assert cluster.generation(row("b"), row("c")) == 2
    assert cluster.group().leader == "b"
    assert list(cluster.group().members) == ["b", "c"]


def test_the_leader_stays_if_it_joins_again() -> None:
    cluster = Cluster()
    cluster.generation(row("a"))
    cluster.generation(row("b"), row("a"))
    assert cluster.group().leader == "a"


def test_l30_only_the_coordinator_in_the_state_speaks_for_a_group() -> None:
    cluster = Cluster(2)
    owner = coordinator(cluster.state, "g")
    other = 1 - owner if owner is not None else 0
    cluster.refused(NewGeneration("g", 0, 0, "consumer", [row("a")], []), Reason.NOT_COORDINATOR, other)
    cluster.stable(row("a", "i"))
    cluster.refused(Assign("g", 1, "a", []), Reason.NOT_COORDINATOR, other)
    cluster.refused(RemoveMembers("g", 1, [("a", 0)]), Reason.NOT_COORDINATOR, other)
    cluster.refused(ReplaceMember("g", "a", row("b", "i")), Reason.NOT_COORDINATOR, other)


@pytest.mark.parametrize(
    ("rows", "kept", "reason"),
    [
        ([], [], Reason.INVALID_REQUEST),
        ([row("a"), row("a")], [], Reason.INVALID_REQUEST),
        ([row("a", "i"), row("b", "i")], [], Reason.INVALID_REQUEST),
        ([row("a")], ["nobody"], Reason.UNKNOWN_GROUP_MEMBER),
        ([row("a", None, "range"), row("b", None, "sticky")], [], Reason.INCONSISTENT_PROTOCOL),
        ([row("a")._replace(protocols=[])], [], Reason.INCONSISTENT_PROTOCOL),
        ([row("a")._replace(protocols=[("p", bytes(MAX_GROUP_BYTES))])], [], Reason.GROUP_FULL),
    ],
)
def test_a_generation_that_cannot_be_is_refused(rows: list[MemberRow], kept: list[str], reason: Reason) -> None:
    Cluster().refused(NewGeneration("g", 0, 0, "consumer", rows, kept), reason)


def test_the_protocol_with_the_most_votes_wins() -> None:
    everybody = [[("a", b""), ("b", b"")], [("b", b""), ("a", b"")], [("c", b""), ("b", b""), ("a", b"")]]
    assert select_protocol(everybody) == "b"
    assert select_protocol([[("a", b"")], [("b", b"")]]) is None
    assert select_protocol([]) is None


def test_l30_an_assignment_counts_once_from_the_leader_of_its_generation() -> None:
    cluster = Cluster()
    cluster.generation(row("a"), row("b"))
    cluster.refused(Assign("g", 0, "a", []), Reason.STALE_GENERATION)
    cluster.refused(Assign("g", 1, "b", []), Reason.UNKNOWN_GROUP_MEMBER)
    cluster.refused(Assign("h", 1, "b", []), Reason.UNKNOWN_GROUP)
    cluster.refused(Assign("g", 1, "a", [("a", bytes(3 * MAX_GROUP_BYTES))]), Reason.GROUP_FULL)
    assert cluster.ask(Assign("g", 1, "a", [("b", b"two"), ("stranger", b"x")])) == 1
    group = cluster.group()
    assert group.state == GroupState.STABLE
    assert [member.assignment for member in group.members.values()] == [b"", b"two"]
    cluster.refused(Assign("g", 1, "a", [("b", b"three")]), Reason.STALE_PREMISE)
    cluster.ask(RemoveMembers("g", 1, [("b", 0)]))
    cluster.refused(Assign("g", 1, "a", []), Reason.REBALANCING)


def test_who_remains_when_a_member_leaves_has_to_join_again() -> None:
    cluster = Cluster()
    cluster.stable(row("a"), row("b"))
    assert cluster.ask(RemoveMembers("g", 1, [("a", 0), ("nobody", 0)])) == [1, 0]
    group = cluster.group()
    assert (group.state, group.generation, group.leader, list(group.members)) == (GroupState.PREPARING, 1, "", ["b"])
    cluster.refused(RemoveMembers("g", 0, [("b", 0)]), Reason.STALE_GENERATION)


def test_an_empty_group_is_in_a_generation_of_its_own() -> None:
    cluster = Cluster()
    cluster.say(Heartbeat(5000, 0, 0, 0))
    cluster.stable(row("a"), row("b"))
    assert cluster.ask(RemoveMembers("g", 1, [("a", 0), ("b", 0)])) == [1, 1]
    group = cluster.group()
    assert (group.state, group.generation, group.protocol, group.leader) == (GroupState.EMPTY, 2, "", "")
    assert (group.protocol_type, group.emptied_ms) == ("consumer", 5000)


def test_l13_a_member_that_proposed_something_since_is_not_expired() -> None:
    cluster = Cluster()
    stream = cluster.topic()[0]
    cluster.stable(row("a"), row("b"))
    heard = {member.id: member.heard for member in cluster.group().members.values()}
    assert cluster.say(CommitOffsets("g", 1, "a", None, [(stream, 5, -1, "")])) == [0]
    assert cluster.ask(RemoveMembers("g", 1, [("a", heard["a"]), ("b", heard["b"])])) == [0, 1]
    assert list(cluster.group().members) == ["a"]
    assert cluster.ask(RemoveMembers("g", 1, [("a", heard["a"])])) == [0]
    assert cluster.ask(RemoveMembers("g", 1, [("a", cluster.group().members["a"].heard)])) == [1]


def test_a_static_member_takes_its_old_place_without_a_rebalance() -> None:
    cluster = Cluster()
    cluster.stable(row("a1", "i"), row("b"))
    assert cluster.ask(ReplaceMember("g", "a1", row("a2", "i"))) == 1
    group = cluster.group()
    assert (group.state, group.leader, list(group.members)) == (GroupState.STABLE, "a2", ["a2", "b"])
    assert group.members["a2"].assignment == b"x"
    cluster.refused(ReplaceMember("g", "a1", row("a3", "i")), Reason.FENCED_INSTANCE)
    cluster.refused(ReplaceMember("g", "a2", row("a3", "j")), Reason.UNKNOWN_GROUP_MEMBER)
    cluster.refused(ReplaceMember("g", "a2", row("a3", "i", "sticky")), Reason.INCONSISTENT_PROTOCOL)
    too_large = row("a3", "i")._replace(protocols=[("range", bytes(MAX_GROUP_BYTES))])
    cluster.refused(ReplaceMember("g", "a2", too_large), Reason.GROUP_FULL)


def test_a_static_member_that_comes_back_before_the_assignment_wants_a_rebalance() -> None:
    cluster = Cluster()
    cluster.generation(row("a1", "i"), row("b"))
    cluster.ask(ReplaceMember("g", "a1", row("a2", "i")))
    assert cluster.group().state == GroupState.PREPARING


def test_static_members_can_be_kept_although_they_did_not_join() -> None:
    cluster = Cluster()
    cluster.stable(row("a", "i"), row("b"))
    heard = cluster.group().members["a"].heard
    assert cluster.generation(row("b"), kept=("a",)) == 2
    group = cluster.group()
    assert list(group.members) == ["b", "a"]
    assert (group.leader, group.members["a"].heard, group.members["a"].assignment) == ("b", heard, b"")


def test_l30_a_zombie_of_an_old_generation_cannot_commit() -> None:
    cluster = Cluster(2)
    stream = cluster.topic()[0]
    rows = [(stream, 7, -1, "note")]
    cluster.stable(row("a", "i"), row("b"))
    cluster.stable(row("b"))
    cluster.stable(row("b"), row("c", "i"))
    for broker in (0, 1):
        cluster.refused(CommitOffsets("g", 1, "b", None, rows), Reason.STALE_GENERATION, broker)
        cluster.refused(CommitOffsets("g", 3, "a", None, rows), Reason.UNKNOWN_GROUP_MEMBER, broker)
        cluster.refused(CommitOffsets("g", 1, "a", "i", rows), Reason.FENCED_INSTANCE, broker)
        cluster.refused(CommitOffsets("g", 3, "b", "j", rows), Reason.UNKNOWN_GROUP_MEMBER, broker)
        cluster.refused(CommitOffsets("g", -1, "", None, rows), Reason.UNKNOWN_GROUP_MEMBER, broker)
        cluster.refused(CommitOffsets("other", 0, "b", None, rows), Reason.STALE_GENERATION, broker)
    assert cluster.say(CommitOffsets("g", 3, "b", None, rows), 1) == [0]
    assert cluster.group().offsets[stream][:3] == (7, -1, "note")


def test_commits_wait_for_the_assignment_but_not_for_the_joins() -> None:
    cluster = Cluster()
    rows = [(cluster.topic()[0], 7, -1, "")]
    cluster.generation(row("a"), row("b"))
    cluster.refused(CommitOffsets("g", 1, "b", None, rows), Reason.REBALANCING)
    cluster.ask(RemoveMembers("g", 1, [("a", 0)]))
    assert cluster.group().state == GroupState.PREPARING
    assert cluster.say(CommitOffsets("g", 1, "b", None, rows)) == [0]


def test_consumers_that_assign_themselves_commit_to_an_empty_group() -> None:
    cluster = Cluster()
    stream = cluster.topic()[0]
    assert cluster.say(CommitOffsets("g", -1, "", None, [(stream, 1, 3, ""), (999, 1, 0, "")])) == [
        0,
        Reason.UNKNOWN_STREAM,
    ]
    assert cluster.group().offsets == {stream: (1, 3, "", 0, 0)}
    assert cluster.say(CommitOffsets("nothing", -1, "", None, [(999, 1, 0, "")])) == [Reason.UNKNOWN_STREAM]
    assert "nothing" not in cluster.state.groups.by_name


def test_l25_a_deleted_topic_takes_its_offsets_along_and_its_successor_has_none() -> None:
    cluster = Cluster()
    streams = cluster.topic()
    cluster.topic("u", 1, b"u" * 16)
    kept = cluster.state.topics.by_name["u"].streams[0]
    rows = [(stream, 9, -1, "") for stream in (*streams, kept)]
    cluster.say(CommitOffsets("g", -1, "", None, rows))
    cluster.say(DeleteTopic(TOPIC_ID))
    assert list(cluster.group().offsets) == [kept]
    again = cluster.topic(topic_id=b"n" * 16)
    assert not set(again) & set(streams)
    assert list(cluster.group().offsets) == [kept]


def test_offsets_of_a_topic_that_the_group_reads_are_not_deleted() -> None:
    cluster = Cluster()
    first = cluster.topic()[0]
    other = cluster.topic("u", 1, b"u" * 16)[0]
    cluster.stable(row("a"))
    cluster.say(CommitOffsets("g", 1, "a", None, [(first, 1, -1, ""), (other, 1, -1, "")]))
    assert cluster.say(DeleteOffsets("g", [first, other, 999])) == [Reason.GROUP_SUBSCRIBED, 0, 0]
    assert list(cluster.group().offsets) == [first]
    cluster.refused(DeleteOffsets("nobody", [first]), Reason.UNKNOWN_GROUP)
    cluster.ask(RemoveMembers("g", 1, [("a", 0)]))
    assert cluster.say(DeleteOffsets("g", [first])) == [0]
    assert not cluster.group().offsets


def test_a_group_that_is_no_group_of_consumers_keeps_its_offsets_while_it_has_members() -> None:
    cluster = Cluster()
    stream = cluster.topic()[0]
    cluster.ask(NewGeneration("g", 0, 0, "connect", [row("a")], []))
    cluster.refused(DeleteOffsets("g", [stream]), Reason.GROUP_NOT_EMPTY)
    assert group_topics(cluster.group()) == set()


def test_only_an_empty_group_is_deleted() -> None:
    cluster = Cluster()
    cluster.stable(row("a"))
    cluster.refused(DeleteGroup("g"), Reason.GROUP_NOT_EMPTY)
    cluster.refused(DeleteGroup("nobody"), Reason.UNKNOWN_GROUP)
    cluster.ask(RemoveMembers("g", 1, [("a", 0)]))
    assert cluster.ask(DeleteGroup("g")) is None
    assert not cluster.state.groups.by_name


def at(cluster: Cluster, time_ms: int) -> None:
    cluster.say(Heartbeat(time_ms, 0, 0, 0))


def test_offsets_of_an_empty_group_expire_by_the_time_it_became_empty() -> None:
    cluster = Cluster()
    stream = cluster.topic()[0]
    at(cluster, 1000)
    cluster.stable(row("a"))
    cluster.say(CommitOffsets("g", 1, "a", None, [(stream, 1, -1, "")]))
    at(cluster, 9000)
    assert cluster.say(ExpireOffsets(5000)) == [0, 0]
    cluster.ask(RemoveMembers("g", 1, [("a", 0)]))
    assert cluster.say(ExpireOffsets(9000)) == [0, 0]
    assert overdue(cluster.state, 9001) == ([("g", stream)], ["g"])
    assert cluster.say(ExpireOffsets(9001)) == [1, 1]
    assert not cluster.state.groups.by_name


def test_offsets_of_topics_that_nobody_reads_any_more_expire_by_their_commit() -> None:
    cluster = Cluster()
    read, left = cluster.topic()
    left = cluster.topic("u", 1, b"u" * 16)[0]
    at(cluster, 1000)
    cluster.stable(row("a"))
    cluster.say(CommitOffsets("g", 1, "a", None, [(read, 1, -1, ""), (left, 1, -1, "")]))
    assert cluster.say(ExpireOffsets(2000)) == [1, 0]
    assert list(cluster.group().offsets) == [read]


def test_subscriptions_are_read_once_for_a_group_however_many_offsets_are_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    cluster.topic()
    left = cluster.topic("u", 50, b"u" * 16)
    at(cluster, 1000)
    cluster.stable(row("a"), row("b"))
    cluster.say(CommitOffsets("g", 1, "a", None, [(stream, 1, -1, "") for stream in left]))
    parsed = []
    monkeypatch.setattr(
        group_rules, "subscribed_topics", lambda metadata: parsed.append(metadata) or subscribed_topics(metadata)
    )
    assert overdue(cluster.state, 1000) == ([], [])
    assert not parsed, "nothing is old enough to ask who reads it"
    assert len(overdue(cluster.state, 1001)[0]) == 50
    assert len(parsed) == 2
    assert cluster.say(DeleteOffsets("g", left)) == [0] * 50
    assert len(parsed) == 4


def test_a_commit_with_its_own_retention_expires_on_its_own() -> None:
    cluster = Cluster()
    stream = cluster.topic()[0]
    at(cluster, 1000)
    cluster.say(CommitOffsets("g", -1, "", None, [(stream, 1, -1, "")], 500))
    assert cluster.say(ExpireOffsets(0)) == [0, 0]
    at(cluster, 1500)
    assert cluster.say(ExpireOffsets(0)) == [1, 1]


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\0\0\0\0\0\1", b"\0\0\0\0\0\1\0\5ab", b"\0\0\xff\xff\xff\xff",
                                      b"\xff\xff\0\0\0\0", b"\0\0\0\0\0\1\0\1\xff", b"\0\0\0\0\0\2\0\1a"])  # fmt: skip
def test_a_subscription_that_cannot_be_read_counts_as_one_to_everything(metadata: bytes) -> None:
    assert subscribed_topics(metadata) is None
    cluster = Cluster()
    cluster.stable(row("a")._replace(protocols=[("range", metadata)]))
    assert group_topics(cluster.group()) is None


def test_a_subscription_names_its_topics() -> None:
    assert subscribed_topics(subscription("a", "b") + b"more") == {"a", "b"}


def test_a_malformed_command_about_groups_changes_nothing() -> None:
    cluster = Cluster()
    cluster.stable(row("a"))
    before = cluster.state.groups.dump()
    for kind in range(20, 28):
        cluster.n[0] += 1
        outcome = cluster.fold(encode(1, kind, 0, cluster.epochs[0], cluster.n[0], b"\x93\xc0\xc0"))
        assert isinstance(outcome, No)
        assert outcome.reason == Reason.MALFORMED
    assert cluster.state.groups.dump() == before


def busy(seed: int, steps: int) -> list[bytes]:
    """Commands of a random life of a few groups."""
    chance = random.Random(seed)
    cluster = Cluster(2)
    cluster.topic()
    cluster.topic("u", 1, b"u" * 16)
    streams = [1, 2, 3]
    for _ in range(steps):
        name = chance.choice("gh")
        there = cluster.state.groups.by_name.get(name)
        generation = (there.generation if there else 0) - (chance.random() < 0.1)
        changed = there.changed if there else 0
        ids = chance.sample(["a", "b", "c", "d"], chance.randint(1, 3))
        rows = [row(one, f"i-{one}" if one in "cd" else None, *chance.choice([("x", "y"), ("y",)])) for one in ids]
        who, statics = chance.choice(ids), list(there.statics.items()) if there else []
        body: Body = chance.choice(
            [
                NewGeneration(name, generation, changed, "consumer", rows, []),
                Assign(name, generation, there.leader if there else "", [(one, b"1") for one in ids]),
                RemoveMembers(name, generation, [(who, chance.choice([0, 3]))]),
                ReplaceMember(name, statics[0][1], row(f"n{len(cluster.commands)}", statics[0][0], "y")) if statics
                else DeleteGroup(name),
                CommitOffsets(name, generation, who, None, [(chance.choice(streams), chance.randint(0, 99), -1, "n")]),
                CommitOffsets(name, -1, "", None, [(chance.choice(streams), 5, 0, "")]),
                DeleteOffsets(name, [chance.choice(streams)]),
                DeleteGroup(name),
                ExpireOffsets(chance.choice([0, 50])),
                Heartbeat(chance.randint(1, 100), 0, 0, 0),
            ]
        )  # fmt: skip
        cluster.say(body, coordinator(cluster.state, name) or 0)
    return cluster.commands


@given(st.integers(0, 10_000), st.integers(0, 60))
def test_the_same_commands_give_the_same_bytes_also_over_a_checkpoint(seed: int, cut: int) -> None:
    one, other = State(), State()
    for sequence, command in enumerate(busy(seed, 60), 1):
        assert apply(one, sequence, command) == apply(other, sequence, command)
        if sequence == cut:
            saved = dump(other)
            other = load(saved)
            assert dump(other) == saved
    assert dump(one) == dump(other)
    assert one.members.brokers() and one.topics.by_name
    for group in one.groups.by_name.values():
        assert bool(group.members) == (group.state != GroupState.EMPTY)
        assert group.statics == {m.instance: m.id for m in group.members.values() if m.instance is not None}
        assert group.leader in ("", *group.members)

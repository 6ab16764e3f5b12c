"""Classic groups: joining, syncing, beating, leaving, and groups seen from outside."""

import struct
import threading
import time
from typing import Any

from tests.compatibility.differential.entities import plain
from tests.compatibility.differential.peer import Talk, versions

SHORTEST_MS = 300
"""The shortest session that both brokers are set to allow."""
RANGE = [{"name": "range", "metadata": b"m"}]


def subscription(topic: str) -> bytes:
    return struct.pack(f">hih{len(topic)}si", 0, 1, len(topic), topic.encode(), -1)


def joining(group: str, member: str = "", **more: Any) -> dict[str, Any]:
    given = {"session_timeout": 10000, "rebalance_timeout": 10000, "protocol_type": "consumer", "protocols": RANGE}
    return {"group_id": group, "member_id": member, **given, **more}


def member_of(talk: Talk, group: str, version: int = 9, **more: Any) -> Any:
    """Join a group that is otherwise empty, quietly; the answer."""
    first = talk.quietly("JoinGroup", version, **joining(group, **more))
    if first.error_code.value == 0:
        return first
    return talk.quietly("JoinGroup", version, **joining(group, first.member_id, **more))


def stable(talk: Talk, group: str, **more: Any) -> Any:
    """The only member of a group that has its assignment."""
    joined = member_of(talk, group, **more)
    talk.quietly(
        "SyncGroup", group_id=group, generation_id=joined.generation_id, member_id=joined.member_id,
        protocol_type="consumer", protocol_name="range",
        assignments=[{"member_id": joined.member_id, "assignment": b"yours"}],
    )  # fmt: skip
    return joined


def sync(talk: Talk, note: str, group: str, generation: int, member: str, **more: Any) -> Any:
    version = more.pop("version", -1)
    given = {"protocol_type": "consumer", "protocol_name": "range", **more}
    return talk.ask("SyncGroup", version, note, group_id=group, generation_id=generation, member_id=member, **given)


def beat(talk: Talk, note: str, group: str, generation: int, member: str, **more: Any) -> None:
    version = more.pop("version", -1)
    talk.ask("Heartbeat", version, note, group_id=group, generation_id=generation, member_id=member, **more)


def a_group_of_one(talk: Talk) -> None:
    topic = talk.topic()
    for version in (0, 1, 3, 4, 5, 6, 7, 9):
        group = talk.fresh()
        first = talk.ask("JoinGroup", version, "first", **joining(group))
        if version >= 4:
            first = talk.ask("JoinGroup", version, "with its id", **joining(group, first.member_id))
        member, generation = first.member_id, first.generation_id
        own = [{"member_id": member, "assignment": b"yours"}]
        beat(talk, "before the sync", group, generation, member)
        talk.ask("DescribeGroups", 6, "before the sync", groups=[group])
        commit = {"generation_id_or_member_epoch": generation, "topics": [{**topic.ref, "partitions": [{}]}]}
        talk.ask("OffsetCommit", 9, "before the sync", group_id=group, member_id=member, **commit)
        sync(talk, "leader", group, generation, member, assignments=own, version=min(version, 5))
        sync(talk, "again", group, generation, member, version=min(version, 5))
        beat(talk, "stable", group, generation, member, version=min(version, 4))
        talk.ask("JoinGroup", version, "the leader again", **joining(group, member))
        beat(talk, "old generation", group, generation, member)
        leaver = {"member_id": member, "members": [{"member_id": member}] * 2}
        talk.ask("LeaveGroup", min(version, 5), "leave", group_id=group, **leaver)
        talk.ask("LeaveGroup", min(version, 5), "leave again", group_id=group, **leaver)
        talk.ask("DescribeGroups", 6, "left", groups=[group])


def refused_joins(talk: Talk) -> None:
    group = talk.fresh()
    stable(talk, group)
    for version in versions("JoinGroup"):
        for note, changed in {
            "empty group": {"group": ""},
            "session 0": {"session_timeout": 0},
            "session too short": {"session_timeout": SHORTEST_MS - 1},
            "session too long": {"session_timeout": 1800001},
            "unknown member": {"member": "nobody"},
            "unknown member of nothing": {"group": "nothing", "member": "nobody"},
            "no protocols": {"group": "nothing2", "protocols": []},
            "no protocol type": {"group": "nothing2", "protocol_type": ""},
            "other protocol type": {"protocol_type": "connect"},
            "other protocols": {"protocols": [{"name": "sticky", "metadata": b""}]},
        }.items():
            given = {"group": group, **changed}
            talk.ask("JoinGroup", version, note, **joining(**given))  # type: ignore[arg-type]


def refused_syncs_and_beats(talk: Talk) -> None:
    group = talk.fresh()
    one = stable(talk, group)
    member, generation = one.member_id, one.generation_id
    for version in versions("SyncGroup"):
        sync(talk, "empty group", "", generation, member, version=version)
        sync(talk, "unknown group", "nothing", generation, member, version=version)
        sync(talk, "unknown member", group, generation, "nobody", version=version)
        sync(talk, "empty member", group, generation, "", version=version)
        sync(talk, "wrong generation", group, generation + 1, member, version=version)
        sync(talk, "other protocol", group, generation, member, version=version, protocol_name="sticky")
        sync(talk, "other type", group, generation, member, version=version, protocol_type="connect")
        sync(talk, "unknown instance", group, generation, member, version=version, group_instance_id="i")
    sync(talk, "null protocol", group, generation, member, protocol_type=None, protocol_name=None)
    for version in versions("Heartbeat"):
        beat(talk, "empty group", "", generation, member, version=version)
        beat(talk, "unknown group", "nothing", generation, member, version=version)
        beat(talk, "unknown member", group, generation, "nobody", version=version)
        beat(talk, "wrong generation", group, generation + 1, member, version=version)
        beat(talk, "generation -1", group, -1, member, version=version)
        beat(talk, "unknown instance", group, generation, member, version=version, group_instance_id="i")


def leaving(talk: Talk) -> None:
    for version in versions("LeaveGroup"):
        group = talk.fresh()
        stable(talk, group)
        for note, name, member in (
            ("unknown member", group, "nobody"),
            ("unknown group", "nothing", "nobody"),
            ("empty group", "", "nobody"),
            ("empty member", group, ""),
        ):
            talk.ask(
                "LeaveGroup", version, note, group_id=name, member_id=member, members=[{"member_id": member}]
            )
        talk.ask("LeaveGroup", version, "nobody at all", group_id=group, member_id="x", members=[])
    pending = talk.quietly("JoinGroup", 9, **joining(group := talk.fresh()))
    talk.ask("LeaveGroup", 5, "pending", group_id=group, members=[{"member_id": pending.member_id}])
    talk.ask("JoinGroup", 9, "after leaving while pending", **joining(group, pending.member_id))


def static_members(talk: Talk) -> None:
    for version in (5, 7, 9):
        group = talk.fresh()
        one = talk.ask("JoinGroup", version, "static", **joining(group, group_instance_id="i"))
        generation = one.generation_id
        own = [{"member_id": one.member_id, "assignment": b"yours"}]
        sync(talk, "static", group, generation, one.member_id, group_instance_id="i", assignments=own)
        two = talk.ask("JoinGroup", version, "back again", **joining(group, group_instance_id="i"))
        beat(talk, "fenced", group, generation, one.member_id, group_instance_id="i")
        beat(talk, "fenced, unsaid", group, generation, one.member_id)
        sync(talk, "fenced", group, generation, one.member_id, group_instance_id="i")
        talk.ask("JoinGroup", version, "fenced", **joining(group, one.member_id, group_instance_id="i"))
        commit = {"topics": [], "generation_id_or_member_epoch": generation, "group_instance_id": "i"}
        talk.ask("OffsetCommit", 9, "fenced", group_id=group, member_id=one.member_id, **commit)
        sync(talk, "the new one", group, two.generation_id, two.member_id, group_instance_id="i")
        beat(talk, "the new one", group, two.generation_id, two.member_id, group_instance_id="i")
        beat(talk, "other instance", group, two.generation_id, two.member_id, group_instance_id="j")
        talk.ask("DescribeGroups", 6, "static", groups=[group])
        for note, leaver in (
            ("fenced", {"member_id": one.member_id, "group_instance_id": "i"}),
            ("unknown instance", {"member_id": "", "group_instance_id": "j"}),
            ("by instance", {"member_id": "", "group_instance_id": "i"}),
            ("by instance again", {"member_id": "", "group_instance_id": "i"}),
        ):
            talk.ask("LeaveGroup", 5, note, group_id=group, members=[leaver])


def two_members(talk: Talk) -> None:
    """The second one's join makes the first rebalance; both get what the leader says."""
    for version in (2, 5, 9):
        group = talk.fresh()
        one = stable(talk, group)
        talk.note("the first", {"member_id": one.member_id})
        other, answers = talk.connect(), []

        def join_second(group: str = group, version: int = version, other: Any = other, into: Any = answers) -> None:
            found = talk.quietly("JoinGroup", version, on=other, **joining(group))
            if found.error_code.name == "member_id_required":
                found = talk.quietly("JoinGroup", version, on=other, **joining(group, found.member_id))
            into.append(found)

        joiner = threading.Thread(target=join_second)
        joiner.start()
        talk.until(lambda group=group: _state(talk, group) == "PreparingRebalance")
        beat(talk, "while another joins", group, one.generation_id, one.member_id)
        sync(talk, "while another joins", group, one.generation_id, one.member_id)
        talk.ask("DescribeGroups", 6, "while another joins", groups=[group])
        led = talk.ask("JoinGroup", version, "the leader", **joining(group, one.member_id))
        joiner.join(20)
        (two,) = answers
        talk.note("the second", [two.error_code.name, two.generation_id, two.leader == one.member_id, len(two.members)])
        beat(talk, "the second before its sync", group, two.generation_id, two.member_id)
        shares = [{"member_id": who.member_id, "assignment": b"share"} for who in (led, two)]
        sync(talk, "the leader", group, led.generation_id, led.member_id, assignments=shares)
        sync(talk, "the second", group, two.generation_id, two.member_id)
        talk.ask("DeleteGroups", 2, "not empty", groups_names=[group])
        talk.ask("LeaveGroup", 5, "the leader", group_id=group, members=[{"member_id": led.member_id}])
        beat(talk, "the second, alone", group, two.generation_id, two.member_id)
        talk.ask("DescribeGroups", 6, "one left", groups=[group])


def commits_while_another_joins(talk: Talk) -> None:
    """Between a join phase and the assignment a commit has to wait, unless the next join phase has begun."""
    topic = talk.topic()
    for version in (2, 5, 9):
        group = talk.fresh()
        one = member_of(talk, group)
        talk.note("the first", {"member_id": one.member_id})
        partitions = [{"partition_index": 0, "committed_offset": 7}]
        commit = {
            "group_id": group, "member_id": one.member_id, "generation_id_or_member_epoch": one.generation_id,
            "topics": [{**topic.ref, "partitions": partitions}],
        }  # fmt: skip
        talk.ask("OffsetCommit", version, "before the assignment", **commit)
        other, found = talk.connect(), talk.quietly("JoinGroup", **joining(group))
        talk.ask("OffsetCommit", version, "while another has an id and did not join", **commit)
        joiner = threading.Thread(
            target=talk.quietly, args=("JoinGroup",), kwargs={"on": other, **joining(group, found.member_id)}
        )
        joiner.start()
        talk.until(lambda group=group: _state(talk, group) == "PreparingRebalance")
        talk.ask("OffsetCommit", version, "while another joins", **commit)
        talk.ask("OffsetCommit", version, "unknown member", **{**commit, "member_id": "nobody"})
        talk.ask("OffsetCommit", version, "next generation", **{**commit, "generation_id_or_member_epoch": 2})
        asked = [{"name": topic.name, "partition_indexes": [0]}]
        talk.ask("OffsetFetch", 7, "what was kept", group_id=group, topics=asked)
        talk.ask("JoinGroup", 9, "the first again", **joining(group, one.member_id))
        joiner.join(20)
        talk.ask("OffsetCommit", version, "of the generation before", **commit)


def _state(talk: Talk, group: str) -> str:
    return str(talk.quietly("DescribeGroups", groups=[group]).groups[0].group_state)


def members_that_fall_silent(talk: Talk) -> None:
    """A member whose session runs out, one that never comes back with its id, one that does not join again."""
    group = talk.fresh()
    one = stable(talk, group, session_timeout=SHORTEST_MS)
    talk.until(lambda: _state(talk, group) == "Empty")
    talk.ask("DescribeGroups", 6, "empty", groups=[group])
    beat(talk, "too late", group, one.generation_id, one.member_id)
    talk.ask("JoinGroup", 9, "too late", **joining(group, one.member_id))
    stable(talk, group)
    slow = talk.fresh()
    first = stable(talk, slow, rebalance_timeout=SHORTEST_MS)
    found = talk.quietly("JoinGroup", **joining(slow))
    brief = joining(slow, found.member_id, rebalance_timeout=SHORTEST_MS)
    second = talk.ask("JoinGroup", 9, "the other does not", **brief)
    beat(talk, "the other", slow, second.generation_id, first.member_id)
    group = talk.fresh()
    pending = talk.quietly("JoinGroup", **joining(group, session_timeout=SHORTEST_MS))
    time.sleep(4 * SHORTEST_MS / 1000)
    talk.ask("JoinGroup", 9, "the id is forgotten", **joining(group, pending.member_id))


def several_protocols(talk: Talk) -> None:
    """What all can speak is spoken, by the vote of the members."""
    one, both = [{"name": "b", "metadata": b"1"}], [{"name": name, "metadata": b"2"} for name in ("a", "b")]
    for version in (4, 9):
        group = talk.fresh()
        first = member_of(talk, group, version, protocols=both)
        talk.note("the first", [first.protocol_name, plain(first)])
        other, answers = talk.connect(), []

        def join_second(group: str = group, other: Any = other, into: Any = answers) -> None:
            found = talk.quietly("JoinGroup", on=other, **joining(group, protocols=one))
            into.append(talk.quietly("JoinGroup", on=other, **joining(group, found.member_id, protocols=one)))

        joiner = threading.Thread(target=join_second)
        joiner.start()
        talk.until(lambda group=group: _state(talk, group) == "PreparingRebalance")
        talk.ask("JoinGroup", version, "the first again", **joining(group, first.member_id, protocols=both))
        joiner.join(20)
        talk.note("the second", answers[0].protocol_name)
        talk.ask("DescribeGroups", 6, "completing", groups=[group])
        changed = joining(group, answers[0].member_id, protocols=[{"name": "c", "metadata": b""}])
        talk.ask("JoinGroup", version, "what the other cannot speak", **changed)


def from_outside(talk: Talk) -> None:
    group, empty = talk.fresh(), talk.fresh()
    stable(talk, group)
    one = stable(talk, empty)
    talk.quietly("LeaveGroup", group_id=empty, members=[{"member_id": one.member_id}])
    for version in versions("DescribeGroups"):
        asked = [group, empty, "nothing"]
        talk.ask("DescribeGroups", version, "three", groups=asked)
        talk.ask("DescribeGroups", version, "operations", groups=asked, include_authorized_operations=True)
        talk.ask("DescribeGroups", version, "none", groups=[])
        talk.ask("DescribeGroups", version, "the empty name", groups=[""])
        talk.ask("DescribeGroups", version, "twice", groups=[group, group])
    for version in versions("ListGroups"):
        for states in ([], ["Stable"], ["stable"], ["Empty"], ["Dead"], ["nonsense"], ["Stable", "Empty"]):
            for types in ([], ["classic"], ["Classic"], ["consumer"], ["nonsense"]):
                note = f"{states} {types}"
                answer = talk.quietly("ListGroups", version, states_filter=states, types_filter=types)
                mine = [one for one in answer.groups if one.group_id in (group, empty)]
                talk.note(f"ListGroups v{version} {note}", [answer.error_code.name, sorted(map(str, mine))])
    for version in versions("DeleteGroups"):
        talk.ask("DeleteGroups", version, "not empty", groups_names=[group])
        talk.ask("DeleteGroups", version, "unknown", groups_names=["nothing"])
        talk.ask("DeleteGroups", version, "the empty name", groups_names=[""])
        talk.ask("DeleteGroups", version, "nothing", groups_names=[])
    talk.ask("DeleteGroups", 2, "several", groups_names=[group, empty, "nothing"])
    talk.ask("DeleteGroups", 2, "again", groups_names=[empty])
    talk.ask("DeleteGroups", 2, "twice", groups_names=["nothing", "nothing"])


CONVERSATIONS = (
    a_group_of_one, refused_joins, refused_syncs_and_beats, leaving, static_members, two_members,
    commits_while_another_joins, members_that_fall_silent, several_protocols, from_outside,
)  # fmt: skip

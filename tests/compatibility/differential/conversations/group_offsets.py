"""OffsetCommit, OffsetFetch, OffsetDelete."""

from typing import Any

from tests.compatibility.differential.conversations.groups import stable, subscription
from tests.compatibility.differential.peer import NO_SUCH_ID, MadeTopic, Talk, versions

NOWHERE = MadeTopic("nowhere", NO_SUCH_ID)


def commit(talk: Talk, note: str, group: str, topic: MadeTopic, *partitions: int, **more: Any) -> None:
    version = more.pop("version", -1)
    place = {"committed_offset": more.pop("offset", 7), "committed_metadata": more.pop("metadata", "note")}
    place["committed_leader_epoch"] = more.pop("epoch", -1)
    places = [{"partition_index": one, **place} for one in partitions or (0,)]
    who = {"generation_id_or_member_epoch": -1, "member_id": "", **more}
    talk.ask("OffsetCommit", version, note, group_id=group, topics=[{**topic.ref, "partitions": places}], **who)


def fetch(talk: Talk, note: str, group: str, *topics: MadeTopic, **more: Any) -> None:
    version = more.pop("version", -1)
    asked: Any = [{**one.ref, "partition_indexes": [0, 1, 9]} for one in topics]
    if more.pop("all", False):
        asked = None
    wanted = [{"group_id": group, "topics": asked}]
    talk.ask("OffsetFetch", version, note, group_id=group, topics=asked, groups=wanted, **more)


def without_members(talk: Talk) -> None:
    topic = talk.topic(partitions=2)
    for version in versions("OffsetCommit"):
        group = talk.fresh()
        fetch(talk, "before", group, topic)
        commit(talk, "simple", group, topic, version=version)
        commit(talk, "two", group, topic, 0, 1, version=version, offset=9, epoch=0)
        commit(talk, "a partition twice", group, topic, 0, 0, version=version)
        commit(talk, "unknown partition", group, topic, 5, version=version)
        commit(talk, "one of two is unknown", group, topic, 0, 5, version=version)
        commit(talk, "unknown topic", group, NOWHERE, version=version)
        commit(talk, "empty group", "", topic, version=version)
        commit(talk, "a member", group, topic, version=version, member_id="nobody", generation_id_or_member_epoch=1)
        commit(talk, "a generation", group, topic, version=version, generation_id_or_member_epoch=3)
        commit(talk, "only a member", group, topic, version=version, member_id="nobody")
        commit(talk, "a member of nothing", "nothing", topic, version=version, generation_id_or_member_epoch=3)
        commit(talk, "generation -2", group, topic, version=version, generation_id_or_member_epoch=-2)
        commit(talk, "longest note", group, topic, version=version, metadata="x" * 4096)
        commit(talk, "note too long", group, topic, version=version, metadata="x" * 4097)
        commit(talk, "long note of many bytes", group, topic, version=version, metadata="ä" * 4000)
        commit(talk, "no note", group, topic, version=version, metadata=None)
        commit(talk, "negative offset", group, topic, version=version, offset=-5)
        talk.ask("OffsetCommit", version, "nothing", group_id=group, generation_id_or_member_epoch=-1, topics=[])
        for shown in versions("OffsetFetch"):
            fetch(talk, "after", group, topic, version=shown)


def fetching(talk: Talk) -> None:
    topic, group, other = talk.topic(partitions=2), talk.fresh(), talk.fresh()
    for one in (group, other):
        talk.quietly(
            "OffsetCommit", group_id=one, generation_id_or_member_epoch=-1, member_id="",
            topics=[{**topic.ref, "partitions": [{"committed_offset": 5, "committed_metadata": ""}]}],
        )  # fmt: skip
    for version in range(1, 11):
        fetch(talk, "some", group, topic, version=version)
        fetch(talk, "unknown topic", group, NOWHERE, version=version)
        fetch(talk, "both", group, topic, NOWHERE, version=version)
        fetch(talk, "unknown group", "nothing", topic, version=version)
        fetch(talk, "empty group", "", topic, version=version)
        fetch(talk, "no topics", group, version=version)
        if version >= 2:
            fetch(talk, "all", group, version=version, all=True)
            fetch(talk, "all of nothing", "nothing", version=version, all=True)
        if version >= 7:
            fetch(talk, "stable ones", group, topic, version=version, require_stable=True)
    for version in (8, 9, 10):
        asked = [{**topic.ref, "partition_indexes": [0]}]
        groups = [{"group_id": one, "topics": asked} for one in (group, other, "x")]
        talk.ask("OffsetFetch", version, "several", groups=groups)
        talk.ask("OffsetFetch", version, "none", groups=[])
        everything = [{"group_id": one, "topics": None} for one in (group, other)]
        talk.ask("OffsetFetch", version, "all of several", groups=everything)
    for version in (9, 10):
        for member, epoch in (("nobody", 1), ("nobody", -1), (None, 3)):
            one = {"group_id": group, "member_id": member, "member_epoch": epoch, "topics": asked}
            talk.ask("OffsetFetch", version, f"as {member} in {epoch}", groups=[one])


def with_members(talk: Talk) -> None:
    topic, group = talk.topic(), talk.fresh()
    one = stable(talk, group)
    member, generation = one.member_id, one.generation_id
    for version in versions("OffsetCommit"):
        who = {"member_id": member, "generation_id_or_member_epoch": generation, "version": version}
        commit(talk, "a member", group, topic, **who)
        commit(talk, "old generation", group, topic, **{**who, "generation_id_or_member_epoch": generation - 1})
        commit(talk, "next generation", group, topic, **{**who, "generation_id_or_member_epoch": generation + 1})
        commit(talk, "unknown member", group, topic, **{**who, "member_id": "nobody"})
        commit(talk, "no member", group, topic, version=version)
        commit(talk, "instance", group, topic, **who, group_instance_id="i")
        commit(talk, "unknown partition", group, topic, 5, **who)
        commit(talk, "note too long, old generation", group, topic, metadata="x" * 4097, version=version)
    for epoch in (generation, generation + 1, -1):
        for who in (member, "nobody", None):
            asked = {"group_id": group, "member_id": who, "member_epoch": epoch, "topics": None}
            talk.ask("OffsetFetch", 9, f"as {'nobody' if who == 'nobody' else bool(who)} in {epoch}", groups=[asked])


def deleting(talk: Talk) -> None:
    topic, other, group = talk.topic(partitions=2), talk.topic(), talk.fresh()
    protocols = [{"name": "range", "metadata": subscription(topic.name)}]
    one = stable(talk, group, protocols=protocols)
    who = {"member_id": one.member_id, "generation_id_or_member_epoch": one.generation_id}
    commit(talk, "subscribed", group, topic, **who)
    commit(talk, "not subscribed", group, other, **who)

    def delete(note: str, group: str, *topics: MadeTopic, partition: int = 0) -> None:
        asked = [{"name": one.name, "partitions": [{"partition_index": partition}]} for one in topics]
        talk.ask("OffsetDelete", 0, note, group_id=group, topics=asked)

    delete("both", group, topic, other)
    delete("unknown topic", group, NOWHERE)
    delete("unknown partition", group, topic, partition=7)
    delete("unknown group", "nothing", topic)
    delete("empty group", "", topic)
    delete("nothing", group)
    delete("nothing of nothing", "nothing")
    fetch(talk, "after", group, all=True)
    talk.quietly("LeaveGroup", group_id=group, members=[{"member_id": one.member_id}])
    delete("when empty", group, topic)
    delete("what is not there", group, topic, partition=1)
    fetch(talk, "at the end", group, all=True)


CONVERSATIONS = (without_members, fetching, with_members, deleting)

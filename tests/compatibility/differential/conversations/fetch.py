"""Fetch with its sessions, ListOffsets, OffsetForLeaderEpoch, DeleteRecords: the way out, and a log's two ends."""

from typing import Any

from tests.compatibility.differential.conversations.produce import TIME, batch
from tests.compatibility.differential.peer import NO_SUCH_ID, MadeTopic, Talk, versions

NOWHERE = MadeTopic("nowhere", NO_SUCH_ID)
LARGE = 1 << 20


def filled(talk: Talk, partitions: int = 1, batches: int = 3, **configs: Any) -> MadeTopic:
    """A topic with batches of two records in its first partition."""
    topic = talk.topic(partitions, **configs)
    for number in range(batches):
        records = batch(b"a" * 50, b"b" * 50, time=TIME + 10 * number)
        one = {"index": 0, "records": records}
        talk.quietly("Produce", acks=-1, timeout=5000, topic_data=[{**topic.ref, "partition_data": [one]}])
    return topic


def wanted(topic: MadeTopic, *partitions: int, offset: int = 0, limit: int = LARGE, **more: Any) -> dict[str, Any]:
    places = [
        {"partition": one, "fetch_offset": offset, "partition_max_bytes": limit, **more} for one in partitions or (0,)
    ]
    return {**topic.ref, "partitions": places}


def fetch(talk: Talk, note: str, *topics: dict[str, Any], version: int = -1, **fields: Any) -> Any:
    given = {"max_wait": 50, "min_bytes": 1, "max_bytes": LARGE, "replica_id": -1, "session_epoch": -1, **fields}
    return talk.ask("Fetch", version, note, topics=list(topics), **given)


def plain_fetches(talk: Talk) -> None:
    topic = filled(talk, partitions=2)
    for version in versions("Fetch"):
        for offset in (0, 1, 2, 5, 6):
            fetch(talk, f"from {offset}", wanted(topic, offset=offset), version=version)
        for offset in (7, -1, -2, 1 << 40):
            fetch(talk, f"from {offset}", wanted(topic, offset=offset), version=version)
        fetch(talk, "both partitions", wanted(topic, 0, 1), version=version)
        fetch(talk, "unknown partition", wanted(topic, 7), version=version)
        fetch(talk, "partition -1", wanted(topic, -1), version=version)
        fetch(talk, "unknown topic", wanted(NOWHERE), version=version)
        fetch(talk, "one of two", wanted(NOWHERE), wanted(topic), version=version)
        fetch(talk, "nothing", version=version)
        fetch(talk, "committed", wanted(topic), version=version, isolation_level=1)
        fetch(talk, "isolation 2", wanted(topic), version=version, isolation_level=2)
        fetch(talk, "the same twice", wanted(topic, 0, 0), version=version)
    for epoch in (0, 1, 9):
        fetch(talk, f"leader epoch {epoch}", wanted(topic, current_leader_epoch=epoch))
        fetch(talk, f"last epoch {epoch}", wanted(topic, offset=2, last_fetched_epoch=epoch, current_leader_epoch=0))
    fetch(talk, "zero id", wanted(MadeTopic("", None)))


def limits(talk: Talk) -> None:
    topic = filled(talk, partitions=2)
    one = len(batch(b"a" * 50, b"b" * 50))
    for version in (4, 12, 18):
        for limit in (0, 1, one - 1, one, one + 1, 2 * one, -1):
            fetch(talk, f"partition limit {limit}", wanted(topic, limit=limit), version=version)
            fetch(talk, f"answer limit {limit}", wanted(topic), version=version, max_bytes=limit)
        fetch(talk, "min bytes 0", wanted(topic, offset=6), version=version, min_bytes=0)
        fetch(talk, "min bytes -1", wanted(topic, offset=6), version=version, min_bytes=-1)
        fetch(talk, "min bytes too many", wanted(topic), version=version, min_bytes=LARGE)
        fetch(talk, "no wait", wanted(topic, offset=6), version=version, max_wait=0)
        fetch(talk, "negative wait", wanted(topic, offset=6), version=version, max_wait=-1)


def codecs_and_versions(talk: Talk) -> None:
    """Versions that do not know zstd too. (Not gzip, whose bytes hold the time.)"""
    topic = talk.topic()
    for codec in (3, 4):
        one = {"index": 0, "records": batch(b"a" * 50, codec=codec)}
        talk.quietly("Produce", acks=-1, timeout=5000, topic_data=[{**topic.ref, "partition_data": [one]}])
    for version in (4, 9, 10, 18):
        fetch(talk, "lz4 and zstd", wanted(topic), version=version)
        fetch(talk, "zstd", wanted(topic, offset=1), version=version)


def sessions(talk: Talk) -> None:
    one, other = filled(talk, partitions=3), filled(talk)
    for version in (7, 12, 18):
        first = fetch(talk, "new", wanted(one, 0, 1), version=version, session_epoch=0)
        known = {"session_id": first.session_id, "version": version}
        fetch(talk, "the same again", session_epoch=1, **known)
        fetch(talk, "moved on", wanted(one, offset=6), session_epoch=2, **known)
        fetch(talk, "nothing new", session_epoch=3, **known)
        fetch(talk, "another one", wanted(other), session_epoch=4, **known)
        fetch(talk, "another one at its end", wanted(other, offset=6), session_epoch=5, **known)
        forgotten = [{**one.ref, "partitions": [0, 1]}]
        fetch(talk, "some forgotten", session_epoch=6, forgotten_topics_data=forgotten, **known)
        fetch(talk, "an unknown one", wanted(NOWHERE), session_epoch=7, **known)
        fetch(talk, "the unknown one stays", session_epoch=8, **known)
        fetch(talk, "out of range", wanted(one, 2, offset=99), session_epoch=9, **known)
        fetch(talk, "still out of range", session_epoch=10, **known)
        fetch(talk, "wrong epoch", session_epoch=99, **known)
        fetch(talk, "old epoch", session_epoch=3, **known)
        other_way = {"session_id": first.session_id, "version": 12 if version > 12 else 13}
        fetch(talk, "topics named the other way", session_epoch=11, **other_way)
        fetch(talk, "closing", session_epoch=-1, **known)
        fetch(talk, "closed", session_epoch=11, **known)
        fetch(talk, "unknown session", wanted(one), version=version, session_id=12345, session_epoch=5)
        fetch(talk, "unknown session anew", wanted(one), version=version, session_id=12345, session_epoch=0)
        fetch(talk, "closing what is not there", version=version, session_id=12345, session_epoch=-1)
        fetch(talk, "new without anything", version=version, session_epoch=0)
        fetch(talk, "no session", wanted(one), version=version, session_epoch=5)


def list_offsets(talk: Talk) -> None:
    topic, empty = filled(talk, partitions=2), talk.topic()

    def ask(version: int, note: str, *partitions: dict[str, Any], where: MadeTopic = topic, **more: Any) -> None:
        asked = [{**where.ref, "partitions": list(partitions)}]
        talk.ask("ListOffsets", version, note, topics=asked, replica_id=-1, **more)

    for version in (1, 4, 6, 7, 8, 9, 10, 11):
        for when in range(-8, 1):
            ask(version, f"at {when}", {"timestamp": when})
    for version in versions("ListOffsets"):
        for when in (-1, -2, -3, -4, -5, -6):
            ask(version, f"empty at {when}", {"timestamp": when}, where=empty)
        for when in (TIME, TIME + 1, TIME + 5, TIME + 21, TIME + 22, TIME * 2):
            ask(version, f"at {when - TIME}", {"timestamp": when})
        ask(version, "empty at a time", {"timestamp": TIME}, where=empty)
        ask(version, "unknown partition", {"partition_index": 7, "timestamp": -1})
        ask(version, "partition -1", {"partition_index": -1, "timestamp": -1})
        ask(version, "unknown topic", {"timestamp": -1}, where=NOWHERE)
        ask(version, "the same twice", {"timestamp": -1}, {"timestamp": -2})
        ask(version, "committed", {"timestamp": -1}, isolation_level=1)
        ask(version, "two", {"timestamp": -1}, {"partition_index": 1, "timestamp": -2})
        for epoch in (0, 1, -1):
            ask(version, f"epoch {epoch}", {"timestamp": -1, "current_leader_epoch": epoch})
        talk.ask("ListOffsets", version, "nothing", topics=[], replica_id=-1)
        for replica in (-2, 0, 5):
            asked = [{**topic.ref, "partitions": [{"timestamp": -1}]}]
            talk.ask("ListOffsets", version, f"replica {replica}", topics=asked, replica_id=replica)
    backwards = talk.topic()
    for time in (500, 300, 400):
        one = {"index": 0, "records": batch(b"a", time=TIME + time)}
        talk.quietly("Produce", acks=-1, timeout=5000, topic_data=[{**backwards.ref, "partition_data": [one]}])
    for when in (-3, TIME + 250, TIME + 350, TIME + 450):
        ask(11, f"times that go back, {when}", {"timestamp": when}, where=backwards)


def offset_for_leader_epoch(talk: Talk) -> None:
    topic, empty = filled(talk), talk.topic()
    for version in versions("OffsetForLeaderEpoch"):
        for where, note in ((topic, "filled"), (empty, "empty"), (NOWHERE, "unknown")):
            for epoch in (0, 1, -1, 5):
                one = [{"leader_epoch": epoch}]
                asked = [{**where.ref, "partitions": one}]
                talk.ask("OffsetForLeaderEpoch", version, f"{note} {epoch}", topics=asked, replica_id=-1)
        for epoch in (0, 1):
            one = [{"leader_epoch": 0, "current_leader_epoch": epoch}, {"partition": 5, "leader_epoch": 0}]
            asked = [{**topic.ref, "partitions": one}]
            talk.ask("OffsetForLeaderEpoch", version, f"current {epoch}", topics=asked, replica_id=-1)
        talk.ask("OffsetForLeaderEpoch", version, "nothing", topics=[], replica_id=-1)


def delete_records(talk: Talk) -> None:
    for version in versions("DeleteRecords"):
        topic = filled(talk, partitions=2)
        compacted = filled(talk, cleanup_policy="compact")
        both = filled(talk, cleanup_policy="compact,delete")

        def ask(note: str, offset: int, where: MadeTopic, partition: int = 0, version: int = version) -> None:
            one = {"partition_index": partition, "offset": offset}
            asked = [{**where.ref, "partitions": [one]}]
            talk.ask("DeleteRecords", version, note, topics=asked, timeout=5000)

        ask("to 1", 1, topic)
        ask("to 0", 0, topic)
        ask("to 3", 3, topic)
        ask("to 2", 2, topic)
        ask("beyond", 7, topic)
        ask("-2", -2, topic)
        fetch(talk, "in the middle of a batch", wanted(topic, offset=3))
        fetch(talk, "below", wanted(topic, offset=2))
        ask("to the end", -1, topic)
        ask("to the end again", -1, topic)
        ask("of nothing", -1, topic, 1)
        ask("unknown partition", 0, topic, 9)
        ask("unknown topic", 0, NOWHERE)
        ask("compacted", 1, compacted)
        ask("compacted and deleted", 1, both)
        twice = [{**topic.ref, "partitions": [{"partition_index": 0, "offset": offset} for offset in (4, 5)]}]
        talk.ask("DeleteRecords", version, "a partition twice", topics=twice, timeout=5000)
        talk.ask("DeleteRecords", version, "nothing", topics=[], timeout=5000)
        fetch(talk, "after", wanted(topic, offset=6))
        for when in (-1, -2, -3, -4, TIME):
            asked = [{**topic.ref, "partitions": [{"timestamp": when}]}]
            talk.ask("ListOffsets", 11, f"after, at {when}", topics=asked, replica_id=-1)


def a_topic_that_goes(talk: Talk) -> None:
    """Deleted, and made again under its name: those who know its id are told, sessions too."""
    topic, group = filled(talk), talk.fresh()
    opened = {version: fetch(talk, "new", wanted(topic), version=version, session_epoch=0) for version in (12, 18)}
    place = {"partitions": [{"committed_offset": 3, "committed_metadata": ""}], **topic.ref}
    talk.ask("OffsetCommit", 9, "before", group_id=group, generation_id_or_member_epoch=-1, topics=[place])
    asked = {"group_id": group, "topics": [{**topic.ref, "partition_indexes": [0]}]}
    for epoch in (1, 2):
        if epoch == 1:
            talk.quietly("DeleteTopics", topics=[{"name": topic.name}], timeout=10000)
            talk.settle()
        else:
            talk.topic(name=topic.name)
        for version in (12, 13):
            records = [{"records": batch(b"a")}]
            data = [{**topic.ref, "partition_data": records}]
            talk.ask("Produce", version, f"gone {epoch}", acks=-1, timeout=5000, topic_data=data)
        for version, one in opened.items():
            fetch(talk, f"gone {epoch}", wanted(topic, offset=6), version=version)
            session = {"session_id": one.session_id, "session_epoch": epoch}
            fetch(talk, f"session {epoch}", wanted(topic, offset=6), version=version, **session)
        talk.ask("Metadata", 13, f"by id {epoch}", topics=[{"topic_id": topic.id, "name": None}])
        for version in (9, 10):
            talk.ask("OffsetFetch", version, f"gone {epoch}", groups=[asked])


CONVERSATIONS = (
    plain_fetches, limits, codecs_and_versions, sessions, list_offsets, offset_for_leader_epoch, delete_records,
    a_topic_that_goes,
)  # fmt: skip

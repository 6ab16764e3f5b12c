"""What admin tools ask beside topics and configs: log dirs, reassignments, ACLs, quotas of clients, producers,
pages of partitions."""

from typing import Any

from tests.compatibility.differential.conversations.produce import batch, data, send
from tests.compatibility.differential.peer import Talk, versions

ILLEGAL = "a b"


def log_dirs(talk: Talk) -> None:
    one, other = talk.topic(partitions=2), talk.topic()
    for version in versions("DescribeLogDirs"):
        asked = [{"topic": one.name, "partitions": [0, 1]}, {"topic": other.name, "partitions": [0]}]
        talk.ask("DescribeLogDirs", version, "some", topics=asked)
        talk.ask("DescribeLogDirs", version, "one partition", topics=[{"topic": one.name, "partitions": [1]}])
        talk.ask("DescribeLogDirs", version, "no partitions", topics=[{"topic": one.name, "partitions": []}])
        talk.ask("DescribeLogDirs", version, "no topics", topics=[])
        for name in ("nowhere", ILLEGAL, ""):
            talk.ask("DescribeLogDirs", version, f"{name!r}", topics=[{"topic": name, "partitions": [0]}])
        talk.ask("DescribeLogDirs", version, "no such partition", topics=[{"topic": one.name, "partitions": [7, -1]}])
        talk.ask("DescribeLogDirs", version, "twice", topics=[asked[1], asked[1]])


def reassignments(talk: Talk) -> None:
    topic = talk.topic()
    talk.ask("ListPartitionReassignments", 0, "all", topics=None)
    talk.ask("ListPartitionReassignments", 0, "none", topics=[])
    for name in (topic.name, "nowhere", ILLEGAL):
        talk.ask("ListPartitionReassignments", 0, name, topics=[{"name": name, "partition_indexes": [0, 7]}])


def acls(talk: Talk) -> None:
    everything = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    talk.each("DescribeAcls", "everything", **everything)
    talk.each("DescribeAcls", "a topic", **{**everything, "resource_type_filter": 2, "resource_name_filter": "t"})


def quotas(talk: Talk) -> None:
    exact, default, named = range(3)
    for note, *filters in (
        ("everything",),
        ("users", ("user", named, None)),
        ("a user", ("user", exact, "ada")),
        ("a user without a name", ("user", exact, "")),
        ("a user and the default client", ("user", exact, "ada"), ("client-id", default, None)),
        ("no address", ("ip", exact, "no address")),
        ("no type", ("", named, None)),
        ("an unknown type", ("group", named, None)),
        ("an unknown type twice", ("group", named, None), ("group", named, None)),
        ("capital letters", ("User", named, None)),
        ("a type twice", ("user", named, None), ("user", exact, "ada")),
        ("a type twice, the default", ("user", default, None), ("user", default, None)),
        ("exact without a name", ("user", exact, None)),
        ("the default with a name", ("user", default, "ada")),
        ("any name with a name", ("user", named, "")),
        ("match type 3", ("user", 3, None)),
        ("match type -1", ("user", -1, "ada")),
        ("an address and a client", ("ip", named, None), ("client-id", named, None)),
        ("a user and the default address", ("user", named, None), ("ip", default, None)),
        ("first a wrong name, then a wrong type", ("user", exact, None), ("group", named, None)),
        ("first a wrong type, then no type", ("group", named, None), ("", named, None)),
    ):
        components = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in filters]
        for strict in (False, True):
            words = f"{note}{', strictly' if strict else ''}"
            talk.each("DescribeClientQuotas", words, components=components, strict=strict)


def producers(talk: Talk) -> None:
    topic = talk.topic(partitions=2)
    ask_producers(talk, "nobody yet", (topic.name, [0, 1]))
    send(talk, topic, batch(b"no producer"), "no producer")
    ask_producers(talk, "without an id", (topic.name, [0]))
    for name in ("nowhere", ILLEGAL):
        ask_producers(talk, f"{name!r}", (name, [0]))
    ask_producers(talk, "no such partition", (topic.name, [2, -1]))
    ask_producers(talk, "no partitions", (topic.name, []))
    ask_producers(talk, "nothing")


def ask_producers(talk: Talk, note: str, *asked: tuple[str, list[int]]) -> Any:
    topics = [{"name": name, "partition_indexes": partitions} for name, partitions in asked]
    return talk.ask("DescribeProducers", 0, note, topics=topics)


def idempotent_producers(talk: Talk) -> None:
    topic = talk.topic(partitions=2)
    ids = [talk.quietly("InitProducerId", transaction_timeout=1000).producer_id for _ in range(2)]
    for first, id_ in enumerate(ids):
        for sequence in range(first + 1):
            send(talk, topic, batch(b"x", b"y", producer=(id_, 0, 2 * sequence)), f"producer {first}")
    ask_producers(talk, "two of them", (topic.name, [0, 1]))
    given = data(topic, batch(b"x", producer=(ids[0], 3, 0)), partition=1)
    talk.ask("Produce", -1, "another epoch", acks=-1, timeout=5000, topic_data=given)
    ask_producers(talk, "another epoch", (topic.name, [1]))


def pages(talk: Talk) -> None:
    names = sorted((talk.topic(partitions=count).name for count in (3, 1, 2)), key=str)
    first, second, third = names
    for note, asked, limit, cursor in (
        ("all of them", names, 2000, None),
        ("in disorder, one twice", [third, first, third], 2000, None),
        ("a limit inside a topic", names, 2, None),
        ("a limit between topics", names, 3, None),
        ("a limit of nothing", names, 0, None),
        ("a limit below zero", names, -1, None),
        ("from a partition", names, 2000, (first, 1)),
        ("from the second topic", names, 2, (second, 0)),
        ("from behind a topic's last", names, 2000, (first, 9)),
        ("from the end", names, 1, (third, 1)),
        ("from a negative partition", names, 2000, (first, -1)),
        ("from a topic not asked for", [second, third], 2000, (first, 0)),
        ("from a topic that is not there", [first, "nowhere", "x-nowhere"], 2000, ("nowhere", 0)),
        ("unknown", ["nowhere"], 2000, None),
        ("unknown and illegal", ["nowhere", first, ILLEGAL], 2000, None),
        ("no name", [first, ""], 2000, None),
        ("unknown behind the limit", [first, "z-nowhere"], 3, None),
    ):
        fields: dict[str, Any] = {"topics": [{"name": name} for name in asked], "response_partition_limit": limit}
        if cursor is not None:
            fields["cursor"] = {"topic_name": cursor[0], "partition_index": cursor[1]}
        talk.ask("DescribeTopicPartitions", 0, note, **fields)


CONVERSATIONS = (log_dirs, reassignments, acls, quotas, producers, idempotent_producers, pages)

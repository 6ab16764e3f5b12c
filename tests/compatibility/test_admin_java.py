"""The admin client of Java."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from tests.compatibility.clients.face import Client, Member, Record, Refused, produce
from tests.compatibility.clients.java import TOOLS, Java
from tests.compatibility.conftest import Clients, TopicMaker
from tests.support.serve_process import eventually

pytestmark = [pytest.mark.xdist_group("java"), pytest.mark.needs(*TOOLS)]

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS = 1, 3, 17, 36, 37
INVALID_CONFIG, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND = 40, 68, 69


class Ask(Protocol):
    """One operation of Administration.java."""

    def __call__(self, op: str, **args: Any) -> Any: ...


@pytest.fixture
def client(clients: Clients) -> Client:
    return clients("java")


@pytest.fixture
def ask(client: Client, bootstrap: str) -> Ask:
    assert isinstance(client, Java)
    return lambda op, **args: client.admin(bootstrap, op, **args)


def refusal(ask: Ask, op: str, **args: Any) -> int:
    with pytest.raises(Refused) as caught:
        ask(op, **args)
    return caught.value.code


def create(ask: Ask, topic: str, partitions: int = 1, replicas: int = 1, **configs: Any) -> Any:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return ask("create_topic", topic=topic, partitions=partitions, replicas=replicas, configs=named)


def test_topics_come_and_go(ask: Ask, name: Callable[[], str]) -> None:
    topic = name()
    created = create(ask, topic, 5, 3)
    assert (created["partitions"], created["replicas"]) == (5, 3)
    described = ask("describe_topic", topic=topic)
    assert described["id"] == created["id"] and not described["internal"]
    assert len(described["partitions"]) == 5 and all(one["leader"] >= 0 for one in described["partitions"])
    with pytest.raises(Refused) as caught:
        create(ask, topic)
    assert caught.value.code == TOPIC_EXISTS
    assert topic in ask("list_topics")
    ask("delete_topic", topic=topic)
    assert topic not in ask("list_topics")
    assert refusal(ask, "delete_topic", topic=topic) == UNKNOWN_TOPIC
    assert refusal(ask, "describe_topic", topic=topic) == UNKNOWN_TOPIC


def test_partitions_and_replicas_may_be_left_to_the_broker(ask: Ask, name: Callable[[], str]) -> None:
    created = create(ask, name(), -1, -1)
    assert (created["partitions"], created["replicas"]) == (1, 1)


@pytest.mark.parametrize(
    ("topic", "partitions", "configs", "wanted"),
    [
        ("bad/name", 1, {}, INVALID_TOPIC),
        ("java-bad-config", 1, {"retention_ms": "soon"}, INVALID_CONFIG),
        ("java-unknown-config", 1, {"no_such_config": "1"}, INVALID_CONFIG),
    ],
)
def test_what_cannot_be_created_is_refused_with_kafkas_code(
    ask: Ask, topic: str, partitions: int, configs: dict[str, Any], wanted: int
) -> None:
    with pytest.raises(Refused) as caught:
        create(ask, topic, partitions, **configs)
    assert caught.value.code == wanted


def test_configs_are_shown_and_changed(ask: Ask, make_topic: TopicMaker) -> None:
    topic = make_topic(configs={"retention.ms": "5000000"})
    shown = ask("describe_configs", kind="TOPIC", resource=topic)
    assert shown["retention.ms"] == ["5000000", "DYNAMIC_TOPIC_CONFIG", False]
    assert shown["max.message.bytes"] == ["1048588", "DEFAULT_CONFIG", False]
    change = {"kind": "TOPIC", "resource": topic}
    ask("alter_config", **change, name="max.message.bytes", value="5000", how="SET")
    ask("alter_config", **change, name="retention.ms", value="", how="DELETE")
    shown = ask("describe_configs", kind="TOPIC", resource=topic)
    assert shown["max.message.bytes"][0] == "5000"
    assert shown["retention.ms"][1] == "DEFAULT_CONFIG"
    for name, value in (("retention.ms", "never"), ("no.such.config", "1")):
        assert refusal(ask, "alter_config", **change, name=name, value=value, how="SET") == INVALID_CONFIG
    assert refusal(ask, "describe_configs", kind="TOPIC", resource="nobody-made-this") == UNKNOWN_TOPIC


def test_the_clusters_configs_are_changed_for_all_brokers(ask: Ask) -> None:
    cluster = {"kind": "BROKER", "resource": ""}
    ask("alter_config", **cluster, name="log.retention.bytes", value="123456789", how="SET")
    try:
        for broker in ("0", "1"):
            shown = ask("describe_configs", kind="BROKER", resource=broker)
            assert shown["log.retention.bytes"][:2] == ["123456789", "DYNAMIC_DEFAULT_BROKER_CONFIG"]
    finally:
        ask("alter_config", **cluster, name="log.retention.bytes", value="", how="DELETE")


def test_partitions_are_added_and_never_taken(ask: Ask, make_topic: TopicMaker) -> None:
    topic = make_topic(partitions=2)
    ask("create_partitions", topic=topic, count=6)
    eventually(lambda: len(ask("describe_topic", topic=topic)["partitions"]) == 6, "six partitions")
    assert refusal(ask, "create_partitions", topic=topic, count=3) == INVALID_PARTITIONS


def test_records_are_deleted_and_offsets_listed(
    ask: Ask, client: Client, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic, base_ms = make_topic(), int(time.time() * 1000) - 1_000_000
    times = [base_ms + 1, base_ms + 9, base_ms + 5, base_ms + 6]
    produce(client, bootstrap, topic, [Record(value=b"v", timestamp_ms=time_ms) for time_ms in times])
    place = {"topic": topic, "partition": 0}
    assert ask("list_offset", **place, spec="earliest")[0] == 0
    assert ask("list_offset", **place, spec="latest")[0] == 4
    assert ask("list_offset", **place, spec="max_timestamp") == [1, base_ms + 9]
    assert ask("list_offset", **place, spec=str(base_ms + 2)) == [1, base_ms + 9]
    assert ask("delete_records", **place, before=2) == 2
    assert ask("list_offset", **place, spec="earliest")[0] == 2
    assert refusal(ask, "delete_records", **place, before=100) == OFFSET_OUT_OF_RANGE
    assert ask("delete_records", **place, before=-1) == 4


def test_the_cluster_is_described(ask: Ask) -> None:
    found = ask("describe_cluster")
    assert found["nodes"] == [0, 1] and found["controller"] in found["nodes"] and found["id"]


def test_groups_are_listed_described_and_deleted(
    ask: Ask, client: Client, bootstrap: str, make_topic: TopicMaker, name: Callable[[], str]
) -> None:
    topic, group = make_topic(partitions=2), name()
    produce(client, bootstrap, topic, [Record(value=b"v", partition=i) for i in range(2)])
    config = {"client.id": "tester", "group.instance.id": "the-one"}
    member = Member(client, bootstrap, group, [topic], config)
    eventually(lambda: len(member.seen) == 2, "both records are read")
    member.commit()
    described = ask("describe_group", group=group)
    assert (described["state"], described["assignor"]) == ("Stable", "range")
    assert described["members"] == [
        {"client": "tester", "host": "/127.0.0.1", "instance": "the-one", "partitions": 2}
    ]
    assert refusal(ask, "delete_group", group=group) == NON_EMPTY_GROUP
    assert ask("list_groups")[group] == ["consumer", "Stable"]
    assert ask("group_offsets", group=group) == {f"{topic}-0": 1, f"{topic}-1": 1}
    member.leave()
    other = name()
    ask("alter_group_offset", group=other, topic=topic, partition=0, offset=1)
    assert ask("group_offsets", group=other) == {f"{topic}-0": 1}
    assert ask("describe_group", group=other)["state"] == "Empty"
    ask("delete_group_offset", group=other, topic=topic, partition=0)
    assert ask("group_offsets", group=other) == {}
    third = name()
    ask("alter_group_offset", group=third, topic=topic, partition=0, offset=1)
    ask("delete_group", group=third)
    assert third not in ask("list_groups")
    assert refusal(ask, "delete_group", group=third) == GROUP_ID_NOT_FOUND

"""Consumer groups as every client runs them: sharing partitions, committing, coming back, keeping a place."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compatibility.clients.face import Client, Member, Record, Refused, produce
from tests.compatibility.conftest import Clients, TopicMaker, params
from tests.support.serve_process import eventually

PATIENT = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 500}
"""Heartbeats are how members learn of a rebalance: with frequent ones a test is quick."""


COOPERATIVE_ASSIGNORS: dict[str, dict[str, object]] = {
    "librdkafka": {"partition.assignment.strategy": "cooperative-sticky"},
    "java": {"partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"},
}
COOPERATIVE = [param for param in params() if param.id in COOPERATIVE_ASSIGNORS]


def numbered(count: int, partitions: int) -> list[Record]:
    return [Record(value=b"%d" % i, partition=i % partitions) for i in range(count)]


def await_assignment(members: Sequence[Member], partitions: int) -> None:
    """Until each member has its fair share, and together they have all."""

    def shared() -> bool:
        sizes = [len(member.assigned) for member in members]
        together = set().union(*(member.assigned for member in members))
        return len(together) == sum(sizes) == partitions and max(sizes) - min(sizes) <= 1

    eventually(shared, f"the {partitions} partitions are not shared out among {len(members)} members", 40)


def test_two_members_share_the_partitions_and_one_takes_over_when_the_other_leaves(
    client: Client, bootstrap: str, make_topic: TopicMaker, name: Callable[[], str]
) -> None:
    topic, group = make_topic(partitions=4), name()
    produce(client, bootstrap, topic, numbered(100, 4))
    first = Member(client, bootstrap, group, [topic], PATIENT)
    await_assignment([first], 4)
    eventually(lambda: len(first.seen) >= 100, "the first member reads everything")
    first.commit()
    second = Member(client, bootstrap, group, [topic], PATIENT)
    await_assignment([first, second], 4)
    produce(client, bootstrap, topic, [Record(value=b"both %d" % i, partition=i % 4) for i in range(100)])
    eventually(lambda: len(first.seen) + len(second.seen) >= 200, "both members read on")
    assert 0 < len(second.seen) < 100
    first.commit()
    second.commit()
    left = second.leave()
    await_assignment([first], 4)
    produce(client, bootstrap, topic, [Record(value=b"one %d" % i, partition=i % 4) for i in range(100)])
    eventually(lambda: len(first.seen) + len(left) >= 300, "the first member reads what the second one left")
    seen = Counter(stored.value for stored in first.leave() + left)
    assert len(seen) == 300 and set(seen.values()) == {1}


def test_a_group_goes_on_from_its_committed_offsets(
    client: Client, bootstrap: str, make_topic: TopicMaker, name: Callable[[], str], admin: AdminClient
) -> None:
    topic, group = make_topic(partitions=2), name()
    produce(client, bootstrap, topic, numbered(20, 2))
    member = Member(client, bootstrap, group, [topic])
    eventually(lambda: len(member.seen) == 20, "everything is read")
    member.commit()
    member.leave()
    produce(client, bootstrap, topic, [Record(value=b"later", partition=1)])
    again = Member(client, bootstrap, group, [topic])
    eventually(lambda: again.seen, "the later record is read")
    assert [(stored.partition, stored.offset, stored.value) for stored in again.leave()] == [(1, 10, b"later")]


def test_what_was_not_committed_is_read_again(
    client: Client, bootstrap: str, make_topic: TopicMaker, name: Callable[[], str]
) -> None:
    topic, group = make_topic(), name()
    produce(client, bootstrap, topic, numbered(10, 1))
    for _ in range(2):
        member = Member(client, bootstrap, group, [topic])
        eventually(lambda: len(member.seen) == 10, "everything is read")  # noqa: B023
        assert [stored.offset for stored in member.leave()] == list(range(10))


def test_committing_by_itself_works_too(
    client: Client, bootstrap: str, make_topic: TopicMaker, name: Callable[[], str]
) -> None:
    topic, group = make_topic(), name()
    produce(client, bootstrap, topic, numbered(10, 1))
    config = {"enable.auto.commit": True, "auto.commit.interval.ms": 200}
    member = Member(client, bootstrap, group, [topic], config)
    eventually(lambda: len(member.seen) == 10, "everything is read")
    member.leave()
    produce(client, bootstrap, topic, [Record(value=b"later")])
    again = Member(client, bootstrap, group, [topic], config)
    eventually(lambda: again.seen, "the later record is read")
    assert [stored.value for stored in again.leave()] == [b"later"]


def test_a_member_that_no_longer_polls_loses_its_partitions(
    client: Client, bootstrap: str, make_topic: TopicMaker, name: Callable[[], str], clients: Clients
) -> None:
    topic, group = make_topic(partitions=2), name()
    config = {"session.timeout.ms": 1_500, "heartbeat.interval.ms": 300, "max.poll.interval.ms": 2_000}
    idle = client.consumer(bootstrap, {"group.id": group, "auto.offset.reset": "earliest", **config})
    idle.subscribe([topic])
    eventually(lambda: [idle.poll(0.1), idle.assignment()][1], "the first member gets its partitions")
    heir = Member(clients("librdkafka"), bootstrap, group, [topic], PATIENT | ASSIGNORS[client.name])
    await_assignment([heir], 2)
    heir.leave()

    def reads_again() -> bool:
        produce(client, bootstrap, topic, [Record(value=b"later")])
        with suppress(Refused):  # librdkafka says first that it was away for too long, and drops what came with it
            return len(idle.poll(0.1)) > 0
        return False

    # It is a member again before it closes: a librdkafka that closes before it heard that its partitions are gone
    # may wait for itself forever (its issue 4884).
    eventually(reads_again, "the first member gets its partitions back once it polls")
    idle.close()


DOOMED = """
import sys, confluent_kafka
bootstrap, group, topic = sys.argv[1:]
config = {"bootstrap.servers": bootstrap, "group.id": group, "session.timeout.ms": 1000, "heartbeat.interval.ms": 200}
consumer = confluent_kafka.Consumer(config)
consumer.subscribe([topic], on_assign=lambda consumer, places: print(len(places), flush=True))
while True:
    consumer.poll(1)
"""


def test_a_member_that_is_killed_is_replaced_when_its_session_ends(
    bootstrap: str, make_topic: TopicMaker, name: Callable[[], str], clients: Clients
) -> None:
    topic, group = make_topic(partitions=2), name()
    argv = [sys.executable, "-c", DOOMED, bootstrap, group, topic]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as doomed:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == "2\n"
        doomed.kill()
    heir = Member(clients("librdkafka"), bootstrap, group, [topic], PATIENT)
    await_assignment([heir], 2)
    heir.leave()


ASSIGNORS: dict[str, dict[str, object]] = {
    "librdkafka": {},
    "java": {},
    "kafka-python": {},
    "aiokafka": {"partition.assignment.strategy": "roundrobin"},
}
"""What librdkafka has to be told to share a group with another client."""


@pytest.mark.parametrize("other", [param for param in params() if param.id != "librdkafka"])
def test_different_clients_share_a_group(
    other: str, clients: Clients, bootstrap: str, make_topic: TopicMaker, name: Callable[[], str]
) -> None:
    topic, group = make_topic(partitions=4), name()
    ours, theirs = clients("librdkafka"), clients(other)
    members = [
        Member(ours, bootstrap, group, [topic], PATIENT | ASSIGNORS[other]),
        Member(theirs, bootstrap, group, [topic], PATIENT),
    ]
    await_assignment(members, 4)
    produce(ours, bootstrap, topic, numbered(40, 4))
    eventually(lambda: sum(len(member.seen) for member in members) >= 40, "all is read")
    for member in members:
        member.commit()
    seen = Counter(stored.value for member in members for stored in member.leave())
    assert seen == Counter(b"%d" % i for i in range(40))


def test_a_static_member_that_comes_back_keeps_its_partitions_without_a_rebalance(
    client: Client, bootstrap: str, make_topic: TopicMaker, name: Callable[[], str]
) -> None:
    topic, group = make_topic(partitions=4), name()
    members = [
        Member(client, bootstrap, group, [topic], {**PATIENT, "group.instance.id": f"instance-{i}"}) for i in range(2)
    ]
    await_assignment(members, 4)
    before = [set(member.assigned) for member in members]
    members[1].leave()
    again = Member(client, bootstrap, group, [topic], {**PATIENT, "group.instance.id": "instance-1"})
    eventually(lambda: again.assigned, "the member is back")
    assert again.assigned == before[1]
    assert members[0].assigned == before[0]
    again.leave()
    members[0].leave()


@pytest.mark.parametrize("fenced", COOPERATIVE)
def test_a_second_member_with_the_same_instance_id_takes_the_place_of_the_first(
    fenced: str, clients: Clients, bootstrap: str, make_topic: TopicMaker, name: Callable[[], str]
) -> None:
    """Only these two clients say so: aiokafka's heartbeats name no instance, and kafka-python falls silent."""
    client, topic, group = clients(fenced), make_topic(partitions=2), name()
    config = {**PATIENT, "group.instance.id": "only-one"}
    first = Member(client, bootstrap, group, [topic], config)
    await_assignment([first], 2)
    second = Member(client, bootstrap, group, [topic], config)
    await_assignment([second], 2)
    eventually(lambda: not first.alive, "the first one is fenced")
    with pytest.raises(Exception, match=r"(?i)fenced"):
        first.leave()
    second.leave()


@pytest.mark.parametrize("cooperating", COOPERATIVE)
def test_members_that_rebalance_cooperatively_keep_what_they_need_not_give_away(
    cooperating: str, clients: Clients, bootstrap: str, make_topic: TopicMaker, name: Callable[[], str]
) -> None:
    client, config = clients(cooperating), {**PATIENT, **COOPERATIVE_ASSIGNORS[cooperating]}
    topic, group = make_topic(partitions=6), name()
    first = Member(client, bootstrap, group, [topic], config)
    await_assignment([first], 6)
    second = Member(client, bootstrap, group, [topic], config)
    await_assignment([first, second], 6)
    produce(client, bootstrap, topic, numbered(60, 6))
    eventually(lambda: len(first.seen) + len(second.seen) == 60, "all is read")
    first.commit()
    second.commit()
    second.leave()
    await_assignment([first], 6)
    produce(client, bootstrap, topic, numbered(60, 6))
    eventually(lambda: len(first.seen) + len(second.seen) == 120, "all is read, nothing twice")
    first.leave()


@pytest.mark.xdist_group("librdkafka")
def test_a_pattern_subscribes_to_topics_that_come_later(
    clients: Clients, bootstrap: str, admin: AdminClient, name: Callable[[], str]
) -> None:
    client, prefix = clients("librdkafka"), name()
    config = {**PATIENT, "topic.metadata.refresh.interval.ms": 300}
    member = Member(client, bootstrap, name(), [f"^{prefix}-.*"], config)
    for number in range(2):
        topic = f"{prefix}-{number}"
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(10)
        await_assignment([member], 2 * number + 2)
    member.leave()

"""Brokers are killed while clients produce and consume: no acked record is lost, doubled or out of order."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compatibility.clients.face import Ack, Client, Member, Record, Refused, Stored, produce, read
from tests.support.serve_process import Cluster, eventually, serving

PARTITIONS = 4
TOPIC = "survives"
PAUSE_S = 0.002
IDEMPOTENT = {"enable.idempotence": True, "acks": "all", "linger.ms": 0}
"""Without a linger there are as many requests as can be, so that a kill finds some between append and ack."""
GROUP = {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 500, "metadata.max.age.ms": 3_000}
"""A session longer than a busy machine needs to start a broker again."""


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with serving(tmp_path, brokers=3) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
        yield cluster


def record(number: int) -> Record:
    return Record(key=b"key-%d" % (number % 10), value=b"%d" % number, partition=number % PARTITIONS)


def produce_while(client: Client, cluster: Cluster, busy: Callable[[], bool]) -> list[Ack]:
    """An idempotent producer that writes as long as `busy` says so; it must get an ack for everything."""
    producer = client.producer(cluster.bootstrap, IDEMPOTENT)
    sent = 0
    while busy():
        for _ in range(PARTITIONS):
            producer.send(TOPIC, record(sent))
            sent += 1
        time.sleep(PAUSE_S)
    answers = producer.finish()
    assert [answer for answer in answers if not isinstance(answer, Ack)] == []
    return [answer for answer in answers if isinstance(answer, Ack)]


def kill_each_in_turn(cluster: Cluster, rounds: int) -> None:
    time.sleep(1.0)
    for broker in list(range(3)) * rounds:
        killed = cluster.kill(broker)
        cluster.await_broker(broker, not_pid=killed)
        time.sleep(0.5)


def check(acks: list[Ack], log: list[Stored]) -> None:
    """The log has each acked record once, where its ack said, and nothing else, in the order of sends."""
    by_place = {(stored.partition, stored.offset): stored for stored in log}
    assert len(by_place) == len(log), "an offset was served twice"
    for number, ack in enumerate(acks):
        stored = by_place.get((ack.partition, ack.offset))
        assert stored is not None, f"record {number} was acked at {ack} and is lost"
        assert (stored.key, stored.value) == (record(number).key, record(number).value)
    assert len(log) == len(acks), f"{len(log) - len(acks)} records are doubles of acked ones"
    for partition in range(PARTITIONS):
        own = [stored for stored in log if stored.partition == partition]
        assert [stored.offset for stored in own] == list(range(len(own)))
        numbers = [int(stored.value or b"") for stored in own]
        assert numbers == sorted(numbers)


def survive(client: Client, cluster: Cluster, rounds: int) -> None:
    killer = threading.Thread(target=kill_each_in_turn, args=(cluster, rounds), daemon=True)
    member = Member(client, cluster.bootstrap, "survivors", [TOPIC], GROUP)
    killer.start()
    acks = produce_while(client, cluster, killer.is_alive)
    killer.join()
    assert len(acks) > 100
    died = cluster.log_text().count("died, starting it again")
    assert died == 3 * rounds, f"{died} brokers died instead of {3 * rounds}"
    log = read(client, cluster.bootstrap, {(TOPIC, partition): 0 for partition in range(PARTITIONS)}, len(acks))
    check(acks, log)
    wanted = {(stored.partition, stored.offset): stored.value for stored in log}

    def consumed() -> dict[tuple[int, int], bytes | None]:
        return {(stored.partition, stored.offset): stored.value for stored in list(member.seen)}

    eventually(lambda: len(consumed()) >= len(wanted), "the group does not read everything", 60, cluster)
    eventually(lambda: committed(member), "the group does not commit", 60, cluster)
    seen = member.leave()
    assert consumed() == wanted
    assert_in_order(seen)


def committed(member: Member) -> bool:
    """Kafka refuses a commit while a group rebalances; a client then polls and tries again."""
    try:
        member.commit()
    except Refused:
        return False
    return True


def assert_in_order(seen: list[Stored]) -> None:
    """A group that moves may go back to its committed offsets, here the start, but never leaves records out."""
    position: dict[int, int] = {}
    for stored in seen:
        due = position.get(stored.partition, 0)
        assert stored.offset in (due, 0), f"partition {stored.partition} jumps from {due} to {stored.offset}"
        position[stored.partition] = stored.offset + 1


def test_a_client_survives_the_death_of_every_broker_in_turn(client: Client, three: Cluster) -> None:
    survive(client, three, rounds=1)


@pytest.mark.xdist_group("librdkafka")
def test_acked_records_outlive_the_crash_of_every_process_at_once(
    tmp_path: Path, clients: Callable[[str], Client]
) -> None:
    client = clients("librdkafka")
    with serving(tmp_path, brokers=2) as cluster:
        acks = produce(client, cluster.bootstrap, "kept", [Record(value=b"%d" % i) for i in range(1000)])
        member = Member(client, cluster.bootstrap, "readers", ["kept"])
        eventually(lambda: len(member.seen) == 1000, "everything is read")
        member.commit()
        member.leave()
        cluster.crash()
    with serving(tmp_path, brokers=2) as cluster:
        found = read(client, cluster.bootstrap, {("kept", 0): 0}, 1000)
        assert [Ack(stored.partition, stored.offset) for stored in found] == acks
        produce(client, cluster.bootstrap, "kept", [Record(value=b"later")])
        member = Member(client, cluster.bootstrap, "readers", ["kept"])
        eventually(lambda: member.seen, "the group goes on")
        assert [stored.offset for stored in member.leave()] == [1000]


@pytest.mark.long
def test_a_client_survives_many_deaths(client: Client, three: Cluster) -> None:
    survive(client, three, rounds=6)

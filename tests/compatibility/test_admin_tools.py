"""Kafka's own command-line tools: what they print about a cluster of ours."""

import json
import subprocess
from collections.abc import Callable
from typing import Final

import pytest

from bench.kafka import resolve
from tests.compatibility.clients.face import Client, Record, produce
from tests.compatibility.clients.java import FLAGS
from tests.compatibility.conftest import Clients, TopicMaker

pytestmark = [pytest.mark.xdist_group("tools"), pytest.mark.needs("java", "mvn")]

LIMIT_S: Final = 60.0

Tool = Callable[..., str]


@pytest.fixture
def tool(bootstrap: str) -> Tool:
    """Runs the class of a tool, and returns all that it printed."""

    def run(name: str, *words: str) -> str:
        program = ["java", *FLAGS, "-cp", f"{resolve()}/*", name, "--bootstrap-server", bootstrap, *words]
        done = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        return done.stdout + done.stderr

    return run


@pytest.fixture
def client(clients: Clients) -> Client:
    return clients("librdkafka")


def test_features_shows_the_level_of_the_cluster(tool: Tool) -> None:
    words = tool("org.apache.kafka.tools.FeatureCommand", "describe").split()
    shown = dict(zip(words[::2], words[1::2], strict=True))
    assert shown["Feature:"] == "lakestream.level" and shown["SupportedMinVersion:"] == "1"
    assert 1 <= int(shown["FinalizedVersionLevel:"]) <= int(shown["SupportedMaxVersion:"])


def test_topics_describes_partitions_without_a_word_of_reassignments(tool: Tool, make_topic: TopicMaker) -> None:
    topic = make_topic(partitions=2)
    lines = tool("org.apache.kafka.tools.TopicCommand", "--describe", "--topic", topic).splitlines()
    assert len(lines) == 3 and "PartitionCount: 2" in lines[0]
    assert all("Elr: \t" in line for line in lines[1:]), "the answer is that of DescribeTopicPartitions"
    assert tool("org.apache.kafka.tools.TopicCommand", "--describe", "--under-replicated-partitions") == ""
    assert tool("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", "--list").split()[0] == "No"


def test_log_dirs_shows_the_bytes_of_a_topic_once(
    tool: Tool, client: Client, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic = make_topic(partitions=3)
    produce(client, bootstrap, topic, [Record(value=b"v" * 500, partition=i) for i in range(3)])
    printed = tool("org.apache.kafka.tools.LogDirsCommand", "--describe", "--topic-list", topic)
    folders = [folder for broker in json.loads(printed.splitlines()[-1])["brokers"] for folder in broker["logDirs"]]
    sizes = {one["partition"]: one["size"] for folder in folders for one in folder["partitions"]}
    assert sorted(sizes) == [f"{topic}-{i}" for i in range(3)] and all(500 < size < 1000 for size in sizes.values())


def test_transactions_describes_the_producers_of_a_partition(
    tool: Tool, client: Client, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic = make_topic()
    producer = client.producer(bootstrap, {"enable.idempotence": True})
    for value in (b"a", b"b", b"c"):
        producer.send(topic, Record(value=value))
    producer.finish()
    head, row = tool(
        "org.apache.kafka.tools.TransactionsCommand", "describe-producers", "--topic", topic, "--partition", "0"
    ).splitlines()
    shown = dict(zip(head.split(), row.split(), strict=True))
    assert (shown["ProducerEpoch"], shown["LastSequence"]) == ("0", "2")
    assert shown["CurrentTransactionStartOffset"] == "None"


def test_configs_and_client_metrics_find_nothing_where_there_is_nothing(tool: Tool) -> None:
    assert tool("org.apache.kafka.tools.ClientMetricsCommand", "--list").strip() == ""
    assert tool("kafka.admin.ConfigCommand", "--describe", "--entity-type", "client-metrics") == ""
    assert tool("kafka.admin.ConfigCommand", "--describe", "--entity-type", "clients") == ""
    assert tool("kafka.admin.ConfigCommand", "--describe", "--entity-type", "clients", "--entity-name", "c") == ""


def test_acls_says_that_there_is_no_authorizer(tool: Tool) -> None:
    assert "No Authorizer is configured" in tool("org.apache.kafka.tools.AclCommand", "--list")


def test_a_tool_for_what_is_not_supported_says_so(tool: Tool) -> None:
    printed = tool("org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--status")
    assert "does not support DESCRIBE_QUORUM" in printed

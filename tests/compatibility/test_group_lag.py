"""The lag of a group, as a scrape of the brokers shows it: a client produces, commits, and produces on."""

import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from tests.support.acked_workload import create_topic
from tests.support.serve_process import Cluster, eventually, serving

ROUNDS_S = 40.0
"""Two rounds of measuring, and some."""


def lags(cluster: Cluster) -> dict[tuple[str, str], float]:
    found = {}
    for address in cluster.http:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            if family.name == "lakestream_group_lag_records":
                found |= {(one.labels["group"], one.labels["topic"]): one.value for one in family.samples}
    return found


@pytest.mark.long
def test_a_scrape_shows_how_far_a_group_is_behind(tmp_path: Path) -> None:
    with serving(tmp_path, brokers=2) as cluster:
        create_topic(cluster.bootstrap, "t", 2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for number in range(20):
            producer.produce("t", b"x", partition=number % 2)
        assert producer.flush(20) == 0
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": 'a "group"\n'})
        consumer.commit(offsets=[TopicPartition("t", 0, 3), TopicPartition("t", 1, 10)], asynchronous=False)
        eventually(lambda: lags(cluster) == {('a "group"\n', "t"): 7}, "the lag is not shown", ROUNDS_S)
        consumer.commit(offsets=[TopicPartition("t", 0, 10)], asynchronous=False)
        eventually(lambda: lags(cluster) == {('a "group"\n', "t"): 0}, "the lag does not go", ROUNDS_S)
        consumer.close()

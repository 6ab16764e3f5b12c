"""Brokers on an S3 server: killed, turned away, and answered late or never, without losing or doubling a record."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.acked_workload import Ledger, create_topic, producing
from tests.support.s3_server import BUCKET, s3_server
from tests.support.serve_process import Cluster, eventually, serving
from tests.support.slow_s3 import Door, throttled

# The S3 server is started once for the module, by one test process.
pytestmark = pytest.mark.xdist_group("object store faults")

SETTINGS = {"broker_session_ms": 3000, "broker_heartbeat_ms": 500, "linger_ms": 20}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with (
        s3_server(tmp_path_factory.mktemp("s3")) as server,
        throttled(server.endpoint) as door,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("AWS_ENDPOINT_URL", door.endpoint)
        environment.setenv("AWS_ACCESS_KEY_ID", server.access_key_id)
        environment.setenv("AWS_SECRET_ACCESS_KEY", server.secret_access_key)
        environment.setenv("AWS_REGION", "us-east-1")
        yield door


@pytest.fixture(autouse=True)
def wide_open(door: Door) -> Iterator[None]:
    yield
    door.refuse = door.lose_answers = door.delay_s = 0.0


def place(folder: Path) -> str:
    return f"s3://{BUCKET}/{folder.name}"


def loaded(cluster: Cluster) -> Ledger:
    create_topic(cluster.bootstrap, "load", 6)
    return Ledger("load")


def test_kill_9_of_brokers_on_an_object_store_loses_and_doubles_nothing(door: Door, tmp_path: Path) -> None:
    with serving(tmp_path, brokers=2, data=place(tmp_path), **SETTINGS) as cluster:
        ledger = loaded(cluster)
        with producing(cluster.kafka, ledger, burst=5):
            for broker in range(2):
                time.sleep(1.5)
                pid = cluster.kill(broker)
                cluster.await_broker(broker, not_pid=pid)
        assert ledger.check(cluster.bootstrap) > 200
        cluster.crash()
    with serving(tmp_path, data=place(tmp_path), **SETTINGS) as cluster:
        ledger.check(cluster.bootstrap)


def test_a_throttled_object_store_slows_producers_and_loses_nothing(door: Door, tmp_path: Path) -> None:
    with serving(tmp_path, data=place(tmp_path), **SETTINGS) as cluster:
        ledger = loaded(cluster)
        with producing(cluster.kafka, ledger, burst=5):
            door.refuse = 0.5
            before = len(ledger.acked)
            eventually(
                lambda: len(ledger.acked) > before + 100 and door.turned_away > 5, "half is not enough", 40, cluster
            )
            # For some seconds nobody gets in: what is under way fails with a retriable error, then all goes on.
            door.refuse = 1.0
            time.sleep(3.0)
            door.refuse = 0.0
            before = len(ledger.acked)
            eventually(lambda: len(ledger.acked) > before + 100, "it does not recover by itself", 40, cluster)
        ledger.check(cluster.bootstrap)


def test_lost_answers_of_an_object_store_double_nothing(door: Door, tmp_path: Path) -> None:
    """L21: a put whose answer was lost is found to be there already, and is compared."""
    with serving(tmp_path, data=place(tmp_path), **SETTINGS) as cluster:
        ledger = loaded(cluster)
        with producing(cluster.kafka, ledger, burst=5):
            door.lose_answers = 0.2
            eventually(lambda: door.lost > 10 and len(ledger.acked) > 300, "it does not go on", 40, cluster)
            door.lose_answers = 0.0
        ledger.check(cluster.bootstrap)

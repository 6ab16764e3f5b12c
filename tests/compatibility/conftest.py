"""What the compatibility tests share: a cluster, topics with names of their own, and each client library in turn."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compatibility.clients.aio import Aiokafka
from tests.compatibility.clients.face import Client
from tests.compatibility.clients.java import TOOLS, Java
from tests.compatibility.clients.kafka_python import KafkaPython
from tests.compatibility.clients.librdkafka import Librdkafka
from tests.support.serve_process import Cluster, serving

CLIENTS: dict[str, Callable[[], Client]] = {
    "librdkafka": Librdkafka,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
    "java": Java,
}
Clients = Callable[[str], Client]


def params() -> list[Any]:
    """Every client; the tests of one of them stay in one test process, so that they share its cluster."""
    marks = {name: [pytest.mark.xdist_group(name)] for name in CLIENTS}
    marks["java"].append(pytest.mark.needs(*TOOLS))
    return [pytest.param(name, marks=marks[name], id=name) for name in CLIENTS]


class TopicMaker(Protocol):
    def __call__(self, partitions: int = 1, configs: dict[str, str] | None = None) -> str: ...


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    quick = {"group_min_session_timeout_ms": 500, "log_retention_check_interval_ms": 500}
    with serving(tmp_path_factory.mktemp("cluster"), brokers=2, **quick) as running:
        yield running


@pytest.fixture(scope="session")
def bootstrap(cluster: Cluster) -> str:
    return cluster.bootstrap


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


_names = itertools.count()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """A fresh name for a topic or a group, which says whose it is."""
    test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:60].strip("-")
    return lambda: f"{test}-{next(_names)}"


@pytest.fixture
def make_topic(admin: AdminClient, name: Callable[[], str]) -> TopicMaker:
    def make(partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        topic = name()
        created = admin.create_topics([NewTopic(topic, partitions, 1, config=configs or {})])
        created[topic].result(30)
        return topic

    return make


@pytest.fixture(scope="session")
def clients() -> Iterator[Clients]:
    """Any client by its name; opened once a test process."""
    opened: dict[str, Client] = {}

    def one(name: str) -> Client:
        if name not in opened:
            opened[name] = CLIENTS[name]()
        return opened[name]

    yield one
    for client in opened.values():
        client.close()


@pytest.fixture(params=params())
def client(request: pytest.FixtureRequest, clients: Clients) -> Client:
    return clients(request.param)

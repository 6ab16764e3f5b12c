"""The same conversations with a real Apache Kafka and with a live broker: the answers are the same, field by field.

What may differ is listed with its reason in differential/departures.py, and said in docs/COMPATIBILITY.md.
"""

import inspect
from collections.abc import Iterator

import pytest

from bench.kafka import Kafka
from tests.compatibility.differential.compare import differences
from tests.compatibility.differential.conversations import (
    admin,
    configs,
    fetch,
    group_offsets,
    groups,
    metadata,
    produce,
    topics,
)
from tests.compatibility.differential.departures import DEPARTURES, USED
from tests.compatibility.differential.peer import BY_NAME, Talk, talking
from tests.support.places import ROOT
from tests.support.serve_process import serving

PROPERTIES = {
    "node.id": "0", "group.initial.rebalance.delay.ms": "0", "log.segment.delete.delay.ms": None,
    "log.initial.task.delay.ms": "3600000", "log.cleaner.backoff.ms": "3600000",
    "group.min.session.timeout.ms": str(groups.SHORTEST_MS),
}  # fmt: skip
"""What Kafka has to have alike: our first broker is 0, our groups do not wait, a topic's configs are the defaults, and
no retention deletes the old records of a conversation while it goes on: of topics that are compacted and deleted the
log cleaner does, every 15 seconds by default."""
HEAP = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
MODULES = (metadata, produce, fetch, topics, configs, groups, group_offsets, admin)
CONVERSATIONS = {
    f"{module.__name__.rpartition('.')[2]}-{one.__name__}": one for module in MODULES for one in module.CONVERSATIONS
}
PAGE = ROOT / "docs" / "COMPATIBILITY.md"

Addresses = tuple[str, str]
_held: set[str] = set()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """Ours and Kafka's, with all that they make only when somebody first asks for it."""
    kafka = Kafka(tmp_path_factory.mktemp("kafka") / "node", PROPERTIES, HEAP, core=None)
    try:
        kafka.start()
        with serving(tmp_path_factory.mktemp("ours"), group_min_session_timeout_ms=groups.SHORTEST_MS) as ours:
            addresses = ours.bootstrap, kafka.bootstrap
            for address in addresses:
                with talking(address, "warm") as talk:
                    _warm(talk)
            yield addresses
    finally:
        kafka.stop()


def _warm(talk: Talk) -> None:
    def coordinates() -> bool:
        (found,) = talk.quietly("FindCoordinator", coordinator_keys=["warm"]).coordinators
        return found.error_code.value == 0 and talk.quietly("OffsetFetch", 7, group_id="warm").error_code.value == 0

    talk.until(coordinates)
    talk.until(lambda: talk.quietly("InitProducerId", transaction_timeout=1000).error_code.value == 0)


@pytest.mark.needs("java", "mvn")
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_answers_are_those_of_kafka(name: str, brokers: Addresses) -> None:
    transcripts = []
    for address in brokers:
        with talking(address, name) as talk:
            CONVERSATIONS[name](talk)
            transcripts.append(talk.transcript)
    found = differences(*transcripts)
    assert not found, "\n".join(found)
    _held.add(name)


@pytest.mark.needs("java", "mvn")
def test_every_departure_is_needed() -> None:
    if len(_held) < len(CONVERSATIONS):
        pytest.skip("known only when all conversations were held")
    assert [one for one in DEPARTURES if one not in USED] == []


def test_the_comparer_sees_other_codes_swapped_ids_and_missing_texts() -> None:
    kafkas = [("Metadata", {"error_code": "NONE", "topic_id": "k1"}), ("Metadata", {"topic_id": "k1"})]
    assert differences([(label, {**answer, "topic_id": "o"}) for label, answer in kafkas], kafkas) == []
    for second in ({"topic_id": "o2"}, {"topic_id": None}, {"topic_id": "o1", "error_code": "NONE"}):
        ours = [("Metadata", {"error_code": "NONE", "topic_id": "o1"}), ("Metadata", second)]
        assert len(differences(ours, kafkas)) == 1
    said, silent = [("Produce", {"error_message": "words"})], [("Produce", {"error_message": None})]
    assert (len(differences(said, silent)), len(differences(silent, said))) == (0, 1)


def test_every_api_is_asked() -> None:
    text = "".join(inspect.getsource(module) for module in MODULES)
    assert [name for name in BY_NAME if f'"{name}"' not in text] == []


def test_the_page_says_every_departure() -> None:
    page = " ".join(PAGE.read_text().split())
    assert [one.reason for one in DEPARTURES if one.reason not in page] == []

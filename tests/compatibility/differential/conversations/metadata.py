"""ApiVersions, Metadata, DescribeCluster, FindCoordinator, and the frames around all of them."""

import struct
from typing import Any

from tests.compatibility.differential.peer import BY_NAME, NO_SUCH_ID, Closed, Talk, versions

ILLEGAL_NAMES = ("", ".", "..", "a b", "a/b", "ä", "x" * 250)


def api_versions(talk: Talk) -> None:
    talk.each("ApiVersions", client_software_name="differ", client_software_version="1.0")
    for name, version in (("", "1"), ("a", ""), ("-a", "1"), ("a b", "1"), ("ä", "1"), ("a-", "1"), ("a.b-c", "1.0-x")):
        talk.ask("ApiVersions", 3, f"{name!r} {version!r}", client_software_name=name, client_software_version=version)


def api_versions_of_unknown_versions(talk: Talk) -> None:
    """Answered in version 0, the body unread."""
    for version in (5, 99, 32767, -1):
        talk.connection.send_frame(struct.pack(">hhihb", 18, version, 7, -1, 0))
        header, answer = talk.connection.receive(BY_NAME["ApiVersions"], 0)
        talk.note(f"ApiVersions v{version}", [header.correlation_id, str(answer)])
    talk.ask("ApiVersions", 0)


def unknown_apis_and_versions(talk: Talk) -> None:
    for key, version in ((999, 0), (-1, 0), (3, 99), (3, -1), (1, 3), (0, 2), (0, 14), (19, 1), (8, 1), (18, 0)):
        connection = talk.connect()
        connection.send_frame(struct.pack(">hhih", key, version, 7, -1))
        try:
            talk.note(f"key {key} version {version}", len(connection.receive_frame()) > 0)
        except Closed:
            talk.note(f"key {key} version {version}", "closed")


def metadata(talk: Talk) -> None:
    one, other = talk.topic(), talk.topic(partitions=3)
    talk.each("Metadata", "some", topics=[{"name": one.name}, {"name": other.name}, {"name": one.name}])
    for version in (1, 4, 13):
        talk.ask("Metadata", version, "none", topics=[])
        talk.ask("Metadata", version, "all", topics=None)
    talk.ask("Metadata", 0, "all", topics=[])
    for version in (8, 10):
        talk.ask(
            "Metadata", version, "operations", topics=[{"name": one.name}], include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )  # fmt: skip


def metadata_by_id(talk: Talk) -> None:
    one = talk.topic()
    for version in (12, 13):
        topics = [{"topic_id": one.id, "name": None}, {"topic_id": NO_SUCH_ID, "name": None}]
        talk.ask("Metadata", version, "by id", topics=topics)
        talk.ask("Metadata", version, "id and name", topics=[{"topic_id": one.id, "name": one.name}])
        talk.ask("Metadata", version, "id and wrong name", topics=[{"topic_id": one.id, "name": "wrong"}])
        talk.ask("Metadata", version, "unknown id with name", topics=[{"topic_id": NO_SUCH_ID, "name": one.name}])
        talk.ask("Metadata", version, "neither", topics=[{"topic_id": None, "name": None}])
        talk.ask("Metadata", version, "mixed", topics=[{"topic_id": one.id, "name": None}, {"name": one.name}])
    talk.ask("Metadata", 10, "id too early", topics=[{"topic_id": one.id, "name": one.name}])
    talk.ask("Metadata", 11, "null name", topics=[{"topic_id": None, "name": None}])


def metadata_of_unknown_topics(talk: Talk) -> None:
    for version in (4, 9, 13):
        talk.ask("Metadata", version, topics=[{"name": talk.fresh()}], allow_auto_topic_creation=False)
    for name in ILLEGAL_NAMES:
        for allowed in (False, True):
            note = f"{name!r:.10} create={allowed}"
            talk.ask("Metadata", 13, note, topics=[{"name": name}], allow_auto_topic_creation=allowed)
            talk.ask("Metadata", 1, note, topics=[{"name": name}])


def metadata_that_makes_topics(talk: Talk) -> None:
    for version in versions("Metadata"):
        name = talk.fresh()
        talk.ask("Metadata", version, "making", topics=[{"name": name}], allow_auto_topic_creation=True)
        asked = [{"name": name, "partitions": [{"timestamp": -1}]}]
        talk.until(lambda asked=asked: not _errors(talk.quietly("ListOffsets", topics=asked, replica_id=-1)))
        talk.ask("Metadata", version, "made", topics=[{"name": name}], allow_auto_topic_creation=False)
    name = f"{talk.fresh()}.with.dots"
    talk.topic(name=name)
    talk.ask("Metadata", 13, "colliding", topics=[{"name": name.replace(".", "_")}], allow_auto_topic_creation=True)


def _errors(listed: Any) -> bool:
    return any(one.error_code.value for one in listed.topics[0].partitions)


def describe_cluster(talk: Talk) -> None:
    talk.each("DescribeCluster", endpoint_type=1)
    talk.each("DescribeCluster", "operations", endpoint_type=1, include_cluster_authorized_operations=True)
    talk.ask("DescribeCluster", 1, "controllers", endpoint_type=2)
    talk.ask("DescribeCluster", 2, "no such type", endpoint_type=7)
    talk.ask("DescribeCluster", 2, "fenced too", endpoint_type=1, include_fenced_brokers=True)


def find_coordinator(talk: Talk) -> None:
    group = talk.fresh()
    talk.each("FindCoordinator", "group", key=group, coordinator_keys=[group], key_type=0)
    talk.each("FindCoordinator", "empty key", key="", coordinator_keys=[""], key_type=0)
    talk.ask("FindCoordinator", 6, "several", coordinator_keys=[group, "other", group], key_type=0)
    talk.ask("FindCoordinator", 6, "none", coordinator_keys=[], key_type=0)
    for version in (1, 3, 4, 6):
        talk.ask("FindCoordinator", version, "transaction", key="t", coordinator_keys=["t"], key_type=1)
        talk.ask("FindCoordinator", version, "unknown type", key="t", coordinator_keys=["t"], key_type=7)
        talk.ask("FindCoordinator", version, "share", key="t", coordinator_keys=["t"], key_type=2)


def pipelined_requests(talk: Talk) -> None:
    """Answered in order, whatever each of them waits for."""
    topic, api = talk.topic(), BY_NAME["Metadata"]
    fetch = {"max_wait": 300, "min_bytes": 1, "topics": [{**topic.ref, "partitions": [{"partition_max_bytes": 1000}]}]}
    connection = talk.connect()
    connection.send(BY_NAME["Fetch"], 18, fetch)
    for version in range(api.min_version, api.max_version + 1):
        connection.send(api, version, {"topics": [{"name": topic.name}]})
    header, answer = connection.receive(BY_NAME["Fetch"], 18)
    talk.note("the fetch", [header.correlation_id, answer.error_code.name])
    for version in range(api.min_version, api.max_version + 1):
        header, answer = connection.receive(api, version)
        talk.note(f"metadata {version}", [header.correlation_id, answer.topics[0].error_code.name])


def headers(talk: Talk) -> None:
    """Client ids of all kinds, and tagged fields that nobody knows, in the header and in the body."""
    api = BY_NAME["Metadata"]
    for version in (0, 8, 9, 13):
        for client_id in (None, "", "x" * 1000, "ä"):
            talk.connection.send(api, version, {"topics": []}, client_id)
            header, answer = talk.connection.receive(api, version)
            talk.note(f"version {version}, client {client_id!r:.10}", len(answer.brokers))
    tagged = b"\x01\x2a\x03abc"
    head = struct.pack(">hhih", 3, 12, 7, -1)
    for note, frame in (
        ("tag in the header", head + tagged + b"\x01\x00\x00\x00"),
        ("tag in the body", head + b"\x00\x01\x00\x00" + tagged),
        ("bytes behind the body", head + b"\x00\x01\x00\x00\x00" + b"more"),
    ):
        talk.connection.send_frame(frame)
        header, answer = talk.connection.receive(api, 12)
        talk.note(note, [header.correlation_id, len(answer.brokers), len(answer.topics)])


def malformed_requests(talk: Talk) -> None:
    """The connection ends."""
    head = struct.pack(">hhih", 3, 12, 7, -1)
    for note, frame in (
        ("nothing", b""),
        ("half a header", head[:5]),
        ("no body", head),
        ("an array beyond the frame", head + b"\x00\x7f"),
        ("a client id beyond the frame", struct.pack(">hhih", 3, 12, 7, 500) + b"abc"),
    ):
        connection = talk.connect()
        connection.send_frame(frame)
        try:
            talk.note(note, len(connection.receive_frame()))
        except Closed:
            talk.note(note, "closed")


CONVERSATIONS = (
    api_versions, api_versions_of_unknown_versions, unknown_apis_and_versions, metadata, metadata_by_id,
    metadata_of_unknown_topics, metadata_that_makes_topics, describe_cluster, find_coordinator, pipelined_requests,
    headers, malformed_requests,
)  # fmt: skip

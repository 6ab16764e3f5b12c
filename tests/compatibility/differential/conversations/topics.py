"""CreateTopics, DeleteTopics, CreatePartitions."""

from typing import Any

from tests.compatibility.differential.conversations.metadata import ILLEGAL_NAMES
from tests.compatibility.differential.peer import NO_SUCH_ID, Talk, versions


def new(name: str, partitions: int = 1, replicas: int = 1, **configs: str | None) -> dict[str, Any]:
    given = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, "configs": given}


def assigned(name: str, *brokers: list[int], partitions: int = -1, replicas: int = -1) -> dict[str, Any]:
    given = [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(brokers)]
    return {**new(name, partitions, replicas), "assignments": given}


def create(talk: Talk, note: str, *topics: dict[str, Any], version: int = -1, validate_only: bool = False) -> None:
    talk.ask("CreateTopics", version, note, topics=list(topics), timeout=10000, validate_only=validate_only)


def creating(talk: Talk) -> None:
    for version in versions("CreateTopics"):
        name = talk.fresh()
        create(talk, "only looked at", new(name, 3), version=version, validate_only=True)
        create(talk, "made", new(name, 3), version=version)
        create(talk, "again", new(name, 3), version=version)
        create(talk, "again, only looked at", new(name, 3), version=version, validate_only=True)
        create(talk, "nothing", version=version)
        create(talk, "with a config", new(talk.fresh(), retention_ms="1000"), version=version)
        create(talk, "partitions 0", new(talk.fresh(), 0), version=version)
        create(talk, "partitions -2", new(talk.fresh(), -2), version=version)
        create(talk, "replicas 0", new(talk.fresh(), 1, 0), version=version)
        create(talk, "replicas -2", new(talk.fresh(), 1, -2), version=version)
        twice = talk.fresh()
        create(talk, "twice", new(twice), new(twice, 2), new(talk.fresh()), version=version)
        for illegal in ILLEGAL_NAMES:
            create(talk, f"{illegal!r:.10}", new(illegal), version=version)
    for version in (4, 7):
        create(talk, "defaults", new(talk.fresh(), -1, -1), version=version)
    dots = f"{talk.fresh()}.a"
    create(talk, "dots", new(dots))
    create(talk, "colliding", new(dots.replace(".", "_")))
    create(talk, "colliding with each other", new(dots.replace("-", ".")), new(dots.replace("-", "_")))
    create(talk, "many replicas", new(talk.fresh(), 1, 3))


def creating_with_configs(talk: Talk) -> None:
    for configs in (
        {"retention_ms": "x"}, {"retention_ms": "-2"}, {"retention_ms": None}, {"no_such_config": "1"},
        {"cleanup_policy": "delete,compact"}, {"cleanup_policy": "nonsense"}, {"cleanup_policy": ""},
        {"compression_type": "zstd"}, {"compression_type": "best"}, {"max_message_bytes": "-1"},
        {"max_message_bytes": "99999999999"}, {"message_timestamp_type": "Never"}, {"preallocate": "maybe"},
        {"preallocate": "TRUE"}, {"retention_ms": " 5 "}, {"min_cleanable_dirty_ratio": "2"}, {"segment_bytes": "1"},
        {"segment_bytes": "2097152"}, {"min_insync_replicas": "0"}, {"segment_ms": "0"}, {"flush_messages": "0"},
        {"message_format_version": "3.0"}, {"remote_storage_enable": "true"}, {"local_retention_ms": "-2"},
        {"min_compaction_lag_ms": "9", "max_compaction_lag_ms": "5"}, {"leader_replication_throttled_replicas": "*"},
        {"leader_replication_throttled_replicas": "x"}, {"compression_gzip_level": "99"}, {"cleanup_policy": "none"},
        {"message_timestamp_before_max_ms": "-1"}, {"unclean_leader_election_enable": ""},
    ):  # fmt: skip
        create(talk, str(configs), new(talk.fresh(), **configs))
    doubled = new(talk.fresh(), retention_ms="5")
    doubled["configs"].append({"name": "retention.ms", "value": "6"})
    create(talk, "a config twice", doubled)


def creating_with_assignments(talk: Talk) -> None:
    create(talk, "one", assigned(talk.fresh(), [0]))
    create(talk, "three", assigned(talk.fresh(), [0], [0], [0]))
    create(talk, "and partitions", assigned(talk.fresh(), [0], partitions=1))
    create(talk, "and replicas", assigned(talk.fresh(), [0], replicas=1))
    create(talk, "a broker twice", assigned(talk.fresh(), [0, 0]))
    create(talk, "nobody", assigned(talk.fresh(), []))
    create(talk, "different numbers", assigned(talk.fresh(), [0], []))
    create(talk, "a negative broker", assigned(talk.fresh(), [-1]))
    for indexes in ((1,), (0, 2), (0, 0), (-1,)):
        odd = assigned(talk.fresh(), *[[0]] * len(indexes))
        for one, index in zip(odd["assignments"], indexes, strict=True):
            one["partition_index"] = index
        create(talk, f"partitions {indexes}", odd)


def deleting(talk: Talk) -> None:
    for version in versions("DeleteTopics"):
        one, other = talk.topic(), talk.topic()
        names = {"both": [one.name, other.name, "nowhere"], "gone": [one.name], "twice": ["nowhere", "nowhere"]}
        names |= {"illegal": ["a b"], "empty name": [""], "nothing": []}
        for note, given in names.items():
            topics = [{"name": name} for name in given]
            talk.ask("DeleteTopics", version, note, topic_names=given, topics=topics, timeout=10000)
            talk.settle()
    one, other = talk.topic(), talk.topic()
    for note, asked in {
        "id and name": [{"name": one.name, "topic_id": one.id}],
        "neither": [{"name": None, "topic_id": None}],
        "unknown id": [{"name": None, "topic_id": NO_SUCH_ID}],
        "unknown id twice": [{"name": None, "topic_id": NO_SUCH_ID}] * 2,
        "the same by id and by name": [{"name": None, "topic_id": one.id}, {"name": one.name}],
        "by id": [{"name": None, "topic_id": other.id}],
    }.items():
        talk.ask("DeleteTopics", 6, note, topics=asked, timeout=10000)
    talk.settle()
    talk.ask("Metadata", 12, "after", topics=[{"name": one.name}], allow_auto_topic_creation=False)


def growing(talk: Talk) -> None:
    for version in versions("CreatePartitions"):
        topic = talk.topic(partitions=2)

        def ask(note: str, *counts: int, name: str = topic.name, version: int = version, **more: Any) -> None:
            asked = [{"name": name, "count": count, "assignments": None, **more} for count in counts]
            talk.ask("CreatePartitions", version, note, topics=asked, timeout=10000, validate_only="looked" in note)

        ask("looked at", 4)
        ask("more", 3)
        talk.settle()
        ask("same", 3)
        ask("fewer", 2)
        ask("none", 0)
        ask("negative", -1)
        ask("twice", 4, 5)
        ask("unknown", 3, name="nowhere")
        ask("illegal", 3, name="a b")
        ask("nothing")
        ask("one assignment", 4, assignments=[{"broker_ids": [0]}])
        talk.settle()
        ask("too few assignments", 6, assignments=[{"broker_ids": [0]}])
        ask("too many assignments", 5, assignments=[{"broker_ids": [0]}, {"broker_ids": [0]}])
        ask("no assignments", 5, assignments=[])
        ask("nobody assigned", 5, assignments=[{"broker_ids": []}])
        ask("a broker twice", 5, assignments=[{"broker_ids": [0, 0]}])
        ask("other numbers", 6, assignments=[{"broker_ids": [0]}, {"broker_ids": []}])
        talk.ask("Metadata", 12, "after", topics=[{"name": topic.name}])


CONVERSATIONS = (creating, creating_with_configs, creating_with_assignments, deleting, growing)

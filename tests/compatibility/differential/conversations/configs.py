"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from typing import Any

from tests.compatibility.differential.peer import Talk, versions

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def describe(talk: Talk, note: str, *resources: tuple[int, str], version: int = -1, **more: Any) -> None:
    keys = more.pop("keys", None)
    asked = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name in resources]
    talk.ask("DescribeConfigs", version, note, resources=asked, **more)


def describing_topics(talk: Talk) -> None:
    topic = talk.topic(retention_ms=5000, cleanup_policy="compact")
    for version in versions("DescribeConfigs"):
        describe(talk, "all", (TOPIC, topic.name), version=version)
        describe(talk, "synonyms", (TOPIC, topic.name), version=version, include_synonyms=True)
        describe(talk, "documentation", (TOPIC, topic.name), version=version, include_documentation=True)
        some = ["retention.ms", "max.message.bytes", "no.such"]
        describe(talk, "some", (TOPIC, topic.name), version=version, keys=some)
        describe(talk, "no names", (TOPIC, topic.name), version=version, keys=[])
        describe(talk, "unknown topic", (TOPIC, "nowhere"), version=version)
        describe(talk, "empty topic", (TOPIC, ""), version=version)
        describe(talk, "illegal topic", (TOPIC, "a b"), version=version)
        describe(talk, "twice", (TOPIC, topic.name), (TOPIC, topic.name), version=version, keys=["retention.ms"])
        describe(talk, "nothing", version=version)


def describing_others(talk: Talk) -> None:
    keys = ["num.partitions", "message.max.bytes", "no.such", "log.message.timestamp.type"]
    for version in versions("DescribeConfigs"):
        describe(talk, "a broker", (BROKER, "0"), version=version, keys=keys, include_synonyms=True)
        describe(talk, "another broker", (BROKER, "7"), version=version)
        describe(talk, "no broker", (BROKER, "x"), version=version)
        describe(talk, "all brokers", (BROKER, ""), version=version)
        for kind in (0, 1, 3, 99):
            describe(talk, f"kind {kind}", (kind, "x"), version=version)


def alter(talk: Talk, note: str, name: str, *changes: tuple[str, int, str | None], **more: Any) -> None:
    configs = [{"name": key, "config_operation": how, "value": value} for key, how, value in changes]
    resource = {"resource_type": more.pop("kind", TOPIC), "resource_name": name, "configs": configs}
    version = more.pop("version", -1)
    talk.ask("IncrementalAlterConfigs", version, note, resources=[resource] * more.pop("times", 1), **more)


def altering_topics(talk: Talk) -> None:
    for version in versions("IncrementalAlterConfigs"):
        topic = talk.topic(retention_ms=5000)
        for note, *changes in (
            ("set", ("retention.ms", SET, "6000")),
            ("delete", ("retention.ms", DELETE, None)),
            ("delete what is not set", ("retention.ms", DELETE, None)),
            ("delete with a value", ("retention.ms", DELETE, "7")),
            ("append", ("cleanup.policy", APPEND, "compact")),
            ("append again", ("cleanup.policy", APPEND, "compact")),
            ("subtract", ("cleanup.policy", SUBTRACT, "compact")),
            ("subtract the last", ("cleanup.policy", SUBTRACT, "delete")),
            ("subtract what is not there", ("cleanup.policy", SUBTRACT, "compact")),
            ("append nonsense", ("cleanup.policy", APPEND, "nonsense")),
            ("append to no list", ("retention.ms", APPEND, "5")),
            ("subtract from no list", ("retention.ms", SUBTRACT, "5")),
            ("unknown", ("no.such", SET, "1")),
            ("delete unknown", ("no.such", DELETE, None)),
            ("append to unknown", ("no.such", APPEND, "1")),
            ("invalid", ("retention.ms", SET, "x")),
            ("null", ("retention.ms", SET, None)),
            ("append null", ("cleanup.policy", APPEND, None)),
            ("operation 9", ("retention.ms", 9, "5")),
            ("twice", ("retention.ms", SET, "1"), ("retention.ms", SET, "2")),
            ("two", ("retention.ms", SET, "1"), ("segment.ms", SET, "2000")),
            ("one of two is wrong", ("retention.ms", SET, "9"), ("segment.ms", SET, "x")),
            ("nothing",),
        ):
            alter(talk, str(note), topic.name, *changes, version=version)  # type: ignore[arg-type]
        alter(talk, "only looked at", topic.name, ("retention.ms", SET, "77"), version=version, validate_only=True)
        alter(talk, "looked at, wrong", topic.name, ("retention.ms", SET, "x"), version=version, validate_only=True)
        alter(talk, "topic twice", topic.name, ("retention.ms", SET, "77"), version=version, times=2)
        alter(talk, "unknown topic", "nowhere", ("retention.ms", SET, "77"), version=version)
        alter(talk, "illegal topic", "a b", ("retention.ms", SET, "77"), version=version)
        alter(talk, "empty topic", "", ("retention.ms", SET, "77"), version=version)
        talk.settle()
        describe(talk, "after", (TOPIC, topic.name), keys=["retention.ms", "cleanup.policy", "segment.ms"])


def altering_others(talk: Talk) -> None:
    alter(talk, "kind 99", "x", ("a", SET, "1"), kind=99)
    alter(talk, "kind 0", "x", ("a", SET, "1"), kind=0)
    alter(talk, "no broker", "x", ("num.partitions", SET, "1"), kind=BROKER)
    alter(talk, "another broker", "7", ("message.max.bytes", SET, "2000000"), kind=BROKER)
    alter(talk, "all brokers, not a number", "", ("message.max.bytes", SET, "x"), kind=BROKER)
    alter(talk, "all brokers, only at start", "", ("default.replication.factor", SET, "1"), kind=BROKER)
    talk.ask("IncrementalAlterConfigs", -1, "nothing", resources=[])


def the_whole_cluster(talk: Talk) -> None:
    """A config that topics take over, set and unset again."""
    topic = talk.topic()
    for how, value in ((SET, "2000000"), (DELETE, None)):
        alter(talk, f"all brokers {value}", "", ("message.max.bytes", how, value), kind=BROKER)
        talk.settle()
        describe(talk, "topic", (TOPIC, topic.name), keys=["max.message.bytes"], include_synonyms=True)
        describe(talk, "all brokers", (BROKER, ""), include_synonyms=True)


def replace(talk: Talk, note: str, name: str, *configs: tuple[str, str | None], **more: Any) -> None:
    given = [{"name": key, "value": value} for key, value in configs]
    resource = {"resource_type": more.pop("kind", TOPIC), "resource_name": name, "configs": given}
    version = more.pop("version", -1)
    talk.ask("AlterConfigs", version, note, resources=[resource], **more)


def replacing_topics(talk: Talk) -> None:
    """But for a topic that is named twice, to which Kafka never answers."""
    keys = ["retention.ms", "cleanup.policy", "segment.ms"]
    for version in versions("AlterConfigs"):
        topic = talk.topic(retention_ms=5000)
        for note, *configs in (
            ("another", ("segment.ms", "6000")),
            ("two", ("retention.ms", "1"), ("segment.ms", "2000")),
            ("unknown", ("no.such", "1")),
            ("invalid", ("retention.ms", "x")),
            ("null", ("retention.ms", None)),
            ("twice", ("retention.ms", "1"), ("retention.ms", "2")),
            ("one of two is wrong", ("retention.ms", "9"), ("segment.ms", "x")),
        ):
            replace(talk, str(note), topic.name, *configs, version=version)  # type: ignore[arg-type]
            talk.settle()
            describe(talk, f"after {note}", (TOPIC, topic.name), keys=keys)
        replace(talk, "only looked at", topic.name, ("retention.ms", "77"), version=version, validate_only=True)
        replace(talk, "looked at, wrong", topic.name, ("retention.ms", "x"), version=version, validate_only=True)
        replace(talk, "unknown topic", "nowhere", ("retention.ms", "77"), version=version)
        replace(talk, "illegal topic", "a b", ("retention.ms", "77"), version=version)
        replace(talk, "empty topic", "", ("retention.ms", "77"), version=version)
        replace(talk, "nothing", topic.name, version=version)
        talk.settle()
        describe(talk, "after", (TOPIC, topic.name), keys=keys)


def replacing_others(talk: Talk) -> None:
    replace(talk, "kind 99", "x", ("a", "1"), kind=99)
    replace(talk, "kind 0", "x", ("a", "1"), kind=0)
    replace(talk, "no broker", "x", ("num.partitions", "1"), kind=BROKER)
    replace(talk, "another broker", "7", ("message.max.bytes", "2000000"), kind=BROKER)
    replace(talk, "all brokers, not a number", "", ("message.max.bytes", "x"), kind=BROKER)
    talk.ask("AlterConfigs", -1, "no resources", resources=[])


def listing(talk: Talk) -> None:
    """Topics come and go, so those of others are left out."""
    talk.ask("ListConfigResources", 0, "client metrics")
    for kinds in ([16], [32], [4], [16, 32, 4, 4], [0], [1], [3], [4, 99]):
        talk.ask("ListConfigResources", 1, f"kinds {kinds}", resource_types=kinds)
    topic = talk.topic()
    for kinds in ([2], []):
        listed = talk.quietly("ListConfigResources", 1, resource_types=kinds).config_resources
        found = [(one.resource_type, one.resource_name) for one in listed if one.resource_name in (topic.name, "0")]
        talk.note(f"ListConfigResources {kinds}", sorted(one for one in found if one[0] in (TOPIC, BROKER)))


CONVERSATIONS = (
    describing_topics, describing_others, altering_topics, altering_others, the_whole_cluster, replacing_topics,
    replacing_others, listing,
)  # fmt: skip

"""Topics: names, ids, partitions and configs."""

from typing import TYPE_CHECKING, Any

from lakestream.model.commands import AlterConfigs, CreatePartitions, CreateTopic, DeleteTopic
from lakestream.model.configs import CLUSTER_CONFIGS, TOPIC_CONFIGS, ConfigTable
from lakestream.model.members import Member
from lakestream.model.reasons import No, Reason
from lakestream.model.streams import Stream

if TYPE_CHECKING:
    from lakestream.model.state import State

LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
MAX_NAME = 249
MAX_PARTITIONS = 100_000
"""For one topic; a command that asks for more is refused rather than folded for minutes."""


class Topic:
    """One topic; `streams` has the stream id of each partition."""

    __slots__ = ("configs", "entries", "id", "name", "replication", "streams")

    def __init__(self, topic_id: bytes, name: str, replication: int, configs: dict[str, str]) -> None:
        self.id = topic_id
        self.name = name
        self.replication = replication
        self.configs = configs
        self.streams: list[int] = []
        self.entries = 0

    def __repr__(self) -> str:
        return f"<Topic {self.name} partitions={len(self.streams)}>"


class Topics:
    """All topics, and the configs of the whole cluster. `folded` has the names as catalogs without case see them."""

    __slots__ = ("by_id", "by_name", "configs", "folded")

    def __init__(self) -> None:
        self.by_id: dict[bytes, Topic] = {}
        self.by_name: dict[str, Topic] = {}
        self.folded: dict[str, str] = {}
        self.configs: dict[str, str] = {}

    def add(self, topic: Topic) -> None:
        self.by_id[topic.id] = self.by_name[topic.name] = topic
        self.folded[topic.name.lower()] = topic.name

    def remove(self, topic: Topic) -> None:
        del self.by_id[topic.id], self.by_name[topic.name], self.folded[topic.name.lower()]

    def dump(self) -> list[Any]:
        return [self.configs, [[t.id, t.name, t.replication, t.configs, t.streams] for t in self.by_id.values()]]

    @classmethod
    def load(cls, fields: list[Any]) -> "Topics":
        topics = cls()
        topics.configs = fields[0]
        for topic_id, name, replication, configs, streams in fields[1]:
            topic = Topic(topic_id, name, replication, configs)
            topic.streams = streams
            topics.add(topic)
        return topics


def name_problem(name: str) -> str:
    """Why this cannot be a topic's name, or nothing."""
    if name in ("", ".", ".."):
        return f"a topic cannot be called {name!r}"
    if len(name) > MAX_NAME:
        return f"a topic's name has at most {MAX_NAME} characters"
    if not LEGAL.issuperset(name):
        return "a topic's name has only ASCII letters, digits, '.', '_' and '-'"
    return ""


def create(state: "State", member: Member, body: CreateTopic) -> int | No:
    """The number of partitions made."""
    topics = state.topics
    if problem := name_problem(body.name):
        return No(Reason.INVALID_TOPIC_NAME, problem)
    if body.name in topics.by_name or body.topic_id in topics.by_id:
        return No(Reason.TOPIC_EXISTS, f"topic '{body.name}' already exists")
    if like := topics.folded.get(body.name.lower()):
        return No(Reason.INVALID_TOPIC_NAME, f"'{body.name}' and the topic '{like}' would be one table to many engines")
    if not 1 <= body.partitions <= MAX_PARTITIONS:
        return No(Reason.INVALID_PARTITIONS, f"a topic has 1 to {MAX_PARTITIONS} partitions")
    if not 1 <= body.replication <= 32767:
        return No(Reason.INVALID_REPLICATION, "the replication factor has to be larger than 0")
    if len(body.topic_id) != 16:
        return No(Reason.MALFORMED, "a topic id has 16 bytes")
    for key, value in body.configs.items():
        if problem := TOPIC_CONFIGS.problem(key, value):
            return No(Reason.INVALID_CONFIG, problem)
    topic = Topic(body.topic_id, body.name, body.replication, dict(body.configs))
    topics.add(topic)
    grow(state, topic, body.partitions)
    return body.partitions


def grow(state: "State", topic: Topic, total: int) -> None:
    streams = state.streams
    for partition in range(len(topic.streams), total):
        stream = Stream(streams.next_id, topic, partition)
        streams.next_id += 1
        streams.by_id[stream.id] = stream
        topic.streams.append(stream.id)


def delete(state: "State", member: Member, body: DeleteTopic) -> int | No:
    """The number of partitions that went. Waiting readers are woken to find them gone."""
    topic = state.topics.by_id.get(body.topic_id)
    if topic is None:
        return No(Reason.UNKNOWN_TOPIC, "no topic has this id")
    gone = set(topic.streams)
    for stream_id in topic.streams:
        stream = state.streams.by_id.pop(stream_id)
        state.streams.drop(stream, 0, len(stream.bases), state.members.time_ms)
        state.moved.append(stream_id)
    state.producers.forget_streams(
        {one: (topic.name, partition) if body.again else None for partition, one in enumerate(topic.streams)}
    )
    state.groups.forget_streams(gone)
    state.catalog.forget_topic(topic, state.members.time_ms)
    state.topics.remove(topic)
    return len(gone)


def create_partitions(state: "State", member: Member, body: CreatePartitions) -> int | No:
    topic = state.topics.by_id.get(body.topic_id)
    if topic is None:
        return No(Reason.UNKNOWN_TOPIC, "no topic has this id")
    have = len(topic.streams)
    if body.total <= have:
        return No(Reason.INVALID_PARTITIONS, f"the topic has {have} partitions already, and can only grow")
    if body.total > MAX_PARTITIONS:
        return No(Reason.INVALID_PARTITIONS, f"a topic has at most {MAX_PARTITIONS} partitions")
    grow(state, topic, body.total)
    return body.total


def alter_configs(state: "State", member: Member, body: AlterConfigs) -> No | None:
    """Configs are replaced, not changed in place: who derived something from them sees that they are others."""
    table: ConfigTable = CLUSTER_CONFIGS
    owner: Topics | Topic | None = state.topics
    if body.topic_id:
        table, owner = TOPIC_CONFIGS, state.topics.by_id.get(body.topic_id)
    if owner is None:
        return No(Reason.UNKNOWN_TOPIC, "no topic has this id")
    for key, value in body.changes:
        if problem := table.problem(key, value):
            return No(Reason.INVALID_CONFIG, problem)
    changed = {**owner.configs, **dict(body.changes)}
    owner.configs = {key: value for key, value in changed.items() if value is not None}
    return None


RULES = (
    (CreateTopic, create),
    (DeleteTopic, delete),
    (CreatePartitions, create_partitions),
    (AlterConfigs, alter_configs),
)

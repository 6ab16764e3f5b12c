"""Topics: names, ids, partitions and configs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakestream.model.bounds import NO_BOUNDS, settle_bounds
from lakestream.model.commands import AlterConfigs, CreatePartitions, CreateTopic, DeleteTopic
from lakestream.model.configs import CLUSTER_CONFIGS, MAX_NAME, TOPIC_CONFIGS, ConfigTable, shape_problem
from lakestream.model.levels import BOUNDED, FIRST
from lakestream.model.members import Member
from lakestream.model.pieces import BeginTopic, Doomed, Forming, doom, is_long
from lakestream.model.reasons import No, Reason
from lakestream.model.streams import Stream

if TYPE_CHECKING:
    from lakestream.model.state import State

LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
MAX_PARTITIONS = 100_000
"""For one topic; a command that asks for more is refused rather than folded for minutes."""


class Topic:
    """One topic; `streams` has the stream id of each partition."""

    __slots__ = ("active", "configs", "entries", "id", "name", "replication", "streams")

    def __init__(self, topic_id: bytes, name: str, replication: int, configs: dict[str, str]) -> None:
        self.id = topic_id
        self.name = name
        self.replication = replication
        self.configs = configs
        self.streams: list[int] = []
        self.entries = 0
        self.active = 0
        """Partitions that have entries."""

    def __repr__(self) -> str:
        return f"<Topic {self.name} partitions={len(self.streams)}>"


class Topics:
    """All topics, and the configs of the whole cluster. `folded` has the names as catalogs without case see them.

    `forming` are those that are being made, `doomed` what is left of deleted ones (pieces.py): neither are topics.
    """

    __slots__ = ("bounds", "by_id", "by_name", "configs", "doomed", "folded", "forming")

    def __init__(self) -> None:
        self.by_id: dict[bytes, Topic] = {}
        self.by_name: dict[str, Topic] = {}
        self.folded: dict[str, str] = {}
        self.configs: dict[str, str] = {}
        self.bounds = NO_BOUNDS
        self.forming: dict[bytes, Forming] = {}
        self.doomed: dict[bytes, Doomed] = {}

    def add(self, topic: Topic) -> None:
        self.by_id[topic.id] = self.by_name[topic.name] = topic
        self.folded[topic.name.lower()] = topic.name

    def begin(self, forming: "Forming") -> None:
        """Reserve the name of a topic that clients do not see yet."""
        self.forming[forming.topic.id] = forming
        self.folded[forming.topic.name.lower()] = forming.topic.name

    def remove(self, topic: Topic) -> None:
        del self.by_id[topic.id], self.by_name[topic.name], self.folded[topic.name.lower()]

    def dump(self, level: int) -> list[Any]:
        fields: list[Any] = [
            self.configs, [[t.id, t.name, t.replication, t.configs, t.streams] for t in self.by_id.values()],
        ]  # fmt: skip
        if level >= BOUNDED:
            pieces = (self.forming, self.doomed)
            fields += [[one.dump() for one in known.values()] for known in pieces]
        return fields

    @classmethod
    def load(cls, fields: list[Any]) -> "Topics":
        topics = cls()
        topics.configs = fields[0]
        for topic_id, name, replication, configs, streams, *_ in fields[1]:
            topic = Topic(topic_id, name, replication, configs)
            topic.streams = streams
            topics.add(topic)
        for *about, partitions, streams in fields[2] if len(fields) > 2 else ():
            topics.begin(Forming.load(Topic(*about), partitions, streams))
        for *about, streams, again in fields[3] if len(fields) > 3 else ():
            topic = Topic(*about)
            topic.streams = streams
            topics.doomed[topic.id] = Doomed(topic, again, [])
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
    if problem := creation_problem(state, body):
        return problem
    topic = Topic(body.topic_id, body.name, body.replication, dict(body.configs))
    state.topics.add(topic)
    grow(state, topic, body.partitions)
    return body.partitions


def begin(state: "State", member: Member, body: BeginTopic) -> int | No:
    """The number of partitions that the topic is going to have."""
    if problem := creation_problem(state, body):
        return problem
    topic = Topic(body.topic_id, body.name, body.replication, dict(body.configs))
    state.topics.begin(Forming(topic, body.partitions))
    return body.partitions


def creation_problem(state: "State", body: CreateTopic) -> No | None:
    """Why this topic cannot be made, or nothing."""
    topics = state.topics
    if problem := name_problem(body.name):
        return No(Reason.INVALID_TOPIC_NAME, problem)
    like = topics.folded.get(body.name.lower())
    ids = (topics.by_id, topics.forming, topics.doomed)
    if like == body.name or body.name in topics.by_name or any(body.topic_id in known for known in ids):
        return No(Reason.TOPIC_EXISTS, f"topic '{body.name}' already exists")
    if like is not None:
        return No(Reason.INVALID_TOPIC_NAME, f"'{body.name}' and the topic '{like}' would be one table to many engines")
    if not 1 <= body.partitions <= MAX_PARTITIONS:
        return No(Reason.INVALID_PARTITIONS, f"a topic has 1 to {MAX_PARTITIONS} partitions")
    if not 1 <= body.replication <= 32767:
        return No(Reason.INVALID_REPLICATION, "the replication factor has to be larger than 0")
    if len(body.topic_id) != 16:
        return No(Reason.MALFORMED, "a topic id has 16 bytes")
    if problem := configs_problem(state, TOPIC_CONFIGS, list(body.configs.items()), {}):
        return No(Reason.INVALID_CONFIG, problem)
    return room_problem(state, 1, body.partitions)


def room_problem(state: "State", topics: int, partitions: int) -> No | None:
    """Why the cluster does not take so many topics and partitions more, or nothing (L20)."""
    bounds, forming = state.topics.bounds, state.topics.forming
    have = len(state.topics.by_id) + len(forming)
    if have + topics > bounds.topics:
        text = f"the cluster has {have} topics, and lakestream.max.topics is {bounds.topics}"
        return No(Reason.TOO_MANY_TOPICS, text)
    have = len(state.streams.by_id) + sum(one.partitions for one in forming.values())
    if have + partitions > bounds.partitions:
        text = f"the cluster has {have} partitions, and lakestream.max.partitions is {bounds.partitions}"
        return No(Reason.TOO_MANY_PARTITIONS, text)
    return None


def configs_problem(
    state: "State", table: ConfigTable, changes: Sequence[tuple[str, str | None]], kept: Mapping[str, str]
) -> str:
    """Why configs cannot change like this, or nothing. From level BOUNDED on only their shape is judged here (L3)."""
    if state.level >= BOUNDED:
        return shape_problem(changes, kept)
    return next((problem for name, value in changes if (problem := table.problem(name, value, FIRST))), "")


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
    if is_long(state, topic):
        doom(state, topic, body.again)
    else:
        _dissolve(state, topic, body.again)
    state.streams.append_times.forget(topic.streams)
    state.moved.extend(topic.streams)
    state.catalog.forget_topic(topic, state.members.time_ms)
    state.topics.remove(topic)
    return len(topic.streams)


def _dissolve(state: "State", topic: Topic, again: bool) -> None:
    """All that the state holds of a topic's streams goes at once."""
    for stream_id in topic.streams:
        stream = state.streams.by_id.pop(stream_id)
        state.streams.drop(stream, 0, len(stream.bases), state.members.time_ms)
    state.producers.forget_streams(
        {one: (topic.name, partition) if again else None for partition, one in enumerate(topic.streams)}
    )
    state.groups.forget_streams(set(topic.streams))


def create_partitions(state: "State", member: Member, body: CreatePartitions) -> int | No:
    topic = state.topics.by_id.get(body.topic_id)
    if topic is None:
        return No(Reason.UNKNOWN_TOPIC, "no topic has this id")
    have = len(topic.streams)
    if body.total <= have:
        return No(Reason.INVALID_PARTITIONS, f"the topic has {have} partitions already, and can only grow")
    if body.total > MAX_PARTITIONS:
        return No(Reason.INVALID_PARTITIONS, f"a topic has at most {MAX_PARTITIONS} partitions")
    if problem := room_problem(state, 0, body.total - have):
        return problem
    grow(state, topic, body.total)
    return body.total


def alter_configs(state: "State", member: Member, body: AlterConfigs) -> No | None:
    """Replace configs, rather than change them in place: code that derived a value from them sees a new object."""
    table: ConfigTable = CLUSTER_CONFIGS
    owner: Topics | Topic | None = state.topics
    if body.topic_id:
        table, owner = TOPIC_CONFIGS, state.topics.by_id.get(body.topic_id)
    if owner is None:
        return No(Reason.UNKNOWN_TOPIC, "no topic has this id")
    if problem := configs_problem(state, table, body.changes, owner.configs):
        return No(Reason.INVALID_CONFIG, problem)
    changed = {**owner.configs, **dict(body.changes)}
    owner.configs = {key: value for key, value in changed.items() if value is not None}
    if owner is state.topics:
        settle_bounds(state)
    return None


RULES = (
    (CreateTopic, create),
    (BeginTopic, begin),
    (DeleteTopic, delete),
    (CreatePartitions, create_partitions),
    (AlterConfigs, alter_configs),
)

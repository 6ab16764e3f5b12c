"""The configs of topics, brokers and the cluster: their types, defaults, effects and precedence.

Applications written for Kafka set many of these. A config with a meaning here takes effect; a config of segments,
replicas or a leader's disk is accepted and shown without effect, so that scripts run unchanged.

A topic's config comes from the first of these that has a value:
    the topic itself -> the cluster's config of the key's `synonym` -> this broker's setting of it -> the default
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from lakestream.model.bounds import CONFIGS as BOUND_CONFIGS
from lakestream.model.bounds import UNBOUNDED, Bounds
from lakestream.model.levels import BOUNDED, FIRST, NEWEST

VALUE_CHARACTERS_MAX = 32_768
CONFIGS_MAX = 1_000
"""Most configs of one topic, or of the cluster."""
TABLE_ENABLED = "lakestream.table.enabled"
TABLE_RETENTION = "lakestream.table.retention.ms"
_REPLICA = re.compile(r"\d+:\d+")
LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1
MAX_NAME = 249
"""Characters of a config's name, and of a topic's."""


class Source(IntEnum):
    """Where a value comes from, in Kafka's numbers."""

    TOPIC = 1
    CLUSTER = 3
    BROKER = 4
    DEFAULT = 5


class Layer(NamedTuple):
    """One place that has a value for a config."""

    name: str
    value: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One config; `type` is Kafka's number for it (DescribeConfigs)."""

    name: str
    default: str | None
    type: int
    problem: Callable[[str], str]
    doc: str
    effective: bool = True
    synonym: str = ""
    """The broker's config whose value is the default of a topic that does not set it."""
    level: int = FIRST
    """The feature level that brought the config: below that level `apply` refuses it, as older versions do (L3)."""


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """The configs of one kind of resource."""

    keys: dict[str, ConfigKey]

    def problem(self, name: str, value: str | None, level: int = NEWEST) -> str:
        """Why `name` cannot have this value, or nothing. A config of a level above `level` is unknown."""
        key = self.keys.get(name)
        if key is None or key.level > level:
            return f"unknown config {name!r}"
        if value is None:
            return ""
        wrong = key.problem(value)
        return f"invalid value {value!r} for config {name}: {wrong}" if wrong else ""

    def value(self, name: str, *places: Mapping[str, str]) -> str:
        """The value of the first place that has one which this version understands, else the default.

        A newer version may have set a config to a value that this one does not know.
        """
        key = self.keys[name]
        for place in places:
            if name in place and not key.problem(place[name]):
                return place[name]
        return key.default or ""

    def normal(self, name: str, value: str) -> str:
        """The one spelling of a value: Kafka allows blanks around it, and capital letters in a boolean."""
        key = self.keys.get(name)
        value = value.strip()
        if key is not None and key.type == BOOLEAN:
            return value.lower()
        if key is not None and key.type == LIST:
            return ",".join(items(value))
        return value


def shape_problem(changes: Sequence[tuple[str, str | None]], kept: Mapping[str, str]) -> str:
    """Why configs cannot be stored beside those that are kept, whatever they mean, or nothing.

    The proposer checks the values of configs: versions know different configs, and have to fold every command alike
    (L3).
    """
    after = {**kept, **dict(changes)}
    if sum(value is not None for value in after.values()) > CONFIGS_MAX:
        return f"there are at most {CONFIGS_MAX} configs"
    for name, value in changes:
        if not 1 <= len(name) <= MAX_NAME:
            return f"a config's name has 1 to {MAX_NAME} characters"
        if value is not None and len(value) > VALUE_CHARACTERS_MAX:
            return f"the value of config {name} has more than {VALUE_CHARACTERS_MAX} characters"
    return ""


BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST = 1, 2, 3, 4, 5, 6, 7


def items(value: str) -> list[str]:
    """The items of a list, each once."""
    return list(dict.fromkeys(item for part in value.split(",") if (item := part.strip())))


def number(low: int, high: int) -> Callable[[str], str]:
    def problem(value: str) -> str:
        digits = value[1:] if value.startswith("-") else value
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
            return "it has to be a whole number"
        return "" if low <= int(value) <= high else f"it has to be between {low} and {high}"

    return problem


def ratio(value: str) -> str:
    try:
        return "" if 0.0 <= float(value) <= 1.0 else "it has to be between 0 and 1"
    except ValueError:
        return "it has to be a number"


def one_of(*words: str) -> Callable[[str], str]:
    return lambda value: "" if value in words else f"it has to be one of {', '.join(words)}"


def some_of(*words: str) -> Callable[[str], str]:
    def problem(value: str) -> str:
        return "" if not value or set(value.split(",")) <= set(words) else f"it is a list of {', '.join(words)}"

    return problem


def throttled(value: str) -> str:
    wrong = [one for one in value.split(",") if value not in ("", "*", "none") and not _REPLICA.fullmatch(one)]
    return "it is a list of partition:broker, or *" if wrong else ""


def not_tiered(value: str) -> str:
    return boolean(value) or ("there is no tiered storage" if value == "true" else "")


def anything(value: str) -> str:
    return ""


boolean = one_of("true", "false")


def _table(*keys: ConfigKey) -> ConfigTable:
    return ConfigTable({key.name: key for key in keys})


def _key(
    name: str,
    default: str | None,
    type_: int,
    problem: Callable[[str], str],
    doc: str,
    synonym: str = "",
) -> ConfigKey:
    return ConfigKey(name=name, default=default, type=type_, problem=problem, doc=doc, synonym=synonym)


def _ignored(name: str, default: str, type_: int, problem: Callable[[str], str]) -> ConfigKey:
    doc = "Accepted for Kafka's sake; it has no effect here."
    return ConfigKey(name=name, default=default, type=type_, problem=problem, doc=doc, effective=False)


_POSITIVE = number(0, LONG_MAX)
_SIZE = number(0, INT_MAX)
_OR_FOREVER = number(-1, LONG_MAX)
_COMPACTION_LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")
_TIMESTAMP_TYPE = one_of("CreateTime", "LogAppendTime")

TOPIC_CONFIGS = _table(
    _key("cleanup.policy", "delete", LIST, some_of("delete", "compact"),
         "With `compact` records need keys, and with it alone retention does not apply; none is compacted away yet."),
    _key("max.message.bytes", "1048588", INT, _SIZE, "The largest batch accepted.", "message.max.bytes"),
    _key("message.timestamp.type", "CreateTime", STRING, _TIMESTAMP_TYPE,
         "Whether a record keeps its producer's timestamp or gets the broker's.", "log.message.timestamp.type"),
    _key("message.timestamp.before.max.ms", str(LONG_MAX), LONG, _POSITIVE, "How old a timestamp may be."),
    _key("message.timestamp.after.max.ms", "3600000", LONG, _POSITIVE, "How far ahead a timestamp may be."),
    _key("retention.bytes", "-1", LONG, _OR_FOREVER, "How many bytes of a partition are kept; -1: all.",
         "log.retention.bytes"),
    _key("retention.ms", "-1", LONG, _OR_FOREVER, "How long records are kept, from their append; -1: forever.",
         "log.retention.ms"),
    _key(TABLE_ENABLED, "true", BOOLEAN, boolean, "Whether the topic becomes an Iceberg table."),
    _key("lakestream.table.freshness.ms", "5000", LONG, number(0, INT_MAX),
         "How old records may get outside the table."),
    _key("lakestream.table.on.delete", "drop", STRING, one_of("drop", "keep"),
         "Whether the table goes with the topic, or stays under another name."),
    _key(TABLE_RETENTION, "-2", LONG, number(-2, LONG_MAX),
         "How long rows stay in the table; -2: as long as the stream shows them, -1: forever."),
    _key("compression.type", "producer", STRING, one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
         "How batches made of table rows are compressed; those in the WAL stay as they were produced."),
    _ignored("compression.gzip.level", "-1", INT, number(-1, 9)),
    _ignored("compression.lz4.level", "9", INT, number(1, 17)),
    _ignored("compression.zstd.level", "3", INT, number(-131072, 22)),
    _ignored("delete.retention.ms", "86400000", LONG, _POSITIVE),
    _ignored("file.delete.delay.ms", "60000", LONG, _POSITIVE),
    _ignored("flush.messages", str(LONG_MAX), LONG, number(1, LONG_MAX)),
    _ignored("flush.ms", str(LONG_MAX), LONG, _POSITIVE),
    _ignored("follower.replication.throttled.replicas", "", LIST, throttled),
    _ignored("index.interval.bytes", "4096", INT, _SIZE),
    _ignored("leader.replication.throttled.replicas", "", LIST, throttled),
    _ignored("local.retention.bytes", "-2", LONG, number(-2, LONG_MAX)),
    _ignored("local.retention.ms", "-2", LONG, number(-2, LONG_MAX)),
    _ignored("max.compaction.lag.ms", str(LONG_MAX), LONG, number(1, LONG_MAX)),
    _ignored("min.cleanable.dirty.ratio", "0.5", DOUBLE, ratio),
    _ignored("min.compaction.lag.ms", "0", LONG, _POSITIVE),
    _ignored("min.insync.replicas", "1", INT, number(1, INT_MAX)),
    _ignored("preallocate", "false", BOOLEAN, boolean),
    _ignored("remote.log.copy.disable", "false", BOOLEAN, boolean),
    _ignored("remote.log.delete.on.disable", "false", BOOLEAN, boolean),
    _ignored("remote.storage.enable", "false", BOOLEAN, not_tiered),
    _ignored("segment.bytes", "1073741824", INT, number(1048576, INT_MAX)),
    _ignored("segment.index.bytes", "10485760", INT, number(4, INT_MAX)),
    _ignored("segment.jitter.ms", "0", LONG, _POSITIVE),
    _ignored("segment.ms", "604800000", LONG, number(1, LONG_MAX)),
    _ignored("unclean.leader.election.enable", "false", BOOLEAN, boolean),
)  # fmt: skip



def contradiction(configs: Mapping[str, str]) -> str:
    """Why two configs of a topic contradict each other, or nothing."""
    least, most = (configs.get(name, TOPIC_CONFIGS.keys[name].default) for name in _COMPACTION_LAGS)
    assert least is not None and most is not None
    if int(least) > int(most):
        return f"{_COMPACTION_LAGS[0]} ({least}) is more than {_COMPACTION_LAGS[1]} ({most})"
    return ""


BOUND_DOCS = {
    "topics": "Most topics of the cluster.",
    "partitions": "Most partitions of all topics together.",
    "groups": "Most consumer groups.",
    "offsets": "Most committed offsets of all groups together.",
    "note_bytes": "Most bytes of the notes that clients commit with offsets.",
    "producers": "Most producer ids that are remembered; those that were not used for longest go first.",
    "sequences": "Most partitions of producers, each counted for each producer that writes to it.",
    "entry_bytes": "Bytes of WAL entries of which topics have shares, by active partitions; all may take more.",
    "piece": "Most partitions that one command creates or deletes; more take several commands.",
}


def _bound(name: str, field: str) -> ConfigKey:
    default: int = getattr(Bounds(), field)
    problem, doc = number(1, UNBOUNDED), BOUND_DOCS[field]
    return ConfigKey(name=name, default=str(default), type=LONG, problem=problem, doc=doc, level=BOUNDED)


CLUSTER_CONFIGS = _table(
    _key("auto.create.topics.enable", "true", BOOLEAN, boolean, "Whether asking for a topic makes it."),
    _key("num.partitions", "1", INT, number(1, 100_000), "Partitions of topics created without a number."),
    _key("message.max.bytes", "1048588", INT, _SIZE, "The largest batch accepted."),
    _key("log.retention.ms", "-1", LONG, _OR_FOREVER, "How long records are kept; -1: forever."),
    _key("log.retention.bytes", "-1", LONG, _OR_FOREVER, "How much of a partition is kept; -1: all."),
    *(_bound(name, field) for name, field in BOUND_CONFIGS.items()),
)
"""What can be changed for the whole cluster while it runs."""

STATIC_CONFIGS = _table(
    _key("default.replication.factor", "1", INT, number(1, 32767), "Replication factor shown when none was asked for."),
    _key("log.message.timestamp.type", "CreateTime", STRING, _TIMESTAMP_TYPE, "Whose clock stamps records."),
)
"""Configs that only a broker's settings have, and that take part in the configs of topics."""


def topic_layers(
    key: ConfigKey, topic: Mapping[str, str], cluster: Mapping[str, str], broker: Mapping[str, str]
) -> list[Layer]:
    """The values for a topic's config, the winner first. `broker` has the broker's settings by Kafka's names."""
    layers = [Layer(key.name, topic[key.name], Source.TOPIC)] if key.name in topic else []
    if key.synonym:
        return layers + broker_layers(key.synonym, cluster, broker)
    return layers if key.default is None else [*layers, Layer(key.name, key.default, Source.DEFAULT)]


def broker_layers(name: str, cluster: Mapping[str, str], broker: Mapping[str, str]) -> list[Layer]:
    """The values for a broker's config, the winner first."""
    layers = [Layer(name, cluster[name], Source.CLUSTER)] if name in cluster else []
    key = CLUSTER_CONFIGS.keys.get(name) or STATIC_CONFIGS.keys.get(name)
    default = key.default if key is not None else None
    if name in broker and broker[name] != default:
        layers.append(Layer(name, broker[name], Source.BROKER))
    if default is not None:
        layers.append(Layer(name, default, Source.DEFAULT))
    return layers


def broker_value(name: str, cluster: Mapping[str, str], broker: Mapping[str, str]) -> str:
    """The value in force of one of CLUSTER_CONFIGS or STATIC_CONFIGS."""
    return broker_layers(name, cluster, broker)[0].value


def topic_defaults(broker: Mapping[str, str]) -> dict[str, str]:
    """What a broker's settings say about topics that do not say it themselves, by the topics' names for it."""
    return {key.name: broker[key.synonym] for key in TOPIC_CONFIGS.keys.values() if key.synonym in broker}


def kafka_names(settings: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Settings as Kafka writes them: dots in names, booleans in small letters."""
    return {
        name.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings
    }

"""The configs that a topic or the cluster can have: their types, defaults and what they do.

Applications written for Kafka set many of these. What has a meaning here is obeyed; what speaks of segments, replicas
or a leader's disk is accepted, shown and has no effect, so that nobody has to change a script.
"""

from collections.abc import Callable
from dataclasses import dataclass

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One config; `type` is Kafka's number for it (DescribeConfigs)."""

    name: str
    default: str | None
    type: int
    problem: Callable[[str], str]
    doc: str
    effective: bool = True
    setting: str = ""
    """The broker setting whose value is the default of a topic that does not set it."""


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """The configs of one kind of resource."""

    keys: dict[str, ConfigKey]

    def problem(self, name: str, value: str | None) -> str:
        """Why `name` cannot have this value, or nothing."""
        key = self.keys.get(name)
        if key is None:
            return f"unknown config {name!r}"
        if value is None:
            return ""
        wrong = key.problem(value)
        return f"invalid value {value!r} for config {name}: {wrong}" if wrong else ""


BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST = 1, 2, 3, 4, 5, 6, 7


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
        return "" if value and set(value.split(",")) <= set(words) else f"it is a list of {', '.join(words)}"

    return problem


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
    setting: str = "",
) -> ConfigKey:
    return ConfigKey(name=name, default=default, type=type_, problem=problem, doc=doc, setting=setting)


def _ignored(name: str, default: str, type_: int, problem: Callable[[str], str]) -> ConfigKey:
    doc = "Accepted for Kafka's sake; it has no effect here."
    return ConfigKey(name=name, default=default, type=type_, problem=problem, doc=doc, effective=False)


_POSITIVE = number(0, LONG_MAX)
_SIZE = number(0, INT_MAX)
_OR_FOREVER = number(-1, LONG_MAX)

TOPIC_CONFIGS = _table(
    _key("cleanup.policy", "delete", LIST, some_of("delete", "compact"),
         "With `compact` alone retention does not apply; records are not compacted away yet."),
    _key("compression.type", "producer", STRING, one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
         "Batches are kept as they were produced, whatever this says."),
    _key("max.message.bytes", "1048588", INT, _SIZE, "The largest batch accepted.", "message_max_bytes"),
    _key("message.timestamp.type", "CreateTime", STRING, one_of("CreateTime", "LogAppendTime"),
         "Whether a record keeps its producer's timestamp or gets the broker's."),
    _key("message.timestamp.before.max.ms", str(LONG_MAX), LONG, _POSITIVE, "How old a timestamp may be."),
    _key("message.timestamp.after.max.ms", "3600000", LONG, _POSITIVE, "How far ahead a timestamp may be."),
    _key("retention.bytes", "-1", LONG, _OR_FOREVER, "How many bytes of a partition are kept.", "log_retention_bytes"),
    _key("retention.ms", "-1", LONG, _OR_FOREVER, "How long records are kept, from their append.", "log_retention_ms"),
    _ignored("delete.retention.ms", "86400000", LONG, _POSITIVE),
    _ignored("file.delete.delay.ms", "60000", LONG, _POSITIVE),
    _ignored("flush.messages", str(LONG_MAX), LONG, number(1, LONG_MAX)),
    _ignored("flush.ms", str(LONG_MAX), LONG, _POSITIVE),
    _ignored("follower.replication.throttled.replicas", "", LIST, anything),
    _ignored("index.interval.bytes", "4096", INT, _SIZE),
    _ignored("leader.replication.throttled.replicas", "", LIST, anything),
    _ignored("local.retention.bytes", "-2", LONG, number(-2, LONG_MAX)),
    _ignored("local.retention.ms", "-2", LONG, number(-2, LONG_MAX)),
    _ignored("max.compaction.lag.ms", str(LONG_MAX), LONG, number(1, LONG_MAX)),
    _ignored("message.downconversion.enable", "true", BOOLEAN, boolean),
    _ignored("message.format.version", "3.0-IV1", STRING, anything),
    _ignored("min.cleanable.dirty.ratio", "0.5", DOUBLE, ratio),
    _ignored("min.compaction.lag.ms", "0", LONG, _POSITIVE),
    _ignored("min.insync.replicas", "1", INT, number(1, INT_MAX)),
    _ignored("preallocate", "false", BOOLEAN, boolean),
    _ignored("remote.storage.enable", "false", BOOLEAN, boolean),
    _ignored("segment.bytes", "1073741824", INT, number(14, INT_MAX)),
    _ignored("segment.index.bytes", "10485760", INT, number(4, INT_MAX)),
    _ignored("segment.jitter.ms", "0", LONG, _POSITIVE),
    _ignored("segment.ms", "604800000", LONG, number(1, LONG_MAX)),
    _ignored("unclean.leader.election.enable", "false", BOOLEAN, boolean),
)  # fmt: skip

CLUSTER_CONFIGS = _table(
    _key("auto.create.topics.enable", None, BOOLEAN, boolean,
         "Whether asking for a topic makes it.", "auto_create_topics_enable"),
    _key("num.partitions", None, INT, number(1, INT_MAX), "Partitions of auto-created topics.", "num_partitions"),
    _key("message.max.bytes", None, INT, _SIZE, "The largest batch accepted.", "message_max_bytes"),
    _key("log.retention.ms", None, LONG, _OR_FOREVER, "How long records are kept.", "log_retention_ms"),
    _key("log.retention.bytes", None, LONG, _OR_FOREVER, "How much of a partition is kept.", "log_retention_bytes"),
)  # fmt: skip

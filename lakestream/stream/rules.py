"""The configs of topics as numbers, computed once and again only when they change."""

from dataclasses import dataclass

from lakestream.metadata.replica import Replica
from lakestream.model.configs import LONG_MAX, TOPIC_CONFIGS
from lakestream.model.topics import Topic

CACHE_LIMIT = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """The configs of one topic that brokers obey."""

    max_message_bytes: int
    log_append_time: bool
    compacted: bool
    before_max_ms: int
    after_max_ms: int
    retention_ms: int
    retention_bytes: int

    @property
    def any_time(self) -> bool:
        return self.before_max_ms == LONG_MAX and self.after_max_ms == LONG_MAX


class Rules:
    """The rules of all topics. `defaults` are this broker's settings for topic configs, by Kafka's names."""

    def __init__(self, replica: Replica, defaults: dict[str, str]) -> None:
        self._replica = replica
        self._defaults = defaults
        self._known: dict[bytes, tuple[dict[str, str], dict[str, str], TopicRules]] = {}

    def of(self, topic: Topic) -> TopicRules:
        cluster = self._replica.state.topics.configs
        known = self._known.get(topic.id)
        if known is not None and known[0] is topic.configs and known[1] is cluster:
            return known[2]
        rules = self._work_out(topic.configs, cluster)
        if len(self._known) >= CACHE_LIMIT:
            self._known.clear()
        self._known[topic.id] = (topic.configs, cluster, rules)
        return rules

    def _work_out(self, configs: dict[str, str], cluster: dict[str, str]) -> TopicRules:
        def value(name: str) -> str:
            synonym = TOPIC_CONFIGS.keys[name].synonym
            inherited = {name: cluster[synonym]} if synonym in cluster else self._defaults
            return TOPIC_CONFIGS.value(name, configs, inherited, self._defaults)

        policies = value("cleanup.policy").split(",")
        compacted_only = policies == ["compact"]
        return TopicRules(
            max_message_bytes=int(value("max.message.bytes")),
            log_append_time=value("message.timestamp.type") == "LogAppendTime",
            compacted="compact" in policies,
            before_max_ms=int(value("message.timestamp.before.max.ms")),
            after_max_ms=int(value("message.timestamp.after.max.ms")),
            retention_ms=-1 if compacted_only else int(value("retention.ms")),
            retention_bytes=-1 if compacted_only else int(value("retention.bytes")),
        )

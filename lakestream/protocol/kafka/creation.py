"""Makes topics, for CreateTopics and for requests that name a topic which does not exist yet."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.commands import CreateTopic
from lakestream.model.configs import TOPIC_CONFIGS, broker_value, contradiction
from lakestream.model.topics import MAX_PARTITIONS, name_problem
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.refusals import Refusal, settled
from lakestream.stream.housekeeping.long_topics import create_topic

log = logging.getLogger(__name__)

DEFAULT = -1
LOG_EVERY_S = 60.0
TOO_MANY_AT_ONCE = Refusal(ErrorCode.LEADER_NOT_AVAILABLE, "too many topics are created by asking for them; ask again")
REPLICATION_MAX = 32767


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """The wish for a topic; -1 where the broker chooses."""

    name: str
    partitions: int = DEFAULT
    replication: int = DEFAULT
    configs: Mapping[str, str | None]


class TokenBucket:
    """Allows `per_minute` a minute over time, and as many at once after a quiet minute."""

    def __init__(self, clock: Clock, per_minute: int) -> None:
        self.clock = clock
        self._per_minute = per_minute
        self._left = float(per_minute)
        self._seen_s = clock.monotonic()

    def take(self, wanted: int) -> int:
        """Take up to `wanted`; returns how many are allowed now."""
        now = self.clock.monotonic()
        self._left = min(self._left + (now - self._seen_s) * self._per_minute / 60, float(self._per_minute))
        self._seen_s = now
        taken = min(wanted, int(self._left))
        self._left -= taken
        return taken


class TopicMaker:
    """Judges and makes topics. `broker` has the broker's settings by Kafka's names.

    Automatic creation is bounded by `per_minute`, and in each request.
    """

    def __init__(
        self, replica: Replica, broker: Mapping[str, str], random: Random, per_minute: TokenBucket, per_request: int
    ) -> None:
        self._replica = replica
        self._broker = broker
        self._random = random
        self._per_minute = per_minute
        self._per_request = per_request
        self._logged_s = -LOG_EVERY_S

    @property
    def auto_create(self) -> bool:
        """Whether a request for metadata of an unknown topic creates the topic."""
        return self._setting("auto.create.topics.enable") == "true"

    def judge(self, topic: NewTopic, taken: Mapping[str, str]) -> CreateTopic | Refusal:
        """The command that makes this topic, with defaults. `taken`: existing names by their spelling in metrics."""
        if problem := name_problem(topic.name):
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if topic.name in self._replica.state.topics.by_name:
            return Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic '{topic.name}' already exists")
        if other := taken.get(metric_name(topic.name)):
            text = f"topic '{topic.name}' collides with existing topic '{other}': '.' and '_' count as the same"
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
        partitions, replication = topic.partitions, topic.replication
        if replication == DEFAULT:
            replication = int(self._setting("default.replication.factor"))
        if partitions == DEFAULT:
            partitions = int(self._setting("num.partitions"))
        if not 1 <= replication <= REPLICATION_MAX:
            text = "the replication factor has to be larger than 0, or -1 for the default"
            return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, text)
        if not 1 <= partitions <= MAX_PARTITIONS:
            text = f"a topic has 1 to {MAX_PARTITIONS} partitions, or -1 for the default"
            return Refusal(ErrorCode.INVALID_PARTITIONS, text)
        configs: dict[str, str] = {}
        for name, value in topic.configs.items():
            if value is None:
                return Refusal(ErrorCode.INVALID_CONFIG, f"null value not supported for topic config {name}")
            configs[name] = TOPIC_CONFIGS.normal(name, value)
            if problem := TOPIC_CONFIGS.problem(name, configs[name]):
                return Refusal(ErrorCode.INVALID_CONFIG, problem)
        if problem := contradiction(configs):
            return Refusal(ErrorCode.INVALID_CONFIG, problem)
        return CreateTopic(topic.name, self._topic_id(), partitions, replication, configs)

    async def make_all(self, names: Sequence[str]) -> dict[str, Refusal]:
        """Create topics that a client named; returns the refusals by name.

        Topics above the limits are refused with a code on which clients ask again.
        """
        few = self._per_minute.take(min(len(names), self._per_request))
        if few < len(names):
            self._log_left_out(len(names) - few)
        outcomes = await asyncio.gather(*map(self._make, names[:few]))
        refused = {name: one for name, one in zip(names[:few], outcomes, strict=True) if one is not None}
        return refused | dict.fromkeys(names[few:], TOO_MANY_AT_ONCE)

    def _log_left_out(self, left_out: int) -> None:
        now = self._per_minute.clock.monotonic()
        if now - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now
            log.warning(
                "%d topics that a client asked for are not created yet: auto_create_topics_per_request and "
                "auto_create_topics_per_minute bound them", left_out,
            )  # fmt: skip

    async def _make(self, name: str) -> Refusal | None:
        """Create one topic. A topic that another request created meanwhile is a success."""
        command = self.judge(NewTopic(name=name, configs={}), self.taken([name]))
        outcome = command if isinstance(command, Refusal) else await settled(create_topic(self._replica, command))
        if isinstance(outcome, Refusal) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            return outcome
        return None

    def taken(self, names: Iterable[str]) -> dict[str, str]:
        """The existing names by their spelling in metrics, if one of the new names could collide at all."""
        if not any("." in name or "_" in name for name in names):
            return {}
        return {metric_name(name): name for name in self._replica.state.topics.by_name if "." in name or "_" in name}

    def _setting(self, name: str) -> str:
        return broker_value(name, self._replica.state.topics.configs, self._broker)

    def _topic_id(self) -> bytes:
        """A random UUID; as in Kafka none whose text begins with a dash, which tools would take for an option."""
        while True:
            made = bytearray(self._random.randbytes(16))
            made[6] = made[6] & 0x0F | 0x40
            made[8] = made[8] & 0x3F | 0x80
            if made[0] >> 2 != 62:
                return bytes(made)


def metric_name(name: str) -> str:
    """Kafka's metrics spell a dot as an underscore, so it refuses names that differ in nothing else."""
    return name.replace(".", "_")

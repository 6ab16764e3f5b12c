"""Making a topic, for CreateTopics and for whoever asks for a topic that is not there yet."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

from lakestream.metadata.replica import Replica
from lakestream.model.commands import CreateTopic
from lakestream.model.configs import TOPIC_CONFIGS, broker_value, contradiction
from lakestream.model.topics import MAX_PARTITIONS, name_problem
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.refusals import Refusal, propose

DEFAULT = -1
REPLICATION_MAX = 32767


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic that could be made; -1 for what the broker should choose."""

    name: str
    partitions: int = DEFAULT
    replication: int = DEFAULT
    configs: Mapping[str, str | None]


class TopicMaker:
    """Judges and makes topics. `broker` has the broker's settings by Kafka's names."""

    def __init__(self, replica: Replica, broker: Mapping[str, str], random: Random) -> None:
        self._replica = replica
        self._broker = broker
        self._random = random

    @property
    def auto_create(self) -> bool:
        """Whether asking for a topic makes it."""
        return self._setting("auto.create.topics.enable") == "true"

    def judge(self, topic: NewTopic, taken: Mapping[str, str]) -> CreateTopic | Refusal:
        """The command that makes this topic, its defaults filled in. `taken`: names by how metrics would spell them."""
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

    async def make(self, name: str) -> Refusal | None:
        """Make a topic because somebody asked for it; that another was quicker is a success."""
        command = self.judge(NewTopic(name=name, configs={}), self.taken([name]))
        outcome = command if isinstance(command, Refusal) else await propose(self._replica, command)
        if isinstance(outcome, Refusal) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            return outcome
        return None

    def taken(self, names: Iterable[str]) -> dict[str, str]:
        """The existing names by how metrics would spell them, if one of the new names could collide at all."""
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

"""The care of topics: CreateTopics (versions 2 to 7), DeleteTopics (1 to 6), CreatePartitions (0 to 3),
DeleteRecords (0 to 2).

Departures from Kafka: any broker does these. A manual assignment of replicas is accepted for the number of partitions
and replicas in it, and its brokers need not exist, since no broker has a disk to place anything on. Any replication
factor is accepted. Timeouts are not needed: an answer comes when it is done. A topic may have 100,000 partitions.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from lakestream.metadata.replica import Replica
from lakestream.model.commands import AdvanceLogStart, CreatePartitions, CreateTopic, DeleteTopic
from lakestream.model.configs import TOPIC_CONFIGS, topic_layers
from lakestream.model.streams import Stream
from lakestream.model.topics import MAX_PARTITIONS, Topic
from lakestream.protocol.kafka.connections.calls import Handler, RequestContext
from lakestream.protocol.kafka.connections.large_answers import ITEMS_AT_ONCE, large_answer
from lakestream.protocol.kafka.creation import DEFAULT, NewTopic, TopicMaker
from lakestream.protocol.kafka.errors import ErrorCode, code_of
from lakestream.protocol.kafka.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from lakestream.protocol.kafka.messages.types import ZERO_UUID
from lakestream.protocol.kafka.refusals import Refusal, propose, settled, stale
from lakestream.stream.housekeeping.long_topics import create_topic, grow_topic
from lakestream.stream.housekeeping.retention import light_starts
from lakestream.stream.long_work import chunks

HIGH_WATERMARK = -1
TRY_AGAIN = ErrorCode.LEADER_NOT_AVAILABLE
UNKNOWN_TOPIC = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "this server does not host this topic-partition")


class TopicApis:
    """Makes, grows and deletes topics, and deletes records. `broker` has the broker's settings by Kafka's names."""

    def __init__(self, replica: Replica, maker: TopicMaker, broker: Mapping[str, str]) -> None:
        self._replica = replica
        self._maker = maker
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {
            19: self.create_topics,
            20: self.delete_topics,
            21: self.delete_records,
            37: self.create_partitions,
        }

    # -- CreateTopics -----------------------------------------------------------------------------------------------

    async def create_topics(self, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        failed = await stale(self._replica)
        commands = [failed] * len(request.topics) if failed else self._judge_all(request.topics)

        unset = self._shown({})

        async def create(name: str, command: CreateTopic | Refusal | None) -> CreatableTopicResult:
            outcome: object = command
            if isinstance(command, CreateTopic) and not request.validate_only:
                outcome = await settled(create_topic(self._replica, command))
            if isinstance(outcome, Refusal):
                return CreatableTopicResult(name=name, error_code=outcome.code, error_message=outcome.message)
            assert isinstance(command, CreateTopic)
            return CreatableTopicResult(
                name=name,
                topic_id=command.topic_id,
                num_partitions=command.partitions,
                replication_factor=command.replication,
                configs=self._shown(command.configs) if command.configs else unset,
            )

        named = {topic.name: command for topic, command in zip(request.topics, commands, strict=True)}
        return CreateTopicsResponse(topics=await asyncio.gather(*(create(*one) for one in named.items())))

    def _judge_all(self, asked: Sequence[CreatableTopic]) -> list[CreateTopic | Refusal]:
        """Decide on all topics of a request; its new names must not collide with each other either."""
        times = Counter(topic.name for topic in asked)
        taken = self._maker.taken(times)
        left = MAX_PARTITIONS
        judged: list[CreateTopic | Refusal] = []
        for topic in asked:
            command = _new_topic(topic)
            if times[topic.name] > 1:
                command = Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            made = command if isinstance(command, Refusal) else self._maker.judge(command, taken)
            if isinstance(made, CreateTopic):
                left -= made.partitions
                if left < 0:
                    made = Refusal(ErrorCode.POLICY_VIOLATION, f"more than {MAX_PARTITIONS} partitions in one request")
            judged.append(made)
        return judged

    def _shown(self, configs: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        """The configs of a new topic as they are in force."""
        cluster = self._replica.state.topics.configs
        shown = []
        for key in sorted(TOPIC_CONFIGS.keys.values(), key=lambda one: one.name):
            first = topic_layers(key, configs, cluster, self._broker)[0]
            shown.append(CreatableTopicConfigs(name=key.name, value=first.value, config_source=first.source))
        return shown

    # -- DeleteTopics -----------------------------------------------------------------------------------------------

    async def delete_topics(self, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        asked = request.topics
        if context.version < 6:
            asked = [DeleteTopicState(name=name) for name in request.topic_names]
        failed = await stale(self._replica)
        once: dict[object, list[DeleteTopicState]] = {}
        for one in asked:
            once.setdefault(self._named(one), []).append(one)

        async def delete(same: list[DeleteTopicState]) -> DeletableTopicResult:
            one = _merged(same)
            found = failed or self._topic_to_delete(one, len(same))
            going = found if isinstance(found, Refusal) else DeleteTopic(found.id, again=True)
            outcome = going if isinstance(going, Refusal) else await propose(self._replica, going)
            if not isinstance(found, Refusal):
                one = DeleteTopicState(name=found.name, topic_id=found.id)
            result = DeletableTopicResult(name=one.name, topic_id=one.topic_id)
            if isinstance(outcome, Refusal):
                result.error_code, result.error_message = outcome.code, outcome.message
            return result

        return DeleteTopicsResponse(responses=await asyncio.gather(*map(delete, once.values())))

    def _named(self, asked: DeleteTopicState) -> object:
        """A key that is equal for two entries that mean one topic, by its name or by its id."""
        topics = self._replica.state.topics
        topic = topics.by_id.get(asked.topic_id) if asked.name is None else topics.by_name.get(asked.name)
        both = asked.name is not None and asked.topic_id != ZERO_UUID
        return (asked.name, asked.topic_id) if topic is None or both else topic.id

    def _topic_to_delete(self, asked: DeleteTopicState, times: int) -> Topic | Refusal:
        topics = self._replica.state.topics
        by_id = asked.topic_id != ZERO_UUID
        if not by_id and asked.name is None:
            return Refusal(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        if times > 1:
            return Refusal(ErrorCode.INVALID_REQUEST, "A topic is named more than once.")
        if by_id and asked.name is not None:
            return Refusal(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        if by_id:
            unknown = Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "this server does not host this topic id")
            return topics.by_id.get(asked.topic_id) or unknown
        return topics.by_name.get(asked.name or "") or UNKNOWN_TOPIC

    # -- CreatePartitions -------------------------------------------------------------------------------------------

    async def create_partitions(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> CreatePartitionsResponse:
        times = Counter(topic.name for topic in request.topics)
        failed = await stale(self._replica)

        async def grow(asked: CreatePartitionsTopic) -> CreatePartitionsTopicResult:
            outcome: object = failed or self._growth(asked, times[asked.name])
            if isinstance(outcome, CreatePartitions) and not request.validate_only:
                outcome = await settled(grow_topic(self._replica, outcome))
            if isinstance(outcome, Refusal):
                return CreatePartitionsTopicResult(
                    name=asked.name, error_code=outcome.code, error_message=outcome.message
                )
            return CreatePartitionsTopicResult(name=asked.name)

        once = {topic.name: topic for topic in request.topics}
        return CreatePartitionsResponse(results=await asyncio.gather(*map(grow, once.values())))

    def _growth(self, asked: CreatePartitionsTopic, times: int) -> CreatePartitions | Refusal:
        if times > 1:
            return Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        topic = self._replica.state.topics.by_name.get(asked.name)
        if topic is None:
            return UNKNOWN_TOPIC
        have = len(topic.streams)
        if asked.count == have:
            return Refusal(ErrorCode.INVALID_PARTITIONS, f"Topic already has {have} partition(s).")
        if asked.count < have:
            text = f"The topic {asked.name} currently has {have} partition(s); {asked.count} would not be an increase."
            return Refusal(ErrorCode.INVALID_PARTITIONS, text)
        if asked.count > MAX_PARTITIONS:
            return Refusal(ErrorCode.INVALID_PARTITIONS, f"a topic has at most {MAX_PARTITIONS} partitions")
        if asked.assignments is not None and len(asked.assignments) != asked.count - have:
            text = f"{asked.count - have} partition(s) are added, but {len(asked.assignments)} assignment(s) were given"
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        if problem := _assignment_problem(asked.assignments or []):
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
        return CreatePartitions(topic.id, asked.count)

    # -- DeleteRecords ----------------------------------------------------------------------------------------------

    async def delete_records(self, context: RequestContext, request: DeleteRecordsRequest) -> object:
        """In as many commands as it takes; of a partition that is named twice the last counts, as in Kafka."""
        failed = await stale(self._replica, TRY_AGAIN)
        last = {(topic.name, one.partition_index): one for topic in request.topics for one in topic.partitions}
        judged: list[tuple[int, int] | Refusal] = []
        for some in chunks([(name, one) for (name, _), one in last.items()], ITEMS_AT_ONCE):
            judged += [failed or self._start(*asked) for asked in some]
            await asyncio.sleep(0)
        moved = await self._advance([one for one in judged if not isinstance(one, Refusal)])
        topics = {topic.name: DeleteRecordsTopicResult(name=topic.name) for topic in request.topics}
        for pairs in chunks(list(zip(last, judged, strict=True)), ITEMS_AT_ONCE):
            for (name, partition), one in pairs:
                outcome = one if isinstance(one, Refusal) else moved[one[0]]
                topics[name].partitions.append(_deleted(partition, outcome))
            await asyncio.sleep(0)
        return await large_answer(context, DeleteRecordsResponse(topics=list(topics.values())), len(last))

    async def _advance(self, starts: Sequence[tuple[int, int]]) -> dict[int, int | Refusal]:
        """The new log start of each stream, or a negative reason; after a command that failed no other is proposed."""
        moved: dict[int, int | Refusal] = {}
        failed: Refusal | None = None
        for some in light_starts(self._replica.state, starts):
            outcome = failed or await propose(self._replica, AdvanceLogStart(some), TRY_AGAIN)
            if isinstance(outcome, Refusal):
                failed, outcome = outcome, [outcome] * len(some)
            moved.update(zip((stream for stream, _ in some), outcome, strict=True))
        return moved

    def _start(self, name: str, asked: DeleteRecordsPartition) -> tuple[int, int] | Refusal:
        state = self._replica.state
        topic = state.topics.by_name.get(name)
        if topic is None or not 0 <= asked.partition_index < len(topic.streams):
            return UNKNOWN_TOPIC
        if topic.configs.get("cleanup.policy") == "compact":
            return Refusal(ErrorCode.POLICY_VIOLATION, "the cleanup.policy of the topic does not allow it")
        stream: Stream = state.streams.by_id[topic.streams[asked.partition_index]]
        offset = stream.next if asked.offset == HIGH_WATERMARK else asked.offset
        if not 0 <= offset <= stream.next:
            return Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is outside [0, {stream.next}]")
        return stream.id, offset


def _merged(same: list[DeleteTopicState]) -> DeleteTopicState:
    """One entry with the name and the id that several entries give for one topic."""
    name = next((one.name for one in same if one.name is not None), None)
    return DeleteTopicState(name=name, topic_id=max(one.topic_id for one in same))


def _new_topic(asked: CreatableTopic) -> NewTopic | Refusal:
    """The topic that a client wants; a manual assignment gives the numbers of partitions and replicas."""
    partitions, replication = asked.num_partitions, asked.replication_factor
    if asked.assignments:
        if replication != DEFAULT:
            text = "A manual partition assignment was specified, but replication factor was not set to -1."
            return Refusal(ErrorCode.INVALID_REQUEST, text)
        if partitions != DEFAULT:
            text = "A manual partition assignment was specified, but numPartitions was not set to -1."
            return Refusal(ErrorCode.INVALID_REQUEST, text)
        if sorted(one.partition_index for one in asked.assignments) != list(range(len(asked.assignments))):
            text = "partitions should be a consecutive 0-based integer sequence"
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        if problem := _assignment_problem(asked.assignments):
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
        partitions, replication = len(asked.assignments), len(asked.assignments[0].broker_ids)
    configs = {config.name: config.value for config in asked.configs}
    return NewTopic(name=asked.name, partitions=partitions, replication=replication, configs=configs)


def _assignment_problem(assignments: Sequence[CreatableReplicaAssignment | CreatePartitionsAssignment]) -> str:
    """Why these lists of brokers cannot be replicas, or nothing. Whether the brokers exist does not matter."""
    if len({len(one.broker_ids) for one in assignments}) > 1:
        return "all partitions have to have the same number of replicas"
    for one in assignments:
        if not one.broker_ids:
            return "the manual partition assignment includes an empty replica list"
        if len(set(one.broker_ids)) != len(one.broker_ids):
            return "the manual partition assignment includes a broker more than once"
        if min(one.broker_ids) < 0:
            return "the manual partition assignment includes a negative broker id"
    return ""


def _deleted(partition: int, outcome: int | Refusal) -> DeleteRecordsPartitionResult:
    """From a new log start, a negative reason, or the refusal of the whole."""
    if isinstance(outcome, Refusal):
        return DeleteRecordsPartitionResult(partition_index=partition, low_watermark=-1, error_code=outcome.code)
    if outcome < 0:
        return DeleteRecordsPartitionResult(partition_index=partition, low_watermark=-1, error_code=code_of(-outcome))
    return DeleteRecordsPartitionResult(partition_index=partition, low_watermark=outcome)

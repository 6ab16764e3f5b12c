"""Topics: CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords."""

from lakestream.protocol.kafka.messages.types import ZERO_UUID, Bool, Int8, Int16, Int32, Int64, Uuid, field, message


@message
class CreatableReplicaAssignment:
    partition_index: Int32 = 0
    broker_ids: list[Int32] = field(factory=list)


@message
class CreatableTopicConfig:
    name: str = ""
    value: str | None = None


@message
class CreatableTopic:
    name: str = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = field(factory=list)
    configs: list[CreatableTopicConfig] = field(factory=list)


@message
class CreateTopicsRequest:
    topics: list[CreatableTopic] = field(factory=list)
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


@message
class CreatableTopicConfigs:
    name: str = ""
    value: str | None = None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False


@message
class CreatableTopicResult:
    name: str = ""
    topic_id: Uuid = field(since=7, default=ZERO_UUID)
    error_code: Int16 = 0
    error_message: str | None = None
    topic_config_error_code: Int16 = field(since=5, tag=0, default=0)
    num_partitions: Int32 = field(since=5, default=-1)
    replication_factor: Int16 = field(since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = field(since=5, factory=list)


@message
class CreateTopicsResponse:
    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult] = field(factory=list)


@message
class DeleteTopicState:
    name: str | None = None
    topic_id: Uuid = ZERO_UUID


@message
class DeleteTopicsRequest:
    topic_names: list[str] = field(until=5, factory=list)
    topics: list[DeleteTopicState] = field(since=6, factory=list)
    timeout_ms: Int32 = 0


@message
class DeletableTopicResult:
    name: str | None = field(nullable=6, default="")
    topic_id: Uuid = field(since=6, default=ZERO_UUID)
    error_code: Int16 = 0
    error_message: str | None = field(since=5, default=None)


@message
class DeleteTopicsResponse:
    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult] = field(factory=list)


@message
class CreatePartitionsAssignment:
    broker_ids: list[Int32] = field(factory=list)


@message
class CreatePartitionsTopic:
    name: str = ""
    count: Int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = field(factory=list)


@message
class CreatePartitionsRequest:
    topics: list[CreatePartitionsTopic] = field(factory=list)
    timeout_ms: Int32 = 0
    validate_only: Bool = False


@message
class CreatePartitionsTopicResult:
    name: str = ""
    error_code: Int16 = 0
    error_message: str | None = None


@message
class CreatePartitionsResponse:
    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = field(factory=list)


@message
class DeleteRecordsPartition:
    partition_index: Int32 = 0
    offset: Int64 = 0


@message
class DeleteRecordsTopic:
    name: str = ""
    partitions: list[DeleteRecordsPartition] = field(factory=list)


@message
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic] = field(factory=list)
    timeout_ms: Int32 = 0


@message
class DeleteRecordsPartitionResult:
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


@message
class DeleteRecordsTopicResult:
    name: str = ""
    partitions: list[DeleteRecordsPartitionResult] = field(factory=list)


@message
class DeleteRecordsResponse:
    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = field(factory=list)

"""Writing: Produce and InitProducerId."""

from lakestream.protocol.kafka.messages.leader import LeaderIdAndEpoch, NodeEndpoint
from lakestream.protocol.kafka.messages.types import ZERO_UUID, Int16, Int32, Int64, Records, Uuid, field, message


@message
class PartitionProduceData:
    index: Int32 = 0
    records: Records | None = None


@message
class TopicProduceData:
    name: str = field(until=12, default="")
    topic_id: Uuid = field(since=13, default=ZERO_UUID)
    partition_data: list[PartitionProduceData] = field(factory=list)


@message
class ProduceRequest:
    transactional_id: str | None = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = field(factory=list)


@message
class BatchIndexAndErrorMessage:
    batch_index: Int32 = 0
    batch_index_error_message: str | None = None


@message
class PartitionProduceResponse:
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Int64 = -1
    log_start_offset: Int64 = field(since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = field(since=8, factory=list)
    error_message: str | None = field(since=8, default=None)
    current_leader: LeaderIdAndEpoch = field(since=10, tag=0, factory=LeaderIdAndEpoch)


@message
class TopicProduceResponse:
    name: str = field(until=12, default="")
    topic_id: Uuid = field(since=13, default=ZERO_UUID)
    partition_responses: list[PartitionProduceResponse] = field(factory=list)


@message
class ProduceResponse:
    responses: list[TopicProduceResponse] = field(factory=list)
    throttle_time_ms: Int32 = 0
    node_endpoints: list[NodeEndpoint] = field(since=10, tag=0, factory=list)


@message
class InitProducerIdRequest:
    transactional_id: str | None = None
    transaction_timeout_ms: Int32 = 0
    producer_id: Int64 = field(since=3, default=-1)
    producer_epoch: Int16 = field(since=3, default=-1)


@message
class InitProducerIdResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0

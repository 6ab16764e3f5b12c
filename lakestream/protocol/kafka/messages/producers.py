"""Producers as the partitions know them: DescribeProducers."""

from lakestream.protocol.kafka.messages.types import Int16, Int32, Int64, field, message


@message
class DescribeProducersTopic:
    name: str = ""
    partition_indexes: list[Int32] = field(factory=list)


@message
class DescribeProducersRequest:
    topics: list[DescribeProducersTopic] = field(factory=list)


@message
class DescribedProducer:
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


@message
class DescribeProducersPartitionResult:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    active_producers: list[DescribedProducer] = field(factory=list)


@message
class DescribeProducersTopicResult:
    name: str = ""
    partitions: list[DescribeProducersPartitionResult] = field(factory=list)


@message
class DescribeProducersResponse:
    throttle_time_ms: Int32 = 0
    topics: list[DescribeProducersTopicResult] = field(factory=list)

"""Where replicas lie and move to: DescribeLogDirs, ListPartitionReassignments."""

from lakestream.protocol.kafka.messages.types import Bool, Int16, Int32, Int64, field, message


@message
class DescribableLogDirTopic:
    topic: str = ""
    partitions: list[Int32] = field(factory=list)


@message
class DescribeLogDirsRequest:
    topics: list[DescribableLogDirTopic] | None = field(factory=list)


@message
class DescribeLogDirsPartition:
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


@message
class DescribeLogDirsTopic:
    name: str = ""
    partitions: list[DescribeLogDirsPartition] = field(factory=list)


@message
class DescribeLogDirsResult:
    error_code: Int16 = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = field(factory=list)
    total_bytes: Int64 = field(since=4, default=-1)
    usable_bytes: Int64 = field(since=4, default=-1)
    is_cordoned: Bool = field(since=5, default=False)


@message
class DescribeLogDirsResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(since=3, default=0)
    results: list[DescribeLogDirsResult] = field(factory=list)


@message
class ListPartitionReassignmentsTopic:
    name: str = ""
    partition_indexes: list[Int32] = field(factory=list)


@message
class ListPartitionReassignmentsRequest:
    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopic] | None = None


@message
class OngoingPartitionReassignment:
    partition_index: Int32 = 0
    replicas: list[Int32] = field(factory=list)
    adding_replicas: list[Int32] = field(factory=list)
    removing_replicas: list[Int32] = field(factory=list)


@message
class OngoingTopicReassignment:
    name: str = ""
    partitions: list[OngoingPartitionReassignment] = field(factory=list)


@message
class ListPartitionReassignmentsResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    topics: list[OngoingTopicReassignment] = field(factory=list)

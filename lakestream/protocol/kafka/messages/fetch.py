"""Reading: Fetch, ListOffsets, OffsetForLeaderEpoch."""

from lakestream.protocol.kafka.messages.leader import LeaderIdAndEpoch, NodeEndpoint
from lakestream.protocol.kafka.messages.types import ZERO_UUID, Int8, Int16, Int32, Int64, Records, Uuid, field, message


@message
class ReplicaState:
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


@message
class FetchPartition:
    partition: Int32 = 0
    current_leader_epoch: Int32 = field(since=9, default=-1)
    fetch_offset: Int64 = 0
    last_fetched_epoch: Int32 = field(since=12, default=-1)
    log_start_offset: Int64 = field(since=5, default=-1)
    partition_max_bytes: Int32 = 0
    replica_directory_id: Uuid = field(since=17, tag=0, default=ZERO_UUID)
    high_watermark: Int64 = field(since=18, tag=1, default=9223372036854775807)


@message
class FetchTopic:
    topic: str = field(until=12, default="")
    topic_id: Uuid = field(since=13, default=ZERO_UUID)
    partitions: list[FetchPartition] = field(factory=list)


@message
class ForgottenTopic:
    topic: str = field(until=12, default="")
    topic_id: Uuid = field(since=13, default=ZERO_UUID)
    partitions: list[Int32] = field(factory=list)


@message
class FetchRequest:
    cluster_id: str | None = field(since=12, tag=0, default=None)
    replica_id: Int32 = field(until=14, default=-1)
    replica_state: ReplicaState = field(since=15, tag=1, factory=ReplicaState)
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2147483647
    isolation_level: Int8 = 0
    session_id: Int32 = field(since=7, default=0)
    session_epoch: Int32 = field(since=7, default=-1)
    topics: list[FetchTopic] = field(factory=list)
    forgotten_topics_data: list[ForgottenTopic] = field(since=7, factory=list)
    rack_id: str = field(since=11, default="")


@message
class EpochEndOffset:
    epoch: Int32 = -1
    end_offset: Int64 = -1


@message
class SnapshotId:
    end_offset: Int64 = -1
    epoch: Int32 = -1


@message
class AbortedTransaction:
    producer_id: Int64 = 0
    first_offset: Int64 = 0


@message
class PartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Int64 = field(since=5, default=-1)
    diverging_epoch: EpochEndOffset = field(since=12, tag=0, factory=EpochEndOffset)
    current_leader: LeaderIdAndEpoch = field(since=12, tag=1, factory=LeaderIdAndEpoch)
    snapshot_id: SnapshotId = field(since=12, tag=2, factory=SnapshotId)
    aborted_transactions: list[AbortedTransaction] | None = None
    preferred_read_replica: Int32 = field(since=11, default=-1)
    records: Records | None = None


@message
class FetchableTopicResponse:
    topic: str = field(until=12, default="")
    topic_id: Uuid = field(since=13, default=ZERO_UUID)
    partitions: list[PartitionData] = field(factory=list)


@message
class FetchResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(since=7, default=0)
    session_id: Int32 = field(since=7, default=0)
    responses: list[FetchableTopicResponse] = field(factory=list)
    node_endpoints: list[NodeEndpoint] = field(since=16, tag=0, factory=list)


@message
class ListOffsetsPartition:
    partition_index: Int32 = 0
    current_leader_epoch: Int32 = field(since=4, default=-1)
    timestamp: Int64 = 0


@message
class ListOffsetsTopic:
    name: str = ""
    partitions: list[ListOffsetsPartition] = field(factory=list)


@message
class ListOffsetsRequest:
    replica_id: Int32 = 0
    isolation_level: Int8 = field(since=2, default=0)
    topics: list[ListOffsetsTopic] = field(factory=list)
    timeout_ms: Int32 = field(since=10, default=0)


@message
class ListOffsetsPartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Int32 = field(since=4, default=-1)


@message
class ListOffsetsTopicResponse:
    name: str = ""
    partitions: list[ListOffsetsPartitionResponse] = field(factory=list)


@message
class ListOffsetsResponse:
    throttle_time_ms: Int32 = field(since=2, default=0)
    topics: list[ListOffsetsTopicResponse] = field(factory=list)


@message
class OffsetForLeaderPartition:
    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


@message
class OffsetForLeaderTopic:
    topic: str = ""
    partitions: list[OffsetForLeaderPartition] = field(factory=list)


@message
class OffsetForLeaderEpochRequest:
    replica_id: Int32 = field(since=3, default=-2)
    topics: list[OffsetForLeaderTopic] = field(factory=list)


@message
class OffsetForLeaderEpochEnd:
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


@message
class OffsetForLeaderTopicResult:
    topic: str = ""
    partitions: list[OffsetForLeaderEpochEnd] = field(factory=list)


@message
class OffsetForLeaderEpochResponse:
    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = field(factory=list)

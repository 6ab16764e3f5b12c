"""A group's committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from lakestream.protocol.kafka.messages.types import ZERO_UUID, Bool, Int16, Int32, Int64, Uuid, field, message


@message
class OffsetCommitRequestPartition:
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = field(since=6, default=-1)
    committed_metadata: str | None = None


@message
class OffsetCommitRequestTopic:
    name: str = field(until=9, default="")
    topic_id: Uuid = field(since=10, default=ZERO_UUID)
    partitions: list[OffsetCommitRequestPartition] = field(factory=list)


@message
class OffsetCommitRequest:
    group_id: str = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: str = ""
    retention_time_ms: Int64 = field(until=4, default=-1)
    group_instance_id: str | None = field(since=7, default=None)
    topics: list[OffsetCommitRequestTopic] = field(factory=list)


@message
class OffsetCommitResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@message
class OffsetCommitResponseTopic:
    name: str = field(until=9, default="")
    topic_id: Uuid = field(since=10, default=ZERO_UUID)
    partitions: list[OffsetCommitResponsePartition] = field(factory=list)


@message
class OffsetCommitResponse:
    throttle_time_ms: Int32 = field(since=3, default=0)
    topics: list[OffsetCommitResponseTopic] = field(factory=list)


@message
class OffsetFetchRequestTopic:
    name: str = field(until=9, default="")
    topic_id: Uuid = field(since=10, default=ZERO_UUID)
    partition_indexes: list[Int32] = field(factory=list)


@message
class OffsetFetchRequestGroup:
    group_id: str = ""
    member_id: str | None = field(since=9, default=None)
    member_epoch: Int32 = field(since=9, default=-1)
    topics: list[OffsetFetchRequestTopic] | None = field(factory=list)


@message
class OffsetFetchRequest:
    group_id: str = field(until=7, default="")
    topics: list[OffsetFetchRequestTopic] | None = field(until=7, nullable=2, factory=list)
    groups: list[OffsetFetchRequestGroup] = field(since=8, factory=list)
    require_stable: Bool = field(since=7, default=False)


@message
class OffsetFetchResponsePartition:
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = field(since=5, default=-1)
    metadata: str | None = None
    error_code: Int16 = 0


@message
class OffsetFetchResponseTopic:
    name: str = field(until=9, default="")
    topic_id: Uuid = field(since=10, default=ZERO_UUID)
    partitions: list[OffsetFetchResponsePartition] = field(factory=list)


@message
class OffsetFetchResponseGroup:
    group_id: str = ""
    topics: list[OffsetFetchResponseTopic] = field(factory=list)
    error_code: Int16 = 0


@message
class OffsetFetchResponse:
    throttle_time_ms: Int32 = field(since=3, default=0)
    topics: list[OffsetFetchResponseTopic] = field(until=7, factory=list)
    error_code: Int16 = field(since=2, until=7, default=0)
    groups: list[OffsetFetchResponseGroup] = field(since=8, factory=list)


@message
class OffsetDeleteRequestPartition:
    partition_index: Int32 = 0


@message
class OffsetDeleteRequestTopic:
    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = field(factory=list)


@message
class OffsetDeleteRequest:
    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = field(factory=list)


@message
class OffsetDeleteResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@message
class OffsetDeleteResponseTopic:
    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = field(factory=list)


@message
class OffsetDeleteResponse:
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = field(factory=list)

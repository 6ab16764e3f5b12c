"""Messages of the first requests: ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions."""

from lakestream.protocol.kafka.messages.types import (
    NOT_ASKED,
    ZERO_UUID,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Uuid,
    field,
    message,
)


@message
class ApiVersionsRequest:
    client_software_name: str = field(since=3, default="")
    client_software_version: str = field(since=3, default="")


@message
class ApiVersion:
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


@message
class SupportedFeatureKey:
    name: str = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


@message
class FinalizedFeatureKey:
    name: str = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


@message
class ApiVersionsResponse:
    error_code: Int16 = 0
    api_keys: list[ApiVersion] = field(factory=list)
    throttle_time_ms: Int32 = field(since=1, default=0)
    supported_features: list[SupportedFeatureKey] = field(since=3, tag=0, factory=list)
    finalized_features_epoch: Int64 = field(since=3, tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = field(since=3, tag=2, factory=list)
    zk_migration_ready: Bool = field(since=3, tag=3, default=False)


@message
class MetadataRequestTopic:
    topic_id: Uuid = field(since=10, default=ZERO_UUID)
    name: str | None = field(nullable=10, default="")


@message
class MetadataRequest:
    topics: list[MetadataRequestTopic] | None = field(nullable=1, factory=list)
    allow_auto_topic_creation: Bool = field(since=4, default=True)
    include_cluster_authorized_operations: Bool = field(since=8, until=10, default=False)
    include_topic_authorized_operations: Bool = field(since=8, default=False)


@message
class MetadataResponseBroker:
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = field(since=1, default=None)


@message
class MetadataResponsePartition:
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = field(since=7, default=-1)
    replica_nodes: list[Int32] = field(factory=list)
    isr_nodes: list[Int32] = field(factory=list)
    offline_replicas: list[Int32] = field(since=5, factory=list)


@message
class MetadataResponseTopic:
    error_code: Int16 = 0
    name: str | None = field(nullable=12, default="")
    topic_id: Uuid = field(since=10, default=ZERO_UUID)
    is_internal: Bool = field(since=1, default=False)
    partitions: list[MetadataResponsePartition] = field(factory=list)
    topic_authorized_operations: Int32 = field(since=8, default=NOT_ASKED)


@message
class MetadataResponse:
    throttle_time_ms: Int32 = field(since=3, default=0)
    brokers: list[MetadataResponseBroker] = field(factory=list)
    cluster_id: str | None = field(since=2, default=None)
    controller_id: Int32 = field(since=1, default=-1)
    topics: list[MetadataResponseTopic] = field(factory=list)
    cluster_authorized_operations: Int32 = field(since=8, until=10, default=NOT_ASKED)
    error_code: Int16 = field(since=13, default=0)


@message
class DescribeClusterRequest:
    include_cluster_authorized_operations: Bool = False
    endpoint_type: Int8 = field(since=1, default=1)
    include_fenced_brokers: Bool = field(since=2, default=False)


@message
class DescribeClusterBroker:
    broker_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None
    is_fenced: Bool = field(since=2, default=False)


@message
class DescribeClusterResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    endpoint_type: Int8 = field(since=1, default=1)
    cluster_id: str = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = field(factory=list)
    cluster_authorized_operations: Int32 = NOT_ASKED


@message
class DescribedTopicName:
    name: str = ""


@message
class PartitionCursor:
    """Where the next page begins."""

    topic_name: str = ""
    partition_index: Int32 = 0


@message
class DescribeTopicPartitionsRequest:
    topics: list[DescribedTopicName] = field(factory=list)
    response_partition_limit: Int32 = 2000
    cursor: PartitionCursor | None = None


@message
class DescribedPartition:
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32] = field(factory=list)
    isr_nodes: list[Int32] = field(factory=list)
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32] = field(factory=list)


@message
class DescribedTopic:
    error_code: Int16 = 0
    name: str | None = ""
    topic_id: Uuid = ZERO_UUID
    is_internal: Bool = False
    partitions: list[DescribedPartition] = field(factory=list)
    topic_authorized_operations: Int32 = NOT_ASKED


@message
class DescribeTopicPartitionsResponse:
    throttle_time_ms: Int32 = 0
    topics: list[DescribedTopic] = field(factory=list)
    next_cursor: PartitionCursor | None = None

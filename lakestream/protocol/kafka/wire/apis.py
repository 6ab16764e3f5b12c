"""The APIs we can read and write: keys, versions as Apache Kafka 4.3 has them, message classes.

What a server advertises is the part of this table for which it has handlers.
"""

from dataclasses import dataclass
from typing import Any, Final

from lakestream.interfaces import Buffer
from lakestream.protocol.kafka.messages import (
    acls,
    configs,
    fetch,
    groups,
    membership,
    metadata,
    offsets,
    produce,
    producers,
    quotas,
    replicas,
    topics,
)
from lakestream.protocol.kafka.messages.types import LATEST
from lakestream.protocol.kafka.wire import codec, framing


@dataclass(frozen=True, slots=True)
class Api:
    """One API. Versions below `readable_from` are advertised, because old clients insist on it, and then refused."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_from: int
    request: type[Any]
    response: type[Any]
    readable_from: int = 0

    def reads(self, version: int) -> bool:
        return max(self.min_version, self.readable_from) <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from


def decode_request(api: Api, version: int, buffer: Buffer, pos: int) -> Any:
    """The request whose body begins at `pos`. Raises Malformed.

    Bytes behind it are passed over, as in Kafka: librdkafka sends some after an "all topics" Metadata request.
    """
    return codec.decode(api.request, version, api.is_flexible(version), buffer, pos, exact=False)


def encode_response(api: Api, version: int, correlation_id: int, response: object) -> bytearray:
    """A whole response frame, its length in front."""
    flexible = api.is_flexible(version)
    out = framing.begin_frame(framing.has_flexible_response_header(api.key, flexible))
    codec.encode_into(out, response, version, flexible)
    return framing.end_frame(out, correlation_id)


_ALL: Final = [
    Api(0, "Produce", 0, 13, 9, produce.ProduceRequest, produce.ProduceResponse, readable_from=3),
    Api(1, "Fetch", 4, 18, 12, fetch.FetchRequest, fetch.FetchResponse),
    Api(2, "ListOffsets", 1, 11, 6, fetch.ListOffsetsRequest, fetch.ListOffsetsResponse),
    Api(3, "Metadata", 0, 13, 9, metadata.MetadataRequest, metadata.MetadataResponse),
    Api(8, "OffsetCommit", 2, 10, 8, offsets.OffsetCommitRequest, offsets.OffsetCommitResponse),
    Api(9, "OffsetFetch", 1, 10, 6, offsets.OffsetFetchRequest, offsets.OffsetFetchResponse),
    Api(10, "FindCoordinator", 0, 6, 3, groups.FindCoordinatorRequest, groups.FindCoordinatorResponse),
    Api(11, "JoinGroup", 0, 9, 6, membership.JoinGroupRequest, membership.JoinGroupResponse),
    Api(12, "Heartbeat", 0, 4, 4, membership.HeartbeatRequest, membership.HeartbeatResponse),
    Api(13, "LeaveGroup", 0, 5, 4, membership.LeaveGroupRequest, membership.LeaveGroupResponse),
    Api(14, "SyncGroup", 0, 5, 4, membership.SyncGroupRequest, membership.SyncGroupResponse),
    Api(15, "DescribeGroups", 0, 6, 5, groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
    Api(16, "ListGroups", 0, 5, 3, groups.ListGroupsRequest, groups.ListGroupsResponse),
    Api(framing.API_VERSIONS, "ApiVersions", 0, 4, 3, metadata.ApiVersionsRequest, metadata.ApiVersionsResponse),
    Api(19, "CreateTopics", 2, 7, 5, topics.CreateTopicsRequest, topics.CreateTopicsResponse),
    Api(20, "DeleteTopics", 1, 6, 4, topics.DeleteTopicsRequest, topics.DeleteTopicsResponse),
    Api(21, "DeleteRecords", 0, 2, 2, topics.DeleteRecordsRequest, topics.DeleteRecordsResponse),
    Api(22, "InitProducerId", 0, 5, 2, produce.InitProducerIdRequest, produce.InitProducerIdResponse),
    Api(23, "OffsetForLeaderEpoch", 2, 4, 4, fetch.OffsetForLeaderEpochRequest, fetch.OffsetForLeaderEpochResponse),
    Api(29, "DescribeAcls", 1, 3, 2, acls.DescribeAclsRequest, acls.DescribeAclsResponse),
    Api(32, "DescribeConfigs", 1, 4, 4, configs.DescribeConfigsRequest, configs.DescribeConfigsResponse),
    Api(33, "AlterConfigs", 0, 2, 2, configs.AlterConfigsRequest, configs.AlterConfigsResponse),
    Api(35, "DescribeLogDirs", 1, 5, 2, replicas.DescribeLogDirsRequest, replicas.DescribeLogDirsResponse),
    Api(37, "CreatePartitions", 0, 3, 2, topics.CreatePartitionsRequest, topics.CreatePartitionsResponse),
    Api(42, "DeleteGroups", 0, 2, 2, groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
    Api(
        44,
        "IncrementalAlterConfigs",
        0,
        1,
        1,
        configs.IncrementalAlterConfigsRequest,
        configs.IncrementalAlterConfigsResponse,
    ),
    Api(
        46,
        "ListPartitionReassignments",
        0,
        0,
        0,
        replicas.ListPartitionReassignmentsRequest,
        replicas.ListPartitionReassignmentsResponse,
    ),
    Api(47, "OffsetDelete", 0, 0, LATEST, offsets.OffsetDeleteRequest, offsets.OffsetDeleteResponse),
    Api(
        48,
        "DescribeClientQuotas",
        0,
        1,
        1,
        quotas.DescribeClientQuotasRequest,
        quotas.DescribeClientQuotasResponse,
    ),
    Api(60, "DescribeCluster", 0, 2, 0, metadata.DescribeClusterRequest, metadata.DescribeClusterResponse),
    Api(61, "DescribeProducers", 0, 0, 0, producers.DescribeProducersRequest, producers.DescribeProducersResponse),
    Api(74, "ListConfigResources", 0, 1, 0, configs.ListConfigResourcesRequest, configs.ListConfigResourcesResponse),
    Api(
        75,
        "DescribeTopicPartitions",
        0,
        0,
        0,
        metadata.DescribeTopicPartitionsRequest,
        metadata.DescribeTopicPartitionsResponse,
    ),
]

APIS: Final[dict[int, Api]] = {api.key: api for api in _ALL}
FLEXIBLE_FROM: Final[dict[int, int]] = {api.key: api.flexible_from for api in _ALL}
"""For wire.parse_header."""

UNSERVED: Final[dict[int, str]] = {
    17: "SaslHandshake", 24: "AddPartitionsToTxn", 25: "AddOffsetsToTxn", 26: "EndTxn", 27: "WriteTxnMarkers",
    28: "TxnOffsetCommit", 30: "CreateAcls", 31: "DeleteAcls", 34: "AlterReplicaLogDirs", 36: "SaslAuthenticate",
    38: "CreateDelegationToken", 39: "RenewDelegationToken", 40: "ExpireDelegationToken",
    41: "DescribeDelegationToken", 43: "ElectLeaders", 45: "AlterPartitionReassignments",
    49: "AlterClientQuotas", 50: "DescribeUserScramCredentials", 51: "AlterUserScramCredentials", 55: "DescribeQuorum",
    57: "UpdateFeatures", 64: "UnregisterBroker", 65: "DescribeTransactions", 66: "ListTransactions",
    68: "ConsumerGroupHeartbeat", 69: "ConsumerGroupDescribe", 71: "GetTelemetrySubscriptions", 72: "PushTelemetry",
    76: "ShareGroupHeartbeat", 77: "ShareGroupDescribe", 78: "ShareFetch", 79: "ShareAcknowledge",
    80: "AddRaftVoter", 81: "RemoveRaftVoter", 88: "StreamsGroupHeartbeat", 89: "StreamsGroupDescribe",
    90: "DescribeShareGroupOffsets", 91: "AlterShareGroupOffsets", 92: "DeleteShareGroupOffsets",
}  # fmt: skip
"""Kafka's APIs that clients may ask for and that have no handler: the name for the log, since the client sees none."""

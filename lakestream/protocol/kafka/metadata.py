"""The first requests of every client: ApiVersions (versions 0 to 4), Metadata (0 to 13), DescribeCluster (0 to 2).

Departures from Kafka: every broker can be asked for everything, so the leader of a partition only spreads the load, and
the controller is the live broker with the lowest id. The replication factor is shown as it was asked for: where fewer
brokers live, ids of brokers that do not exist fill the list. A topic that is made by asking for it is there at once,
in the same answer. The one feature is `lakestream.level`, the level of the state machine that all brokers know.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from lakestream.metadata.replica import Replica
from lakestream.model.batches.header import LEADER_EPOCH
from lakestream.model.levels import NEWEST
from lakestream.model.members import Member
from lakestream.model.placement import rankings
from lakestream.model.topics import Topic, name_problem
from lakestream.protocol.kafka.connections.calls import Handler, RequestContext
from lakestream.protocol.kafka.connections.large_answers import ITEMS_AT_ONCE, large_answer
from lakestream.protocol.kafka.creation import TopicMaker
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    SupportedFeatureKey,
)
from lakestream.protocol.kafka.messages.types import NOT_ASKED, ZERO_UUID
from lakestream.protocol.kafka.refusals import Refusal, stale
from lakestream.protocol.kafka.wire.apis import APIS
from lakestream.stream.long_work import chunks

SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
LEVEL_FEATURE: Final = "lakestream.level"
"""The state's level, which `kafka-features describe` shows: what all live brokers know, and what is in use."""
IDS_SINCE: Final = 12
"""The first version of Metadata that asks by topic id."""
BROKERS, CONTROLLERS = 1, 2
"""Types of endpoints (DescribeCluster)."""
SHOWN_REPLICAS_MAX: Final = 1_000_000
"""Of one topic: more would make an answer of many megabytes from a request of a few bytes."""
CACHE_LIMIT: Final = 20_000
TOPICS_AT_ONCE: Final = 500
CACHED_REPLICATION_MAX: Final = 16
TRY_AGAIN: Final = ErrorCode.LEADER_NOT_AVAILABLE
LASTING: Final = (
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.INVALID_PARTITIONS,
    ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.POLICY_VIOLATION,
)
INTERNAL_TOPICS: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")
"""Kafka's own topics, which have no part here: asking for one does not make it."""


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


# Kafka's numbers: read 3, write 4, create 5, delete 6, alter 7, describe 8, cluster action 9, describe configs 10,
# alter configs 11, idempotent write 12. Without ACLs every client may do every operation on a resource.
TOPIC_OPERATIONS: Final = _bits(3, 4, 5, 6, 7, 8, 10, 11)
CLUSTER_OPERATIONS: Final = _bits(5, 7, 8, 9, 10, 11, 12)


class MetadataApis:
    """Tells clients what there is. `served` gives the API keys that have handlers, once all of them are known."""

    def __init__(self, replica: Replica, maker: TopicMaker, served: Callable[[], Iterable[int]]) -> None:
        self._replica = replica
        self._maker = maker
        self._served = served
        self._partitions = PartitionCache()

    def handlers(self) -> dict[int, Handler]:
        return {3: self.metadata, 18: self.api_versions, 60: self.describe_cluster}

    # -- ApiVersions ------------------------------------------------------------------------------------------------

    async def api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        names = (request.client_software_name, request.client_software_version)
        if context.version >= 3 and not all(map(SOFTWARE.fullmatch, names)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        level = self._replica.state.level
        return ApiVersionsResponse(
            api_keys=[_range(key) for key in sorted(self._served())],
            supported_features=[SupportedFeatureKey(name=LEVEL_FEATURE, min_version=1, max_version=NEWEST)],
            finalized_features_epoch=level,
            finalized_features=[
                FinalizedFeatureKey(name=LEVEL_FEATURE, max_version_level=level, min_version_level=level)
            ],
        )

    async def unsupported_version(self, context: RequestContext, request: None) -> ApiVersionsResponse:
        """To a version of ApiVersions that we do not know: what we do know of it, in version 0, as Kafka does."""
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_range(18)])

    # -- Metadata ---------------------------------------------------------------------------------------------------

    async def metadata(self, context: RequestContext, request: MetadataRequest) -> Any:
        """Describe very many partitions in steps, so that no other client waits."""
        asked = request.topics
        if context.version < IDS_SINCE and any(one.topic_id != ZERO_UUID or one.name is None for one in asked or ()):
            return _too_early(request)
        everything = asked is None or (not asked and context.version == 0)
        refused: dict[str, Refusal] = {}
        if everything:
            await self._replica.catch_up()
        elif asked:
            refused = await self._settle(asked, request.allow_auto_topic_creation)
        state = self._replica.state
        brokers = state.members.brokers()
        found: list[Topic | MetadataResponseTopic]
        if everything:
            found = list(state.topics.by_name.values())
        else:
            found = [self._find(one) or self._unknown(one, refused) for one in self._once(asked or [])]
        operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
        topics = await self._described(found, tuple(broker.id for broker in brokers), operations)
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=b.id, host=b.host, port=b.port, rack=_rack(b)) for b in brokers],
            cluster_id=state.cluster,
            controller_id=brokers[0].id if brokers else -1,
            topics=topics,
            cluster_authorized_operations=(
                CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
            ),
        )
        return await large_answer(context, response, sum(1 + len(one.partitions) for one in topics))

    async def _described(
        self, found: Sequence[Topic | MetadataResponseTopic], brokers: tuple[int, ...], operations: int
    ) -> list[MetadataResponseTopic]:
        """The topics as clients are shown them; what is an answer already stays as it is."""
        described: list[MetadataResponseTopic] = []
        for number, one in enumerate(found, 1):
            if isinstance(one, Topic):
                partitions = await self._partitions.of(one, brokers)
                one = MetadataResponseTopic(
                    name=one.name, topic_id=one.id, partitions=partitions, topic_authorized_operations=operations
                )
            described.append(one)
            if number % TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return described

    async def _settle(self, asked: list[MetadataRequestTopic], may_create: bool) -> dict[str, Refusal]:
        """Before saying no be current (L6), and make what may be made; why that failed, by name ("" for all)."""
        if all(map(self._find, asked)):
            return {}
        failed = await stale(self._replica, TRY_AGAIN)
        if failed is not None:
            return {"": failed}
        if not (may_create and self._maker.auto_create):
            return {}
        missing = {one.name or "": None for one in asked if one.topic_id == ZERO_UUID and self._find(one) is None}
        names = [name for name in missing if name not in INTERNAL_TOPICS and not name_problem(name)]
        return await self._maker.make_all(names)

    def _once(self, asked: list[MetadataRequestTopic]) -> Iterable[MetadataRequestTopic]:
        """Each topic appears once in the answer, whether the request has its name, its id, or both."""
        once: dict[object, MetadataRequestTopic] = {}
        for one in asked:
            topic = self._find(one)
            once.setdefault(topic.id if topic is not None else (one.topic_id, one.name), one)
        return once.values()

    def _unknown(self, asked: MetadataRequestTopic, refused: Mapping[str, Refusal]) -> MetadataResponseTopic:
        """Why a topic is not described."""
        by_id = asked.topic_id != ZERO_UUID
        name = asked.name or ""
        failed = refused.get("") or refused.get(name)
        if by_id:
            code = failed.code if failed else ErrorCode.UNKNOWN_TOPIC_ID
            return MetadataResponseTopic(name=None, topic_id=asked.topic_id, error_code=code)
        if name_problem(name):
            return MetadataResponseTopic(name=name, error_code=ErrorCode.INVALID_TOPIC_EXCEPTION)
        code = _passing(failed) if failed else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return MetadataResponseTopic(name=name, error_code=code)

    def _find(self, asked: MetadataRequestTopic) -> Topic | None:
        topics = self._replica.state.topics
        if asked.topic_id != ZERO_UUID:
            return topics.by_id.get(asked.topic_id)
        return topics.by_name.get(asked.name or "")

    # -- DescribeCluster --------------------------------------------------------------------------------------------

    async def describe_cluster(
        self, context: RequestContext, request: DescribeClusterRequest
    ) -> DescribeClusterResponse:
        if request.endpoint_type == CONTROLLERS:
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE, error_message="this is a broker, not a controller"
            )
        if request.endpoint_type != BROKERS:
            return DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message=f"there is no endpoint type {request.endpoint_type}",
            )
        # The answer shows the newest state; while the command log cannot be read, the last state that was folded.
        await stale(self._replica)
        state = self._replica.state
        known = sorted(state.members.by_id.values(), key=lambda member: member.id)
        shown = [one for one in known if one.role == "broker" and (one.alive or request.include_fenced_brokers)]
        live = [broker.id for broker in shown if broker.alive]
        return DescribeClusterResponse(
            cluster_id=state.cluster,
            controller_id=live[0] if live else -1,
            brokers=[
                DescribeClusterBroker(broker_id=b.id, host=b.host, port=b.port, rack=_rack(b), is_fenced=not b.alive)
                for b in shown
            ],
            cluster_authorized_operations=(
                CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
            ),
        )


def _too_early(request: MetadataRequest) -> MetadataResponse:
    """To ids in a version that has the field but not the meaning yet: as in Kafka all is refused."""
    code = ErrorCode.INVALID_REQUEST
    topics = [
        MetadataResponseTopic(name=one.name or "", topic_id=one.topic_id, error_code=code)
        for one in request.topics or ()
    ]
    return MetadataResponse(topics=topics, controller_id=-1)


class PartitionCache:
    """The partitions of topics as they were last described; made anew when brokers, or partitions, come or go."""

    def __init__(self) -> None:
        self._brokers: tuple[int, ...] = ()
        self._known: dict[bytes, list[MetadataResponsePartition]] = {}

    async def of(self, topic: Topic, brokers: tuple[int, ...]) -> list[MetadataResponsePartition]:
        if brokers != self._brokers or len(self._known) >= CACHE_LIMIT:
            self._brokers = brokers
            self._known.clear()
        known = self._known.get(topic.id)
        if known is None or len(known) != len(topic.streams):
            known = []
            for span in chunks(range(len(topic.streams)), ITEMS_AT_ONCE):
                known += shown_partitions(topic, brokers, range(span[0], span[-1] + 1))
                if len(span) == ITEMS_AT_ONCE:
                    await asyncio.sleep(0)
            if topic.replication <= CACHED_REPLICATION_MAX and brokers == self._brokers:
                self._known[topic.id] = known
        return known


def shown_partitions(topic: Topic, brokers: tuple[int, ...], span: range) -> list[MetadataResponsePartition]:
    """Some partitions of a topic as clients are shown them: who leads, and which brokers fill the list of replicas."""
    count = len(topic.streams)
    shown = min(topic.replication, max(SHOWN_REPLICAS_MAX // count, len(brokers), 1))
    missing = max(shown - len(brokers), 0)
    live = set(brokers)
    absent = [one for one in range(len(brokers) + missing) if one not in live][:missing]
    partitions = []
    for index, order in zip(span, rankings(brokers, topic.id, span), strict=True):
        replicas = (order + absent)[:shown]
        partitions.append(
            MetadataResponsePartition(
                partition_index=index,
                error_code=ErrorCode.NONE if order else TRY_AGAIN,
                leader_id=order[0] if order else -1,
                leader_epoch=LEADER_EPOCH,
                replica_nodes=replicas,
                isr_nodes=replicas,
            )
        )
    return partitions


def _range(key: int) -> ApiVersion:
    api = APIS[key]
    return ApiVersion(api_key=key, min_version=api.min_version, max_version=api.max_version)


def _rack(member: Member) -> str | None:
    return member.rack or None


def _passing(failed: Refusal) -> ErrorCode:
    """Clients ask for metadata again and again: whatever may be cured by that is one code, which they all know."""
    return failed.code if failed.code in LASTING else TRY_AGAIN

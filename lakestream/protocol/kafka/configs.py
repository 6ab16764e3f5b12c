"""Configs of topics and brokers: DescribeConfigs (versions 1 to 4), AlterConfigs (0 to 2), IncrementalAlterConfigs
(0 and 1), ListConfigResources (0 and 1).

Departures from Kafka: configs of the brokers can be changed for the whole cluster only (the resource with the empty
name), and only those in CLUSTER_CONFIGS. A broker shows its settings, and where it runs as `lakestream.http`,
`lakestream.epoch` and `lakestream.pid`. There are no loggers, client metrics or group configs.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from lakestream.metadata.replica import Replica
from lakestream.model.commands import AlterConfigs
from lakestream.model.configs import (
    CLUSTER_CONFIGS,
    INT,
    LIST,
    LONG,
    STATIC_CONFIGS,
    STRING,
    TOPIC_CONFIGS,
    ConfigKey,
    ConfigTable,
    Layer,
    Source,
    anything,
    broker_layers,
    contradiction,
    items,
    topic_layers,
)
from lakestream.model.topics import Topic, name_problem
from lakestream.protocol.kafka.connections.calls import Handler, RequestContext
from lakestream.protocol.kafka.connections.large_answers import ITEMS_AT_ONCE, large_answer
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
    ReplacingConfigsResource,
)
from lakestream.protocol.kafka.refusals import Refusal, propose, stale
from lakestream.settings import table
from lakestream.stream.long_work import chunks

TOPIC, BROKER = 2, 4
"""Kinds of resources."""
LISTED = frozenset({TOPIC, BROKER, 8, 16, 32})
"""Kinds of resources that can be listed; of loggers (8), client metrics (16) and groups (32) there are none."""
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
OPERATIONS = {SET: "SET", APPEND: "APPEND", SUBTRACT: "SUBTRACT"}
REPEATED_LIMIT = 10_000
"""Configs that one response says again: a request of 500 kB could ask for gigabytes of them."""
TOO_LONG = Refusal(ErrorCode.INVALID_REQUEST, "The request names the resource too many times.")
SENSITIVE = frozenset({"data", "metadata"} | {row.name.replace("_", ".") for row in table().values() if row.secret})
"""Configs whose values no client is shown: secrets, and where the cluster keeps its data."""

Changes = list[tuple[str, str | None]]


class ConfigApis:
    """Shows and changes configs. `broker` has this broker's settings by Kafka's names."""

    def __init__(self, replica: Replica, broker: Mapping[str, str]) -> None:
        self._replica = replica
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {
            32: self.describe_configs,
            33: self.alter_configs,
            44: self.incremental_alter_configs,
            74: self.list_config_resources,
        }

    # -- DescribeConfigs --------------------------------------------------------------------------------------------

    async def describe_configs(self, context: RequestContext, request: DescribeConfigsRequest) -> object:
        """Each naming of a resource has its own answer, as in Kafka, until `REPEATED_LIMIT`."""
        own = (BROKER, str(self._replica.member_id))
        only_own = all((one.resource_type, one.resource_name) == own for one in request.resources)
        failed = None if only_own else await stale(self._replica, ErrorCode.LEADER_NOT_AVAILABLE)
        answer, shown, repeated = DescribeConfigsResponse(), 0, 0
        named = set[tuple[int, str]]()
        for asked in request.resources:
            place = kind, name = asked.resource_type, asked.resource_name
            result = DescribeConfigsResult(resource_type=kind, resource_name=name, error_message="")
            again = place in named
            found = failed or (TOO_LONG if again and repeated >= REPEATED_LIMIT else self._described(kind, name))
            if isinstance(found, Refusal):
                result.error_code, result.error_message = found.code, found.message
            else:
                wanted = set(asked.configuration_keys or ())
                result.configs = [one for one in found if not wanted or one.name in wanted]
                for one in result.configs:
                    _leave_out(one, request)
            named.add(place)
            answer.results.append(result)
            shown += 1 + len(result.configs)
            repeated += 1 + len(result.configs) if again else 0
            await asyncio.sleep(0)
        return await large_answer(context, answer, shown)

    def _described(self, kind: int, name: str) -> list[DescribeConfigsResourceResult] | Refusal:
        if kind == TOPIC:
            topic = self._topic(name)
            return topic if isinstance(topic, Refusal) else self._of_topic(topic)
        if kind != BROKER:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")
        cluster = self._replica.state.topics.configs
        if name == "":
            known = sorted(cluster.keys() & CLUSTER_CONFIGS.keys.keys())
            return [_entry(CLUSTER_CONFIGS.keys[key], broker_layers(key, cluster, {})[:1]) for key in known]
        own = str(self._replica.member_id)
        if name != own:
            text = f"Unexpected broker id, expected {own} or empty string, but received {name}"
            return Refusal(ErrorCode.INVALID_REQUEST, text)
        return self._of_broker()

    def _of_topic(self, topic: Topic) -> list[DescribeConfigsResourceResult]:
        cluster = self._replica.state.topics.configs
        return [
            _entry(key, topic_layers(key, topic.configs, cluster, self._broker))
            for key in sorted(TOPIC_CONFIGS.keys.values(), key=lambda one: one.name)
        ]

    def _of_broker(self) -> list[DescribeConfigsResourceResult]:
        cluster = self._replica.state.topics.configs
        known = {**STATIC_CONFIGS.keys, **CLUSTER_CONFIGS.keys}
        entries = [
            _entry(
                known.get(name) or _fact(name, STRING, "One of the broker's settings."),
                broker_layers(name, cluster, self._broker),
                read_only=name not in CLUSTER_CONFIGS.keys,
            )
            for name in sorted({*known, *self._broker})
        ]
        return entries + self._facts()

    def _facts(self) -> list[DescribeConfigsResourceResult]:
        """Facts that this broker registered in the cluster, as read-only configs."""
        me = self._replica.state.members.by_id.get(self._replica.member_id)
        if me is None:
            return []
        facts = (
            (_fact("lakestream.epoch", LONG, "The epoch in which this broker is a member."), str(me.epoch)),
            (_fact("lakestream.http", STRING, "Where this broker answers HTTP."), me.http),
            (_fact("lakestream.pid", INT, "The id of this broker's process."), str(me.pid)),
        )
        return [_entry(key, [Layer(key.name, value, Source.BROKER)], read_only=True) for key, value in facts]

    def _topic(self, name: str) -> Topic | Refusal:
        if problem := name_problem(name):
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        unknown = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic '{name}' does not exist")
        return self._replica.state.topics.by_name.get(name) or unknown

    async def list_config_resources(
        self, context: RequestContext, request: ListConfigResourcesRequest
    ) -> object:
        """Version 0 asks for client metrics, of which there are none."""
        kinds = set(request.resource_types) or (LISTED if context.version else set())
        if not kinds <= LISTED:
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        failed = await stale(self._replica, ErrorCode.LEADER_NOT_AVAILABLE)
        if failed is not None:
            return ListConfigResourcesResponse(error_code=failed.code)
        state = self._replica.state
        names = [(str(broker.id), BROKER) for broker in state.members.brokers() if BROKER in kinds]
        if TOPIC in kinds:
            names += [(name, TOPIC) for name in state.topics.by_name]
        answer = ListConfigResourcesResponse()
        for some in chunks(names, ITEMS_AT_ONCE):
            answer.config_resources += [ListedConfigResource(resource_name=n, resource_type=kind) for n, kind in some]
            await asyncio.sleep(0)
        return await large_answer(context, answer, len(names))

    # -- AlterConfigs and IncrementalAlterConfigs -------------------------------------------------------------------

    async def alter_configs(self, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
        """All configs of a resource at once: one that is set and not named here is unset."""
        failed = await stale(self._replica)
        resources = list[AlterConfigsResource]()
        for some in chunks(request.resources, ITEMS_AT_ONCE):
            resources += [self._replacement(resource) for resource in some]
            await asyncio.sleep(0)
        return AlterConfigsResponse(responses=await self._alter(resources, failed, request.validate_only))

    async def incremental_alter_configs(
        self, context: RequestContext, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        failed = await stale(self._replica)
        return IncrementalAlterConfigsResponse(
            responses=await self._alter(request.resources, failed, request.validate_only)
        )

    async def _alter(
        self, resources: Sequence[AlterConfigsResource], failed: Refusal | None, validate_only: bool
    ) -> list[AlterConfigsResourceResponse]:
        times = Counter((one.resource_type, one.resource_name) for one in resources)
        responses = []
        for resource in resources:
            place = resource.resource_type, resource.resource_name
            outcome: object = failed or self._alteration(resource, times[place])
            if isinstance(outcome, AlterConfigs) and outcome.changes and not validate_only:
                outcome = await propose(self._replica, outcome)
            answer = AlterConfigsResourceResponse(resource_type=place[0], resource_name=place[1])
            if isinstance(outcome, Refusal):
                answer.error_code, answer.error_message = outcome.code, outcome.message
            responses.append(answer)
            await asyncio.sleep(0)
        return responses

    def _replacement(self, asked: ReplacingConfigsResource) -> AlterConfigsResource:
        """The changes that leave a resource with exactly the requested configs."""
        topics, current = self._replica.state.topics, dict[str, str]()
        if asked.resource_type == TOPIC and asked.resource_name in topics.by_name:
            current = topics.by_name[asked.resource_name].configs
        elif asked.resource_type == BROKER:
            current = topics.configs
        changes = [AlterableConfig(name=one.name, config_operation=SET, value=one.value) for one in asked.configs]
        kept = {one.name for one in asked.configs}
        changes += [AlterableConfig(name=name, config_operation=DELETE) for name in current if name not in kept]
        return AlterConfigsResource(
            resource_type=asked.resource_type, resource_name=asked.resource_name, configs=changes
        )

    def _alteration(self, resource: AlterConfigsResource, times: int) -> AlterConfigs | Refusal:
        kind, name = resource.resource_type, resource.resource_name
        if times > 1:
            return Refusal(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        if kind == TOPIC and not name:
            return Refusal(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        if kind == TOPIC:
            topic = self._topic(name)
            if isinstance(topic, Refusal):
                return topic
            changes = altered(resource.configs, TOPIC_CONFIGS, topic.configs)
            if isinstance(changes, Refusal):
                return changes
            after = {**topic.configs, **dict(changes)}
            if problem := contradiction({key: value for key, value in after.items() if value is not None}):
                return Refusal(ErrorCode.INVALID_CONFIG, problem)
            return AlterConfigs(topic.id, changes)
        if kind != BROKER:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")
        if name:
            text = "configs can be changed for all brokers only: use the default entity, whose name is empty"
            return Refusal(ErrorCode.INVALID_REQUEST, text)
        static = self._broker.keys() - CLUSTER_CONFIGS.keys.keys()
        fixed = [one.name for one in resource.configs if one.name in static]
        if fixed:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {', '.join(fixed)}")
        changes = altered(resource.configs, CLUSTER_CONFIGS, self._replica.state.topics.configs)
        if isinstance(changes, Refusal) and all(one.name in CLUSTER_CONFIGS.keys for one in resource.configs):
            # Kafka has another code for a wrong config of a broker than for one of a topic.
            return Refusal(ErrorCode.INVALID_REQUEST, changes.message)
        return changes if isinstance(changes, Refusal) else AlterConfigs(b"", changes)


def altered(asked: Iterable[AlterableConfig], table: ConfigTable, current: Mapping[str, str]) -> Changes | Refusal:
    """The values to set, None to unset. As in Kafka, deleting an unknown config is no error."""
    changes: dict[str, str | None] = {}
    seen: set[str] = set()
    for one in asked:
        name, operation = one.name, one.config_operation
        if name in seen:
            return Refusal(ErrorCode.INVALID_REQUEST, f"config {name} is given twice")
        seen.add(name)
        if operation == DELETE:
            if name in table.keys:
                changes[name] = None
            continue
        if operation not in OPERATIONS:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Unknown value {operation} for op type")
        if one.value is None:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
        value = table.normal(name, one.value)
        key = table.keys.get(name)
        if key is not None and operation != SET:
            if key.type != LIST:
                text = f"Can't {OPERATIONS[operation]} to key {name} because its type is not LIST."
                return Refusal(ErrorCode.INVALID_CONFIG, text)
            have, given = items(current.get(name, key.default or "")), items(value)
            kept = [*have, *given] if operation == APPEND else [item for item in have if item not in given]
            value = table.normal(name, ",".join(kept))
        if problem := table.problem(name, value):
            return Refusal(ErrorCode.INVALID_CONFIG, problem)
        changes[name] = value
    return list(changes.items())


def _fact(name: str, type_: int, doc: str) -> ConfigKey:
    return ConfigKey(name=name, default=None, type=type_, problem=anything, doc=doc)


def _entry(key: ConfigKey, layers: list[Layer], read_only: bool = False) -> DescribeConfigsResourceResult:
    """One config with the first layer's value, which is left out if it is sensitive."""
    hidden = key.name in SENSITIVE
    return DescribeConfigsResourceResult(
        name=key.name,
        value=None if hidden or not layers else layers[0].value,
        read_only=read_only,
        config_source=layers[0].source if layers else Source.DEFAULT,
        is_sensitive=hidden,
        synonyms=[
            DescribeConfigsSynonym(name=one.name, value=None if hidden else one.value, source=one.source)
            for one in layers
        ],
        config_type=key.type,
        documentation=key.doc,
    )


def _leave_out(entry: DescribeConfigsResourceResult, request: DescribeConfigsRequest) -> None:
    if not request.include_synonyms:
        entry.synonyms = []
    if not request.include_documentation:
        entry.documentation = None

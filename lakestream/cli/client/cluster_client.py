"""A small Kafka client for the command line, with retries.

Every broker serves every partition, so requests go to one connected broker, and to the next one when that fails.
Requests of groups go to the group's coordinator.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from lakestream.cli.client.codes import COORDINATOR_MOVED, RETRIABLE, KafkaError, check
from lakestream.cli.client.connection import BrokerConnection, NoKafka, Unreachable, connect
from lakestream.errors import LakestreamError
from lakestream.process.ports import split_address
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from lakestream.protocol.kafka.messages.fetch import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lakestream.protocol.kafka.messages.groups import FindCoordinatorRequest
from lakestream.protocol.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
)
from lakestream.settings import SettingsError

CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
PATIENCE_S: Final = 30.0
"""How long a command retries while brokers are away or coordinators move."""
PAUSE_S: Final = 0.1
EARLIEST, LATEST = -2, -1
TOPIC, BROKER = 2, 4
"""The resource types of Kafka's configs."""

Place = tuple[str, int]
"""A topic's name and a partition number."""
T = TypeVar("T")


class ClusterClient:
    """A client of one cluster; `open_client` makes it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        try:
            self._known: list[tuple[str, int]] = [split_address(part.strip(), 9092) for part in bootstrap.split(",")]
        except ValueError as error:
            raise SettingsError(f"--bootstrap: {error}") from None
        self._any: BrokerConnection | None = None
        self._coordinator: BrokerConnection | None = None
        self._nodes: dict[tuple[str, int], BrokerConnection] = {}

    async def close(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self._nodes.values()))

    async def start(self) -> None:
        """Connect to one of the brokers. Raises Unreachable at once if none answers."""
        self._any = await self._reach()

    async def call(self, request: Any, timeout_s: float = ANSWER_S) -> Any:
        """Send a request to a broker, and to another one if that fails. The request may be handled twice."""

        async def attempt() -> Any:
            if self._any is None or not self._any.is_open:
                self._any = await self._reach()
            try:
                return await self._any.call(request, timeout_s)
            except Unreachable:
                self._known.append(self._known.pop(0))
                self._any = None
                raise

        return await persist(attempt)

    async def call_coordinator(self, group: str, request: Any, timeout_s: float = ANSWER_S) -> Any:
        """Send a request once to the group's coordinator. Raises Unreachable or KafkaError if that fails."""
        if self._coordinator is None or not self._coordinator.is_open:
            found = await self.call(FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group]))
            place = found.coordinators[0] if found.coordinators else found
            check(place.error_code, f"finding the coordinator of group {group!r}", place.error_message)
            self._coordinator = await self.node(place.host, place.port)
        try:
            return await self._coordinator.call(request, timeout_s)
        except Unreachable:
            self._coordinator = None
            raise

    async def ask_group(self, group: str, request: Any, code_of: Callable[[Any], int], doing: str) -> Any:
        """Send a request to the group's coordinator, again while it moves. Raises KafkaError for an error code."""

        async def attempt() -> Any:
            answer = await self.call_coordinator(group, request)
            code = code_of(answer)
            if code in COORDINATOR_MOVED:
                self.forget_coordinator()
            check(code, doing)
            return answer

        return await persist(attempt)

    def forget_coordinator(self) -> None:
        self._coordinator = None

    async def node(self, host: str, port: int) -> BrokerConnection:
        """The connection to the broker at this address."""
        known = self._nodes.get((host, port))
        if known is None or not known.is_open:
            self._nodes[(host, port)] = known = await connect(host, port, CONNECT_S)
        return known

    async def metadata(self, topics: Iterable[str] | None, create: bool = False) -> MetadataResponse:
        """The brokers and the named topics; None means all topics."""
        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        answer: MetadataResponse = await self.call(MetadataRequest(topics=asked, allow_auto_topic_creation=create))
        self._learn(answer.brokers)
        return answer

    async def partitions(self, topic: str, create: bool = False) -> list[int]:
        """The partitions of a topic. Raises KafkaError if it does not exist; with `create`, waits until it does."""

        async def attempt() -> list[int]:
            (found,) = (await self.metadata([topic], create)).topics
            if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and create:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {topic!r}")
            check(found.error_code, f"topic {topic!r}")
            return sorted(partition.partition_index for partition in found.partitions)

        return await persist(attempt)

    async def offsets(self, places: Mapping[Place, int]) -> dict[Place, int]:
        """The offset of each partition at a time (ms), EARLIEST or LATEST; -1 if no record is that late."""
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for (topic, partition), when in places.items():
            topics.setdefault(topic, []).append(ListOffsetsPartition(partition_index=partition, timestamp=when))
        asked = [ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()]

        async def attempt() -> dict[Place, int]:
            answer = await self.call(ListOffsetsRequest(replica_id=-1, topics=asked, timeout_ms=int(ANSWER_S * 1000)))
            found: dict[Place, int] = {}
            for topic in answer.topics:
                for part in topic.partitions:
                    check(part.error_code, f"offsets of {topic.name}-{part.partition_index}")
                    found[(topic.name, part.partition_index)] = part.offset
            return found

        return await persist(attempt) if places else {}

    async def configs(
        self, kind: int, name: str, connection: BrokerConnection | None = None
    ) -> list[DescribeConfigsResourceResult]:
        """The configs of a topic or a broker, asked of any broker, or of the one at `connection`."""
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        request = DescribeConfigsRequest(resources=[resource])
        answer = await (connection.call(request, ANSWER_S) if connection else self.call(request))
        (result,) = answer.results
        check(result.error_code, f"configs of {name!r}", result.error_message)
        configs: list[DescribeConfigsResourceResult] = result.configs
        return configs

    async def http_address(self) -> str:
        """The address of a broker's HTTP port. Raises LakestreamError if no broker reports one."""
        for broker in (await self.metadata([])).brokers:
            for config in await self.configs(BROKER, str(broker.node_id)):
                if config.name == "lakestream.http" and config.value:
                    return config.value
        raise LakestreamError(f"the brokers at {self.bootstrap} report no HTTP port; give one with --http")

    async def _reach(self) -> BrokerConnection:
        failures: list[Unreachable] = []
        for host, port in list(self._known):
            try:
                return await self.node(host, port)
            except Unreachable as error:
                failures.append(error)
        for failure in failures:
            if isinstance(failure, NoKafka):
                raise NoKafka(f"{failure}: --bootstrap takes a broker's Kafka port, not its HTTP port")
        raise Unreachable(
            f"cannot reach a broker at {self.bootstrap}: start one with `lakestream serve`, "
            f"or give its address with --bootstrap ({'; '.join(map(str, failures))})"
        )

    def _learn(self, brokers: Iterable[MetadataResponseBroker]) -> None:
        """Append the addresses of these brokers to the known ones."""
        self._known += [place for b in brokers if (place := (b.host, b.port)) not in self._known]


@asynccontextmanager
async def open_client(bootstrap: str) -> AsyncIterator[ClusterClient]:
    client = ClusterClient(bootstrap)
    try:
        await client.start()
        yield client
    finally:
        await client.close()


async def persist(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat `attempt` after retriable errors, for PATIENCE_S at most."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    while True:
        try:
            return await attempt()
        except (Unreachable, KafkaError) as error:
            if loop.time() > deadline or (isinstance(error, KafkaError) and error.code not in RETRIABLE):
                raise
        await asyncio.sleep(PAUSE_S)

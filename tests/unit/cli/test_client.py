"""The command line's Kafka client against a small broker of our own making: versions, retries, moving coordinators."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lakestream.cli import consume
from lakestream.cli.client import cluster_client as client_module
from lakestream.cli.client.cluster_client import ClusterClient, open_client
from lakestream.cli.client.codes import KafkaError
from lakestream.cli.client.connection import Unreachable
from lakestream.cli.client.membership import GroupMembership
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.fetch import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from lakestream.protocol.kafka.messages.groups import (
    Coordinator,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorResponse,
)
from lakestream.protocol.kafka.messages.membership import (
    HeartbeatResponse,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from lakestream.protocol.kafka.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from lakestream.protocol.kafka.wire import apis, framing

Answer = Callable[[Any], Any]


class FakeBroker:
    """Answers by API name. An answer of None closes the connection."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {"Metadata": self._metadata, "FindCoordinator": self._coordinator}
        self.seen: list[tuple[str, int]] = []
        self.host, self.port = "127.0.0.1", 0
        self.max_versions: dict[int, int] = {}

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                header = framing.parse_header(frame, 0, size, apis.FLEXIBLE_FROM)
                api = apis.APIS[header.api_key]
                request = apis.decode_request(api, header.api_version, frame, header.body)
                self.seen.append((api.name, header.api_version))
                answer = self._versions() if api.name == "ApiVersions" else self.answers[api.name](request)
                if answer is None:
                    return
                writer.write(apis.encode_response(api, header.api_version, header.correlation_id, answer))
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    def _versions(self) -> ApiVersionsResponse:
        keys = [
            ApiVersion(
                api_key=api.key,
                min_version=api.min_version,
                max_version=self.max_versions.get(api.key, api.max_version),
            )
            for api in apis.APIS.values()
        ]
        return ApiVersionsResponse(api_keys=keys)

    def _metadata(self, _: Any) -> MetadataResponse:
        partitions = [MetadataResponsePartition(partition_index=i) for i in range(2)]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=0, host=self.host, port=self.port)],
            topics=[MetadataResponseTopic(name="t", partitions=partitions)],
        )

    def _coordinator(self, request: Any) -> FindCoordinatorResponse:
        found = Coordinator(key=request.coordinator_keys[0], host=self.host, port=self.port)
        return FindCoordinatorResponse(coordinators=[found])


@asynccontextmanager
async def running(broker: FakeBroker) -> AsyncIterator[FakeBroker]:
    server = await asyncio.start_server(broker.serve, broker.host, 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield broker
    finally:
        server.close()


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with running(FakeBroker()) as fake:
        yield fake


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PATIENCE_S", 2.0)


def in_turn(*answers: Any) -> Answer:
    """The first request gets the first answer, and so on; the last one stays."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


async def test_the_newest_version_that_both_speak_is_used_but_none_that_wants_topic_ids(broker: FakeBroker) -> None:
    broker.max_versions = {3: 9}
    async with open_client(broker.address) as client:
        assert await client.partitions("t") == [0, 1]
    assert broker.seen == [("ApiVersions", 0), ("Metadata", 9)]


async def test_a_broker_without_a_common_version_is_named(broker: FakeBroker) -> None:
    broker.max_versions = {15: -1}
    async with open_client(broker.address) as client:
        with pytest.raises(LakestreamError, match="does not speak DescribeGroups"):
            await client.call(DescribeGroupsRequest())


async def test_a_broken_connection_is_made_again_and_the_request_sent_again(broker: FakeBroker) -> None:
    whole = broker._metadata(None)
    broker.answers["Metadata"] = in_turn(None, None, whole)
    async with open_client(broker.address) as client:
        assert await client.partitions("t") == [0, 1]
    assert [name for name, _ in broker.seen].count("Metadata") == 3


async def test_when_one_broker_goes_away_the_next_is_asked(broker: FakeBroker) -> None:
    dying = FakeBroker()
    dying.answers["Metadata"] = lambda _: None
    async with running(dying), open_client(f"{dying.address},{broker.address}") as client:
        assert await client.partitions("t") == [0, 1]
    assert ("Metadata", 13) in dying.seen and ("Metadata", 13) in broker.seen


async def test_patience_ends_with_the_reason(broker: FakeBroker) -> None:
    broker.answers["Metadata"] = lambda _: None
    async with open_client(broker.address) as client:
        with pytest.raises(Unreachable, match="closed the connection"):
            await client.metadata(None)


async def test_something_that_is_no_kafka_broker_is_an_error_that_says_so() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    told = f"^{place} does not speak Kafka's protocol: --bootstrap takes a broker's Kafka port, not its HTTP port$"
    with pytest.raises(Unreachable, match=told):
        await ClusterClient(place).start()
    server.close()


async def test_who_starts_behind_the_end_is_told_so_and_gets_what_comes_next(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [ListOffsetsPartitionResponse(partition_index=i, offset=3 + i) for i in range(3)]
    answer = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=parts)])
    broker.answers["ListOffsets"] = lambda _: answer
    places = [("t", 0), ("t", 1), ("t", 2)]
    async with open_client(broker.address) as client:
        assert await consume._start(client, places, "5") == {("t", 0): 3, ("t", 1): 4, ("t", 2): 5}
        assert await consume._start(client, places, "2") == dict.fromkeys(places, 2)
    told = "t-0 ends at 3, before offset 5 (2 partitions do); there is nothing to read yet\n"
    assert capsys.readouterr() == ("", told)


async def test_a_group_is_followed_while_its_coordinator_moves(broker: FakeBroker) -> None:
    moved = DescribeGroupsResponse(groups=[DescribedGroup(error_code=ErrorCode.NOT_COORDINATOR)])
    found = DescribeGroupsResponse(groups=[DescribedGroup(group_id="g", group_state="Empty")])
    broker.answers["DescribeGroups"] = in_turn(moved, found)
    async with open_client(broker.address) as client:
        request = DescribeGroupsRequest(groups=["g"])
        answer = await client.ask_group("g", request, lambda a: int(a.groups[0].error_code), "group")
    assert answer.groups[0].group_state == "Empty"
    assert [name for name, _ in broker.seen].count("FindCoordinator") == 2


async def test_an_error_that_will_not_go_away_is_said_at_once(broker: FakeBroker) -> None:
    topic = MetadataResponseTopic(name="t", error_code=ErrorCode.INVALID_TOPIC_EXCEPTION)
    broker.answers["Metadata"] = lambda _: MetadataResponse(topics=[topic])
    async with open_client(broker.address) as client:
        with pytest.raises(KafkaError, match=r"INVALID_TOPIC_EXCEPTION \(topic names have"):
            await client.partitions("t")


def test_an_unknown_topic_leads_to_the_list_of_topics_whatever_the_broker_says() -> None:
    unknown = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "deleting topic 't'", "this server does not host it")
    assert "see `lakestream topics list`" in str(unknown) and "this server" not in str(unknown)
    assert "as the broker says" in str(KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "t", "as the broker says"))


async def test_a_member_takes_its_id_leads_shares_out_and_leaves(broker: FakeBroker) -> None:
    requests: dict[str, list[Any]] = {"JoinGroup": [], "SyncGroup": [], "LeaveGroup": []}

    def join(request: Any) -> JoinGroupResponse:
        requests["JoinGroup"].append(request)
        if not request.member_id:
            return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m1")
        others = [JoinGroupResponseMember(member_id=m, metadata=request.protocols[0].metadata) for m in ("m0", "m1")]
        return JoinGroupResponse(generation_id=5, protocol_name="range", leader="m1", member_id="m1", members=others)

    def sync(request: Any) -> SyncGroupResponse:
        requests["SyncGroup"].append(request)
        own = next(a.assignment for a in request.assignments if a.member_id == "m1")
        return SyncGroupResponse(assignment=own)

    def leave(request: Any) -> LeaveGroupResponse:
        requests["LeaveGroup"].append(request)
        return LeaveGroupResponse()

    broker.answers |= {
        "JoinGroup": join,
        "SyncGroup": sync,
        "LeaveGroup": leave,
        "Heartbeat": lambda _: HeartbeatResponse(),
    }
    async with open_client(broker.address) as client:
        member = GroupMembership(client, "g", ["t"])
        assert await member.join() == [("t", 1)]
        await member.leave()
    assert len(requests["JoinGroup"]) == 2
    assert {a.member_id for a in requests["SyncGroup"][0].assignments} == {"m0", "m1"}
    assert requests["LeaveGroup"][0].members[0].member_id == "m1"


async def test_a_member_that_the_group_forgot_joins_as_a_new_one(broker: FakeBroker) -> None:
    forgotten = JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    joined = JoinGroupResponse(generation_id=1, protocol_name="range", leader="other", member_id="new")
    broker.answers |= {
        "JoinGroup": in_turn(forgotten, joined),
        "SyncGroup": lambda _: SyncGroupResponse(),
        "LeaveGroup": lambda _: LeaveGroupResponse(),
    }
    async with open_client(broker.address) as client:
        member = GroupMembership(client, "g", ["t"])
        assert await member.join() == []
        await member.leave()

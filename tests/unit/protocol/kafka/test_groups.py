"""Groups over Kafka's protocol: every version of every API, with the codes that Kafka gives."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lakestream.errors import Retry, Unknown
from lakestream.interfaces import Appended
from lakestream.metadata.stores.memory import MemoryLog
from lakestream.model.batches.header import Fault
from lakestream.model.commands import CreateTopic
from lakestream.model.groups.offsets import CommitOffsets, ExpireOffsets
from lakestream.model.reasons import Reason
from lakestream.protocol.kafka.connections.calls import RequestContext
from lakestream.protocol.kafka.errors import ErrorCode, code_of
from lakestream.protocol.kafka.group_offsets import GroupOffsetApis
from lakestream.protocol.kafka.groups import ALL_OPERATIONS, GroupApis
from lakestream.protocol.kafka.messages import groups as outside
from lakestream.protocol.kafka.messages import membership, offsets
from lakestream.protocol.kafka.wire import apis, codec, framing
from tests.support.counted_turns import turns_beside
from tests.support.front_door import front_door
from tests.support.group_brokers import GroupBroker, GroupCluster, rest

T_ID = b"t".ljust(16, b".")


class CountingLog(MemoryLog):
    """Counts its appends."""

    appends = 0

    async def append(self, commands: Sequence[bytes], after: int) -> Appended:
        self.appends += 1
        return await super().append(commands, after)


class Client:
    """Calls the handlers as the server does: what it sends and gets went through the bytes of its version."""

    def __init__(self, broker: GroupBroker) -> None:
        self.broker = broker
        streams = front_door(broker.replica, groups=broker.groups)
        self.handlers = {
            **GroupApis(streams).handlers(),
            **GroupOffsetApis(streams, 4096).handlers(),
        }
        self.connection: Any = SimpleNamespace(closed=False)

    async def call(self, key: int, version: int, request: Any) -> Any:
        api = apis.APIS[key]
        flexible = api.is_flexible(version)
        context = RequestContext(
            api_key=key,
            version=version,
            correlation_id=1,
            client_id="client",
            client_host="127.0.0.1",
            connection=self.connection,
        )
        asked = codec.decode(api.request, version, flexible, encoded(request, version, flexible), 0)
        answer = await self.handlers[key](context, asked)
        if isinstance(answer, list):
            head = len(framing.begin_frame(framing.has_flexible_response_header(key, flexible)))
            return codec.decode(api.response, version, flexible, b"".join(answer)[head:], 0)
        return codec.decode(api.response, version, flexible, encoded(answer, version, flexible), 0)

    async def join(self, version: int = 9, member_id: str = "", **more: Any) -> Any:
        wish = {
            "group_id": "g", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 30_000, "protocol_type": "consumer",
            "protocols": [membership.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\1\0\1t")], **more,
        }  # fmt: skip
        return await self.call(11, version, membership.JoinGroupRequest(member_id=member_id, **wish))

    async def member(self, version: int = 9, group: str = "g") -> Any:
        """Join, with the id that is given, and sync as the leader."""
        joined = await self.join(version, group_id=group)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joined = await self.join(version, joined.member_id, group_id=group)
        assert joined.error_code == 0
        assigned = [membership.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")]
        synced = await self.call(
            14,
            5,
            membership.SyncGroupRequest(
                group_id=group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=assigned,
            ),
        )
        assert (synced.error_code, synced.assignment) == (0, b"all")
        return joined

    async def commit(self, version: int = 9, topic: str | bytes = "t", **more: Any) -> list[int]:
        rows = [
            offsets.OffsetCommitRequestPartition(partition_index=at, committed_offset=offset, committed_metadata=note)
            for at, offset, note in more.pop("rows", [(0, 5, "note")])
        ]
        named = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
        asked: dict[str, Any] = {"group_id": "g", **more}
        request = offsets.OffsetCommitRequest(
            topics=[offsets.OffsetCommitRequestTopic(**named, partitions=rows)],  # type: ignore[arg-type]
            **asked,
        )
        answer = await self.call(8, version, request)
        return [one.error_code for topic in answer.topics for one in topic.partitions]

    async def fetch(self, version: int = 9, group: str = "g", topics: Any = ()) -> Any:
        if topics == ():
            topics = [offsets.OffsetFetchRequestTopic(name="t", topic_id=T_ID, partition_indexes=[0, 1])]
        if version < 8:
            return await self.call(9, version, offsets.OffsetFetchRequest(group_id=group, topics=topics))
        asked = offsets.OffsetFetchRequestGroup(group_id=group, topics=topics)
        answer = await self.call(9, version, offsets.OffsetFetchRequest(groups=[asked]))
        return answer.groups[0]


def encoded(message: Any, version: int, flexible: bool) -> bytes:
    out = bytearray()
    codec.encode_into(out, message, version, flexible)
    return bytes(out)


def versions(key: int) -> range:
    return range(apis.APIS[key].min_version, apis.APIS[key].max_version + 1)


@pytest.mark.parametrize("version", versions(11))
async def test_every_version_of_join_gives_a_place(version: int) -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        joined = await client.member(version)
        assert (joined.generation_id, joined.protocol_name, joined.leader) == (1, "range", joined.member_id)
        assert [one.member_id for one in joined.members] == [joined.member_id]
        assert client.broker.state().members[joined.member_id].client_host == "/127.0.0.1"
        assert client.broker.state().members[joined.member_id].rebalance_ms == (30_000 if version else 10_000)
        refused = await client.join(version, "nobody")
        assert (refused.error_code, refused.member_id, refused.generation_id) == (
            ErrorCode.UNKNOWN_MEMBER_ID,
            "nobody",
            -1,
        )
        assert refused.protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize("version", versions(12))
async def test_every_version_of_heartbeat_tells_how_it_stands(version: int) -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        joined = await client.member()

        async def beat(**more: Any) -> int:
            request = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id, **more}
            return int((await client.call(12, version, membership.HeartbeatRequest(**request))).error_code)

        assert await beat() == ErrorCode.NONE
        assert await beat(generation_id=2) == ErrorCode.ILLEGAL_GENERATION
        assert await beat(member_id="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await beat(group_id="h") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await beat(group_id="") == ErrorCode.INVALID_GROUP_ID
        waiting = asyncio.create_task(client.join(3))
        await rest()
        assert await beat() == ErrorCode.REBALANCE_IN_PROGRESS
        waiting.cancel()


@pytest.mark.parametrize("version", versions(14))
async def test_every_version_of_sync_gives_the_assignment(version: int) -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        joined = await client.member()

        async def sync(**more: Any) -> Any:
            request = {
                "group_id": "g", "generation_id": 1, "member_id": joined.member_id, "protocol_type": "consumer",
                "protocol_name": "range", **more,
            }  # fmt: skip
            return await client.call(14, version, membership.SyncGroupRequest(**request))

        assert (await sync()).assignment == b"all"
        assert (await sync(generation_id=9)).error_code == ErrorCode.ILLEGAL_GENERATION
        for protocol in ("sticky", None):
            wrong = await sync(protocol_name=protocol)
            assert wrong.error_code == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL if version >= 5 else ErrorCode.NONE)


@pytest.mark.parametrize("version", versions(13))
async def test_every_version_of_leave_ends_a_membership(version: int) -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        joined = await client.member()
        if version < 3:
            for expected in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID):
                request = membership.LeaveGroupRequest(group_id="g", member_id=joined.member_id)
                assert (await client.call(13, version, request)).error_code == expected
        else:
            ids = [membership.MemberIdentity(member_id=one) for one in (joined.member_id, "nobody")]
            answer = await client.call(13, version, membership.LeaveGroupRequest(group_id="g", members=ids))
            assert [one.error_code for one in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
        answer = await client.call(13, version, membership.LeaveGroupRequest(group_id=""))
        assert answer.error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", versions(10))
async def test_every_version_of_find_coordinator_names_a_broker(version: int) -> None:
    async with GroupCluster() as cluster:
        one, other = await cluster.pair()
        client = Client(other)

        async def find(key: str, key_type: int = 0) -> Any:
            asked: dict[str, Any] = {"coordinator_keys": [key]} if version >= 4 else {"key": key}
            request = outside.FindCoordinatorRequest(key_type=key_type, **asked)
            answer = await client.call(10, version, request)
            return answer.coordinators[0] if version >= 4 else answer

        found = await find("g")
        owner = one.replica.member_id
        assert (found.node_id, found.host, found.port, found.error_code) == (owner, "127.0.0.1", 9092 + owner, 0)
        if version >= 1:
            refused = await find("t", 1)
            assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert (refused.node_id, refused.error_message) == (-1, "transactions are not supported yet")
            assert (await find("s", 2)).error_code == ErrorCode.INVALID_REQUEST


async def test_without_a_live_broker_the_coordinator_is_not_available() -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        client.broker.replica.state.members.by_id[0].alive = False
        request = outside.FindCoordinatorRequest(coordinator_keys=["g"])
        answer = await client.call(10, 4, request)
        assert answer.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("version", versions(15))
async def test_every_version_of_describe_shows_members_and_what_is_not_there(version: int) -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        joined = await client.member()
        request = outside.DescribeGroupsRequest(groups=["g", "nobody"], include_authorized_operations=version >= 3)
        stable, dead = (await client.call(15, version, request)).groups
        assert (stable.group_state, stable.protocol_type, stable.protocol_data) == ("Stable", "consumer", "range")
        member = stable.members[0]
        assert (member.member_id, member.client_id, member.member_assignment) == (joined.member_id, "client", b"all")
        assert member.member_metadata == b"\0\0\0\0\0\1\0\1t"
        assert version < 3 or stable.authorized_operations == ALL_OPERATIONS
        assert dead.group_state == "Dead"
        assert dead.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)
        waiting = asyncio.create_task(client.join(3))
        await rest()
        moving = (await client.call(15, version, request)).groups[0]
        assert (moving.group_state, moving.protocol_data) == ("PreparingRebalance", "")
        assert moving.members[0].member_metadata == b""
        waiting.cancel()


@pytest.mark.parametrize("version", versions(16))
async def test_every_version_of_list_shows_the_groups_of_this_broker(version: int) -> None:
    async with GroupCluster() as cluster:
        one, other = await cluster.pair()
        await one.topic()
        client = Client(one)
        await client.member()
        for number in range(8):
            name = f"simple-{number}"
            for broker in (one, other):
                await Client(broker).commit(group_id=name)
        clients = (client, Client(other))
        listed = [(await each.call(16, version, outside.ListGroupsRequest())).groups for each in clients]
        names = [group.group_id for part in listed for group in part]
        assert sorted(names) == ["g", *(f"simple-{number}" for number in range(8))]
        mine = next(group for group in listed[0] if group.group_id == "g")
        assert mine.protocol_type == "consumer"
        if version >= 4:
            assert mine.group_state == "Stable"
            some = await client.call(16, version, outside.ListGroupsRequest(states_filter=["stable"]))
            assert [group.group_id for group in some.groups] == ["g"]
        if version >= 5:
            assert mine.group_type == "classic"
            some = await client.call(16, version, outside.ListGroupsRequest(types_filter=["Consumer"]))
            assert some.groups == []


@pytest.mark.parametrize("version", versions(42))
async def test_every_version_of_delete_groups_takes_only_empty_ones(version: int) -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        await client.broker.topic()
        await client.member()
        assert await client.commit(group_id="simple") == [0]
        names = ["g", "simple", "nobody"]
        answer = await client.call(42, version, outside.DeleteGroupsRequest(groups_names=names))
        assert [(one.group_id, one.error_code) for one in answer.results] == [
            ("g", ErrorCode.NON_EMPTY_GROUP),
            ("simple", ErrorCode.NONE),
            ("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
        ]


@pytest.mark.parametrize("version", versions(8))
async def test_every_version_of_commit_judges_partition_by_partition(version: int) -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        await client.broker.topic()
        topic, unknown = ("t", "u") if version < 10 else (T_ID, b"u" * 16)
        joined = await client.member()
        who = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
        rows = [(0, 5, "note"), (1, 6, None), (2, 7, ""), (-1, 7, ""), (0, 8, "x" * 4097)]
        assert await client.commit(version, topic, rows=rows, **who) == [
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ]
        code = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await client.commit(version, unknown, **who) == [code]
        zombie = {**who, "generation_id_or_member_epoch": 0}
        assert await client.commit(version, topic, **zombie) == [ErrorCode.ILLEGAL_GENERATION]
        assert await client.commit(version, topic) == [ErrorCode.UNKNOWN_MEMBER_ID]
        stranger = {"group_id": "other", "generation_id_or_member_epoch": 3}
        code = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
        assert await client.commit(version, topic, **stranger) == [code]
        wordy = [(0, 5, "x" * 4097)]
        assert await client.commit(version, topic, rows=wordy, **zombie) == [ErrorCode.ILLEGAL_GENERATION]
        assert await client.commit(version, topic, group_id="other") == [0]
        huge = [(0, 1, "x" * 4000)] * 300
        assert set(await client.commit(version, topic, rows=huge, **who)) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}


@pytest.mark.parametrize("version", versions(9))
async def test_every_version_of_fetch_gives_offsets_or_minus_one(version: int) -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        await client.broker.topic()
        assert await client.commit(group_id="g") == [0]
        one, other = (await client.fetch(version)).topics[0].partitions
        assert (one.partition_index, one.committed_offset, one.metadata, one.error_code) == (0, 5, "note", 0)
        assert (other.partition_index, other.committed_offset, other.metadata, other.error_code) == (1, -1, "", 0)
        for unknown in ("nobody", ""):
            missing = (await client.fetch(version, unknown)).topics[0].partitions
            assert [(part.committed_offset, part.error_code) for part in missing] == [(-1, 0), (-1, 0)]
        strange = [offsets.OffsetFetchRequestTopic(name="u", topic_id=b"u" * 16, partition_indexes=[0])]
        found = (await client.fetch(version, topics=strange)).topics[0].partitions[0]
        assert (found.committed_offset, found.error_code) == (-1, ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else 0)
        if version >= 2:
            (everything,) = (await client.fetch(version, topics=None)).topics
            assert everything.topic_id == T_ID if version >= 10 else everything.name == "t"
            assert [(part.partition_index, part.committed_offset) for part in everything.partitions] == [(0, 5)]


@pytest.mark.parametrize("version", versions(9))
async def test_who_cannot_know_the_offsets_says_so_in_every_version(version: int) -> None:
    async with GroupCluster() as cluster:
        one, other = await cluster.pair()
        await one.topic()

        async def down() -> None:
            raise Retry("no store")

        answer = await Client(other).fetch(version)
        code = answer.topics[0].partitions[0].error_code if version < 2 else answer.error_code
        assert code == ErrorCode.NOT_COORDINATOR
        one.replica.catch_up = down  # type: ignore[method-assign]
        answer = await Client(one).fetch(version)
        code = answer.topics[0].partitions[0].error_code if version < 2 else answer.error_code
        assert code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_offsets_are_deleted_unless_the_group_reads_the_topic() -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        await client.broker.topic()
        joined = await client.member()
        who = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
        assert await client.commit(rows=[(0, 5, ""), (1, 5, "")], **who) == [0, 0]

        async def delete(group: str, *topics: str) -> Any:
            parts = [offsets.OffsetDeleteRequestPartition(partition_index=index) for index in (0, 1, 2)]
            asked = [offsets.OffsetDeleteRequestTopic(name=topic, partitions=parts) for topic in topics]
            answer = await client.call(47, 0, offsets.OffsetDeleteRequest(group_id=group, topics=asked))
            return answer.error_code, [[one.error_code for one in topic.partitions] for topic in answer.topics]

        reads, unknown = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await delete("g", "t", "u") == (0, [[reads, reads, unknown], [unknown] * 3])
        assert await delete("nobody", "t") == (ErrorCode.GROUP_ID_NOT_FOUND, [])
        assert await delete("", "t") == (ErrorCode.INVALID_GROUP_ID, [])
        await client.broker.groups.leave("g", [(joined.member_id, None)])
        assert await delete("g", "t") == (0, [[0, 0, unknown]])
        assert (await client.fetch()).topics[0].partitions[0].committed_offset == -1


async def test_l17_an_unknown_outcome_of_a_commit_is_a_timeout_and_that_of_a_join_a_reason_to_ask_again() -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        await client.broker.topic()

        async def lost(body: object) -> None:
            raise Unknown("the answer was lost")

        client.broker.replica.propose = lost  # type: ignore[method-assign]
        assert await client.commit() == [ErrorCode.REQUEST_TIMED_OUT]
        assert (await client.join(3)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        names = outside.DeleteGroupsRequest(groups_names=["g"])
        assert (await client.call(42, 2, names)).results[0].error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_a_session_timeout_out_of_bounds_is_refused() -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        assert (await client.join(session_timeout_ms=50)).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
        assert (await client.join(group_id="")).error_code == ErrorCode.INVALID_GROUP_ID


async def test_old_offsets_and_empty_groups_expire() -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        broker = client.broker
        await broker.topic()
        assert await client.commit(group_id="simple") == [0]
        await broker.replica.propose(ExpireOffsets(-1))
        assert "simple" in broker.replica.state.groups.by_name
        await broker.replica.propose(ExpireOffsets(1 << 50))
        assert "simple" not in broker.replica.state.groups.by_name


def test_every_reason_has_a_code_of_its_own() -> None:
    silent = {Reason.MALFORMED, Reason.UNKNOWN_MEMBER, Reason.OLD_INCARNATION, Reason.LEVEL_UNSUPPORTED,
              Reason.OTHER_CLUSTER, Reason.UNKNOWN_OBJECT, Reason.CARE_FULL}  # fmt: skip
    silent |= {reason for reason in Reason if Reason.NAMESPACE_EXISTS <= reason <= Reason.TABLE_BOUND}
    silent |= {Reason.VIEW_EXISTS, Reason.UNKNOWN_VIEW}
    for reason in (*Reason, *Fault):
        assert (code_of(reason) == ErrorCode.UNKNOWN_SERVER_ERROR) == (reason in silent), reason
    assert code_of(0) == ErrorCode.NONE


async def test_very_many_groups_and_offsets_are_told_in_turns_with_others() -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        replica = client.broker.replica
        await replica.propose(CreateTopic("wide", b"w" * 16, 20_000, 1, {}))
        streams = replica.state.topics.by_name["wide"].streams
        await replica.propose(CommitOffsets("all", -1, "", None, [(stream, 7, -1, "") for stream in streams]))
        names = ["all", *(f"group-{number}" for number in range(2_000))]
        for name in names[1:]:
            await replica.propose(CommitOffsets(name, -1, "", None, [(streams[0], 7, -1, "")]))
        listed, turns = await turns_beside(client.call(16, 4, outside.ListGroupsRequest()))
        assert turns > 4 and {one.group_id for one in listed.groups} == set(names)
        described, turns = await turns_beside(client.call(15, 5, outside.DescribeGroupsRequest(groups=names)))
        assert turns > 10 and [one.group_id for one in described.groups] == names
        wide = offsets.OffsetFetchRequestTopic(name="wide", partition_indexes=list(range(20_000)))
        for topics in ([wide], None):
            asked = offsets.OffsetFetchRequest(group_id="all", topics=topics)
            fetched, turns = await turns_beside(client.call(9, 7, asked))
            assert turns > 20 and [one.committed_offset for one in fetched.topics[0].partitions] == [7] * 20_000


async def test_very_many_groups_go_with_few_appends() -> None:
    async with GroupCluster() as cluster:
        log = CountingLog(cluster.store)
        client = Client(await cluster.add(log=log))
        replica = client.broker.replica
        await replica.propose(CreateTopic("t", T_ID, 1, 1, {}))
        [stream] = replica.state.topics.by_name["t"].streams
        names = [f"group-{number}" for number in range(1_000)]
        for name in names:
            await replica.propose(CommitOffsets(name, -1, "", None, [(stream, 7, -1, "")]))
        appends = log.appends
        asked = outside.DeleteGroupsRequest(groups_names=[*names, "nobody's"])
        deleted = await client.call(42, 2, asked)
        assert log.appends - appends < 20
        assert not replica.state.groups.by_name
        assert [one.error_code for one in deleted.results] == [0] * 1_000 + [ErrorCode.GROUP_ID_NOT_FOUND]


async def test_a_commit_of_very_many_offsets_is_judged_and_answered_in_turns_with_others() -> None:
    async with GroupCluster() as cluster:
        client = Client(await cluster.add())
        replica = client.broker.replica
        await replica.propose(CreateTopic("wide", b"w" * 16, 20_000, 1, {}))
        rows = [
            offsets.OffsetCommitRequestPartition(partition_index=partition, committed_offset=7)
            for partition in range(20_001)
        ]
        topic = offsets.OffsetCommitRequestTopic(name="wide", partitions=rows)
        asked = offsets.OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[topic]
        )
        answer, turns = await turns_beside(client.call(8, 7, asked))
        assert turns > 60, "it is judged twice, since one partition is not there"
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [one.error_code for one in answer.topics[0].partitions] == [0] * 20_000 + [unknown]
        assert len(replica.state.groups.by_name["g"].offsets) == 20_000

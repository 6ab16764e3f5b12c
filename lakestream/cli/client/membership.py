"""A member of a classic consumer group: joins, assigns partitions as leader, sends heartbeats, commits and leaves."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

from lakestream.cli.client.assignment import (
    ASSIGNORS,
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from lakestream.cli.client.cluster_client import PATIENCE_S, PAUSE_S, ClusterClient, Place
from lakestream.cli.client.codes import COORDINATOR_MOVED, RETRIABLE, KafkaError, check
from lakestream.cli.client.connection import Unreachable
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from lakestream.protocol.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

SESSION_MS: Final = 10_000
REBALANCE_MS: Final = 60_000
HEARTBEAT_S: Final = 3.0
_LOST: Final = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS})


class GroupMembership:
    """One member of a group. When `lost` is set its partitions may go to other members: commit, then join again."""

    def __init__(self, client: ClusterClient, group: str, topics: Sequence[str]) -> None:
        self.lost = asyncio.Event()
        self._client = client
        self._group = group
        self._topics = sorted(topics)
        self._member_id = ""
        self._generation = -1
        self._beating: asyncio.Task[None] | None = None

    async def join(self) -> list[Place]:
        """Join the group; returns the partitions of this member."""
        await self._stop_beating()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            try:
                places = await self._join_once()
                self.lost.clear()
                self._beating = asyncio.create_task(self._beat())
                return places
            except (Unreachable, KafkaError) as error:
                code = error.code if isinstance(error, KafkaError) else 0
                if code == ErrorCode.UNKNOWN_MEMBER_ID:
                    self._member_id = ""
                elif code in COORDINATOR_MOVED:
                    self._client.forget_coordinator()
                if loop.time() > deadline or (code and code not in _LOST | RETRIABLE):
                    raise
            await asyncio.sleep(PAUSE_S)

    async def commit(self, positions: Mapping[Place, int]) -> None:
        """Commit offsets. If the group is in a newer generation, nothing is committed and `lost` is set."""
        request = commit_request(self._group, positions, self._generation, self._member_id)
        try:
            await self._client.ask_group(self._group, request, commit_code, f"committing offsets of {self._group!r}")
        except KafkaError as error:
            if error.code not in _LOST:
                raise
            self.lost.set()

    async def leave(self) -> None:
        """Leave the group, so that its partitions move at once. If the request fails, the session ends by itself."""
        await self._stop_beating()
        if self._member_id:
            identity = MemberIdentity(member_id=self._member_id, reason="the consumer stopped")
            request = LeaveGroupRequest(group_id=self._group, member_id=self._member_id, members=[identity])
            with contextlib.suppress(Unreachable, KafkaError):
                await self._client.call_coordinator(self._group, request, 5.0)

    async def _join_once(self) -> list[Place]:
        subscription = encode_subscription(self._topics)
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self._member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=subscription) for name in ASSIGNORS],
        )
        joined = await self._client.call_coordinator(self._group, request, REBALANCE_MS / 1000 + 10)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = request.member_id = joined.member_id
            joined = await self._client.call_coordinator(self._group, request, REBALANCE_MS / 1000 + 10)
        check(joined.error_code, f"joining group {self._group!r}")
        self._member_id, self._generation = joined.member_id, joined.generation_id
        given = await self._share_out(joined) if joined.leader == self._member_id and not joined.skip_assignment else []
        sync = SyncGroupRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=given,
        )
        synced = await self._client.call_coordinator(self._group, sync, REBALANCE_MS / 1000 + 10)
        check(synced.error_code, f"joining group {self._group!r}")
        return decode_assignment(synced.assignment)

    async def _share_out(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """Assign partitions to all members, as the group's leader. Topics that do not exist yet are left out."""
        subscriptions = {member.member_id: decode_subscription(member.metadata) for member in joined.members}
        wanted = sorted({topic for topics in subscriptions.values() for topic in topics})
        found = (await self._client.metadata(wanted)).topics
        partitions = {
            topic.name or "": [partition.partition_index for partition in topic.partitions]
            for topic in found
            if not topic.error_code
        }
        given = ASSIGNORS[joined.protocol_name or ""](subscriptions, partitions)
        return [
            SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(places))
            for member, places in given.items()
        ]

    async def _beat(self) -> None:
        """Send heartbeats until `lost`. After a failure the next heartbeat looks for the coordinator again."""
        request = HeartbeatRequest(group_id=self._group, generation_id=self._generation, member_id=self._member_id)
        while not self.lost.is_set():
            await asyncio.sleep(HEARTBEAT_S)
            try:
                code = (await self._client.call_coordinator(self._group, request, SESSION_MS / 1000)).error_code
            except (Unreachable, KafkaError):
                continue
            if code in COORDINATOR_MOVED:
                self._client.forget_coordinator()
            elif code:
                self.lost.set()

    async def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None


def commit_request(
    group: str, positions: Mapping[Place, int], generation: int = -1, member_id: str = ""
) -> OffsetCommitRequest:
    """A commit of a member; without generation and member id, a commit for a group without live members."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), offset in positions.items():
        noted = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
        topics.setdefault(topic, []).append(noted)
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()],
    )


def commit_code(answer: object) -> int:
    """The first error code of a commit's answer: an error of the group is given for every partition."""
    topics = getattr(answer, "topics", [])
    return next((part.error_code for topic in topics for part in topic.partitions if part.error_code), 0)

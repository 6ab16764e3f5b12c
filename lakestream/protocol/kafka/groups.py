"""Classic groups: FindCoordinator (0-6), JoinGroup (0-9), SyncGroup (0-5), Heartbeat (0-4), LeaveGroup (0-5),
DescribeGroups (0-6), ListGroups (0-5), DeleteGroups (0-2).

Departures from Kafka: the coordinator is no partition's leader but follows from the live brokers, so there is one as
soon as there is a broker; coordinators of transactions are refused until transactions come, share groups have none.
A newcomer whose connection is gone when the join phase ends does not become a member.
"""

import asyncio
from dataclasses import dataclass

from lakestream.errors import LakestreamError, Rejected
from lakestream.model.groups.group import GroupState
from lakestream.model.reasons import Reason
from lakestream.protocol.kafka.connections.calls import Handler, RequestContext
from lakestream.protocol.kafka.connections.large_answers import large_answer
from lakestream.protocol.kafka.errors import ErrorCode, code_of
from lakestream.protocol.kafka.messages.groups import (
    Coordinator,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from lakestream.protocol.kafka.messages.membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from lakestream.protocol.kafka.refusals import refusal
from lakestream.stream.groups.waiting_members import JoinRequest, MemberIdRequired, SyncRequest
from lakestream.stream.long_work import chunks
from lakestream.stream.streams import FrontDoor

GROUP, TRANSACTION = 0, 1
GROUPS_AT_ONCE = 200
"""Groups that are described or deleted before the handler yields to the event loop."""
CLASSIC = "classic"
STATES = {
    GroupState.EMPTY: "Empty",
    GroupState.PREPARING: "PreparingRebalance",
    GroupState.COMPLETING: "CompletingRebalance",
    GroupState.STABLE: "Stable",
}
DEAD = "Dead"
NO_ERROR = "NONE"
"""The message of a coordinator that was found, up to version 3 of FindCoordinator: Kafka's name of the code."""
ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""Read, delete, describe, describe configs, alter configs: without ACLs every client may do all of them."""

TRY_AGAIN = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""On this code every client looks for the coordinator and asks again. It also answers an unknown outcome: a second
join, sync, heartbeat or leave does no harm, and the code does not say whether the first one was done (L17)."""


def problem_of(error: LakestreamError) -> ErrorCode:
    return code_of(error.reason) if isinstance(error, Rejected) else TRY_AGAIN


@dataclass(frozen=True, slots=True)
class FoundCoordinator:
    """Where a coordinator is, or why there is none."""

    node_id: int = -1
    host: str = ""
    port: int = -1
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


class GroupApis:
    """Handlers of the groups' APIs, those of offsets aside."""

    def __init__(self, streams: FrontDoor) -> None:
        self._streams = streams
        self._groups = streams.groups
        self._offsets = streams.offsets

    def handlers(self) -> dict[int, Handler]:
        return {
            10: self.find_coordinator,
            11: self.join,
            12: self.heartbeat,
            13: self.leave,
            14: self.sync,
            15: self.describe,
            16: self.list,
            42: self.delete,
        }

    # -- being in a group -----------------------------------------------------------------------------------------

    async def join(self, context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
        connection = context.connection
        nothing = None if context.version >= 7 else ""
        wish = JoinRequest(
            group=request.group_id,
            member_id=request.member_id,
            instance=request.group_instance_id,
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",
            session_ms=request.session_timeout_ms,
            rebalance_ms=request.rebalance_timeout_ms if context.version >= 1 else request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=[(one.name, bytes(one.metadata)) for one in request.protocols],
            needs_member_id=context.version >= 4,
            may_skip_assignment=context.version >= 9,
            connected=lambda: not connection.closed,
        )
        try:
            joined = await self._groups.join(wish)
        except MemberIdRequired as answer:
            code = ErrorCode.MEMBER_ID_REQUIRED
            return JoinGroupResponse(error_code=code, protocol_name=nothing, member_id=answer.member_id)
        except LakestreamError as error:
            return JoinGroupResponse(
                error_code=problem_of(error), protocol_name=nothing, member_id=request.member_id
            )
        return JoinGroupResponse(
            generation_id=joined.generation,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol,
            leader=joined.leader,
            skip_assignment=joined.skip_assignment,
            member_id=joined.member_id,
            members=[
                JoinGroupResponseMember(member_id=member_id, group_instance_id=instance, metadata=metadata)
                for member_id, instance, metadata in joined.members
            ],
        )

    async def sync(self, context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
        if context.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
            return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        wish = SyncRequest(
            group=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            instance=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            assignments=[(one.member_id, bytes(one.assignment)) for one in request.assignments],
        )
        try:
            synced = await self._groups.sync(wish)
        except LakestreamError as error:
            return SyncGroupResponse(error_code=problem_of(error))
        return SyncGroupResponse(
            protocol_type=synced.protocol_type, protocol_name=synced.protocol, assignment=synced.assignment
        )

    async def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        try:
            await self._groups.heartbeat(
                request.group_id, request.generation_id, request.member_id, request.group_instance_id
            )
        except LakestreamError as error:
            return HeartbeatResponse(error_code=problem_of(error))
        return HeartbeatResponse()

    async def leave(self, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
        single = context.version < 3
        leavers = [(one.member_id, one.group_instance_id) for one in request.members]
        if single:
            leavers = [(request.member_id, None)]
        try:
            results = await self._groups.leave(request.group_id, leavers)
        except LakestreamError as error:
            return LeaveGroupResponse(error_code=problem_of(error))
        if single:
            return LeaveGroupResponse(error_code=code_of(results[0]))
        return LeaveGroupResponse(
            members=[
                MemberResponse(member_id=member_id, group_instance_id=instance, error_code=code_of(reason))
                for (member_id, instance), reason in zip(leavers, results, strict=True)
            ]
        )

    # -- groups seen from outside -----------------------------------------------------------------------------------

    async def find_coordinator(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        if context.version >= 4:
            found = [(key, self._find(key, request.key_type)) for key in request.coordinator_keys]
            return FindCoordinatorResponse(
                coordinators=[
                    Coordinator(
                        key=key,
                        node_id=one.node_id,
                        host=one.host,
                        port=one.port,
                        error_code=one.code,
                        error_message=one.message or "",
                    )
                    for key, one in found
                ]
            )
        one = self._find(request.key, request.key_type)
        return FindCoordinatorResponse(
            error_code=one.code,
            error_message=one.message or NO_ERROR,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _find(self, key: str, key_type: int) -> FoundCoordinator:
        if key_type == TRANSACTION:
            # On this code producers fail at once and for good, as on the same answer to InitProducerId.
            text = "transactions are not supported yet"
            return FoundCoordinator(code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, message=text)
        if key_type != GROUP:
            text = f"there are no coordinators of type {key_type}"
            return FoundCoordinator(code=ErrorCode.INVALID_REQUEST, message=text)
        broker = self._streams.coordinator(key)
        if broker is None:
            return FoundCoordinator(code=TRY_AGAIN, message="no broker is alive")
        return FoundCoordinator(broker.id, broker.host, broker.port)

    async def describe(self, context: RequestContext, request: DescribeGroupsRequest) -> object:
        described = []
        for number, name in enumerate(request.groups, 1):
            described.append(await self._describe(name, context.version))
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        if request.include_authorized_operations:
            for one in described:
                if not one.error_code:
                    one.authorized_operations = ALL_OPERATIONS
        items = len(described) + sum(len(one.members) for one in described)
        return await large_answer(context, DescribeGroupsResponse(groups=described), items)

    async def _describe(self, name: str, version: int) -> DescribedGroup:
        try:
            seen = await self._offsets.describe(name)
        except LakestreamError as error:
            if not isinstance(error, Rejected) or error.reason != Reason.UNKNOWN_GROUP:
                return DescribedGroup(group_id=name, error_code=problem_of(error))
            if version >= 6:
                code, text = ErrorCode.GROUP_ID_NOT_FOUND, str(error)
                return DescribedGroup(group_id=name, group_state=DEAD, error_code=code, error_message=text)
            return DescribedGroup(group_id=name, group_state=DEAD)
        group, stable = seen.group, seen.state == GroupState.STABLE
        return DescribedGroup(
            group_id=name,
            group_state=STATES[seen.state],
            protocol_type=seen.protocol_type,
            protocol_data=group.protocol if stable else "",
            members=[
                DescribedGroupMember(
                    member_id=member.id,
                    group_instance_id=member.instance,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(group.protocol) if stable else b"",
                    member_assignment=member.assignment,
                )
                for member in group.members.values()
            ]
            + [
                DescribedGroupMember(
                    member_id=row.id,
                    group_instance_id=row.instance,
                    client_id=row.client_id,
                    client_host=row.client_host,
                )
                for row in seen.newcomers
            ],
        )

    async def list(self, context: RequestContext, request: ListGroupsRequest) -> object:
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        try:
            seen = await self._offsets.list()
        except LakestreamError as error:
            return ListGroupsResponse(error_code=problem_of(error))
        response = ListGroupsResponse(
            groups=[
                ListedGroup(
                    group_id=one.group.name,
                    protocol_type=one.protocol_type,
                    group_state=STATES[one.state],
                    group_type=CLASSIC,
                )
                for one in seen
                if (not states or STATES[one.state].lower() in states) and (not types or CLASSIC in types)
            ]
        )
        return await large_answer(context, response, len(response.groups))

    async def delete(self, context: RequestContext, request: DeleteGroupsRequest) -> object:
        """Groups are deleted together, so that many of them share an append."""
        results = [DeletableGroupResult(group_id=name) for name in dict.fromkeys(request.groups_names)]
        for some in chunks(results, GROUPS_AT_ONCE):
            await asyncio.gather(*map(self._delete, some))
        return await large_answer(context, DeleteGroupsResponse(results=results), len(results))

    async def _delete(self, result: DeletableGroupResult) -> None:
        try:
            await self._offsets.delete_group(result.group_id)
        except LakestreamError as error:
            result.error_code = refusal(error, TRY_AGAIN).code

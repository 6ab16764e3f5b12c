"""Being in a group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from lakestream.protocol.kafka.messages.types import Bool, Int16, Int32, field, message


@message
class JoinGroupRequestProtocol:
    name: str = ""
    metadata: bytes = b""


@message
class JoinGroupRequest:
    group_id: str = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Int32 = field(since=1, default=-1)
    member_id: str = ""
    group_instance_id: str | None = field(since=5, default=None)
    protocol_type: str = ""
    protocols: list[JoinGroupRequestProtocol] = field(factory=list)
    reason: str | None = field(since=8, default=None)


@message
class JoinGroupResponseMember:
    member_id: str = ""
    group_instance_id: str | None = field(since=5, default=None)
    metadata: bytes = b""


@message
class JoinGroupResponse:
    throttle_time_ms: Int32 = field(since=2, default=0)
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: str | None = field(since=7, default=None)
    protocol_name: str | None = field(nullable=7, default="")
    leader: str = ""
    skip_assignment: Bool = field(since=9, default=False)
    member_id: str = ""
    members: list[JoinGroupResponseMember] = field(factory=list)


@message
class SyncGroupRequestAssignment:
    member_id: str = ""
    assignment: bytes = b""


@message
class SyncGroupRequest:
    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: str | None = field(since=3, default=None)
    protocol_type: str | None = field(since=5, default=None)
    protocol_name: str | None = field(since=5, default=None)
    assignments: list[SyncGroupRequestAssignment] = field(factory=list)


@message
class SyncGroupResponse:
    throttle_time_ms: Int32 = field(since=1, default=0)
    error_code: Int16 = 0
    protocol_type: str | None = field(since=5, default=None)
    protocol_name: str | None = field(since=5, default=None)
    assignment: bytes = b""


@message
class HeartbeatRequest:
    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: str | None = field(since=3, default=None)


@message
class HeartbeatResponse:
    throttle_time_ms: Int32 = field(since=1, default=0)
    error_code: Int16 = 0


@message
class MemberIdentity:
    member_id: str = ""
    group_instance_id: str | None = None
    reason: str | None = field(since=5, default=None)


@message
class LeaveGroupRequest:
    group_id: str = ""
    member_id: str = field(until=2, default="")
    members: list[MemberIdentity] = field(since=3, factory=list)


@message
class MemberResponse:
    member_id: str = ""
    group_instance_id: str | None = None
    error_code: Int16 = 0


@message
class LeaveGroupResponse:
    throttle_time_ms: Int32 = field(since=1, default=0)
    error_code: Int16 = 0
    members: list[MemberResponse] = field(since=3, factory=list)

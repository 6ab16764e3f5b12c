"""Groups seen from outside: FindCoordinator, DescribeGroups, ListGroups, DeleteGroups."""

from lakestream.protocol.kafka.messages.types import NOT_ASKED, Bool, Int8, Int16, Int32, field, message


@message
class FindCoordinatorRequest:
    key: str = field(until=3, default="")
    key_type: Int8 = field(since=1, default=0)
    coordinator_keys: list[str] = field(since=4, factory=list)


@message
class Coordinator:
    key: str = ""
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@message
class FindCoordinatorResponse:
    throttle_time_ms: Int32 = field(since=1, default=0)
    error_code: Int16 = field(until=3, default=0)
    error_message: str | None = field(since=1, until=3, default=None)
    node_id: Int32 = field(until=3, default=0)
    host: str = field(until=3, default="")
    port: Int32 = field(until=3, default=0)
    coordinators: list[Coordinator] = field(since=4, factory=list)


@message
class DescribeGroupsRequest:
    groups: list[str] = field(factory=list)
    include_authorized_operations: Bool = field(since=3, default=False)


@message
class DescribedGroupMember:
    member_id: str = ""
    group_instance_id: str | None = field(since=4, default=None)
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


@message
class DescribedGroup:
    error_code: Int16 = 0
    error_message: str | None = field(since=6, default=None)
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedGroupMember] = field(factory=list)
    authorized_operations: Int32 = field(since=3, default=NOT_ASKED)


@message
class DescribeGroupsResponse:
    throttle_time_ms: Int32 = field(since=1, default=0)
    groups: list[DescribedGroup] = field(factory=list)


@message
class ListGroupsRequest:
    states_filter: list[str] = field(since=4, factory=list)
    types_filter: list[str] = field(since=5, factory=list)


@message
class ListedGroup:
    group_id: str = ""
    protocol_type: str = ""
    group_state: str = field(since=4, default="")
    group_type: str = field(since=5, default="")


@message
class ListGroupsResponse:
    throttle_time_ms: Int32 = field(since=1, default=0)
    error_code: Int16 = 0
    groups: list[ListedGroup] = field(factory=list)


@message
class DeleteGroupsRequest:
    groups_names: list[str] = field(factory=list)


@message
class DeletableGroupResult:
    group_id: str = ""
    error_code: Int16 = 0


@message
class DeleteGroupsResponse:
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = field(factory=list)

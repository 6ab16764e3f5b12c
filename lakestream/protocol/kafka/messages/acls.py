"""Access control lists: DescribeAcls."""

from lakestream.protocol.kafka.messages.types import Int8, Int16, Int32, field, message


@message
class DescribeAclsRequest:
    resource_type_filter: Int8 = 0
    resource_name_filter: str | None = None
    pattern_type_filter: Int8 = 3
    principal_filter: str | None = None
    host_filter: str | None = None
    operation: Int8 = 0
    permission_type: Int8 = 0


@message
class AclDescription:
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@message
class DescribeAclsResource:
    resource_type: Int8 = 0
    resource_name: str = ""
    pattern_type: Int8 = 3
    acls: list[AclDescription] = field(factory=list)


@message
class DescribeAclsResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    resources: list[DescribeAclsResource] = field(factory=list)

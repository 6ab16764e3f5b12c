"""Access control lists: DescribeAcls (versions 1 to 3). There is no authorizer; the answer says so as Kafka does."""

from lakestream.protocol.kafka.connections.calls import Handler, RequestContext
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.acls import DescribeAclsRequest, DescribeAclsResponse

NO_AUTHORIZER = "No Authorizer is configured."


class AclApis:
    """Answers that there are no ACLs: every client may do everything."""

    def handlers(self) -> dict[int, Handler]:
        return {29: self.describe_acls}

    async def describe_acls(self, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)

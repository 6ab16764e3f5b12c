"""Client quotas: DescribeClientQuotas (versions 0 and 1).

No client has a quota, so no filter finds one. What Kafka refuses is refused, for the first thing that is wrong with it.
"""

from collections.abc import Sequence
from typing import Final

from lakestream.protocol.kafka.connections.calls import Handler, RequestContext
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.quotas import (
    ClientQuotaFilter,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from lakestream.protocol.kafka.refusals import Refusal

USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXACT, DEFAULT, SPECIFIED = range(3)
"""How a filter matches an entity: by its name, only the default entity, or any that has a name."""
NO_SUCH_TYPE: Final = Refusal(ErrorCode.UNSUPPORTED_VERSION, f"The entity types are {USER}, {CLIENT_ID} and {IP}.")


class QuotaApis:
    """Answers that there are no quotas: every client may send and read as much as it can."""

    def handlers(self) -> dict[int, Handler]:
        return {48: self.describe_client_quotas}

    async def describe_client_quotas(
        self, context: RequestContext, request: DescribeClientQuotasRequest
    ) -> DescribeClientQuotasResponse:
        refused = problem(request.components)
        if refused is not None:
            return DescribeClientQuotasResponse(error_code=refused.code, error_message=refused.message, entries=None)
        return DescribeClientQuotasResponse(error_message="")  # Kafka's is empty, not null


def problem(filters: Sequence[ClientQuotaFilter]) -> Refusal | None:
    """What is wrong with the filters of a request. At most four of them are looked at: no type may come twice."""
    seen: set[str] = set()
    for one in filters:
        kind = one.entity_type
        if not kind:
            return _invalid("An entity type is empty.")
        if kind in seen:
            return _invalid(f"The entity type {kind} is given more than once.")
        if kind not in (USER, CLIENT_ID, IP):
            return NO_SUCH_TYPE
        if one.match_type not in (EXACT, DEFAULT, SPECIFIED):
            return _invalid(f"There is no match type {one.match_type}.")
        if (one.match is None) == (one.match_type == EXACT):
            return _invalid("An exact match needs a name, and no other match has one.")
        seen.add(kind)
    if IP in seen and len(seen) > 1:
        return _invalid(f"{IP} is not combined with {USER} or {CLIENT_ID}.")
    return None


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)

"""InitProducerId (versions 0 to 5): ids for idempotent producers.

Departures from Kafka: a transactional id is refused until transactions come.
"""

from lakestream.metadata.replica import Replica
from lakestream.model.commands import AllocateProducerId
from lakestream.protocol.kafka.calls import Handler, RequestContext
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.produce import InitProducerIdRequest, InitProducerIdResponse
from lakestream.protocol.kafka.refusals import Refusal, propose

NO_PRODUCER = (-1, -1)

TRY_AGAIN = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
"""On this one every client asks the same broker again; the other retriable codes make some look for a coordinator."""

REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
"""The answer to a transactional id. Java's and librdkafka's producers fail at once and for good on this code; most
others they take for a passing trouble, and ask for ever."""


class ProducerApis:
    """Gives producer ids."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def handlers(self) -> dict[int, Handler]:
        return {22: self.init_producer_id}

    async def init_producer_id(self, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
        if code := judge(request):
            return InitProducerIdResponse(error_code=code, producer_epoch=-1)
        outcome = await propose(self._replica, AllocateProducerId(), TRY_AGAIN)
        if isinstance(outcome, Refusal):
            # An id that was given and not heard of is lost, and nothing else: here "try again" is honest, always (L17).
            return InitProducerIdResponse(error_code=TRY_AGAIN, producer_epoch=-1)
        return InitProducerIdResponse(producer_id=outcome, producer_epoch=0)


def judge(request: InitProducerIdRequest) -> ErrorCode:
    """Why there is no id for this request; NONE if there is one. A producer that has an id gets another one."""
    known = (request.producer_id, request.producer_epoch)
    if request.transactional_id == "" or (-1 in known and known != NO_PRODUCER):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE if request.transactional_id is None else REFUSED

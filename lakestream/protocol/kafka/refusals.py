"""What did not happen, as a value: Kafka's code and a message. Proposals of the cold APIs go out through here.

Nobody knows whether it happened -> REQUEST_TIMED_OUT, whatever the API (L17).
It did not, a disk is full       -> KAFKA_STORAGE_ERROR, which clients try again.
It certainly did not, try again  -> what the API at hand calls that; NOT_CONTROLLER for the care of topics.
The state machine said no        -> the code of its reason, with its words.
"""

from collections.abc import Awaitable
from dataclasses import dataclass

from lakestream.errors import Corrupt, LakestreamError, NoRoom, Rejected, Unknown
from lakestream.metadata.replica import Replica
from lakestream.model.commands import Body
from lakestream.model.reasons import No
from lakestream.model.state import Outcome
from lakestream.protocol.kafka.errors import ErrorCode, code_of
from lakestream.stream.streams import FrontDoor


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that was asked for and not done."""

    code: ErrorCode
    message: str


async def propose(replica: Replica, body: Body, not_done: ErrorCode = ErrorCode.NOT_CONTROLLER) -> Outcome | Refusal:
    """What `apply` said, or why there is no such answer."""
    return await settled(replica.propose(body), not_done)


async def settled(
    proposing: Awaitable[Outcome], not_done: ErrorCode = ErrorCode.NOT_CONTROLLER
) -> Outcome | Refusal:
    """The same for something that may take several commands."""
    try:
        outcome = await proposing
    except LakestreamError as error:
        return refusal(error, not_done)
    return Refusal(code_of(outcome.reason), outcome.message) if isinstance(outcome, No) else outcome


async def stale(state: Replica | FrontDoor, not_done: ErrorCode = ErrorCode.NOT_CONTROLLER) -> Refusal | None:
    """Be current, so that a no is no old news (L6); a refusal of everything if that cannot be."""
    try:
        await state.catch_up()
    except LakestreamError as error:
        return Refusal(not_done, str(error))
    return None


def refusal(error: LakestreamError, not_done: ErrorCode) -> Refusal:
    if isinstance(error, Unknown):
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, f"nobody can tell whether it happened: {error}")
    if isinstance(error, Rejected):
        return Refusal(code_of(error.reason), str(error))
    if isinstance(error, (Corrupt, NoRoom)):
        return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
    return Refusal(not_done, str(error))

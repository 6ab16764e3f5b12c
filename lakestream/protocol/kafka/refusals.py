"""Refusals as values: Kafka's code and a message. Handlers other than Produce and Fetch propose through this module.

The outcome is unknown          -> REQUEST_TIMED_OUT, whatever the API (L17).
Not done: a disk is full        -> KAFKA_STORAGE_ERROR, which clients try again.
Not done: the client may retry  -> the API's own code for that; NOT_CONTROLLER for the care of topics.
The state machine refused       -> the code of its reason, with its words.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

from lakestream.errors import Corrupt, LakestreamError, NoRoom, Rejected, Unknown
from lakestream.metadata.replica import Replica
from lakestream.model.commands import Body
from lakestream.model.reasons import No
from lakestream.model.state import Outcome
from lakestream.protocol.kafka.errors import ErrorCode, code_of
from lakestream.stream.streams import FrontDoor

MESSAGE_MAX: Final = 1000
"""Characters of a message. Messages repeat texts of clients, and older versions of APIs hold 32,767 bytes at most."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One operation that was requested and not done."""

    code: ErrorCode
    message: str

    def __post_init__(self) -> None:
        if len(self.message) > MESSAGE_MAX:
            object.__setattr__(self, "message", f"{self.message[:MESSAGE_MAX]} ...")


async def propose(replica: Replica, body: Body, not_done: ErrorCode = ErrorCode.NOT_CONTROLLER) -> Outcome | Refusal:
    """The outcome of the command, or the refusal."""
    return await settled(replica.propose(body), not_done)


async def settled(
    proposing: Awaitable[Outcome], not_done: ErrorCode = ErrorCode.NOT_CONTROLLER
) -> Outcome | Refusal:
    """As `propose`, for an operation that may take several commands."""
    try:
        outcome = await proposing
    except LakestreamError as error:
        return refusal(error, not_done)
    return Refusal(code_of(outcome.reason), outcome.message) if isinstance(outcome, No) else outcome


async def stale(state: Replica | FrontDoor, not_done: ErrorCode = ErrorCode.NOT_CONTROLLER) -> Refusal | None:
    """Fold to the end of the log, so that a no is current (L6); a refusal if the log cannot be read."""
    try:
        await state.catch_up()
    except LakestreamError as error:
        return Refusal(not_done, str(error))
    return None


def refusal(error: LakestreamError, not_done: ErrorCode) -> Refusal:
    if isinstance(error, Unknown):
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, f"the outcome is unknown: {error}")
    if isinstance(error, Rejected):
        return Refusal(code_of(error.reason), str(error))
    if isinstance(error, (Corrupt, NoRoom)):
        return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
    return Refusal(not_done, str(error))

"""Kafka's error codes as messages: the code's name, and advice for the common ones."""

from typing import Final

from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.errors import ErrorCode

RETRIABLE: Final = frozenset({
    ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_CONTROLLER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
})  # fmt: skip
"""Codes after which the same request may succeed a little later, or at another broker."""
COORDINATOR_MOVED: Final = frozenset({
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
})  # fmt: skip

_LIVE: Final = "the group has live members; stop its consumers first"
_ADVICE: Final[dict[int, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition; see `lakestream topics list`",
    ErrorCode.MESSAGE_TOO_LARGE: "a record is larger than the topic's max.message.bytes; "
    "raise it with `lakestream topics alter TOPIC --config max.message.bytes=N`",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "topic names have up to 249 of the characters a-z A-Z 0-9 . _ -",
    ErrorCode.ILLEGAL_GENERATION: _LIVE,
    ErrorCode.UNKNOWN_MEMBER_ID: _LIVE,
    ErrorCode.INVALID_SESSION_TIMEOUT: "see group_min_session_timeout_ms and group_max_session_timeout_ms",
    ErrorCode.TOPIC_ALREADY_EXISTS: "a topic of this name exists already",
    ErrorCode.NON_EMPTY_GROUP: _LIVE,
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group; see `lakestream groups list`",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "a live member of the group subscribes to this topic; stop it first",
}

_OURS_SAYS_MORE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Codes for which our advice says more than the broker's message."""


class KafkaError(LakestreamError):
    """A broker answered with an error code."""

    def __init__(self, code: int, doing: str, message: str | None = None) -> None:
        name = ErrorCode(code).name if code in list(ErrorCode) else f"error code {code}"
        details = _ADVICE.get(code, "") if code in _OURS_SAYS_MORE or not message else message
        super().__init__(f"{doing}: {name}" + (f" ({details})" if details else ""))
        self.code = code


def check(code: int, doing: str, message: str | None = None) -> None:
    """Raise KafkaError unless the code is 0."""
    if code:
        raise KafkaError(code, doing, message)

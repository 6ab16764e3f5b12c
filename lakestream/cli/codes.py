"""Kafka's error codes as a person reads them: a name, and for the common ones what to do."""

from typing import Final

from lakestream.errors import LakestreamError

NAMES: Final = {
    -1: "UNKNOWN_SERVER_ERROR", 1: "OFFSET_OUT_OF_RANGE", 2: "CORRUPT_MESSAGE", 3: "UNKNOWN_TOPIC_OR_PARTITION",
    4: "INVALID_FETCH_SIZE", 5: "LEADER_NOT_AVAILABLE", 6: "NOT_LEADER_OR_FOLLOWER", 7: "REQUEST_TIMED_OUT",
    8: "BROKER_NOT_AVAILABLE", 10: "MESSAGE_TOO_LARGE", 12: "OFFSET_METADATA_TOO_LARGE", 13: "NETWORK_EXCEPTION",
    14: "COORDINATOR_LOAD_IN_PROGRESS", 15: "COORDINATOR_NOT_AVAILABLE", 16: "NOT_COORDINATOR",
    17: "INVALID_TOPIC_EXCEPTION", 18: "RECORD_LIST_TOO_LARGE", 19: "NOT_ENOUGH_REPLICAS", 21: "INVALID_REQUIRED_ACKS",
    22: "ILLEGAL_GENERATION", 23: "INCONSISTENT_GROUP_PROTOCOL", 24: "INVALID_GROUP_ID", 25: "UNKNOWN_MEMBER_ID",
    26: "INVALID_SESSION_TIMEOUT", 27: "REBALANCE_IN_PROGRESS", 28: "INVALID_COMMIT_OFFSET_SIZE",
    29: "TOPIC_AUTHORIZATION_FAILED", 30: "GROUP_AUTHORIZATION_FAILED", 31: "CLUSTER_AUTHORIZATION_FAILED",
    32: "INVALID_TIMESTAMP", 35: "UNSUPPORTED_VERSION", 36: "TOPIC_ALREADY_EXISTS", 37: "INVALID_PARTITIONS",
    38: "INVALID_REPLICATION_FACTOR", 39: "INVALID_REPLICA_ASSIGNMENT", 40: "INVALID_CONFIG", 41: "NOT_CONTROLLER",
    42: "INVALID_REQUEST", 43: "UNSUPPORTED_FOR_MESSAGE_FORMAT", 44: "POLICY_VIOLATION",
    45: "OUT_OF_ORDER_SEQUENCE_NUMBER", 46: "DUPLICATE_SEQUENCE_NUMBER", 47: "INVALID_PRODUCER_EPOCH",
    56: "KAFKA_STORAGE_ERROR", 59: "UNKNOWN_PRODUCER_ID", 60: "REASSIGNMENT_IN_PROGRESS", 68: "NON_EMPTY_GROUP",
    69: "GROUP_ID_NOT_FOUND", 72: "LISTENER_NOT_FOUND", 73: "TOPIC_DELETION_DISABLED", 74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH", 76: "UNSUPPORTED_COMPRESSION_TYPE", 79: "MEMBER_ID_REQUIRED",
    81: "GROUP_MAX_SIZE_REACHED", 82: "FENCED_INSTANCE_ID", 86: "GROUP_SUBSCRIBED_TO_TOPIC", 87: "INVALID_RECORD",
    88: "UNSTABLE_OFFSET_COMMIT", 89: "THROTTLING_QUOTA_EXCEEDED", 100: "UNKNOWN_TOPIC_ID",
}  # fmt: skip

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, ILLEGAL_GENERATION, UNKNOWN_MEMBER = 1, 3, 22, 25
REBALANCE_IN_PROGRESS, TOPIC_EXISTS, NON_EMPTY_GROUP, MEMBER_ID_REQUIRED = 27, 36, 68, 79
RETRIABLE: Final = frozenset({5, 6, 7, 8, 13, 14, 15, 16, 19, 41, 56, 88, 89})
"""Codes after which the same request, sent a little later or to another broker, may well succeed."""
COORDINATOR_MOVED: Final = frozenset({14, 15, 16})

_ADVICE: Final = {
    UNKNOWN_TOPIC: "there is no such topic or partition; see `lakestream topics list`",
    10: "a record is larger than the topic's max.message.bytes; "
    "raise it with `lakestream topics alter TOPIC --config max.message.bytes=N`",
    17: "topic names have up to 249 of the characters a-z A-Z 0-9 . _ -",
    22: "the group has moved on to another generation; stop its consumers first",
    UNKNOWN_MEMBER: "the group has live members; stop its consumers first",
    26: "session timeouts are bounded by group_min_session_timeout_ms and group_max_session_timeout_ms",
    TOPIC_EXISTS: "a topic of this name exists already",
    NON_EMPTY_GROUP: "the group has live members; stop its consumers first",
    69: "there is no such group; see `lakestream groups list`",
    86: "a live member of the group subscribes to this topic; stop it first",
}


class KafkaError(LakestreamError):
    """A broker answered with an error code."""

    def __init__(self, code: int, doing: str, message: str | None = None) -> None:
        name = NAMES.get(code, f"error code {code}")
        details = message or _ADVICE.get(code, "")
        super().__init__(f"{doing}: {name}" + (f" ({details})" if details else ""))
        self.code = code


def check(code: int, doing: str, message: str | None = None) -> None:
    """Raise KafkaError unless the code is 0."""
    if code:
        raise KafkaError(code, doing, message)

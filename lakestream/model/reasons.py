"""Why a command, or one batch of it, was refused. Protocols translate these to their own codes, once, at their edge."""

from enum import IntEnum
from typing import NamedTuple


class Reason(IntEnum):
    """Stored in digests of outcomes, so numbers are never changed or reused."""

    MALFORMED = 1
    NEWER_LEVEL = 2
    UNKNOWN_STREAM = 3
    OUT_OF_ORDER = 4
    FENCED_PRODUCER = 5
    OVER_SHARE = 6
    UNKNOWN_TOPIC = 7
    TOPIC_EXISTS = 8
    INVALID_TOPIC_NAME = 9
    INVALID_PARTITIONS = 10
    INVALID_CONFIG = 11
    INVALID_REPLICATION = 12
    OFFSET_OUT_OF_RANGE = 13
    STALE_PREMISE = 14
    UNKNOWN_MEMBER = 15
    OLD_INCARNATION = 16
    LEVEL_UNSUPPORTED = 17
    UNKNOWN_GROUP = 18
    UNKNOWN_GROUP_MEMBER = 19
    STALE_GENERATION = 20
    NOT_COORDINATOR = 21
    GROUP_NOT_EMPTY = 22
    FENCED_INSTANCE = 23
    GROUP_SUBSCRIBED = 24
    INVALID_REQUEST = 25
    REBALANCING = 26
    OTHER_CLUSTER = 27
    UNKNOWN_OBJECT = 28
    TOO_MANY_PARTITIONS = 29
    INCONSISTENT_PROTOCOL = 40
    MEMBER_ID_REQUIRED = 41
    INVALID_SESSION_TIMEOUT = 42
    GROUP_FULL = 43
    INVALID_GROUP_ID = 44
    COORDINATOR_UNAVAILABLE = 45
    NOTE_TOO_LARGE = 46
    COMMIT_TOO_LARGE = 47
    NAMESPACE_EXISTS = 60
    UNKNOWN_NAMESPACE = 61
    NAMESPACE_NOT_EMPTY = 62
    TABLE_EXISTS = 63
    UNKNOWN_TABLE = 64
    TABLE_BOUND = 65
    TOPIC_HELD = 66
    CARE_FULL = 67
    UNKNOWN_PRODUCER = 70
    TOO_MANY_TOPICS = 71
    TOO_MANY_GROUPS = 72
    TOO_MANY_OFFSETS = 73
    TOO_MANY_NOTES = 74
    VIEW_EXISTS = 85
    UNKNOWN_VIEW = 86


class No(NamedTuple):
    """A definite refusal, as an outcome of `apply`."""

    reason: int
    message: str


class NotInTurn(NamedTuple):
    """The command's epoch has ended, or its number is not the next one: it changed nothing at all (L1, L2)."""


NOT_IN_TURN = NotInTurn()

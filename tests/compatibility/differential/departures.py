"""Where our answers may differ from Apache Kafka's, with reasons: docs/COMPATIBILITY.md has the same sentences."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def always(ours: Any, kafkas: Any) -> bool:
    return True


def more(ours: Any, kafkas: Any) -> bool:
    """We say something where Kafka does not."""
    return bool(ours) and not kafkas


def less(ours: Any, kafkas: Any) -> bool:
    return ours is None


def whole(ours: Any, kafkas: Any) -> bool:
    """We sent those of Kafka's batches that are whole."""
    return bool(ours == [one for one in kafkas if one.get("whole")])


@dataclass(frozen=True, slots=True)
class Departure:
    """Answers may differ whose request and field match these patterns, if `holds` says so of ours and Kafka's."""

    asked: str
    field: str
    reason: str
    holds: Callable[[Any, Any], bool] = always


INTERNAL_ERROR = (
    "Some invalid requests make Kafka fail with an internal error; "
    "here they get a code of their own, or an answer."
)
ONE_FEATURE = "The one feature is `lakestream.level`."
AT_FORMATTING = "Kafka sets `min.insync.replicas` for the whole cluster when its storage is formatted."

DEPARTURES = [
    Departure(".*", r".*error_message", "Errors have a message where Kafka sends only the code.", more),
    Departure("ApiVersions", r"api_keys\[\d+\]", "Unsupported APIs are not advertised.", less),
    Departure("ApiVersions", r"(supported|finalized)_features.*", ONE_FEATURE),
    Departure("Metadata.*making", ".*", "A topic that a request creates by asking for it is in that request's answer."),
    Departure("Metadata.*colliding", ".*", "If a topic cannot be created by asking for it, the answer says why."),
    Departure(
        "(FindCoordinator|InitProducerId|Produce).*transaction", ".*", "Transactions are refused until they come."
    ),
    Departure("Metadata.*neither", ".*", INTERNAL_ERROR),
    Departure("Produce.*(codec 5|not gzip)", ".*error_code", INTERNAL_ERROR),
    Departure("Fetch.*(isolation 2|limit -1)", ".*", INTERNAL_ERROR),
    Departure("DescribeTopicPartitions.*no name", ".*", INTERNAL_ERROR),
    Departure(
        "DescribeProducers", ".*last_timestamp",
        "The last timestamp of a producer is the cluster time of its last write to any partition.",
    ),
    Departure("IncrementalAlterConfigs.*operation 9", ".*", INTERNAL_ERROR),
    Departure(
        "Produce.*(log append time|delete horizon)", ".*",
        "A batch that sets LogAppendTime or a delete horizon is refused: only the broker sets these.",
    ),
    Departure("Produce.*behind", ".*", "Bytes after a batch are refused; Kafka drops them."),
    Departure("Produce.*epoch -1", ".*", "A producer with an id needs an epoch."),
    Departure(
        "Produce.*a partition twice", ".*",
        "A partition that is named twice in a request gets both batches; Kafka drops the first.",
    ),
    Departure(
        "Produce", ".*log_append_time",
        "The answer to a duplicate does not have the time of the first batch; Kafka's has it.",
        less,
    ),
    Departure(
        r"Fetch.*limit \d+", ".*records", "Batches are sent whole; Kafka cuts off the last one at the limit.", whole
    ),
    Departure(r"Fetch.*last epoch \d", ".*", "The last fetched epoch, which only replicas send, is ignored."),
    Departure(
        "Fetch v18 session", ".*error_code",
        "For a deleted topic a session answers UNKNOWN_TOPIC_ID; Kafka's session still knows the topic's name.",
    ),
    Departure(
        "ListOffsets.*after, at -3", ".*",
        "The greatest timestamp is that of an existing record; Kafka may give that of a deleted one.",
    ),
    Departure("CreateTopics.*many replicas", ".*", "Any replication factor is accepted and shown as asked."),
    Departure(".*", r".*configs\[lakestream\..*", "Topics have configs of their tables."),
    Departure(".*", r".*configs\[retention.ms\]\.(value|synonyms).*", "Records are kept forever by default."),
    Departure(".*", r".*configs\[min.insync.replicas\]\.(config_source|synonyms).*", AT_FORMATTING),
    Departure("DescribeConfigs.*all brokers", r".*configs\[min.insync.replicas\]", AT_FORMATTING),
    Departure("CreateTopics.*(TRUE| 5 )", r".*configs\[.*\].value", "Configs are shown in their normal form."),
    Departure("DescribeConfigs", ".*synonyms.*", "Synonyms are the configs of brokers that exist here."),
    Departure("DescribeConfigs", ".*read_only", "Other configs of brokers can be changed while they run."),
]  # fmt: skip

USED: set[Departure] = set()
"""Those that were needed so far."""


def departs(label: str, path: str, ours: Any, kafkas: Any) -> bool:
    """Whether this difference is allowed."""
    for one in DEPARTURES:
        if re.match(one.asked, label) and re.fullmatch(one.field, path) and one.holds(ours, kafkas):
            USED.add(one)
            return True
    return False

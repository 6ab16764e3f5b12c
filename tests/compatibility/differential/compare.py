"""Two transcripts of one conversation, held against each other field by field.

What must differ is made alike first: ids, ports and times by where they first appeared, so that a broker that mixes two
of them up is still found out; messages by whether there is one. What else may differ is in departures.py, with reasons.
"""

from collections.abc import Iterator
from typing import Any

from lakestream.model.batches.header import HEADER, LOG_APPEND_TIME, PREFIX_SIZE
from tests.compatibility.differential.departures import departs
from tests.compatibility.differential.peer import NO_SUCH_ID

Transcript = list[tuple[str, Any]]

SYMBOLS = {
    "topic_id": "topic", "member_id": "member", "leader": "member", "producer_id": "producer", "session_id": "session",
    "cluster_id": "cluster", "port": "port", "log_append_time": "time", "log_dir": "log dir", "total_bytes": "space",
    "usable_bytes": "space",
}  # fmt: skip
"""Fields whose values are the broker's own choice, and what they name."""
NOBODY = (None, "", -1, str(NO_SUCH_ID))
NO_SESSION = ("session_id", 0)
TEXTS = ("error_message", "batch_index_error_message", "documentation")
UNORDERED = {
    "topics": ("name", "topic"), "responses": ("name", "topic", "resource_name"), "configs": ("name",),
    "results": ("name", "group_id"), "groups": ("group_id",), "api_keys": ("api_key",), "coordinators": ("key",),
    "partitions": ("partition_index", "partition"), "partition_responses": ("index",),
}  # fmt: skip
"""Lists that clients read as sets, and what to sort them by. Kafka keeps them in hash maps."""
KEYED = {"api_keys": "api_key", "configs": "name"}
"""Lists of which only one side may have an element: each is compared with its namesake."""
INTERNAL = ("__consumer_offsets", "__transaction_state")


def differences(ours: Transcript, kafkas: Transcript) -> list[str]:
    """What differs without a good reason, one line each."""
    assert [label for label, _ in ours] == [label for label, _ in kafkas], "the conversations took different ways"
    mine, theirs = Normal(), Normal()
    found = []
    for (label, our_answer), (_, their_answer) in zip(ours, kafkas, strict=True):
        pairs = _differing("", mine.of(our_answer), theirs.of(their_answer))
        found += [
            f"{label}: {path or 'answer'}: ours {our!r}, Kafka's {their!r}"
            for path, our, their in pairs
            if not departs(label, path, our, their)
        ]
    return found


class Normal:
    """Makes the answers of one broker comparable; remembers what it has named how."""

    def __init__(self) -> None:
        self._symbols: dict[tuple[str, Any], str] = {}

    def of(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: self.of(one, key) for key, one in value.items()}
        if isinstance(value, list):
            return self._list(value, name)
        if name in SYMBOLS and value not in NOBODY and (name, value) != NO_SESSION:
            return self._symbol(SYMBOLS[name], value)
        if name in TEXTS:
            return "a text" if value else value
        if name == "records" and value:
            return [self.of(batch) for batch in batches(value)]
        return value

    def _list(self, values: list[Any], name: str) -> Any:
        keys = UNORDERED.get(name)
        if name == "members":
            # Their ids are of the broker's making: they have to be named before they can be sorted.
            return sorted((self.of(one, name) for one in values), key=lambda one: str(one["member_id"]))
        if keys is None or not all(isinstance(one, dict) for one in values):
            return [self.of(one, name) for one in values]
        values = [one for one in values if one.get("name") not in INTERNAL]
        by = (*keys, "error_code")
        values.sort(key=lambda one: [str(one.get(key)) for key in by] + [one.get("topic_id") in NOBODY])
        return [self.of(one, name) for one in values]

    def _symbol(self, kind: str, value: Any) -> str:
        if kind in ("time", "space"):
            return f"a {kind}"
        number = sum(known == kind for known, _ in self._symbols) + 1
        return self._symbols.setdefault((kind, value), f"{kind} {number}")


def batches(records: bytes) -> Iterator[dict[str, Any]]:
    """The batches of a fetch answer; the last may be cut off, as Kafka does it."""
    position = 0
    while len(records) - position >= HEADER.size:
        (
            base, length, epoch, magic, crc, attributes, last, base_time, max_time, producer, producer_epoch, sequence,
            count,
        ) = HEADER.unpack_from(records, position)  # fmt: skip
        end = position + PREFIX_SIZE + length
        stamped = attributes & LOG_APPEND_TIME
        yield {
            "base_offset": base, "leader_epoch": epoch, "magic": magic, "crc": "stamped" if stamped else crc,
            "attributes": attributes, "last_offset_delta": last, "base_timestamp": base_time,
            "log_append_time" if stamped else "max_timestamp": max_time, "the_producer": producer,
            "producer_epoch": producer_epoch, "base_sequence": sequence, "count": count, "whole": end <= len(records),
            "body": records[position + HEADER.size : end],
        }  # fmt: skip
        position = end
    if position < len(records):
        yield {"rest": len(records) - position}


def _differing(path: str, ours: Any, kafkas: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(ours, dict) and isinstance(kafkas, dict):
        if ours.get("error_code") != kafkas.get("error_code"):
            # The rest follows from it.
            yield f"{path}.error_code".lstrip("."), ours.get("error_code"), kafkas.get("error_code")
            return
        for key in ours | kafkas:
            yield from _differing(f"{path}.{key}" if path else key, ours.get(key), kafkas.get(key))
    elif isinstance(ours, list) and isinstance(kafkas, list) and (key := KEYED.get(path.rpartition(".")[2])):
        mine, theirs = ({one[key]: one for one in side} for side in (ours, kafkas))
        for name in mine | theirs:
            yield from _differing(f"{path}[{name}]", mine.get(name), theirs.get(name))
    elif isinstance(ours, list) and isinstance(kafkas, list) and len(ours) == len(kafkas):
        for index, (our, their) in enumerate(zip(ours, kafkas, strict=True)):
            yield from _differing(f"{path}[{index}]", our, their)
    elif ours != kafkas:
        yield path, ours, kafkas

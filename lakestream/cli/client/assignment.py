"""The assignment of partitions in a classic group: the consumer protocol's encoding and two assignors. Pure.

The encoding is that of every Kafka client, so `lakestream consume --group` can share a group with other clients.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lakestream.errors import Corrupt

PROTOCOL_TYPE: Final = "consumer"

Place = tuple[str, int]
Subscriptions = Mapping[str, Sequence[str]]
"""The topics of each group member, by member id."""
Partitions = Mapping[str, Sequence[int]]
"""The partitions of each topic."""


def encode_subscription(topics: Sequence[str]) -> bytes:
    return struct.pack(">hi", 0, len(topics)) + b"".join(map(_text, topics)) + struct.pack(">i", -1)


def decode_subscription(data: bytes) -> list[str]:
    """The topics of a subscription of any version: later versions add fields after the topics only."""
    try:
        _, count = struct.unpack_from(">hi", data)
        topics, position = [], 6
        for _ in range(count):
            topic, position = _read_text(data, position)
            topics.append(topic)
    except (struct.error, UnicodeDecodeError):
        raise Corrupt("a group member's subscription cannot be read") from None
    return topics


def encode_assignment(places: Sequence[Place]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    parts = [struct.pack(">hi", 0, len(topics))]
    parts += [_text(name) + struct.pack(f">i{len(own)}i", len(own), *own) for name, own in topics.items()]
    return b"".join(parts) + struct.pack(">i", -1)


def decode_assignment(data: bytes) -> list[Place]:
    """The partitions assigned to a member; empty bytes mean no partitions."""
    if not data:
        return []
    try:
        _, count = struct.unpack_from(">hi", data)
        places, position = [], 6
        for _ in range(count):
            topic, position = _read_text(data, position)
            (size,) = struct.unpack_from(">i", data, position)
            places += [(topic, number) for number in struct.unpack_from(f">{size}i", data, position + 4)]
            position += 4 + 4 * size
    except (struct.error, UnicodeDecodeError):
        raise Corrupt("an assignment cannot be read") from None
    return places


def assign_range(subscriptions: Subscriptions, partitions: Partitions) -> dict[str, list[Place]]:
    """Give each member a range of each topic's partitions; the first members get one more if they do not divide."""
    given: dict[str, list[Place]] = {member: [] for member in subscriptions}
    for topic, numbers in sorted(partitions.items()):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        start = 0
        for i, member in enumerate(members):
            size = len(numbers) // len(members) + (i < len(numbers) % len(members))
            given[member] += [(topic, number) for number in sorted(numbers)[start : start + size]]
            start += size
    return given


def assign_round_robin(subscriptions: Subscriptions, partitions: Partitions) -> dict[str, list[Place]]:
    """Give each partition of all topics to the next member, in turn, that subscribes to its topic."""
    given: dict[str, list[Place]] = {member: [] for member in subscriptions}
    members = sorted(subscriptions)
    turn = 0
    for place in sorted((topic, number) for topic, numbers in partitions.items() for number in numbers):
        if not any(place[0] in topics for topics in subscriptions.values()):
            continue
        while place[0] not in subscriptions[members[turn % len(members)]]:
            turn += 1
        given[members[turn % len(members)]].append(place)
        turn += 1
    return given


ASSIGNORS: Final[dict[str, Callable[[Subscriptions, Partitions], dict[str, list[Place]]]]] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
}
"""The assignors by their protocol names, the preferred one first."""


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, position)
    end = position + 2 + size
    if size < 0 or end > len(data):
        raise struct.error("too short")
    return data[position + 2 : end].decode(), end

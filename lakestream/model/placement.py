"""Which live broker a partition is shown to be led by. Any broker serves any partition; this only spreads the clients.

Every broker gets a weight for every partition, and the heaviest leads (rendezvous hashing): load spreads evenly, and
when a broker goes only its own partitions get another leader.
"""

from collections.abc import Sequence
from hashlib import blake2b

_MASK = (1 << 64) - 1
_ODD, _OTHER_ODD = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03


def leader_of(brokers: Sequence[int], topic_id: bytes, partition: int) -> int:
    """The broker id that clients are sent to for this partition; -1 if no broker lives."""
    return rankings(brokers, topic_id, range(partition, partition + 1))[0][0] if brokers else -1


def rankings(brokers: Sequence[int], topic_id: bytes, partitions: range) -> list[list[int]]:
    """For each partition all brokers, in the order in which they would lead it."""
    if len(brokers) < 2:
        return [list(brokers) for _ in partitions]
    seed = int.from_bytes(blake2b(topic_id, digest_size=8).digest(), "little")
    salts = [(broker, (broker + 1) * _ODD) for broker in brokers]
    ranked = []
    for partition in partitions:
        mixed = seed + partition * _OTHER_ODD
        weights = [(_mix(mixed ^ salt), broker) for broker, salt in salts]
        weights.sort(reverse=True)
        ranked.append([broker for _, broker in weights])
    return ranked


def _mix(number: int) -> int:
    """A hash in which every bit counts. A checksum is linear, and so would favour some brokers."""
    number &= _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)

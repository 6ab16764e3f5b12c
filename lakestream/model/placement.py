"""Which live broker a partition is shown to be led by. Any broker serves any partition; this only spreads the clients.

Every broker gets a weight for every partition, and the heaviest leads (rendezvous hashing): load spreads evenly, and
when a broker goes only its own partitions get another leader.
"""

from collections.abc import Sequence
from hashlib import blake2b

_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15


def leader_of(brokers: Sequence[int], topic_id: bytes, partition: int) -> int:
    """The broker id that clients are sent to for this partition; -1 if no broker lives."""
    seed = _seed(topic_id, partition)
    return max(brokers, key=lambda broker: _weight(seed, broker), default=-1)


def ranked(brokers: Sequence[int], topic_id: bytes, partition: int) -> list[int]:
    """All brokers in the order in which they would lead this partition."""
    if len(brokers) < 2:
        return list(brokers)
    seed = _seed(topic_id, partition)
    return sorted(brokers, key=lambda broker: _weight(seed, broker), reverse=True)


def _seed(topic_id: bytes, partition: int) -> int:
    return int.from_bytes(blake2b(topic_id + partition.to_bytes(4, "little"), digest_size=8).digest(), "little")


def _weight(seed: int, broker: int) -> tuple[int, int]:
    """A mix in which every bit counts (a checksum would not do: it is linear, and so favours some brokers)."""
    mixed = (seed ^ ((broker + 1) * _ODD)) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31), broker

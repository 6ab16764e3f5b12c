"""Statistics of a table file: plain values without Arrow, which every part of Lakestream can hold."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

BOUND_BYTES = 16
"""Where Iceberg cuts the bounds of strings and bytes."""


@dataclass(frozen=True, slots=True)
class Digest:
    """Some records of one partition: how many, and the sum of their hashes modulo 2^64 (T16)."""

    records: int = 0
    hash: int = 0

    def __add__(self, other: "Digest") -> "Digest":
        return Digest(self.records + other.records, (self.hash + other.hash) % 2**64)


class Run(msgspec.Struct, frozen=True, array_like=True):
    """One partition's rows in one row group: least and greatest offset, greatest timestamp (ms, -1: none), count."""

    partition: int
    first: int
    last: int
    max_timestamp: int
    rows: int


Bound = bytes
Digests = Mapping[int, Digest]
"""By partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStats:
    """The statistics that a commit and the index need; maps are by field id, bounds in Iceberg's encoding."""

    path: str
    rows: int
    bytes: int
    column_sizes: Mapping[int, int]
    value_counts: Mapping[int, int]
    null_counts: Mapping[int, int]
    lower_bounds: Mapping[int, Bound]
    upper_bounds: Mapping[int, Bound]
    split_offsets: Sequence[int]
    runs: Sequence[Sequence[Run]]
    """One list a row group."""
    digests: Digests = field(default_factory=dict)


def add_digests(groups: Iterable[Digests]) -> dict[int, Digest]:
    """The digests of several parts as one."""
    total: dict[int, Digest] = {}
    for group in groups:
        for partition, digest in group.items():
            total[partition] = total.get(partition, Digest()) + digest
    return total


def int_bound(value: int) -> bytes:
    """An Iceberg int."""
    return struct.pack("<i", value)


def long_bound(value: int) -> bytes:
    """An Iceberg long, or a timestamp in microseconds."""
    return struct.pack("<q", value)


def lower_bound(value: bytes) -> bytes:
    """Bytes at or below the value, as short as Iceberg keeps them."""
    return value[:BOUND_BYTES]


def upper_bound(value: bytes) -> bytes | None:
    """Bytes at or above the value; None if nothing so short is."""
    if len(value) <= BOUND_BYTES:
        return value
    kept = value[:BOUND_BYTES].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None

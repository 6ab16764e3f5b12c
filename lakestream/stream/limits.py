"""Bounds of the appender and the reader: every buffer, cache and wait has one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendLimits:
    """Bounds of the appender."""

    tick_bytes: int = 16 * 1024 * 1024
    """The approximate size of the largest WAL objects."""
    under_way_bytes: int = 64 * 1024 * 1024
    """Submitted bytes that are not answered; above this number sockets pause."""
    uploads: int = 1
    """Objects written at the same time."""
    silence_s: float = 0.02
    """Where objects have a price: write when nothing came for so long."""
    many_requests: int = 64
    """Where objects have no price: if the last tick had so many requests, the next one waits a little for more."""
    pause_s: float = 0.003
    """How long, at most, the next tick gathers while one is under way; it begins when that one is answered."""
    bulk_bytes: int = 32 * 1024
    """Where objects have no price: after a tick of this size the next one may gather for a while (gathering.py),"""
    enough_bytes: int = 1024 * 1024
    """until it has so much,"""
    gather_s: float = 0.012
    """or its oldest batch waited so long,"""
    gather_silence_s: float = 0.006
    """or nothing came for so long: Kafka's clients linger for 5 ms, so their requests come in bursts."""
    write_timeout_s: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Bounds of the reader."""

    cache_bytes: int = 128 * 1024 * 1024
    whole_object_bytes: int = 4 * 1024 * 1024
    """Objects up to this size are read whole: their other slices are likely to be wanted next."""
    chunk_bytes: int = 1024 * 1024
    """How much of a larger slice is read at once."""
    reads_at_once: int = 8

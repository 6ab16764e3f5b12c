"""Produce and Fetch responses written by hand: the bytes of codec.py, several times faster, record bytes not copied."""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from lakestream.interfaces import Buffer
from lakestream.model.kernels.pointers import address_of
from lakestream.protocol.kafka.wire.fast_requests import Topic
from lakestream.protocol.kafka.wire.framing import LENGTH_AND_CORRELATION, begin_frame, end_frame, uvarint

TEMPLATES_LIMIT: Final = 4096
"""Topics times versions whose Produce answer is kept half ready."""


class Produced(NamedTuple):
    """The answer for one partition of a Produce request."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    bad_records: tuple[int, ...] = ()
    """Places in the batch of those for which it was refused; each gets the message."""


def encode_produce_response(
    version: int, correlation_id: int, topics: Sequence[tuple[Topic, Sequence[Produced]]], throttle_time_ms: int = 0
) -> bytes:
    """A whole response frame, its length in front."""
    if len(topics) == 1:
        topic, partitions = topics[0]
        if len(partitions) == 1 and partitions[0].error_message is None and not partitions[0].bad_records:
            index, error, base, appended, start, *_ = partitions[0]
            return encode_one_produced(
                version, correlation_id, topic, index, error, base, appended, start, throttle_time_ms
            )
    return _encode_produce_response(version, correlation_id, topics, throttle_time_ms)


def encode_one_produced(
    version: int, correlation_id: int, topic: Topic, index: int, error: int, base: int, appended: int, start: int,
    throttle_time_ms: int = 0,
) -> bytes:  # fmt: skip
    """The answer to a request with one partition: its fields are those of `Produced`."""
    pack, size, head = _one_answer(version, topic)
    if version >= 8:
        nothing = _NOTHING_FLEXIBLE if version >= 9 else _NOTHING
        return pack(size, correlation_id, head, index, error, base, appended, start, nothing, throttle_time_ms)
    if version >= 5:
        return pack(size, correlation_id, head, index, error, base, appended, start, throttle_time_ms)
    return pack(size, correlation_id, head, index, error, base, appended, throttle_time_ms)


@lru_cache(TEMPLATES_LIMIT)
def _one_answer(version: int, topic: Topic) -> tuple[Callable[..., bytes], int, bytes]:
    """For one topic with one partition: how to pack the whole frame, its size, and the constant bytes in it."""
    flexible = version >= 9
    one = b"\2" if flexible else b"\0\0\0\1"
    head = (b"\0" if flexible else b"") + one + _topic_bytes(topic, flexible) + one
    nothing = f"{len(_NOTHING_FLEXIBLE if flexible else _NOTHING)}s" if version >= 8 else ""
    layout = struct.Struct(f">ii{len(head)}sihqq{'q' if version >= 5 else ''}{nothing}i{'x' if flexible else ''}")
    return layout.pack, layout.size - 4, head


class AnswerTemplate(NamedTuple):
    """The frame of a good answer to a request with one partition: all zero that differs, and where that lies."""

    frame: bytes
    address: int
    partition_at: int
    """From here on: partition, error code, base offset."""
    log_start_at: int
    """-1 if this version has none."""


@lru_cache(TEMPLATES_LIMIT)
def answer_template(version: int, topic: Topic) -> AnswerTemplate:
    head = _one_answer(version, topic)[2]
    frame = encode_one_produced(version, 0, topic, 0, 0, 0, -1, 0)
    partition_at = 8 + len(head)
    return AnswerTemplate(frame, address_of(frame), partition_at, partition_at + 22 if version >= 5 else -1)


# Behind a partition's offsets: no record errors, null as the error message, no tags of the partition and of the topic.
_NOTHING: Final = b"\0\0\0\0\xff\xff"
_NOTHING_FLEXIBLE: Final = b"\1\0\0\0"


def _encode_produce_response(
    version: int, correlation_id: int, topics: Sequence[tuple[Topic, Sequence[Produced]]], throttle_time_ms: int
) -> bytes:
    flexible = version >= 9
    with_start = version >= 5
    pack = struct.Struct(">ihqqq" if with_start else ">ihqq").pack
    out = begin_frame(flexible)
    out += _count(len(topics), flexible)
    for topic, partitions in topics:
        out += _topic_bytes(topic, flexible)
        out += _count(len(partitions), flexible)
        for partition in partitions:
            out += pack(*partition[: 5 if with_start else 4])
            if version >= 8:
                out += _bad_records(partition, flexible)
                out += _text(partition.error_message, flexible)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    out += _I32(throttle_time_ms)
    if flexible:
        out.append(0)
    return bytes(end_frame(out, correlation_id))


def _bad_records(partition: Produced, flexible: bool) -> bytes:
    text = _text(partition.error_message, flexible) + (b"\0" if flexible else b"")
    records = b"".join(_I32(place) + text for place in partition.bad_records)
    return _count(len(partition.bad_records), flexible) + records


class FetchedPartition(NamedTuple):
    """The answer for one partition of a Fetch request. `records` are pieces of whole batches, in order."""

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: Sequence[Buffer] = ()
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    """Producer id and first offset of each."""
    preferred_read_replica: int = -1


def encode_fetch_response(
    version: int,
    correlation_id: int,
    throttle_time_ms: int,
    error_code: int,
    session_id: int,
    topics: Sequence[tuple[Topic, Sequence[FetchedPartition]]],
) -> list[Buffer]:
    """A whole response frame in pieces, its length in front; the pieces of the records are those that were given."""
    flexible = version >= 12
    parts: list[Buffer] = []
    first = out = begin_frame(flexible)
    out += _I32(throttle_time_ms)
    if version >= 7:
        out += _ERROR_AND_SESSION(error_code, session_id)
    out += _count(len(topics), flexible)
    total = 0
    for topic, partitions in topics:
        out += _topic_bytes(topic, flexible)
        out += _count(len(partitions), flexible)
        for partition in partitions:
            out += _partition_head(partition, version)
            records = partition.records
            size = sum(map(len, records))
            out += uvarint(size + 1) if flexible else _I32(size)
            if size:
                parts.append(out)
                parts += records
                total += len(out) + size
                out = bytearray()
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    if out:
        parts.append(out)
        total += len(out)
    LENGTH_AND_CORRELATION.pack_into(first, 0, total - 4, correlation_id)
    return parts


_I32: Final = struct.Struct(">i").pack
_ERROR_AND_SESSION: Final = struct.Struct(">hi").pack
_NO_ABORTED: Final = struct.Struct(">ihqqqxi").pack
_OFFSETS: Final = struct.Struct(">ihqqq").pack
_OLDEST_OFFSETS: Final = struct.Struct(">ihqq").pack
_ABORTED: Final = struct.Struct(">qq").pack
_FLEXIBLE_ABORTED: Final = struct.Struct(">qqx").pack


def _partition_head(partition: FetchedPartition, version: int) -> bytes:
    """Everything before the records."""
    index, error_code, high, stable, start, _, aborted, preferred = partition
    if aborted is None and version >= 12:
        return _NO_ABORTED(index, error_code, high, stable, start, preferred)
    if version >= 5:
        head = _OFFSETS(index, error_code, high, stable, start)
    else:
        head = _OLDEST_OFFSETS(index, error_code, high, stable)
    if aborted is None:
        head += b"\xff\xff\xff\xff"
    else:
        pack = _FLEXIBLE_ABORTED if version >= 12 else _ABORTED
        head += _count(len(aborted), version >= 12) + b"".join([pack(*one) for one in aborted])
    return head + _I32(preferred) if version >= 11 else head


def _count(n: int, flexible: bool) -> bytes:
    return uvarint(n + 1) if flexible else _I32(n)


def _topic_bytes(topic: Topic, flexible: bool) -> bytes:
    return _text(topic, flexible) if isinstance(topic, str) else topic


def _text(value: str | None, flexible: bool) -> bytes:
    if value is None:
        return b"\0" if flexible else b"\xff\xff"
    data = value.encode()
    return (uvarint(len(data) + 1) if flexible else len(data).to_bytes(2, "big")) + data

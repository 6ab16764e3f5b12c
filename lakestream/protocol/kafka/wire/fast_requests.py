"""Produce and Fetch requests read by hand: as codec.py would, several times faster. fast_answers.py is the way back.

They are read in place, from a view of the receive buffer; what lies behind `end` belongs to the next request. A number
read from there by a frame that lies is garbage but harmless: slices are checked against `end`, and a frame must end
exactly where its last field does. Record bytes are not touched: what is given is where they lie.

A topic is its name (str), or its id (16 bytes) from Produce 13 and Fetch 13 on.
"""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from lakestream.model.kernels.pointers import address_of
from lakestream.protocol.kafka.wire.fields import ITEMS_LIMIT, Length, compact_length, long_length, short_length
from lakestream.protocol.kafka.wire.framing import UNREADABLE, Malformed, skip_tags

Topic = str | bytes

PREFIX_LIMIT: Final = 1024
"""A longer prefix is not remembered by ProduceParser."""

_I16: Final = struct.Struct(">h").unpack_from
_I32: Final = struct.Struct(">i").unpack_from


# Produce requests


Records = tuple[int, int, int]
"""A partition, and where its records lie in the frame's buffer: start and length; the length of null is -1."""


@dataclass(slots=True)
class ParsedProduce:
    """A Produce request; records stay where they are."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[Topic, list[Records]]]


def parse_produce(view: memoryview, pos: int, end: int, version: int) -> ParsedProduce:
    """Read the body view[pos:end]. Raises Malformed."""
    try:
        return _parse_produce(view, pos, end, version)[0]
    except UNREADABLE as error:
        raise Malformed(f"Produce version {version}: {error}") from None


class RunPrefix(NamedTuple):
    """The remembered bytes, for compiled code: good until the parser reads another request."""

    version: int
    address: int
    size: int
    topic: Topic


class ProduceParser:
    """Reads one connection's Produce requests, which mostly differ in partition and records only.

    All bytes from the client id to the number of partitions are compared with those of the last request; if they are
    the same so is what they mean, and a partition's number and the length of its records are all that is left to read.
    """

    __slots__ = ("_last", "_prefix", "_run", "_size", "_topic", "_version")

    def __init__(self) -> None:
        self._version = -1
        self._prefix = b""
        self._size = 0
        self._last = ParsedProduce(None, 0, 0, [])
        self._topic: Topic = ""
        self._run: RunPrefix | None = None

    def parse(self, view: memoryview, pos: int, end: int, version: int) -> ParsedProduce:
        """Read view[pos:end], which begins at the header's client id, behind the correlation id. Raises Malformed."""
        try:
            if version == self._version:
                start = pos + self._size
                if view[pos:start] == self._prefix:
                    found = _only_partition(view, start, end, version)
                    if found is not None:
                        last = self._last
                        return ParsedProduce(
                            last.transactional_id, last.acks, last.timeout_ms, [(self._topic, [found])]
                        )
            return self._parse_all(view, pos, end, version)
        except UNREADABLE as error:
            raise Malformed(f"Produce version {version}: {error}") from None

    def _parse_all(self, view: memoryview, pos: int, end: int, version: int) -> ParsedProduce:
        (size,) = _I16(view, pos)
        if size < -1:
            raise Malformed(f"client id of {size} bytes")
        body = pos + 2 + max(size, 0)
        if version >= 9:
            body = skip_tags(view, body)
        request, mark = _parse_produce(view, body, end, version)
        if len(request.topics) == 1 and len(request.topics[0][1]) == 1 and mark - pos <= PREFIX_LIMIT:
            self._version, self._size, self._prefix = version, mark - pos, bytes(view[pos:mark])
            self._topic = request.topics[0][0]
            self._last = ParsedProduce(request.transactional_id, request.acks, request.timeout_ms, [])
            self._run = None
        return request

    def run_prefix(self) -> "RunPrefix | None":
        """The bytes with which the requests of a run begin; None before the first request, or if that is not simple."""
        last = self._last
        if self._run is None and last.transactional_id is None and last.acks in (-1, 1):
            self._run = RunPrefix(self._version, address_of(self._prefix), self._size, self._topic)
        return self._run


_ONE_OLD: Final = struct.Struct(">ii").unpack_from
_ONE_FLEXIBLE: Final = struct.Struct(">iBBB").unpack_from


def _only_partition(view: memoryview, pos: int, end: int, version: int) -> Records | None:
    """The last partition of a request without tagged fields, or None if it is anything less simple."""
    if version < 9:
        index, size = _ONE_OLD(view, pos)
        start = pos + 8
        return (index, start, size) if size >= 0 and start + size == end else None
    index, a, b, c = _ONE_FLEXIBLE(view, pos)
    if a < 0x80:
        size, start = a - 1, pos + 5
    elif b < 0x80:
        size, start = (a & 0x7F | b << 7) - 1, pos + 6
    elif c < 0x80:
        size, start = (a & 0x7F | (b & 0x7F) << 7 | c << 14) - 1, pos + 7
    else:
        return None
    stop = start + size
    if size < 0 or stop + 3 != end or view[stop] or view[stop + 1] or view[stop + 2]:
        return None
    return index, start, size


_PRODUCE_FIXED: Final = struct.Struct(">hi").unpack_from


def _parse_produce(view: memoryview, pos: int, end: int, version: int) -> tuple[ParsedProduce, int]:
    """The request, and where the last topic's first partition begins."""
    flexible = version >= 9
    length = compact_length if flexible else short_length
    count = compact_length if flexible else long_length
    size, pos = length(view, pos)
    transactional_id = None
    if size >= 0:
        transactional_id = str(_slice(view, pos, size, end), "utf-8")
        pos += size
    elif size != -1:
        raise Malformed(f"a length of {size}")
    acks, timeout_ms = _PRODUCE_FIXED(view, pos)
    topic_count, pos = count(view, pos + 6)
    _check_count(topic_count, end - pos)
    topics: list[tuple[Topic, list[Records]]] = []
    mark = pos
    for _ in range(topic_count):
        topic, pos = _topic(view, pos, end, length, by_id=version >= 13)
        partition_count, pos = count(view, pos)
        _check_count(partition_count, (end - pos) // 5)
        mark = pos
        partitions: list[Records] = []
        for _ in range(partition_count):
            (index,) = _I32(view, pos)
            size, pos = count(view, pos + 4)
            if size < -1 or size > end - pos:
                raise Malformed(f"a length of {size} where {end - pos} bytes are left")
            partitions.append((index, pos, size))
            pos += max(size, 0)
            if flexible:
                pos = skip_tags(view, pos) if view[pos] else pos + 1
        if flexible:
            pos = skip_tags(view, pos) if view[pos] else pos + 1
        topics.append((topic, partitions))
    if flexible:
        pos = skip_tags(view, pos) if view[pos] else pos + 1
    _check_end(pos, end)
    return ParsedProduce(transactional_id, acks, timeout_ms, topics), mark


# Fetch requests


class Wanted(NamedTuple):
    """One partition of a Fetch request, in the order of the wire."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


@dataclass(slots=True, kw_only=True)
class ParsedFetch:
    """A Fetch request of a consumer."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[Topic, list[Wanted]]]
    forgotten: list[tuple[Topic, list[int]]]
    rack_id: str


def parse_fetch(view: memoryview, pos: int, end: int, version: int) -> ParsedFetch:
    """Read the body view[pos:end]. Raises Malformed."""
    try:
        return _parse_fetch(view, pos, end, version)
    except UNREADABLE as error:
        raise Malformed(f"Fetch version {version}: {error}") from None


_FETCH_LIMITS: Final = struct.Struct(">iiib").unpack_from
_SESSION: Final = struct.Struct(">ii").unpack_from


def _parse_fetch(view: memoryview, pos: int, end: int, version: int) -> ParsedFetch:
    flexible = version >= 12
    length = compact_length if flexible else short_length
    count = compact_length if flexible else long_length
    if version <= 14:
        pos += 4  # The id of a follower, and we have none. Later it is a tagged field.
    max_wait_ms, min_bytes, max_bytes, isolation_level = _FETCH_LIMITS(view, pos)
    pos += 13
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION(view, pos)
        pos += 8
    topics: list[tuple[Topic, list[Wanted]]] = []
    topic_count, pos = count(view, pos)
    _check_count(topic_count, end - pos)
    for _ in range(topic_count):
        topic, pos = _topic(view, pos, end, length, by_id=version >= 13)
        partition_count, pos = count(view, pos)
        wanted, pos = _wanted(view, pos, end, partition_count, version)
        topics.append((topic, wanted))
        if flexible:
            pos = skip_tags(view, pos)
    forgotten: list[tuple[Topic, list[int]]] = []
    if version >= 7:
        topic_count, pos = count(view, pos)
        _check_count(topic_count, end - pos)
        for _ in range(topic_count):
            topic, pos = _topic(view, pos, end, length, by_id=version >= 13)
            partition_count, pos = count(view, pos)
            _check_count(partition_count, (end - pos) // 4)
            forgotten.append((topic, list(struct.unpack_from(f">{partition_count}i", view, pos))))
            pos += 4 * partition_count
            if flexible:
                pos = skip_tags(view, pos)
    rack_id = ""
    if version >= 11:
        size, pos = length(view, pos)
        rack_id = str(_slice(view, pos, size, end), "utf-8")
        pos += size
    if flexible:
        pos = skip_tags(view, pos)
    _check_end(pos, end)
    return ParsedFetch(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
        forgotten=forgotten,
        rack_id=rack_id,
    )


_FLEXIBLE_WANTED: Final = struct.Struct(">iiqiqix")
_OLD_WANTED: Final = struct.Struct(">iiqqi")
_OLDER_WANTED: Final = struct.Struct(">iqqi")
_OLDEST_WANTED: Final = struct.Struct(">iqi")


def _wanted(view: memoryview, pos: int, end: int, count: int, version: int) -> tuple[list[Wanted], int]:
    """The partitions of one topic, all in one go unless one of them has tagged fields."""
    if version >= 12:
        return _flexible_wanted(view, pos, end, count)
    layout = _OLD_WANTED if version >= 9 else _OLDER_WANTED if version >= 5 else _OLDEST_WANTED
    _check_count(count, (end - pos) // layout.size)
    stop = pos + count * layout.size
    rows = layout.iter_unpack(view[pos:stop])
    make = Wanted._make
    if version >= 9:
        return [make((index, epoch, offset, -1, start, size)) for index, epoch, offset, start, size in rows], stop
    if version >= 5:
        return [make((index, -1, offset, -1, start, size)) for index, offset, start, size in rows], stop
    return [make((index, -1, offset, -1, -1, size)) for index, offset, size in rows], stop


def _flexible_wanted(view: memoryview, pos: int, end: int, count: int) -> tuple[list[Wanted], int]:
    size = _FLEXIBLE_WANTED.size
    _check_count(count, (end - pos) // size)
    stop = pos + count * size
    if not view[pos + size - 1 : stop : size].tobytes().strip(b"\0"):
        return list(map(Wanted._make, _FLEXIBLE_WANTED.iter_unpack(view[pos:stop]))), stop
    wanted = []
    for _ in range(count):
        wanted.append(Wanted._make(_FLEXIBLE_WANTED.unpack_from(view, pos)))
        pos = skip_tags(view, pos + size - 1)
    return wanted, pos


# Parts of both


def _topic(view: memoryview, pos: int, end: int, length: Length, by_id: bool) -> tuple[Topic, int]:
    if by_id:
        return bytes(_slice(view, pos, 16, end)), pos + 16
    size, pos = length(view, pos)
    return str(_slice(view, pos, size, end), "utf-8"), pos + size


def _slice(view: memoryview, pos: int, size: int, end: int) -> memoryview:
    stop = pos + size
    if size < 0 or stop > end:
        raise Malformed(f"a length of {size} where {end - pos} bytes are left")
    return view[pos:stop]


def _check_count(count: int, at_most: int) -> None:
    if not 0 <= count <= at_most or count > ITEMS_LIMIT:
        raise Malformed(f"{count} items where there is room for {at_most}")


def _check_end(pos: int, end: int) -> None:
    if pos != end:
        raise Malformed(f"the frame ends at {end}, its last field at {pos}")

"""The WAL object: record batches of many streams in one file, found again by an index at its end.

The layout is told in docs/formats/wal-object.md. A *tick* object is what an appender writes in one go. A *merged*
object is what the mover makes of many old ones: its batches carry their true offsets, its index says where offsets lie.
Writers join a header and the batches once and put a tail behind them:

    rows = lay_out([(stream, length, batches), ...])        # ascending streams
    body = bytearray().join([header(sequence), *batches])
    await wal.put(wal_key(...), [body, tick_tail(body, rows)])
"""

import functools
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, chain, pairwise, starmap
from typing import NamedTuple

from fastcrc import crc32

from lakestream.errors import Corrupt

Buffer = bytes | bytearray | memoryview

VERSION = 2
VERSIONS = (1, VERSION)
"""Versions that are read. Version 1 does not say in its header what its writer had folded."""
MAGIC = b"LKSW"
END_MAGIC = b"WSKL"
_HEADER = struct.Struct("<4sBBHQ")
_FOOTER = struct.Struct("<QQIIIIBBxx4xI4s")
_SLICE = struct.Struct("<QQQI")
_MERGED_SLICE = struct.Struct("<QQQIqI")
_MARK = struct.Struct("<qQq")

HEADER_BYTES = _HEADER.size
FOOTER_BYTES = _FOOTER.size
MARK_EVERY_BYTES = 256 * 1024
"""A merged slice gets a mark about every so many bytes: a reader walks at most so far to find an offset."""


def header(sequence: int) -> bytes:
    """The start of an object whose writer had folded the command log up to `sequence` (L5)."""
    return _HEADER.pack(MAGIC, VERSION, 0, 0, sequence)


def folded_by_writer(start: Buffer) -> int:
    """The sequence up to which the object's writer had folded the command log; 0 if the header does not say."""
    if len(start) < HEADER_BYTES:
        raise Corrupt("the object is too short for a header")
    magic, version, flags, reserved, sequence = _HEADER.unpack_from(start)
    if magic != MAGIC or version not in VERSIONS or flags or reserved or (version == 1 and sequence):
        raise Corrupt("the object does not start with a header of a version that is known here")
    return int(sequence)


class WalObjectKind(IntEnum):
    """How an object was made: by an appender, or by the mover."""

    TICK = 0
    MERGED = 1


class TickSlice(NamedTuple):
    """Where the batches of one stream lie in the object: bytes [position, position + length)."""

    stream: int
    position: int
    length: int
    batches: int


class BatchMark(NamedTuple):
    """A batch in a merged slice: its base offset, its position, and the largest timestamp from it to the next mark."""

    offset: int
    position: int
    max_timestamp: int


class MergedSlice(NamedTuple):
    """A slice whose batches carry their offsets, with marks in ascending order; the first is the first batch."""

    stream: int
    position: int
    length: int
    batches: int
    base_offset: int
    marks: Sequence[BatchMark]


@dataclass(frozen=True, slots=True, kw_only=True)
class WalFooter:
    """The fixed-size end of an object, which a reader without other knowledge fetches first."""

    kind: WalObjectKind
    index_position: int
    index_length: int
    slices: int
    marks: int
    data_crc: int
    index_crc: int

    @property
    def object_size(self) -> int:
        return self.index_position + self.index_length + FOOTER_BYTES


def lay_out(lengths: Iterable[tuple[int, int, int]]) -> list[TickSlice]:
    """The rows of a tick from (stream, length in bytes, number of batches), in ascending order of streams."""
    columns = list(zip(*lengths, strict=True))
    if not columns:
        return []
    streams, sizes, batches = columns
    positions = accumulate(sizes, initial=HEADER_BYTES)
    return list(map(TickSlice._make, zip(streams, positions, sizes, batches, strict=False)))


def tick_tail(body: Buffer, rows: Sequence[TickSlice]) -> bytes:
    """The index and the footer of a tick object, which follow its batches."""
    return _tail(body, WalObjectKind.TICK, b"".join(starmap(_SLICE.pack, rows)), len(rows), 0)


def merged_tail(body: Buffer, rows: Sequence[MergedSlice]) -> bytes:
    """The index and the footer of a merged object, which follow its batches."""
    slices = b"".join(_MERGED_SLICE.pack(*row[:5], len(row.marks)) for row in rows)
    marks = list(chain.from_iterable(row.marks for row in rows))
    return _tail(body, WalObjectKind.MERGED, slices + b"".join(starmap(_MARK.pack, marks)), len(rows), len(marks))


def _tail(body: Buffer, kind: WalObjectKind, index: bytes, slices: int, marks: int) -> bytes:
    data_crc, index_crc = crc32.iscsi(body), crc32.iscsi(index)
    footer = _FOOTER.pack(len(body), len(index), slices, marks, data_crc, index_crc, VERSION, kind, 0, END_MAGIC)
    checked = footer[:-8]
    return b"".join((index, checked, struct.pack("<I", crc32.iscsi(checked)), END_MAGIC))


def mark_at_or_before(marks: Sequence[BatchMark], offset: int) -> int:
    """Which mark to walk from to find `offset`: the last one at or below it, else the first."""
    return max(bisect_right(marks, offset, key=_offset_of) - 1, 0)


def _offset_of(mark: BatchMark) -> int:
    return mark.offset


def mark_with_timestamp(marks: Sequence[BatchMark], timestamp: int) -> int | None:
    """The first mark among whose batches is one with a timestamp of at least `timestamp`, if there is any."""
    return next((i for i, mark in enumerate(marks) if mark.max_timestamp >= timestamp), None)


def parse_footer(tail: Buffer) -> WalFooter:
    """Read the footer from the last bytes of an object (FOOTER_BYTES or more of them)."""
    if len(tail) < FOOTER_BYTES:
        raise Corrupt("the object is too short for a footer")
    raw = memoryview(tail)[len(tail) - FOOTER_BYTES :]
    position, length, slices, marks, data_crc, index_crc, version, kind, crc, magic = _FOOTER.unpack(raw)
    if magic != END_MAGIC:
        raise Corrupt("the object does not end with a footer")
    if crc != crc32.iscsi(raw[:-8]):
        raise Corrupt("the footer's checksum is wrong")
    if version not in VERSIONS or kind > WalObjectKind.MERGED:
        raise Corrupt(f"version {version} and kind {kind} of the WAL object are not known here")
    footer = WalFooter(
        kind=WalObjectKind(kind),
        index_position=position,
        index_length=length,
        slices=slices,
        marks=marks,
        data_crc=data_crc,
        index_crc=index_crc,
    )
    row_bytes = _SLICE.size if footer.kind is WalObjectKind.TICK else _MERGED_SLICE.size
    if length != slices * row_bytes + marks * _MARK.size or position < HEADER_BYTES:
        raise Corrupt("the footer contradicts itself")
    return footer


def parse_index(footer: WalFooter, index: Buffer) -> list[TickSlice]:
    """The slices of either kind of object, checked against the footer: the slices tile the object's data."""
    _check_index(footer, index)
    view = memoryview(index)
    if footer.kind is WalObjectKind.TICK:
        rows = list(map(TickSlice._make, _SLICE.iter_unpack(view)))
    else:
        whole = _MERGED_SLICE.iter_unpack(view[: footer.slices * _MERGED_SLICE.size])
        rows = [TickSlice(*row[:4]) for row in whole]
    _check_tiling(footer, rows)
    return rows


def parse_merged_index(footer: WalFooter, index: Buffer) -> list[MergedSlice]:
    """The slices of a merged object with their marks."""
    if footer.kind is not WalObjectKind.MERGED:
        raise Corrupt("this is no merged object")
    slices = parse_index(footer, index)
    view = memoryview(index)
    split = footer.slices * _MERGED_SLICE.size
    marks = list(map(BatchMark._make, _MARK.iter_unpack(view[split:])))
    rows, first = [], 0
    for row, (*_, base_offset, count) in zip(slices, _MERGED_SLICE.iter_unpack(view[:split]), strict=True):
        own = marks[first : first + count]
        first += count
        if not own or len(own) != count or own[0][:2] != (base_offset, row.position):
            raise Corrupt(f"stream {row.stream}: the marks do not start with the slice")
        if any(a.offset >= b.offset or a.position >= b.position for a, b in pairwise(own)):
            raise Corrupt(f"stream {row.stream}: the marks are out of order")
        if own[-1].position >= row.position + row.length:
            raise Corrupt(f"stream {row.stream}: a mark lies outside the slice")
        rows.append(MergedSlice(*row, base_offset, own))
    if first != len(marks):
        raise Corrupt("there are marks that belong to no slice")
    return rows


def _check_index(footer: WalFooter, index: Buffer) -> None:
    if len(index) != footer.index_length or crc32.iscsi(index) != footer.index_crc:
        raise Corrupt("the index's checksum is wrong")


def _check_tiling(footer: WalFooter, rows: Sequence[TickSlice]) -> None:
    position, last = HEADER_BYTES, -1
    for stream, at, length, _ in rows:
        if at != position or stream <= last:
            raise Corrupt(f"stream {stream}: the slices do not tile the object in order")
        position, last = at + length, stream
    if position != footer.index_position:
        raise Corrupt("the slices do not fill the object")


def verify(whole: Buffer) -> list[TickSlice]:
    """Check every byte of an object; returns its slices. Raises Corrupt."""
    view = memoryview(whole)
    folded_by_writer(view)
    footer = parse_footer(view)
    if footer.object_size != len(view):
        raise Corrupt(f"the object has {len(view)} bytes, its footer says {footer.object_size}")
    if crc32.iscsi(view[: footer.index_position]) != footer.data_crc:
        raise Corrupt("the data's checksum is wrong")
    index = view[footer.index_position : footer.index_position + footer.index_length]
    if footer.kind is WalObjectKind.MERGED:
        parse_merged_index(footer, index)
    return parse_index(footer, index)


NUMBER_DIGITS = 20
NameOf = Callable[[str, int, int, int], str]


class ObjectName(NamedTuple):
    """The parts of a key: the member that wrote the object, its epoch, and a number (tick, or log sequence)."""

    cluster: str
    member: int
    epoch: int
    number: int


def wal_prefix(cluster: str) -> str:
    return f"{cluster}/wal/"


def merged_prefix(cluster: str) -> str:
    return f"{cluster}/merged/"


def checkpoint_prefix(cluster: str) -> str:
    return f"{cluster}/checkpoints/"


def wal_key(cluster: str, member: int, epoch: int, tick: int) -> str:
    """Keys have cluster, member, epoch and number (L12), so that no member ever writes the key of another."""
    return f"{wal_prefix(cluster)}{member}/{epoch:020d}/{tick:020d}"


def merged_key(cluster: str, member: int, epoch: int, number: int) -> str:
    return f"{merged_prefix(cluster)}{member}/{epoch:020d}/{number:020d}"


def checkpoint_key(cluster: str, sequence: int, member: int, epoch: int) -> str:
    """Checkpoints list in the order of their sequences."""
    return f"{checkpoint_prefix(cluster)}{sequence:020d}/{member}/{epoch:020d}"


def parse_wal_key(key: str) -> ObjectName | None:
    """The parts of a key; None for a name in another form, which must not be deleted."""
    return _parse(key, wal_key)


def parse_merged_key(key: str) -> ObjectName | None:
    return _parse(key, merged_key)


def parse_checkpoint_key(key: str) -> ObjectName | None:
    match key.split("/"):
        case [cluster, _, number, member, epoch] if (member + epoch + number).isdecimal():
            name = ObjectName(cluster, int(member), int(epoch), int(number))
            return name if key == checkpoint_key(cluster, name.number, name.member, name.epoch) else None
    return None


def _parse(key: str, name_of: NameOf) -> ObjectName | None:
    directory, _, number = key.rpartition("/")
    writer = _writer(directory, name_of)
    if writer is None or len(number) != NUMBER_DIGITS or not (number.isascii() and number.isdecimal()):
        return None
    return ObjectName(*writer, int(number))


@functools.lru_cache(maxsize=256)
def _writer(directory: str, name_of: NameOf) -> tuple[str, int, int] | None:
    """Cluster, member and epoch; listings have thousands of objects of the same few."""
    match directory.split("/"):
        case [cluster, _, member, epoch] if (member + epoch).isdecimal():
            writer = cluster, int(member), int(epoch)
            return writer if name_of(*writer, 0).rpartition("/")[0] == directory else None
    return None

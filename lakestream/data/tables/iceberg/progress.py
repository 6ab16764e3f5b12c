"""Progress: for each partition the first offset that has not landed, as a table property carries it (T6, T10).

Packed: a version byte, then varints, in base64. A partition takes a few bytes, so that a table of a thousand partitions
still has a property of a few kilobytes.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakestream.errors import Corrupt

PROGRESS_PROPERTY = "lakestream.progress"
VERSION = 1


@dataclass(frozen=True, slots=True)
class LandedOffsets:
    """The offsets of a partition that a table holds: all below `end`, and ranges above an open transaction's records.

    A range is (start, end), its end not in it.
    """

    end: int
    above: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition that a commit lands, or that are known to hold no records."""

    partition: int
    start: int
    end: int


Progress = Mapping[int, LandedOffsets]


def advance(progress: Progress, ranges: Sequence[OffsetRange]) -> dict[int, LandedOffsets]:
    """The progress after a commit. Raises ValueError if a range was landed before, in part or whole (T7).

    A range may begin above the progress if the log start has moved: no records are left below it.
    """
    advanced = dict(progress)
    for each in ranges:
        before = advanced.get(each.partition, LandedOffsets(0))
        if each.start < before.end or each.end < each.start:
            raise ValueError(
                f"partition {each.partition}: [{each.start}, {each.end}) does not follow the progress {before.end}"
            )
        advanced[each.partition] = LandedOffsets(each.end, tuple(over for over in before.above if over[1] > each.end))
    return advanced


def pack_progress(progress: Progress) -> str:
    numbers = [len(progress)]
    last = 0
    for partition in sorted(progress):
        landed = progress[partition]
        numbers += [partition - last, landed.end, len(landed.above)]
        at = landed.end
        for start, end in landed.above:
            numbers += [start - at, end - start]
            at = end
        last = partition
    return _pack(numbers)


def unpack_progress(text: str) -> dict[int, LandedOffsets]:
    """Raises Corrupt: a progress that cannot be read must never be taken for none."""
    numbers = iter(_unpack(text))
    progress: dict[int, LandedOffsets] = {}
    partition = 0
    try:
        for _ in range(next(numbers)):
            partition += next(numbers)
            at = end = next(numbers)
            above = []
            for _ in range(next(numbers)):
                start = at + next(numbers)
                at = start + next(numbers)
                above.append((start, at))
            progress[partition] = LandedOffsets(end, tuple(above))
    except StopIteration:
        raise Corrupt("a table's progress ends too soon") from None
    if next(numbers, None) is not None:
        raise Corrupt("a table's progress has bytes to spare")
    return progress


def pack_ranges(ranges: Sequence[OffsetRange]) -> str:
    """The ranges of one commit, for its snapshot's summary."""
    numbers = [len(ranges)]
    for each in ranges:
        numbers += [each.partition, each.start, each.end - each.start]
    return _pack(numbers)


def unpack_ranges(text: str) -> list[OffsetRange]:
    numbers = _unpack(text)
    if not numbers or len(numbers) != 1 + 3 * numbers[0]:
        raise Corrupt("a snapshot's ranges are cut")
    rest = numbers[1:]
    return [
        OffsetRange(partition, start, start + length)
        for partition, start, length in zip(rest[::3], rest[1::3], rest[2::3], strict=True)
    ]


def pack_digests(digests: Sequence[tuple[int, int]]) -> str:
    """(records, sum of hashes) of the ranges of one commit, in their order, for its snapshot's summary."""
    return _pack([len(digests), *(number for digest in digests for number in digest)])


def unpack_digests(text: str) -> list[tuple[int, int]]:
    numbers = _unpack(text)
    if not numbers or len(numbers) != 1 + 2 * numbers[0]:
        raise Corrupt("a snapshot's digests are cut")
    return list(zip(numbers[1::2], numbers[2::2], strict=True))


def _pack(numbers: Sequence[int]) -> str:
    packed = bytearray([VERSION])
    for number in numbers:
        if number < 0:
            raise ValueError(f"{number} in a progress")
        while number > 0x7F:
            packed.append(number & 0x7F | 0x80)
            number >>= 7
        packed.append(number)
    return base64.b64encode(packed).decode()


def _unpack(text: str) -> list[int]:
    try:
        packed = base64.b64decode(text, validate=True)
    except ValueError:
        raise Corrupt("a table's progress is not base64") from None
    if packed[:1] != bytes([VERSION]):
        raise Corrupt("a table's progress has a version that we do not know")
    numbers = []
    number = shift = 0
    for byte in packed[1:]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    if shift:
        raise Corrupt("a table's progress ends too soon")
    return numbers

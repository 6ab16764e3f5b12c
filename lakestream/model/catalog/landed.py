"""How far each topic's table has come, and the memory of what landed: the checker's and the retention's (T16, T21).

For each partition there is a short list of ranges: offsets, number of records, an additive 64-bit hash of the records
as they were acked, the cluster time of the landing, and the bytes that they had in the WAL. Old neighbours are merged,
so that a range is never long compared with its age. What went from the table later is remembered likewise: the rows
that landed, less those removed, are the rows that there are. A changed row is removed and landed again: no record less,
and the difference of the two hashes.
"""

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from lakestream.model.levels import BOUNDED
from lakestream.model.stored import row_of

RANGES_KEPT = 32
MARKS_KEPT = 16
"""The same from level BOUNDED on: marks are the largest part of a quiet partition's state, 48 bytes each."""
GRAIN_MS = 600_000
"""From level BOUNDED on nobody needs to tell ranges apart that are closer than this, so the marks reach far back."""
STRIDE = 6
FIRST_STRIDE = 5
"""Of checkpoints from before sizes were remembered."""
SIZE_MAX = 1 << 62
_HASHES = 1 << 64


class LandedRange(NamedTuple):
    """The offsets [start, end) of a partition are rows now: so many records with this sum of hashes."""

    partition: int
    start: int
    end: int
    records: int
    digest: int
    size: int = 0


class Mark(NamedTuple):
    """A remembered range, and the cluster time at which its end landed."""

    start: int
    end: int
    records: int
    digest: int
    time_ms: int
    size: int = 0


class Departed(NamedTuple):
    """The table of a deleted topic in somebody else's catalog: to be dropped there, or kept under another name."""

    name: str
    topic_id: bytes
    keep: bool


class Landing:
    """What is known of one topic's table. `held` says why nothing lands, if so; `snapshot` is the last one of ours.

    `location` is the metadata file of a table in somebody else's catalog, as it was last found good; empty for our own.
    `accounted` is the sequence number up to which others' snapshots are in `removed`; `unproven` tells that one of them
    was gone before anybody could compare it. `uncared` says why the table's care does not succeed, if so.
    """

    __slots__ = ("accounted", "held", "landed", "location", "removed", "snapshot", "uncared", "unproven", "uuid")

    def __init__(self, uuid: str = "") -> None:
        self.uuid = uuid
        self.held = ""
        self.snapshot = 0
        self.accounted = 0
        self.unproven = False
        self.uncared = ""
        self.location = ""
        self.landed: dict[int, array[int]] = {}
        self.removed: dict[int, list[Mark]] = {}

    def marks(self, partition: int) -> Iterator[Mark]:
        """What landed, oldest first, without gaps."""
        numbers = self.landed.get(partition, ())
        for at in range(0, len(numbers), STRIDE):
            yield Mark(*numbers[at : at + STRIDE])

    def note_landed(self, new: LandedRange, now_ms: int, level: int, log_start: int) -> None:
        numbers = self.landed.setdefault(new.partition, array("Q"))
        numbers.extend((new.start, new.end, new.records, new.digest % _HASHES, max(now_ms, 0)))
        numbers.append(min(max(new.size, 0), SIZE_MAX))
        if level >= BOUNDED:
            while len(numbers) > MARKS_KEPT * STRIDE:
                _join(numbers, _least_needed(numbers, log_start))
        elif len(numbers) > RANGES_KEPT * STRIDE:
            _join(numbers, _closest(numbers))

    def note_removed(self, gone: LandedRange, now_ms: int, level: int) -> None:
        """Ranges that overlap become one; of too many those two, again and again, that lie closest."""
        most = MARKS_KEPT if level >= BOUNDED else RANGES_KEPT
        kept, start, end, records, digest = [], gone.start, gone.end, gone.records, gone.digest
        for mark in self.removed.get(gone.partition, ()):
            if mark.end < start or mark.start > end:
                kept.append(mark)
                continue
            start, end = min(start, mark.start), max(end, mark.end)
            records, digest = records + mark.records, digest + mark.digest
        kept.append(Mark(start, end, records, digest % _HASHES, now_ms))
        kept.sort()
        while len(kept) > most:
            at = min(range(len(kept) - 1), key=lambda i: kept[i + 1].start - kept[i].end)
            one, two = kept[at], kept[at + 1]
            total = (one.digest + two.digest) % _HASHES
            times = max(one.time_ms, two.time_ms)
            kept[at : at + 2] = [Mark(one.start, two.end, one.records + two.records, total, times)]
        self.removed[gone.partition] = kept

    def dump(self) -> list[Any]:
        return [
            self.uuid, self.held, self.snapshot, self.accounted,
            [[partition, numbers.tobytes(), STRIDE] for partition, numbers in self.landed.items()],
            [[partition, [list(mark) for mark in marks]] for partition, marks in self.removed.items()],
            self.location, self.unproven, self.uncared,
        ]  # fmt: skip

    @classmethod
    def load(cls, fields: list[Any]) -> "Landing":
        landing = cls(fields[0])
        landing.held, landing.snapshot, landing.accounted = fields[1:4]
        for partition, packed, *stride in fields[4]:
            numbers = array("Q", packed)
            landing.landed[partition] = numbers if stride else _widened(numbers)
        for partition, marks in fields[5]:
            landing.removed[partition] = [row_of(Mark, mark) for mark in marks]
        landing.location = fields[6] if len(fields) > 6 else ""
        landing.unproven = bool(fields[7]) if len(fields) > 7 else False
        landing.uncared = fields[8] if len(fields) > 8 else ""
        return landing


def _widened(numbers: "array[int]") -> "array[int]":
    """Marks without sizes as marks of unknown size."""
    wide = array("Q")
    for at in range(0, len(numbers), FIRST_STRIDE):
        wide.extend((*numbers[at : at + FIRST_STRIDE], 0))
    return wide


def _closest(numbers: "array[int]") -> int:
    """The mark to join with the next one at level FIRST: that whose time differs least from the next one's."""
    times = numbers[4::STRIDE]
    now = times[-1]
    lost = [(times[i + 1] - times[i]) * 1_000_000 // (now - times[i] + 1) for i in range(len(times) - 1)]
    return lost.index(min(lost))


def _least_needed(numbers: "array[int]", log_start: int) -> int:
    """The mark to join with the next one from level BOUNDED on: what is old is known more coarsely (T21).

    Below the log start nobody asks for times. Above it the joined range spans the least time for its age; the oldest
    mark is left alone, or it would swallow all others one by one, and nothing would ever be old.
    """
    if numbers[STRIDE + 1] <= log_start:
        return 0
    times = numbers[4::STRIDE].tolist()
    now = times[-1] + GRAIN_MS
    spans = zip(times, times[2:], strict=False)
    lost = [(later - earlier) * 1_000_000 // max(now - later, 1) for earlier, later in spans]
    return lost.index(min(lost)) + 1


def _join(numbers: "array[int]", index: int) -> None:
    """Make one mark of this one and the next: it ends, and landed, when the next one did."""
    at = index * STRIDE
    numbers[at + STRIDE] = numbers[at]
    numbers[at + STRIDE + 2] += numbers[at + 2]
    numbers[at + STRIDE + 3] = (numbers[at + STRIDE + 3] + numbers[at + 3]) % _HASHES
    numbers[at + STRIDE + 5] = min(numbers[at + STRIDE + 5] + numbers[at + 5], SIZE_MAX)
    del numbers[at : at + STRIDE]

"""How far each topic's table has come, what landed (for the checker and retention), and holds of topics (T16, T21).

For each partition there is a short list of ranges: offsets, number of records, an additive 64-bit hash of the records
as they were acked, the cluster time of the landing, and the bytes that they had in the WAL. Old neighbours are merged,
so that a range is never long compared with its age. What went from the table later is remembered likewise: the rows
that landed, less those removed, are the rows that there are. A changed row is removed and landed again: no record less,
and the difference of the two hashes.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from lakestream.model.commands import Body
from lakestream.model.levels import BOUNDED
from lakestream.model.members import Member
from lakestream.model.reasons import No, Reason
from lakestream.model.stored import row_of

if TYPE_CHECKING:
    from lakestream.model.state import State
    from lakestream.model.topics import Topic

RANGES_KEPT = 32
MARKS_KEPT = 16
"""Marks kept from level BOUNDED on: they are the largest part of a quiet partition's state, 48 bytes each."""
GRAIN_MS = 600_000
"""From level BOUNDED on ranges that landed within this time are merged, so that the marks reach far back."""
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


class LandedMark(NamedTuple):
    """A remembered range, and the cluster time at which its end landed."""

    start: int
    end: int
    records: int
    digest: int
    time_ms: int
    size: int = 0


class Departed(NamedTuple):
    """The table of a deleted topic in an external catalog: to be dropped there, or kept under another name."""

    name: str
    topic_id: bytes
    keep: bool


class HoldTopic(Body, frozen=True, array_like=True):
    """Nothing of this topic lands until it is released by an empty reason (T2)."""

    KIND: ClassVar[int] = 44
    topic_id: bytes
    reason: str


class Land(Body, frozen=True, array_like=True):
    """These ranges, maybe none, are rows of a table in an external catalog since this snapshot.

    The table's metadata file was `before` until now, if `location` says what it is.
    """

    KIND: ClassVar[int] = 45
    topic_id: bytes
    uuid: str
    snapshot: int
    landed: list[LandedRange]
    location: str = ""
    before: str = ""


class NoteRemoved(Body, frozen=True, array_like=True):
    """What foreign snapshots took away, up to the one with sequence number `accounted`; holds after `before` (T16)."""

    KIND: ClassVar[int] = 46
    topic_id: bytes
    before: int
    accounted: int
    removed: list[LandedRange]
    unproven: bool = False


class Landing:
    """The state of one topic's table. `held` is the reason why nothing lands, if any; `snapshot` is our last one.

    `location` is the last good metadata file of a table in an external catalog; empty in our catalog. `accounted` is
    the sequence number up to which foreign snapshots are in `removed`; `unproven` means that one of them was gone
    before it was compared. `uncared` is the reason why the table's care fails, if any.
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
        self.removed: dict[int, list[LandedMark]] = {}

    def marks(self, partition: int) -> Iterator[LandedMark]:
        """What landed, oldest first, without gaps."""
        numbers = self.landed.get(partition, ())
        for at in range(0, len(numbers), STRIDE):
            yield LandedMark(*numbers[at : at + STRIDE])

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
        kept.append(LandedMark(start, end, records, digest % _HASHES, now_ms))
        kept.sort()
        while len(kept) > most:
            at = min(range(len(kept) - 1), key=lambda i: kept[i + 1].start - kept[i].end)
            one, two = kept[at], kept[at + 1]
            total = (one.digest + two.digest) % _HASHES
            times = max(one.time_ms, two.time_ms)
            kept[at : at + 2] = [LandedMark(one.start, two.end, one.records + two.records, total, times)]
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
            landing.removed[partition] = [row_of(LandedMark, mark) for mark in marks]
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

    Times below the log start are not used. Above it the joined range spans the least time for its age; the oldest
    mark is never joined, or it would absorb all others one by one, and no mark would ever be old.
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


# -- rules ------------------------------------------------------------------------------------------------------------


def hold_topic(state: "State", member: Member, body: HoldTopic) -> No | None:
    if body.topic_id not in state.topics.by_id:
        return No(Reason.UNKNOWN_TOPIC, "no topic has this id")
    state.catalog.landings.setdefault(body.topic_id, Landing()).held = body.reason
    return None


def land(state: "State", member: Member, body: Land) -> int | No:
    """The number of ranges. The first one binds the topic to the table."""
    topic = state.topics.by_id.get(body.topic_id)
    if topic is None:
        return No(Reason.UNKNOWN_TOPIC, "no topic has this id")
    landing = state.catalog.landings.get(topic.id)
    if not body.uuid or (landing is not None and landing.uuid not in ("", body.uuid)):
        return No(Reason.TABLE_BOUND, "the topic is bound to another table")
    if body.uuid in state.catalog.keys:
        return No(Reason.TABLE_BOUND, "a table of this catalog is landed in by a commit")
    if body.location and body.before != (landing.location if landing is not None else ""):
        return No(Reason.STALE_PREMISE, "the table's metadata file is another one by now")
    if problem := landing_problem(state, topic, body.landed):
        return problem
    landing = state.catalog.landings.setdefault(topic.id, Landing())
    landing.uuid, landing.location = body.uuid, body.location or landing.location
    advance(state, topic.id, body.landed, body.snapshot)
    return len(body.landed)


def note_removed(state: "State", member: Member, body: NoteRemoved) -> No | None:
    landing = state.catalog.landings.get(body.topic_id)
    if landing is None:
        return No(Reason.UNKNOWN_TOPIC, "nothing of this topic has landed")
    if landing.accounted != body.before:
        return No(Reason.STALE_PREMISE, f"snapshots are accounted for up to {landing.accounted}")
    if problem := removal_problem(body.removed):
        return problem
    landing.accounted = body.accounted
    landing.unproven |= body.unproven
    for one in body.removed:
        landing.note_removed(one, state.members.time_ms, state.level)
    return None


def removal_problem(removed: Iterable[LandedRange]) -> No | None:
    if any(not 0 <= one.start <= one.end or not 0 <= one.records <= one.end - one.start for one in removed):
        return No(Reason.MALFORMED, "a range ends before it starts, or holds more than it can")
    return None


def landing_problem(state: "State", topic: "Topic", landed: Iterable[LandedRange]) -> No | None:
    """Why these ranges cannot land on top of what there is."""
    landing = state.catalog.landings.get(topic.id)
    seen: set[int] = set()
    for one in landed:
        if landing is not None and landing.held:
            return No(Reason.TOPIC_HELD, f"the topic is held: {landing.held}")
        if not 0 <= one.partition < len(topic.streams) or one.partition in seen:
            return No(Reason.MALFORMED, f"partition {one.partition} is unknown, or named twice")
        seen.add(one.partition)
        stream = state.streams.by_id[topic.streams[one.partition]]
        if not stream.landed <= one.start <= max(stream.landed, stream.start):
            return No(Reason.STALE_PREMISE, f"partition {one.partition} has landed up to {stream.landed}")
        if not one.start <= one.end <= stream.next or not 0 <= one.records <= one.end - one.start:
            return No(Reason.OFFSET_OUT_OF_RANGE, f"partition {one.partition} ends at {stream.next}")
    return None


def advance(state: "State", topic_id: bytes, landed: Iterable[LandedRange], snapshot: int) -> None:
    landing = state.catalog.landings[topic_id]
    landing.snapshot = snapshot or landing.snapshot
    now_ms = state.members.time_ms
    streams = state.topics.by_id[topic_id].streams
    for one in landed:
        if one.start == one.end:
            continue
        stream = state.streams.by_id[streams[one.partition]]
        stream.landed = one.end
        state.streams.drop(stream, 0, stream.find(one.end), now_ms)
        landing.note_landed(one, now_ms, state.level, stream.start)


RULES = ((HoldTopic, hold_topic), (Land, land), (NoteRemoved, note_removed))

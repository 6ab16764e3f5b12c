"""Whether a table in somebody else's catalog is still the one that a stream was landed in (T2, T9, T13).

Nobody asks us there before a commit, so what was done is judged afterwards: the table as it was last found good against
the table as it is. Our own commits may be among what came between: the state may not know of them yet (T7).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakestream.data.tables.files.file_stats import Digest
from lakestream.data.tables.foreign.allowed_changes import Refused, judge_form, ours
from lakestream.data.tables.iceberg.metadata.documents import MAIN, ancestors, main_of, snapshot_of
from lakestream.data.tables.iceberg.metadata.schemas import Json
from lakestream.data.tables.iceberg.progress import (
    PROGRESS_PROPERTY,
    OffsetRange,
    unpack_digests,
    unpack_progress,
    unpack_ranges,
)
from lakestream.data.tables.iceberg.summaries import DIGESTS_KEY, RANGES_KEY, is_our_append
from lakestream.errors import Corrupt


@dataclass(frozen=True, slots=True)
class Untold:
    """Offsets that are rows and that the state does not know of; without a digest if the summaries are gone."""

    range: OffsetRange
    digest: Digest | None


@dataclass(frozen=True, slots=True)
class Followed:
    """What came since: whether `main` moved, so that rows have to be judged, and what landed."""

    moved: bool
    untold: tuple[Untold, ...]

    @property
    def ranges(self) -> list[OffsetRange]:
        return [one.range for one in self.untold]


def follow(old: Json, new: Json, landed: Mapping[int, int]) -> Followed:
    """Judge the metadata; `landed` is the state's progress by partition. Raises Refused, or Corrupt."""
    judge_form(old, new)
    if _kept(old) != _kept(new):
        raise Refused("properties that begin with lakestream. were changed")
    since, whole = _since(old, new)
    grown = _grown(new, landed)
    untold = [_accounted(since, whole, one) for one in grown]
    return Followed(main_of(old) != main_of(new), tuple(untold))


def rewound(metadata: Json, snapshot_id: int) -> Json:
    """The table as it was at an earlier snapshot, for want of the metadata file of then. Raises Refused."""
    if snapshot_of(metadata, snapshot_id) is None:
        raise Refused("neither its last metadata file nor its last snapshot is known any more: what came since is not")
    main = {**metadata["refs"].get(MAIN, {"type": "branch"}), "snapshot-id": snapshot_id}
    return {**metadata, "refs": {**metadata["refs"], MAIN: main}}


def _kept(metadata: Json) -> dict[str, str]:
    return {name: value for name, value in ours(metadata["properties"]).items() if name != PROGRESS_PROPERTY}


def _since(old: Json, new: Json) -> tuple[list[Json], bool]:
    """The snapshots of `main` that are new, oldest first, and whether none of them was expired meanwhile (T9)."""
    before, after = main_of(old), main_of(new)
    line = ancestors(new, after)
    if before == after:
        return [], True
    if after is None:
        raise Refused("it was emptied or replaced: its main branch is gone")
    whole = before in line if before is not None else _first_of_all(old, new, line)
    base = snapshot_of(old, before)
    if not whole and base is not None:
        # Expiry cuts the line, and some take the parent's name along. What is left is younger, or it is another line.
        expired = snapshot_of(new, before) is None and _sequence(new, line[-1]) > base.get("sequence-number", 0)
        if not expired:
            raise Refused(f"its main branch was rolled back or replaced: it does not descend from snapshot {before}")
    newer = line[: line.index(before)] if whole and before is not None else line
    found = [snapshot_of(new, number) for number in reversed(newer)]
    return [snapshot for snapshot in found if snapshot is not None], whole


def _first_of_all(old: Json, new: Json, line: Sequence[int]) -> bool:
    """Whether the line of a table that had no snapshots begins with the first that it got."""
    return _sequence(new, line[-1]) <= int(old.get("last-sequence-number", 0)) + 1


def _sequence(metadata: Json, snapshot_id: int) -> int:
    snapshot = snapshot_of(metadata, snapshot_id)
    assert snapshot is not None, "a line is made of snapshots"
    return int(snapshot.get("sequence-number", 0))


def _grown(new: Json, landed: Mapping[int, int]) -> list[OffsetRange]:
    """What the table's progress has beyond the state's. Raises Refused if it is behind (T9)."""
    text = new["properties"].get(PROGRESS_PROPERTY)
    if text is None:
        raise Refused(f"its property {PROGRESS_PROPERTY} is gone")
    progress = {partition: each.end for partition, each in unpack_progress(text).items()}
    for partition, end in landed.items():
        if progress.get(partition, 0) < end:
            raise Refused(
                f"its progress in partition {partition} is {progress.get(partition, 0)}, but {end} had landed:"
                " it was put back to an earlier state"
            )
    known = landed.keys()
    if strange := sorted(progress.keys() - known):
        raise Refused(f"its progress knows a partition {strange[0]} that the topic does not have")
    further = ((number, end) for number, end in sorted(progress.items()) if end > landed[number])
    return [OffsetRange(number, landed[number], end) for number, end in further]


def _accounted(since: Sequence[Json], whole: bool, grown: OffsetRange) -> Untold:
    """What our commits landed of a partition, as one range. Raises Refused if something else moved its progress."""
    if not whole:
        return Untold(grown, None)
    at: int | None = None
    start, total = grown.start, Digest()
    known = True
    for snapshot in since:
        summary = snapshot.get("summary") or {}
        if not is_our_append(summary):
            continue
        ranges = unpack_ranges(summary[RANGES_KEY])
        digests = unpack_digests(summary[DIGESTS_KEY]) if DIGESTS_KEY in summary else []
        for place, one in enumerate(ranges):
            if one.partition != grown.partition or one.start == one.end:
                continue
            if one.start < (grown.start if at is None else at):
                raise Refused(f"snapshot {snapshot['snapshot-id']} landed offsets again that had landed before")
            start = one.start if at is None else start
            at = one.end
            known = known and place < len(digests)
            total = total + Digest(*digests[place]) if place < len(digests) else total
    if at != grown.end:
        raise Refused(f"its progress in partition {grown.partition} was moved by somebody else")
    if total.records > grown.end - start:
        raise Corrupt("a snapshot's digests count more records than it landed")
    return Untold(OffsetRange(grown.partition, start, grown.end), total if known else None)

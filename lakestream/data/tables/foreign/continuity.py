"""Judges a table in another catalog: whether it is still the one that a stream was landed in (T2, T9, T13).

Another catalog does not ask us before a commit, so commits are judged afterwards: the table as it is now against the
table as it was last found good. Our own commits may lie between the two, and the state may not know them yet (T7).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakestream.data.tables.files.file_stats import Digest
from lakestream.data.tables.foreign.allowed_changes import Refused, judge_form, lakestream_properties
from lakestream.data.tables.iceberg.metadata.schemas import Json
from lakestream.data.tables.iceberg.metadata.table_metadata import MAIN, TableMetadata
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
class UnreportedRange:
    """Offsets that have landed without the state's knowledge; without a digest if the snapshots' summaries are gone."""

    range: OffsetRange
    digest: Digest | None


@dataclass(frozen=True, slots=True)
class ForeignCommits:
    """The commits since the last look: whether `main` moved, so that rows are judged, and the offsets that landed."""

    moved: bool
    untold: tuple[UnreportedRange, ...]

    @property
    def ranges(self) -> list[OffsetRange]:
        return [one.range for one in self.untold]


def judge_commits(old: TableMetadata, new: TableMetadata, landed: Mapping[int, int]) -> ForeignCommits:
    """Judges the metadata; `landed` is the state's progress by partition. Raises Refused or Corrupt."""
    judge_form(old, new)
    if _kept(old) != _kept(new):
        raise Refused("properties that begin with lakestream. were changed")
    since, whole = _since(old, new)
    grown = _grown(new, landed)
    untold = [_accounted(since, whole, one) for one in grown]
    return ForeignCommits(old.main_id != new.main_id, tuple(untold))


def rewound(metadata: TableMetadata, snapshot_id: int) -> TableMetadata:
    """The table as it was at an earlier snapshot, if only its metadata file is gone. Raises Refused."""
    if metadata.snapshot(snapshot_id) is None:
        raise Refused("neither its last metadata file nor its last snapshot is known any more: what came since is not")
    main = {**metadata.refs.get(MAIN, {"type": "branch"}), "snapshot-id": snapshot_id}
    return metadata.replaced({"refs": {**metadata.refs, MAIN: main}})


def _kept(metadata: TableMetadata) -> dict[str, str]:
    return {
        name: value for name, value in lakestream_properties(metadata.properties).items() if name != PROGRESS_PROPERTY
    }


def _since(old: TableMetadata, new: TableMetadata) -> tuple[list[Json], bool]:
    """The snapshots of `main` that are new, oldest first, and whether none of them was expired meanwhile (T9)."""
    before, after = old.main_id, new.main_id
    line = new.ancestor_ids(after)
    if before == after:
        return [], True
    if after is None:
        raise Refused("it was emptied or replaced: its main branch is gone")
    whole = before in line if before is not None else _first_of_all(old, new, line)
    base = None if before is None else old.snapshot(before)
    if not whole and base is not None:
        # Expiry cuts the line, and some engines drop the parent's id, too. Snapshots that remain are younger then.
        expired = new.snapshot(base.snapshot_id) is None and _sequence(new, line[-1]) > base.sequence_number
        if not expired:
            raise Refused(f"its main branch was rolled back or replaced: it does not descend from snapshot {before}")
    newer = line[: line.index(before)] if whole and before is not None else line
    found = [new.snapshot_fields(number) for number in reversed(newer)]
    return [snapshot for snapshot in found if snapshot is not None], whole


def _first_of_all(old: TableMetadata, new: TableMetadata, line: Sequence[int]) -> bool:
    """Whether the line of a table that had no snapshots begins with the first that it got."""
    return _sequence(new, line[-1]) <= old.last_sequence_number + 1


def _sequence(metadata: TableMetadata, snapshot_id: int) -> int:
    snapshot = metadata.snapshot(snapshot_id)
    assert snapshot is not None, "a line is made of snapshots"
    return snapshot.sequence_number


def _grown(new: TableMetadata, landed: Mapping[int, int]) -> list[OffsetRange]:
    """The ranges by which the table's progress is ahead of the state's. Raises Refused if it is behind (T9)."""
    text = new.properties.get(PROGRESS_PROPERTY)
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


def _accounted(since: Sequence[Json], whole: bool, grown: OffsetRange) -> UnreportedRange:
    """What our commits landed of a partition, as one range. Raises Refused if something else moved its progress."""
    if not whole:
        return UnreportedRange(grown, None)
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
        raise Refused(f"its progress in partition {grown.partition} was moved by another writer")
    if total.records > grown.end - start:
        raise Corrupt("a snapshot's digests count more records than it landed")
    return UnreportedRange(OffsetRange(grown.partition, start, grown.end), total if known else None)

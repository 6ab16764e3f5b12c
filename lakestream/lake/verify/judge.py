"""The verdict on one partition's rows: pure, from the rows that landed, that are there, and that were removed (T16).

The state remembers ranges that landed and ranges that were removed, each with a number of records and a sum of hashes.
Ranges that overlap are judged together. In each such part this has to hold, in number and in hashes:

    landed = found in the table + recorded as removed + removed by snapshots that are not recorded yet

Where it does, every row that is there is proven to be the record that was acked. Where it does not, rows were lost or
changed; or a snapshot that could explain it was expired before it was recorded, and then nothing can be proven.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lakestream.lake.verify.facts import CAME_BACK, REMOVED, PartitionFacts, SnapshotEffects, SnapshotNote, Verdict
from lakestream.lake.verify.ledger import BUCKET_BITS, HASH, OFFSET, TAG, Ledger, Numbers
from lakestream.lake.verify.ranges import Ranges
from lakestream.lake.verify.report import Explanation, Finding, FindingKind, Range, Why
from lakestream.model.catalog.landed import LandedMark

_HASHES = 1 << 64
_BUCKET = 1 << BUCKET_BITS
Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Part:
    """A stretch of offsets whose ranges overlap, and what was added up for it."""

    start: int
    end: int
    landed: list[int] = field(default_factory=lambda: [0, 0])
    recorded: list[int] = field(default_factory=lambda: [0, 0])
    found: list[int] = field(default_factory=lambda: [0, 0])
    taken: list[int] = field(default_factory=lambda: [0, 0])
    recorded_ms: int = 0
    foreign: bool = False
    """Whether some rows lie in files that others wrote, or that others deleted from."""
    missing: Ranges = field(default_factory=Ranges)
    missing_below: Ranges = field(default_factory=Ranges)


def judge_partition(
    facts: PartitionFacts, table: Ledger, own_files: Sequence[bool], effects: SnapshotEffects
) -> Verdict:
    """`table` is tagged with numbers of files; `own_files` are those that we wrote and that have no deletes."""
    judge = _Judge(facts, effects)
    files = np.array([not own for own in own_files] or [False])
    for number in judge.bucket_numbers(table):
        lines = table.bucket(facts.partition, number)
        judge.add(number, lines, files[lines[:, TAG]], effects.removals.bucket(facts.partition, number))
    return judge.verdict()


class _Judge:
    def __init__(self, facts: PartitionFacts, effects: SnapshotEffects) -> None:
        self._facts = facts
        self._effects = effects
        self._parts = _parts(facts)
        self._starts = np.array([part.start for part in self._parts], dtype=np.int64)
        self._ends = np.array([part.end for part in self._parts], dtype=np.int64)
        self._doubled = Ranges()
        self._stray = Ranges()
        self._gone: dict[int, Ranges] = {}

    def bucket_numbers(self, table: Ledger) -> list[int]:
        partition = self._facts.partition
        numbers = {*table.buckets(partition), *self._effects.removals.buckets(partition)}
        for mark in self._facts.marks:
            numbers.update(range(mark.start >> BUCKET_BITS, ((mark.end - 1) >> BUCKET_BITS) + 1))
        return sorted(numbers)

    def add(self, number: int, lines: Numbers, foreign: Mask, removals: Numbers) -> None:
        base = number << BUCKET_BITS
        expected = self._expected(base)
        offsets = lines[:, OFFSET]
        first = np.ones(len(offsets), dtype=bool)
        first[1:] = offsets[1:] != offsets[:-1]
        self._doubled.add(np.unique(offsets[~first]))
        lines, foreign, offsets = lines[first], foreign[first], offsets[first]
        known = expected[offsets - base]
        self._stray.add(offsets[~known])
        self._sum("found", offsets[known], lines[known, HASH], foreign[known])
        expected[offsets - base] = False
        self._add_removals(_possible(removals), expected, base)
        missing = np.flatnonzero(expected) + base
        for part, at in self._cut(missing):
            below = int(np.searchsorted(at, self._facts.log_start))
            part.missing_below.add(at[:below])
            part.missing.add(at[below:])

    def _add_removals(self, removals: Numbers, expected: Mask, base: int) -> None:
        """Adds up the changes of snapshots; rows that they removed are not missing."""
        changes = removals[:, TAG] & 3
        self._sum("taken", removals[:, OFFSET], removals[:, HASH], weights=_WEIGHTS[changes])
        for tag in np.unique(removals[:, TAG]).tolist():
            at = np.unique(removals[removals[:, TAG] == tag, OFFSET])
            if tag & 3 == REMOVED:
                at = at[expected[at - base]]
            self._gone.setdefault(tag, Ranges()).add(at)
        expected[removals[changes == REMOVED, OFFSET] - base] = False

    def _expected(self, base: int) -> Mask:
        mask = np.zeros(_BUCKET, dtype=bool)
        for mark in self._facts.marks:
            if mark.start < base + _BUCKET and mark.end > base:
                mask[max(mark.start - base, 0) : mark.end - base] = True
        return mask

    def _cut(self, offsets: Numbers) -> list[tuple[_Part, Numbers]]:
        """Sorted offsets by the part that they lie in."""
        lows, highs = np.searchsorted(offsets, self._starts), np.searchsorted(offsets, self._ends)
        return [
            (part, offsets[low:high])
            for part, low, high in zip(self._parts, lows.tolist(), highs.tolist(), strict=True)
            if high > low
        ]

    def _sum(
        self, name: str, offsets: Numbers, hashes: Numbers, foreign: Mask | None = None, weights: Numbers | None = None
    ) -> None:
        lows, highs = np.searchsorted(offsets, self._starts), np.searchsorted(offsets, self._ends)
        unsigned = hashes.astype(np.uint64)
        for part, low, high in zip(self._parts, lows.tolist(), highs.tolist(), strict=True):
            total: list[int] = getattr(part, name)
            total[0] += high - low if weights is None else int(weights[low:high].sum())
            total[1] = (total[1] + int(np.add.reduce(unsigned[low:high], dtype=np.uint64))) % _HASHES
            part.foreign |= foreign is not None and bool(foreign[low:high].any())

    # -- the verdict --------------------------------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        verdict = Verdict()
        if self._doubled:
            verdict.findings.append(
                self._finding(FindingKind.DOUBLED, "offsets that the table holds twice", self._doubled)
            )
        if self._stray:
            text = "rows at offsets that never landed"
            verdict.findings.append(self._finding(FindingKind.STRAY_ROWS, text, self._stray))
        for tag, ranges in sorted(self._gone.items()):
            if ranges:
                self._judge_snapshot(verdict, self._effects.notes[tag >> 2], tag & 3, ranges)
        for part in self._parts:
            if part.landed[0]:
                self._judge_part(verdict, part)
        return verdict

    def _judge_snapshot(self, verdict: Verdict, note: SnapshotNote, change: int, ranges: Ranges) -> None:
        verb = ("removed", "changed", "written again")[change]
        if note.operation not in _MAY[change]:
            text = f"snapshot {note.snapshot_id} calls itself {note.operation!r}, but rows were {verb} by it"
            verdict.findings.append(self._finding(_UNSOUND[change], text, ranges))
            return
        verdict.explained.append(
            Explanation(
                why=Why.DELETED if change == REMOVED else Why.CHANGED,
                text=f"{verb} by snapshot {note.snapshot_id} ({note.operation})",
                partition=self._facts.partition,
                rows=ranges.count,
                ranges=ranges.first,
                snapshot=note.snapshot_id,
                time_ms=note.time_ms,
            )
        )

    def _judge_part(self, verdict: Verdict, part: _Part) -> None:
        short = part.landed[0] - part.found[0] - part.recorded[0] - part.taken[0]
        same = (part.landed[1] - part.found[1] - part.recorded[1] - part.taken[1]) % _HASHES == 0
        sums = f"{part.landed[0]} records landed in [{part.start}, {part.end}), {part.found[0]} are there"
        if short == 0 and same:
            verdict.proven += part.found[0]
            self._explain(verdict, part)
        elif short == 0:
            untouched = not part.foreign and not part.recorded[0] and not part.missing.count
            if self._effects.complete or untouched:
                text = "the rows are as many as landed, but not the same: their hashes do not add up"
                verdict.findings.append(self._finding(FindingKind.CHANGED, text, rows=0, range_=(part.start, part.end)))
            else:
                text = f"the hashes do not add up; {_EXPIRED}"
                verdict.findings.append(
                    self._finding(FindingKind.UNPROVABLE, text, rows=0, range_=(part.start, part.end))
                )
        elif short < 0 and not self._effects.complete:
            text = f"{sums}, {-short} more than can be; {_EXPIRED}"
            verdict.findings.append(
                self._finding(FindingKind.UNPROVABLE, text, rows=-short, range_=(part.start, part.end))
            )
        elif short < 0:
            text = f"{sums}: {-short} more than can be. Rows that were removed are back, or recorded as removed twice"
            verdict.findings.append(
                self._finding(FindingKind.STRAY_ROWS, text, rows=-short, range_=(part.start, part.end))
            )
        elif part.missing_below.count >= short:
            text = f"below the log start {self._facts.log_start}"
            verdict.explained.append(self._explanation(Why.RETENTION, text, short, part.missing_below))
            if part.end > self._facts.log_start:
                text = "rows below the log start went without a record, so the others cannot be proven"
                verdict.findings.append(
                    self._finding(FindingKind.UNPROVABLE, text, rows=0, range_=(part.start, part.end))
                )
        elif not self._effects.complete:
            text = f"{sums}; {_EXPIRED}"
            verdict.findings.append(self._finding(FindingKind.UNPROVABLE, text, part.missing, rows=short))
        else:
            text = f"{sums}, and nothing explains why {short} are missing"
            verdict.findings.append(self._finding(FindingKind.LOST, text, part.missing, rows=short))

    def _explain(self, verdict: Verdict, part: _Part) -> None:
        """Rows are missing, but all adds up: they were recorded when they went, or never were records."""
        missing = [*part.missing_below.first, *part.missing.first]
        count = part.missing_below.count + part.missing.count
        recorded = min(part.recorded[0], count)
        if recorded:
            verdict.explained.append(
                Explanation(
                    why=Why.RECORDED,
                    text="removed by a delete or by retention, and recorded",
                    partition=self._facts.partition,
                    rows=recorded,
                    ranges=missing,
                    time_ms=part.recorded_ms,
                )
            )
        if count > recorded:
            text = "offsets that never were records (control batches, aborted transactions, compaction)"
            verdict.explained.append(self._explanation(Why.NO_RECORD, text, count - recorded, part.missing))

    def _explanation(self, why: Why, text: str, rows: int, ranges: Ranges) -> Explanation:
        return Explanation(why=why, text=text, partition=self._facts.partition, rows=rows, ranges=ranges.first)

    def _finding(
        self, kind: FindingKind, text: str, ranges: Ranges | None = None, *, rows: int | None = None,
        range_: Range | None = None,
    ) -> Finding:  # fmt: skip
        shown = ranges.first if ranges is not None else [range_] if range_ is not None else []
        return Finding(
            kind=kind, text=text, topic=self._facts.topic, partition=self._facts.partition, ranges=shown,
            rows=ranges.count if rows is None and ranges is not None else rows or 0,
        )  # fmt: skip


_EXPIRED = "a snapshot expired before its effects were recorded, so they cannot be proven right or wrong"


_WEIGHTS = np.array([1, 0, -1])
"""How many rows fewer there are after each change."""
_TAKING = frozenset(("delete", "overwrite"))
_MAY = (_TAKING, _TAKING, frozenset(("append", "overwrite")))
"""The operations by which each change may happen. A `replace` promises that the rows stay what they are."""
_UNSOUND = (FindingKind.LOST, FindingKind.CHANGED, FindingKind.STRAY_ROWS)


def _possible(removals: Numbers) -> Numbers:
    """Without rows that were added but never removed before: new rows explain nothing."""
    changes = removals[:, TAG] & 3
    gone = removals[changes == REMOVED, OFFSET]
    kept: Numbers = removals[(changes != CAME_BACK) | np.isin(removals[:, OFFSET], gone)]
    return kept


def _parts(facts: PartitionFacts) -> list[_Part]:
    """Marks and recorded ranges, those that overlap as one."""
    intervals: list[tuple[LandedMark, bool]] = [(mark, False) for mark in facts.marks if mark.end > mark.start]
    intervals += [(mark, True) for mark in facts.recorded if mark.end > mark.start]
    intervals.sort(key=lambda one: one[0].start)
    parts: list[_Part] = []
    for mark, is_recorded in intervals:
        if not parts or mark.start >= parts[-1].end:
            parts.append(_Part(mark.start, mark.end))
        part = parts[-1]
        part.end = max(part.end, mark.end)
        total = part.recorded if is_recorded else part.landed
        total[0] += mark.records
        total[1] = (total[1] + mark.digest) % _HASHES
        if is_recorded:
            part.recorded_ms = max(part.recorded_ms, mark.time_ms)
    return parts

"""The input and the result of the checker's judge: plain values."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lakestream.lake.verify.ledger import Ledger
from lakestream.lake.verify.report import Explanation, Finding
from lakestream.model.catalog.landed import LandedMark

REMOVED, CHANGED, CAME_BACK = range(3)
"""What a snapshot did to a row. An UPDATE may be one snapshot that removes it, and another that brings it back."""


def tag_of(place: int, change: int) -> int:
    return place << 2 | change


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotNote:
    """A snapshot that removed or changed rows, and the operation in its summary."""

    snapshot_id: int
    time_ms: int
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEffects:
    """The rows that the table's snapshots changed, each tagged by `tag_of` with the snapshot's place in `notes`.

    The hash of a changed row is the old one less the new one, that of one that came back is negative. `complete`: no
    snapshot that could matter is missing.
    """

    removals: Ledger
    notes: Sequence[SnapshotNote]
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """The facts that the state has of a partition."""

    topic: str
    partition: int
    log_start: int
    marks: Sequence[LandedMark]
    recorded: Sequence[LandedMark]


@dataclass(slots=True)
class Verdict:
    """The judgement on one partition."""

    findings: list[Finding] = field(default_factory=list)
    explained: list[Explanation] = field(default_factory=list)
    proven: int = 0

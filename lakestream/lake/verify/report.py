"""The checker's report: findings, explanations and topics that could not be checked, for people and for programs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

CLEAN, FOUND, UNCHECKED = 0, 1, 2
"""The exit codes."""
RANGES_SHOWN = 10


class FindingKind(StrEnum):
    """The kinds of faults; docs/VERIFY.md explains each."""

    LOST = "lost-rows"
    CHANGED = "changed-rows"
    DOUBLED = "doubled-rows"
    STRAY_ROWS = "stray-rows"
    UNPROVABLE = "unprovable"
    STREAM_DIFFERS = "stream-differs"
    UNREADABLE = "stream-unreadable"
    TAIL_HOLE = "tail-hole"
    PROGRESS = "progress-disagrees"
    CATALOG = "catalog-disagrees"
    BOUNDS = "wrong-bounds"
    FILE_CHANGED = "changed-file"
    FILE_MISSING = "missing-file"
    FILE_UNREADABLE = "unreadable-file"
    ORPHAN = "orphan-file"
    WAL_LEAKED = "leaked-wal-object"
    WAL_MISSING = "missing-wal-object"


class Why(StrEnum):
    """The reasons, none of them a fault, why rows that landed are gone or changed."""

    DELETED = "deleted"
    CHANGED = "changed"
    RECORDED = "recorded"
    RETENTION = "log-start"
    NO_RECORD = "no-record"


Range = tuple[int, int]
"""Offsets; the end is not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault that the checker found."""

    kind: FindingKind
    text: str
    topic: str = ""
    partition: int | None = None
    ranges: Sequence[Range] = ()
    rows: int = 0
    place: str = ""
    """A file or an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Rows that are gone or changed, and why that is right."""

    why: Why
    text: str
    partition: int
    rows: int
    ranges: Sequence[Range] = ()
    snapshot: int | None = None
    time_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class TopicReport:
    """One topic."""

    topic: str
    partitions: int = 0
    files: int = 0
    table_rows: int = 0
    tail_records: int = 0
    compared_rows: int = 0
    proven_rows: int = 0
    """Rows whose number and hashes add up to what was noted when they landed (T16)."""
    findings: list[Finding] = field(default_factory=list)
    explained: list[Explanation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unchecked: str = ""
    """Why the topic could not be checked, if so."""


@dataclass(slots=True, kw_only=True)
class Report:
    """All topics, and findings that belong to none of them."""

    cluster: str
    sequence: int
    topics: list[TopicReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    wal_objects: int = 0
    unchecked: str = ""

    def all_findings(self) -> list[Finding]:
        return [*self.findings, *(finding for topic in self.topics for finding in topic.findings)]

    def exit_code(self) -> int:
        if self.all_findings():
            return FOUND
        return UNCHECKED if self.unchecked or any(topic.unchecked for topic in self.topics) else CLEAN

    def as_json(self) -> dict[str, Any]:
        code = self.exit_code()
        return {"clean": code == CLEAN, "exit_code": code, **asdict(self)}


def shown_ranges(ranges: Sequence[Range], more: bool = False) -> str:
    """Offsets as people write them: single ones, first to last."""
    texts = [str(start) if end == start + 1 else f"{start} to {end - 1}" for start, end in ranges[:RANGES_SHOWN]]
    return ", ".join(texts) + (" and others" if more or len(ranges) > RANGES_SHOWN else "")

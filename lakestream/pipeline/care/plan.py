"""What care of a table has to do: pure functions of its live files.

    to_rewrite   groups of files to make larger ones of: neighbours in age of about one size, so that a row is written
                 again only a few times in its life, however long its topic lives
    to_drop      files whose rows all lie below what is kept, and files that have some of both (T21)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakestream.data.tables.iceberg.live_files import LiveFile, partitions_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CareLimits:
    """When a table is taken care of, and how much at a time."""

    small_files: int = 32
    """So many files of about one size are rewritten without being asked."""
    target_bytes: int = 128 << 20
    """How large a file may get."""
    large_bytes: int = 64 << 20
    """A file of this size is left alone."""
    tier_bytes: int = 16 << 10
    tier_factor: int = 8
    """Files are of about one size if they are within such a factor."""
    task_bytes: int = 64 << 20
    """What one task reads: it bounds how long a round may have to wait for a slot."""
    partition_bytes: int = 8 << 20
    """Below this a file of its own for each partition would make more small files than there were."""


ORDERED_GROUPS = 4
"""Row groups of a file in a user's order: one that has so many is as large as such files get."""
ORDERED_FULL_BYTES = 8 << 20
"""So is one of this size, whose records may be few and large."""


@dataclass(frozen=True, slots=True)
class Target:
    """How a user wants his table to lie: by a partition spec (T19), and in a sort order (T4); None: he said nothing."""

    spec_id: int | None = None
    order_id: int | None = None

    def is_astray(self, file: LiveFile) -> bool:
        """Whether a file does not lie so, as far as it says itself."""
        return (self.spec_id is not None and file.spec_id != self.spec_id) or (
            self.order_id is not None and file.sort_order_id != self.order_id
        )

    def is_full(self, file: LiveFile) -> bool:
        """Whether a file lies so, and is as large as such files get."""
        full = file.groups >= ORDERED_GROUPS or file.size >= ORDERED_FULL_BYTES
        return self.order_id is not None and full and not self.is_astray(file)


NO_TARGET = Target()


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """Files to be made into fewer; `split`: each partition gets files of its own."""

    files: tuple[LiveFile, ...]
    split: bool

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def to_rewrite(
    files: Sequence[LiveFile], deleted_in: Mapping[str, int], limits: CareLimits, *, asked: bool, everything: bool,
    target: Target = NO_TARGET,
) -> list[RewriteGroup]:  # fmt: skip
    """The groups that are worth it, oldest files first. `deleted_in`: files with rows that were deleted by position.

    Without being asked only tiers that are full are rewritten, and files of which a third is deleted. With a user's
    spec or order, files that do not lie as it says are brought there, when asked or together with others (T4, T19).
    Without a spec, files that lie in somebody's partitions are left to him.
    """
    left = sorted((file for file in files if target.spec_id is not None or not file.place), key=_age)
    if everything:
        return _grouped(left, limits)
    astray = [file for file in left if asked and target.is_astray(file)]
    worn = [*astray, *(one for one in left if one not in astray and _is_worn(one, deleted_in, asked=asked))]
    taken = {file.path for file in worn}
    tiers: dict[tuple[str, int], list[LiveFile]] = {}
    for file in left:
        if file.path not in taken and file.size < limits.large_bytes and not target.is_full(file):
            tiers.setdefault((_kind(file, limits), _tier(file, limits)), []).append(file)
    for (_, tier), members in sorted(tiers.items()):
        enough = limits.small_files if tier == 0 else limits.tier_factor
        if asked or len(members) >= enough:
            worn += members
    groups = _grouped(sorted(worn, key=_age), limits)
    return [one for one in groups if len(one.files) > 1 or one.files[0].path in taken or _splits(one)]


def _grouped(files: Sequence[LiveFile], limits: CareLimits) -> list[RewriteGroup]:
    """Neighbours in age, as many as one task reads, each kind by itself."""
    kinds: dict[str, list[LiveFile]] = {}
    for file in files:
        kinds.setdefault(_kind(file, limits), []).append(file)
    found: list[RewriteGroup] = []
    for _, members in sorted(kinds.items()):
        group: list[LiveFile] = []
        for file in members:
            if group and sum(one.size for one in group) + file.size > limits.task_bytes:
                found.append(_group(group, limits))
                group = []
            group.append(file)
        if group:
            found.append(_group(group, limits))
    return found


def _group(files: Sequence[LiveFile], limits: CareLimits) -> RewriteGroup:
    partitions = partitions_of(files)
    size = sum(file.size for file in files)
    known = all(file.spans is not None for file in files)
    return RewriteGroup(tuple(files), known and size >= limits.partition_bytes * max(len(partitions), 1))


def _splits(group: RewriteGroup) -> bool:
    return group.split and any(_only_partition(file) < 0 for file in group.files)


def _is_worn(file: LiveFile, deleted_in: Mapping[str, int], *, asked: bool) -> bool:
    deleted = deleted_in.get(file.path, 0)
    return deleted > 0 if asked else deleted * 3 > file.rows


def _only_partition(file: LiveFile) -> int:
    """The partition of a file that has rows of one only; -1 for others."""
    return file.spans[0].partition if file.spans is not None and len(file.spans) == 1 else -1


def _kind(file: LiveFile, limits: CareLimits) -> str:
    """Files of one partition are joined with each other, unless they are so small that any company is better."""
    if file.place:
        return f"{file.spec_id} {file.place}"
    return str(_only_partition(file)) if file.size >= limits.partition_bytes else ""


def _tier(file: LiveFile, limits: CareLimits) -> int:
    tier, size = 0, limits.tier_bytes
    while file.size >= size:
        tier, size = tier + 1, size * limits.tier_factor
    return tier


def _age(file: LiveFile) -> tuple[int, int, str]:
    first = min((span.first for span in file.spans or ()), default=0)
    return file.sequence, first, file.path


@dataclass(frozen=True, slots=True)
class Drop:
    """What retention does to a table's files."""

    whole: tuple[LiveFile, ...]
    """All rows are below what is kept."""
    partly: tuple[LiveFile, ...]
    """Some are; perhaps, if nobody knows which rows the file has."""


def to_drop(files: Sequence[LiveFile], keep_from: Mapping[int, int], *, share: float) -> Drop:
    """Files below the first offsets to keep. One that straddles counts only if `share` of its rows has to go."""
    whole, partly = [], []
    for file in files:
        if file.spans is None:
            partly.append(file)
            continue
        going = sum(
            min(max(keep_from.get(span.partition, 0) - span.first, 0) / (span.last - span.first + 1), 1.0) * span.rows
            for span in file.spans
        )
        if all(span.last < keep_from.get(span.partition, 0) for span in file.spans):
            whole.append(file)
        elif going > 0 and going >= share * file.rows:
            partly.append(file)
    return Drop(tuple(whole), tuple(partly))

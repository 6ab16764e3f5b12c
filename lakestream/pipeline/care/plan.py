"""Plans the care of a table: pure functions of its live files.

    to_rewrite   groups of files to rewrite as larger ones: neighbours in age of about one size, so that a row is
                 written again only a few times, however long its topic lives
    to_drop      files whose rows are all below the kept offsets, and files that have rows on both sides (T21)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakestream.data.tables.iceberg.live_files import LiveFile, partitions_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CareLimits:
    """When a table is taken care of, and how much at a time."""

    small_files: int = 32
    """So many files of about one size are rewritten without a request."""
    target_bytes: int = 128 << 20
    """The size at which a file is full."""
    large_bytes: int = 64 << 20
    """A file of this size is not rewritten for its size."""
    tier_bytes: int = 16 << 10
    tier_factor: int = 8
    """Files within this factor are of about one size."""
    task_bytes: int = 64 << 20
    """Bytes that one task reads; it bounds how long a round of landing waits for a slot."""
    partition_bytes: int = 8 << 20
    """Below this size of a partition, a file for each partition would make more small files than before."""


ORDERED_GROUPS = 4
"""A file in a user's order with so many row groups is full."""
ORDERED_FULL_BYTES = 8 << 20
"""A file in a user's order of this size is full too: its records may be few and large."""


@dataclass(frozen=True, slots=True)
class Target:
    """The partition spec (T19) and the sort order (T4) that a user has set; None: not set."""

    spec_id: int | None = None
    order_id: int | None = None

    def is_astray(self, file: LiveFile) -> bool:
        """Whether a file has another spec or order, as its manifest entry says."""
        return (self.spec_id is not None and file.spec_id != self.spec_id) or (
            self.order_id is not None and file.sort_order_id != self.order_id
        )

    def is_full(self, file: LiveFile) -> bool:
        """Whether a file is in the user's order and full."""
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
    """The groups worth rewriting, oldest files first. `deleted_in`: rows deleted by position, by file.

    Without a request only full tiers are rewritten, and files of which a third is deleted. Files that do not have the
    user's spec or order get it, by request or when they are rewritten anyway (T4, T19). Without a spec, files that an
    engine has partitioned stay as they are.
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
    """Groups of neighbours in age, each as much as one task reads, each kind of files by itself."""
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
    """The partition of a file with rows of only one; else -1."""
    return file.spans[0].partition if file.spans is not None and len(file.spans) == 1 else -1


def _kind(file: LiveFile, limits: CareLimits) -> str:
    """Files of one kind are joined with each other. Small files of all partitions are one kind."""
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
    """The files that retention removes rows from."""

    whole: tuple[LiveFile, ...]
    """Files whose rows are all below the kept offsets."""
    partly: tuple[LiveFile, ...]
    """Files of which some rows are; also those whose manifest does not say which rows they have."""


def to_drop(files: Sequence[LiveFile], keep_from: Mapping[int, int], *, share: float) -> Drop:
    """Files with rows below the first offsets to keep; of a file on both sides at least `share` has to be below."""
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

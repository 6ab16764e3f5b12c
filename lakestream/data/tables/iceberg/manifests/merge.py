"""Chooses the manifests to join, so that a table has few of them and no commit rewrites all (T11).

Manifests are joined eight at a time with others of about their size, so that an entry is written again only a few
times in its life, and the work of a commit does not grow with the table.
"""

from collections.abc import Sequence

from lakestream.data.tables.iceberg.manifests.files import DATA, ManifestFile

JOINED_AT_ONCE = 8
MERGED_FILES_MAX = 8192
MERGED_BYTES_MAX = 8 * 1024 * 1024
"""A manifest that may exceed one of these when it is joined is left alone for good."""


def to_merge(manifests: Sequence[ManifestFile], spec_id: int) -> list[ManifestFile]:
    """The manifests of unpartitioned data files to join now; may be empty."""
    tiers: dict[int, list[ManifestFile]] = {}
    for listed in manifests:
        if listed.content == DATA and listed.spec_id == spec_id and _is_small(listed):
            tiers.setdefault(_tier(listed), []).append(listed)
    full = [tier for tier, members in tiers.items() if len(members) >= JOINED_AT_ONCE]
    return tiers[min(full)][:JOINED_AT_ONCE] if full else []


def _tier(listed: ManifestFile) -> int:
    return (max(listed.live_files, 1).bit_length() - 1) // (JOINED_AT_ONCE.bit_length() - 1)


def _is_small(listed: ManifestFile) -> bool:
    return (
        listed.live_files * JOINED_AT_ONCE <= MERGED_FILES_MAX and listed.length * JOINED_AT_ONCE <= MERGED_BYTES_MAX
    )

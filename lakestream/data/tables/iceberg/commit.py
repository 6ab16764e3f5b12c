"""A planned commit, whose files are written and which waits to become current; also as updates of the REST protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakestream.data.tables.iceberg.manifests.files import ManifestFile
from lakestream.data.tables.iceberg.metadata.table_metadata import MAIN, SnapshotChange, Table, TableMetadata
from lakestream.errors import Retry
from lakestream.model.catalog.landed import LandedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A new version of a table whose files are written."""

    base: str
    """The metadata file that must still be the current one when the commit is made."""
    table: Table
    """The table once the commit has won; without a location if an external catalog writes the metadata file."""
    snapshot_id: int
    written: tuple[str, ...]
    """Files to delete if the commit has certainly lost."""
    obsolete: tuple[str, ...]
    """Files that nothing leads to once the commit has won; to be deleted after a grace (T11)."""
    manifests: tuple[ManifestFile, ...]
    metadata_bytes: int
    """The size of the unpacked metadata."""
    requirements: tuple[dict[str, Any], ...]
    updates: tuple[dict[str, Any], ...]
    """The commit in the words of Iceberg's REST protocol, for external catalogs."""
    landed: Sequence[LandedRange] = ()
    """The rows that the commit adds, as the state is told of them."""
    removed: Sequence[LandedRange] | None = None
    """The rows that the commit takes away (T16); None if that is not known."""


class Stale(Retry):
    """Another writer's snapshot came in between: the plan is thrown away and made again (T7, T8)."""


def requirements(metadata: TableMetadata) -> tuple[dict[str, Any], ...]:
    return (
        {"type": "assert-table-uuid", "uuid": metadata.uuid},
        {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": metadata.current_snapshot_id},
    )


def updates_of(change: SnapshotChange, added_spec: Mapping[str, Any] | None) -> tuple[dict[str, Any], ...]:
    updates: list[dict[str, Any]] = []
    if added_spec is not None:
        updates.append({"action": "add-spec", "spec": dict(added_spec)})
    updates.append({"action": "add-snapshot", "snapshot": dict(change.snapshot)})
    updates.append(
        {
            "action": "set-snapshot-ref",
            "ref-name": MAIN,
            "type": "branch",
            "snapshot-id": change.snapshot["snapshot-id"],
        }
    )
    if change.properties:
        updates.append({"action": "set-properties", "updates": dict(change.properties)})
    if change.expired:
        updates.append({"action": "remove-snapshots", "snapshot-ids": sorted(change.expired)})
    return tuple(updates)

"""The live files of a table at one snapshot, for its care: size, offsets, and the delete files that apply."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lakestream.data.tables.files.runs import FIRST, LAST, PARTITION, ROW_GROUP, ROWS
from lakestream.data.tables.iceberg.manifests.files import (
    BOUNDS,
    DELETES,
    EQUALITY_DELETES,
    STATISTICS,
    read_manifest,
    read_manifest_list,
)
from lakestream.data.tables.iceberg.metadata.table_metadata import SnapshotHead
from lakestream.data.tables.reading.position_deletes import DeleteFile, delete_file
from lakestream.errors import Corrupt

if TYPE_CHECKING:
    from lakestream.data.tables.files.runs import RunMatrix

GetAll = Callable[[list[str]], list[bytes]]


@dataclass(frozen=True, slots=True)
class PartitionSpan:
    """The rows of one partition in a file: offsets [first, last]."""

    partition: int
    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A data file."""

    path: str
    size: int
    rows: int
    sequence: int
    spec_id: int
    place: str
    """Its partition by a user's spec; empty without one."""
    spans: tuple[PartitionSpan, ...] | None
    """The rows by partition; None if another engine wrote the manifest, which does not say."""
    groups: int = 0
    """The number of row groups; 0 if the manifest does not say."""
    sort_order_id: int = 0
    """The id of the sort order of its rows, as the manifest says."""


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """All files of one snapshot."""

    data: dict[str, LiveFile]
    deletes: tuple[DeleteFile, ...]

    def deletes_of(self, file: LiveFile) -> list[DeleteFile]:
        """The delete files that may delete rows of a data file."""
        return [one for one in self.deletes if one.may_touch(file.path, file.sequence)]


def live_files(head: SnapshotHead | None, get_all: GetAll) -> LiveFiles:
    """The files of a snapshot. Raises Missing or Corrupt."""
    if head is None:
        return LiveFiles({}, ())
    [listed] = get_all([head.manifest_list])
    manifests = [each for each in read_manifest_list(listed) if each.live_files]
    data: dict[str, LiveFile] = {}
    deletes: list[DeleteFile] = []
    for each, body in zip(manifests, get_all([each.path for each in manifests]), strict=True):
        skipped = STATISTICS if each.content == DELETES else STATISTICS | BOUNDS
        manifest = read_manifest(body, each, skipped)
        for at in manifest.live():
            entry = manifest.entries[at]
            if each.content != DELETES:
                file = _live_file(entry, each.spec_id, manifest.runs[at])
                data[file.path] = file
            elif entry["data_file"]["content"] == EQUALITY_DELETES:
                raise Corrupt(f"{entry['data_file']['file_path']} deletes by equality, which a stream's table has not")
            else:
                deletes.append(delete_file(entry))
    return LiveFiles(data, tuple(deletes))


def _live_file(entry: dict[str, Any], spec_id: int, runs: "RunMatrix | None") -> LiveFile:
    file = entry["data_file"]
    rows = file["record_count"]
    known = runs is not None and int(runs[:, ROWS].sum()) == rows
    return LiveFile(
        path=file["file_path"],
        size=file["file_size_in_bytes"],
        rows=rows,
        sequence=entry["sequence_number"],
        spec_id=spec_id,
        place=repr(file["partition"]) if file.get("partition") else "",
        spans=spans_of(runs) if known and runs is not None else None,
        groups=int(runs[:, ROW_GROUP].max(initial=-1)) + 1 if known and runs is not None else 0,
        sort_order_id=file.get("sort_order_id") or 0,
    )


def spans_of(runs: "RunMatrix") -> tuple[PartitionSpan, ...]:
    """The runs of all row groups, joined by partition."""
    found: list[PartitionSpan] = []
    for partition in np.unique(runs[:, PARTITION]).tolist():
        own = runs[runs[:, PARTITION] == partition]
        first, last, rows = int(own[:, FIRST].min()), int(own[:, LAST].max()), int(own[:, ROWS].sum())
        found.append(PartitionSpan(partition, first, last, rows))
    return tuple(found)


def partitions_of(files: Sequence[LiveFile]) -> set[int]:
    """The partitions of which the files hold rows, as far as the manifests say."""
    return {span.partition for file in files for span in file.spans or ()}

"""The index of a table: which row groups hold an offset of a partition (T3). It is derived and never stored.

A view is the index at one snapshot. It is immutable, so a reader has a consistent picture while the next view is made
from the difference of two snapshots: manifests that are in both are not read again. Files whose runs are not in the
manifest (another engine wrote it) stay unresolved, with their bounds only, until a reader comes near them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lakestream.data.tables.files.runs import FIRST, LAST, MAX_TIMESTAMP, PARTITION, ROW_GROUP, ROWS, run_matrix
from lakestream.data.tables.iceberg.manifests.files import (
    BOUNDS,
    DELETES,
    EQUALITY_DELETES,
    STATISTICS,
    Manifest,
    ManifestFile,
    read_manifest,
    read_manifest_list,
    tells_runs,
)
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.data.tables.reading.position_deletes import DeleteFile, delete_file
from lakestream.errors import Corrupt

if TYPE_CHECKING:
    from lakestream.data.tables.files.runs import RunMatrix

PARTITION_ID, OFFSET_ID = 1, 2
FILE = ROWS + 1
"""The last column of the index's own matrices: the number of the file."""
MANIFESTS_AT_ONCE = 8
EVERYTHING = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedFile:
    """A data file as the index knows it. Its number never changes within one index."""

    number: int
    path: str
    size: int
    sequence: int
    partitions: tuple[int, int]
    offsets: tuple[int, int]
    resolved: bool


@dataclass(frozen=True, slots=True)
class RowGroupWindow:
    """Row groups that together hold all rows of a partition in [start, end): (file, row group) each."""

    start: int
    end: int
    groups: tuple[tuple[IndexedFile, int], ...]


class PartitionRuns:
    """The runs of one partition, ordered by their first offset. They may overlap after a foreign rewrite (T4)."""

    def __init__(self, runs: "RunMatrix") -> None:
        self.runs = runs

    @cached_property
    def reach(self) -> Any:
        """For each run, the last offset of all runs up to it."""
        return np.maximum.accumulate(self.runs[:, LAST])

    @cached_property
    def _firsts(self) -> Any:
        return np.ascontiguousarray(self.runs[:, FIRST])

    def at_or_after(self, offset: int, below: int | None = None) -> "RunMatrix":
        """The runs that hold anything at or above an offset, and begin below another."""
        end = len(self.runs) if below is None else int(np.searchsorted(self._firsts, below))
        behind = self.runs[int(np.searchsorted(self.reach, offset)) : end]
        return behind[behind[:, LAST] >= offset]

    def next(self, offset: int) -> "RunMatrix":
        """The first of them, if there is one."""
        place = int(np.searchsorted(self.reach, offset))
        return self.runs[place : place + 1]

    def overlapping(self, offset: int) -> int:
        """How many files hold rows on both sides of an offset or at it; one is ideal."""
        return len(np.unique(self.at_or_after(offset, offset + 1)[:, FILE]))


class TableView:
    """The index at one snapshot."""

    def __init__(
        self,
        table: Table | None = None,
        manifests: Mapping[str, Sequence[str]] | None = None,
        files: Mapping[str, IndexedFile] | None = None,
        partitions: Mapping[int, PartitionRuns] | None = None,
        deletes: Mapping[str, Sequence[DeleteFile]] | None = None,
        next_number: int = 0,
    ) -> None:
        self.table = table
        self._manifests = dict(manifests or {})
        self._files = dict(files or {})
        self._partitions = dict(partitions or {})
        self._deletes = dict(deletes or {})
        self._next_number = next_number

    def __repr__(self) -> str:
        return f"TableView({self.table!r}, {len(self._files)} files, {len(self.unresolved)} unresolved)"

    @property
    def files(self) -> Mapping[str, IndexedFile]:
        return self._files

    @cached_property
    def unresolved(self) -> list[IndexedFile]:
        return [file for file in self._files.values() if not file.resolved]

    @cached_property
    def deletes(self) -> list[DeleteFile]:
        return [each for group in self._deletes.values() for each in group]

    @cached_property
    def _numbers(self) -> dict[int, IndexedFile]:
        return {file.number: file for file in self._files.values()}

    def runs(self, partition: int) -> PartitionRuns:
        return self._partitions.get(partition) or PartitionRuns(np.empty((0, FILE + 1), np.int64))

    def group(self, run: Any) -> tuple[IndexedFile, int]:
        return self._numbers[int(run[FILE])], int(run[ROW_GROUP])

    def unresolved_near(self, partition: int, start: int, end: int) -> list[IndexedFile]:
        """Files with unknown runs that may hold rows of a partition in [start, end); lowest offsets first."""
        found = [
            file
            for file in self.unresolved
            if file.partitions[0] <= partition <= file.partitions[1]
            and file.offsets[0] < end
            and file.offsets[1] >= start
        ]
        return sorted(found, key=lambda file: file.offsets[0])

    def window(self, partition: int, start: int, end: int, max_rows: int) -> RowGroupWindow:
        """The next stretch that holds rows at or above `start`, up to the end of the first run there.

        Where runs overlap it is cut to about `max_rows`, so that a fetch never has to hold all of them. A window
        without row groups says that there are no rows in [start, end).
        """
        runs = self.runs(partition)
        first = runs.next(start)
        if not len(first) or first[0, FIRST] >= end:
            return RowGroupWindow(end, end, ())
        begin = max(start, int(first[0, FIRST]))
        stop = min(end, int(first[0, LAST]) + 1)
        chosen = runs.at_or_after(start, stop)
        if len(chosen) > 1:
            density = float((chosen[:, ROWS] / (chosen[:, LAST] - chosen[:, FIRST] + 1)).sum())
            stop = min(stop, begin + max(int(max_rows / max(density, 1e-9)), 1))
            chosen = chosen[chosen[:, FIRST] < stop]
        return RowGroupWindow(begin, stop, tuple(self.group(run) for run in chosen))

    # -- moving -------------------------------------------------------------------------------------------------------

    def moved(self, table: Table, get_all: Callable[[list[str]], list[bytes]]) -> "TableView":
        """The index at another snapshot. Raises Missing if its files are gone, Corrupt if it is no stream's table."""
        head = table.metadata.current
        [data] = [b""] if head is None else get_all([head.manifest_list])
        listed = [each for each in read_manifest_list(data) if each.live_files] if data else []
        new = [each for each in listed if each.path not in self._manifests and each.path not in self._deletes]
        kept = {each.path for each in listed}
        manifests = {path: names for path, names in self._manifests.items() if path in kept}
        deletes = {path: group for path, group in self._deletes.items() if path in kept}
        found: dict[str, tuple[IndexedFile, RunMatrix | None]] = {}
        for start in range(0, len(new), MANIFESTS_AT_ONCE):
            some = new[start : start + MANIFESTS_AT_ONCE]
            for each, data in zip(some, get_all([each.path for each in some]), strict=True):
                manifest = _read(data, each)
                if each.content == DELETES:
                    deletes[each.path] = _delete_files(manifest)
                else:
                    named = _data_files(manifest)
                    manifests[each.path] = tuple(named)
                    found.update(named)
        gone = {name for path, names in self._manifests.items() if path not in kept for name in names} - found.keys()
        return self._changed(table, manifests, deletes, found, gone)

    def _changed(
        self,
        table: Table,
        manifests: Mapping[str, Sequence[str]],
        deletes: Mapping[str, Sequence[DeleteFile]],
        found: "Mapping[str, tuple[IndexedFile, RunMatrix | None]]",
        gone: Iterable[str],
    ) -> "TableView":
        files = dict(self._files)
        removed = [files.pop(path).number for path in gone if path in files]
        added: list[tuple[int, RunMatrix]] = []
        number = self._next_number
        for path, (file, runs) in found.items():
            known = files.get(path)
            if known is None:
                files[path] = known = replace(file, number=number)
                number += 1
            elif not known.resolved and runs is not None:
                files[path] = known = replace(known, resolved=True)
            else:
                continue
            if runs is not None:
                added.append((known.number, runs))
        partitions = _with_runs(self._partitions, added, removed)
        return TableView(table, manifests, files, partitions, deletes, number)

    def resolved(self, answers: "Sequence[tuple[IndexedFile, RunMatrix]]") -> "TableView":
        """The view with the runs of files that were read."""
        files = dict(self._files)
        added: list[tuple[int, RunMatrix]] = []
        for file, runs in answers:
            known = files.get(file.path)
            if known is not None and not known.resolved:
                files[file.path] = replace(known, resolved=True)
                added.append((known.number, runs))
        partitions = _with_runs(self._partitions, added, [])
        return TableView(self.table, self._manifests, files, partitions, self._deletes, self._next_number)


def _with_runs(
    before: Mapping[int, PartitionRuns], added: "Sequence[tuple[int, RunMatrix]]", removed: Sequence[int]
) -> dict[int, PartitionRuns]:
    after = dict(before)
    if removed:
        dead = np.array(removed, np.int64)
        for partition, kept in before.items():
            mask = np.isin(kept.runs[:, FILE], dead, invert=True)
            if not mask.all():
                after[partition] = PartitionRuns(kept.runs[mask])
    if added:
        whole = np.concatenate([_numbered(runs, number) for number, runs in added])
        whole = whole[np.lexsort((whole[:, FIRST], whole[:, PARTITION]))]
        values, starts = np.unique(whole[:, PARTITION], return_index=True)
        for partition, new in zip(values.tolist(), np.split(whole, starts[1:]), strict=True):
            old = after.get(partition)
            runs = new if old is None else np.concatenate([old.runs, new])
            if old is not None and len(old.runs) and old.runs[-1, FIRST] > new[0, FIRST]:
                runs = runs[np.argsort(runs[:, FIRST], kind="stable")]
            after[partition] = PartitionRuns(runs)
    return {partition: runs for partition, runs in after.items() if len(runs.runs)}


def _numbered(runs: "RunMatrix", number: int) -> "RunMatrix":
    return np.concatenate([runs, np.full((len(runs), 1), number, np.int64)], axis=1)


def _read(data: bytes, listed: ManifestFile) -> Manifest:
    """Reads a manifest, with bounds only if it lacks runs."""
    if tells_runs(data):
        manifest = read_manifest(data, listed, STATISTICS | BOUNDS)
        if all(runs is not None for runs in manifest.runs):
            return manifest
    return read_manifest(data, listed, STATISTICS)


def _data_files(manifest: Manifest) -> "dict[str, tuple[IndexedFile, RunMatrix | None]]":
    """Files without a number yet, and their runs."""
    found = {}
    for at in manifest.live():
        entry = manifest.entries[at]
        file = entry["data_file"]
        if file["file_format"].upper() != "PARQUET":
            raise Corrupt(f"{file['file_path']} is no Parquet file")
        runs = manifest.runs[at]
        if runs is not None and int(runs[:, ROWS].sum()) != file["record_count"]:
            runs = None
        found[file["file_path"]] = (_indexed(entry, runs is not None), runs)
    return found


def _delete_files(manifest: Manifest) -> list[DeleteFile]:
    found = []
    for at in manifest.live():
        file = manifest.entries[at]["data_file"]
        if file["content"] == EQUALITY_DELETES or file["file_format"].upper() != "PARQUET":
            raise Corrupt(f"{file['file_path']} deletes rows in a way that a stream's table does not have (T13)")
        found.append(delete_file(manifest.entries[at]))
    return found


def _indexed(entry: Mapping[str, Any], resolved: bool) -> IndexedFile:
    file = entry["data_file"]
    return IndexedFile(
        number=-1,
        path=file["file_path"],
        size=file["file_size_in_bytes"],
        sequence=entry["sequence_number"],
        # Bounds are not needed where runs are known.
        partitions=EVERYTHING if resolved else _bounds(file, PARTITION_ID),
        offsets=EVERYTHING if resolved else _bounds(file, OFFSET_ID),
        resolved=resolved,
    )


def _bounds(file: Mapping[str, Any], field_id: int) -> tuple[int, int]:
    def bound(name: str, default: int) -> int:
        for pair in file.get(name) or ():
            if pair["key"] == field_id:
                return int.from_bytes(pair["value"], "little", signed=True)
        return default

    return bound("lower_bounds", EVERYTHING[0]), bound("upper_bounds", EVERYTHING[1])


def latest_first(runs: "RunMatrix") -> "RunMatrix":
    """Runs in the order of their greatest timestamps."""
    return runs[np.argsort(-runs[:, MAX_TIMESTAMP], kind="stable")] if len(runs) else run_matrix([])

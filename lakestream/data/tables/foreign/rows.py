"""Judges the rows of another engine's commit: rows may be removed or changed, none may be added (T13).

Two snapshots are compared by the files that differ. In those, each (partition, offset) that is live after has to have
been live before, and to be there once: so DELETE, UPDATE and rewrites pass, INSERT and a rewrite that brings deleted
rows back do not, whatever the snapshot calls itself. Only two narrow columns are read. This blocks; run it in a thread.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import RawIOBase
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from lakestream.data.tables.foreign.allowed_changes import Refused
from lakestream.data.tables.iceberg.manifests.files import (
    DATA,
    EQUALITY_DELETES,
    POSITION_DELETES,
    read_manifest,
    read_manifest_list,
)
from lakestream.data.tables.iceberg.metadata.schemas import Json
from lakestream.data.tables.iceberg.progress import OffsetRange
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Rejected
from lakestream.model.catalog.names import canonical, within

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    Keys = NDArray[np.uint64]
    Positions = NDArray[np.int64]

ROWS_AT_ONCE = 8_000_000
"""More rows than this are compared in several passes, so that memory stays bounded."""
READ_AHEAD_BYTES = 256 * 1024
_OFFSET_BITS = 47
_PATH_ID, _POSITION_ID = 2147483546, 2147483545
_PARTITION, _OFFSET = (1, "stream_partition"), (2, "stream_offset")
_FILE_PATH, _POSITION = (_PATH_ID, "file_path"), (_POSITION_ID, "pos")


@dataclass(frozen=True, slots=True)
class File:
    """A live file of a snapshot."""

    path: str
    content: int
    sequence: int
    rows: int
    size: int
    lower: bytes
    upper: bytes


@dataclass(frozen=True, slots=True)
class Contents:
    """The live files of a snapshot, by path."""

    data: dict[str, File]
    deletes: dict[str, File]


def judge_rows(
    store: TableStore, folder: str, old: Json | None, new: Json, random: Random, landed: Sequence[OffsetRange] = ()
) -> None:
    """Compare two snapshots of one table. Raises Refused; Retry, Missing or Corrupt if they cannot be read.

    What is new lies in the table's `folder`: in another one it would go with what is there. Rows of `landed` are ours:
    they may be new.
    """
    manifests: dict[str, list[File]] = {}
    before = contents(store, old, manifests) if old is not None else Contents({}, {})
    known = {*manifests, *before.data, *before.deletes}
    after = contents(store, new, manifests)
    for path in sorted({new["manifest-list"], *manifests, *after.data, *after.deletes} - known):
        if not within(folder, path):
            raise Refused(f"a stream's table has all its files in its own folder {folder}, and {path} is not")
    added = [file for path, file in after.deletes.items() if path not in before.deletes]
    removed = [file for path, file in before.deletes.items() if path not in after.deletes]
    if any(file.content == EQUALITY_DELETES for file in added):
        raise Refused("equality deletes would have to be searched for at every read of the stream")
    fresh = {path for path, file in after.data.items() if path not in before.data or before.data[path] != file}
    revived = _touched(store, removed) & after.data.keys()
    if not fresh and not revived:
        return
    gone = before.data.keys() - after.data.keys()
    affected = fresh | revived | gone | (_touched(store, added) & after.data.keys())
    _compare(
        Side(store, before, [before.data[path] for path in affected & before.data.keys()]),
        Side(store, after, [after.data[path] for path in affected & after.data.keys()]),
        random,
        landed,
    )


def judge_aside(store: TableStore, folder: str, snapshot: Json) -> None:
    """Judges a snapshot that is not on `main`, for example on a branch: any rows, but files in the table's folder only.

    When it expires, the files that only this snapshot names are deleted. Raises Refused; Retry, Missing or Corrupt if
    it cannot be read.
    """
    manifests: dict[str, list[File]] = {}
    found = contents(store, snapshot, manifests)
    for path in sorted({snapshot["manifest-list"], *manifests, *found.data, *found.deletes}):
        if not within(folder, path):
            raise Refused(f"a stream's table has all its files in its own folder {folder}, and {path} is not")


def contents(store: TableStore, snapshot: Json, known: dict[str, list[File]]) -> Contents:
    """The live files of a snapshot. Raises Refused if they are not what a stream can be read from."""
    place = snapshot.get("manifest-list")
    if not isinstance(place, str):
        raise Refused("a snapshot of a stream's table has a manifest list")
    found = Contents({}, {})
    seen: set[str] = set()
    try:
        for listed in read_manifest_list(store.get(place)):
            if listed.path not in known:
                manifest = read_manifest(store.get(listed.path), listed)
                known[listed.path] = [_file(manifest.entries[index]) for index in manifest.live()]
            for file in known[listed.path]:
                if canonical(file.path) in seen:
                    raise Refused(f"{file.path} is in the table twice")
                seen.add(canonical(file.path))
                held = found.data if file.content == DATA else found.deletes
                held[file.path] = file
    except Rejected as error:
        raise Refused(f"a stream's table has all its files in the warehouse: {error}") from error
    return found


def _file(entry: dict[str, Any]) -> File:
    file = entry["data_file"]
    if file["file_format"].upper() != "PARQUET":
        raise Refused(f"a stream is read from Parquet, not from {file['file_format']}")
    content = file.get("content") or DATA
    lower, upper = _bound(file, "lower_bounds"), _bound(file, "upper_bounds")
    sequence = entry["sequence_number"]
    return File(file["file_path"], content, sequence, file["record_count"], file["file_size_in_bytes"], lower, upper)


def _bound(file: dict[str, Any], name: str) -> bytes:
    """The bound of the paths in a delete file; empty if the manifest has none."""
    return next((bytes(pair["value"]) for pair in file.get(name) or () if pair["key"] == _PATH_ID), b"")


def _touched(store: TableStore, deletes: Iterable[File]) -> set[str]:
    """The data files that these delete files name."""
    found: set[str] = set()
    for file in deletes:
        if file.content != POSITION_DELETES:
            raise Refused("a stream's table has position deletes only")
        for batch in _columns(store, file, (_FILE_PATH, _POSITION)):
            found.update(batch.column(0).unique().to_pylist())
    return found


class Side:
    """The live rows of one of the two snapshots, in the files by which it differs from the other."""

    def __init__(self, store: TableStore, contents: Contents, files: list[File]) -> None:
        self._store = store
        self._contents = contents
        self._files = files
        self.rows = sum(file.rows for file in files)

    def live_rows(self) -> "Iterator[Keys]":
        """The live (partition, offset) of all files, packed, in pieces."""
        for file in self._files:
            dead = self._dead(file)
            at = 0
            for batch in _columns(self._store, file, (_PARTITION, _OFFSET)):
                packed = _packed(file, batch)
                if len(dead):
                    first, last = np.searchsorted(dead, (at, at + len(packed)))
                    packed = np.delete(packed, dead[first:last] - at)
                at += batch.num_rows
                yield packed
            if at != file.rows:
                raise Refused(f"{file.path} has {at} rows, not {file.rows}")

    def _dead(self, file: File) -> "Positions":
        """The positions that delete files took from a data file, in order."""
        found: list[Positions] = []
        path = file.path.encode()
        for delete in self._contents.deletes.values():
            if delete.sequence < file.sequence or (delete.upper and not delete.lower <= path <= delete.upper):
                continue
            for batch in _columns(self._store, delete, (_FILE_PATH, _POSITION)):
                import pyarrow.compute as pc

                chosen = batch.column(1).filter(pc.equal(batch.column(0), file.path))
                found.append(chosen.to_numpy(zero_copy_only=False).astype(np.int64))
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _packed(file: File, batch: Any) -> "Keys":
    partitions, offsets = (batch.column(i).to_numpy(zero_copy_only=False) for i in (0, 1))
    if batch.column(0).null_count or batch.column(1).null_count:
        raise Refused(f"{file.path} has a row without partition or offset")
    if len(partitions) and (
        partitions.min() < 0 or partitions.max() >= 1 << (64 - _OFFSET_BITS)
        or offsets.min() < 0 or offsets.max() >= 1 << _OFFSET_BITS
    ):  # fmt: skip
        raise Refused(f"{file.path} has a partition or an offset that cannot be")
    packed: Keys = (partitions.astype(np.uint64) << np.uint64(_OFFSET_BITS)) | offsets.astype(np.uint64)
    return packed


def _compare(before: Side, after: Side, random: Random, landed: Sequence[OffsetRange]) -> None:
    """Raises Refused unless every live row was live before or has landed since, and exists once."""
    rows = before.rows + after.rows
    if rows > ROWS_AT_ONCE:
        seeds = [np.uint64(random.getrandbits(64) | 1) for _ in range(4)]
        if _fingerprint(before, seeds) == _fingerprint(after, seeds):
            return  # the same rows, each as often as before: a rewrite
    passes = np.uint64(-(-rows // ROWS_AT_ONCE) or 1)
    for number in range(int(passes)):
        mine = np.uint64(number)
        had = np.sort(np.concatenate([keys[_mixed(keys) % passes == mine] for keys in before.live_rows()] or [_NONE]))
        has = np.sort(np.concatenate([keys[_mixed(keys) % passes == mine] for keys in after.live_rows()] or [_NONE]))
        twice = has[1:][has[1:] == has[:-1]]
        if len(twice):
            raise Refused(f"the row {_shown(twice[0])} would be in the table twice")
        at = np.searchsorted(had, has)
        new = has[(at == len(had)) | (had[np.minimum(at, len(had) - 1)] != has)] if len(had) else has
        for one in landed:
            low, high = (np.uint64((one.partition << _OFFSET_BITS) + offset) for offset in (one.start, one.end))
            new = new[(new < low) | (new >= high)]
        if len(new):
            raise Refused(f"rows come to a stream's table through the stream only: {_shown(new[0])} would be new")


_NONE = np.empty(0, np.uint64)


def _mixed(keys: "Keys") -> "Keys":
    mixed: Keys = (keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)
    return mixed


def _fingerprint(side: Side, seeds: "list[np.uint64]") -> tuple[int, ...]:
    """The number of rows and sums over them that other rows cannot have but by an unlikely chance."""
    count, sums = 0, [np.uint64(0), np.uint64(0)]
    with np.errstate(over="ignore"):
        for keys in side.live_rows():
            count += len(keys)
            for i in (0, 1):
                mixed = (keys ^ seeds[2 * i]) * seeds[2 * i + 1]
                mixed ^= mixed >> np.uint64(29)
                mixed *= np.uint64(0xBF58476D1CE4E5B9)
                mixed ^= mixed >> np.uint64(32)
                sums[i] = sums[i] + np.add.reduce(mixed, dtype=np.uint64)
    return count, int(sums[0]), int(sums[1])


def _shown(key: np.uint64) -> str:
    return f"(partition {int(key) >> _OFFSET_BITS}, offset {int(key) & ((1 << _OFFSET_BITS) - 1)})"


# -- files ----------------------------------------------------------------------------------------------------------


def _columns(store: TableStore, file: File, wanted: tuple[tuple[int, str], ...]) -> Iterator[Any]:
    """The wanted columns, by field id or else by name, in record batches. Raises Refused if they are not there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(pa.PythonFile(StoredFile(store, file), mode="r"))
        names = [_name(parquet, file, *column) for column in wanted]
        for batch in parquet.iter_batches(batch_size=1 << 18, columns=names, use_threads=False):
            yield batch.select(names)
    except (pa.ArrowInvalid, OSError) as error:
        raise Refused(f"{file.path} is no Parquet file: {error}") from error
    except Rejected as error:
        raise Refused(f"a stream's table has all its files in the warehouse: {error}") from error


def _name(parquet: "pq.ParquetFile", file: File, number: int, name: str) -> str:
    schema = parquet.schema_arrow
    for field in schema:
        if field.metadata and field.metadata.get(b"PARQUET:field_id") == str(number).encode():
            return str(field.name)
    if name in schema.names:
        return name
    raise Refused(f"{file.path} has no column {name}")


class StoredFile(RawIOBase):
    """A file of the store as Arrow reads one; small reads next to each other are one request."""

    def __init__(self, store: TableStore, file: File) -> None:
        super().__init__()
        self._store = store
        self._path = file.path
        self._size = file.size
        self._at = 0
        self._piece = (0, b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        wanted = self._size - self._at if size < 0 else min(size, self._size - self._at)
        start, data = self._piece
        if wanted <= 0:
            return b""
        if not start <= self._at or self._at + wanted > start + len(data):
            first = max(min(self._at, self._size - READ_AHEAD_BYTES), 0) if wanted < READ_AHEAD_BYTES else self._at
            [data] = self._store.read(self._path, [(first, max(self._at + wanted - first, READ_AHEAD_BYTES))])
            start = first
            self._piece = (start, data)
        found = data[self._at - start : self._at - start + wanted]
        self._at += len(found)
        return found

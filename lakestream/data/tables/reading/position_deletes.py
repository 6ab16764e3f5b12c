"""Position deletes: rows that another engine deleted by file and position (T13). We write none and apply all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakestream.errors import Corrupt

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]

FILE_PATH_ID = 2147483546
POSITION_ID = 2147483545


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    """A file of deletes; it applies to data files that are not newer, and whose paths lie within its bounds."""

    path: str
    size: int
    sequence: int
    lowest: bytes
    highest: bytes | None

    def may_touch(self, path: str, sequence: int) -> bool:
        """Whether the file may name a path. Bounds may be cut short; an upper bound is then above all paths."""
        name = path.encode()
        return sequence <= self.sequence and self.lowest <= name and (self.highest is None or name <= self.highest)


def delete_file(entry: Mapping[str, Any]) -> DeleteFile:
    file = entry["data_file"]
    lower = {pair["key"]: pair["value"] for pair in file.get("lower_bounds") or ()}
    upper = {pair["key"]: pair["value"] for pair in file.get("upper_bounds") or ()}
    return DeleteFile(
        path=file["file_path"],
        size=file["file_size_in_bytes"],
        sequence=entry["sequence_number"],
        lowest=lower.get(FILE_PATH_ID, b""),
        highest=upper.get(FILE_PATH_ID),
    )


def parse_deletes(data: bytes) -> "dict[str, Positions]":
    """The deleted places, ascending, of each data file that a delete file names. Raises Corrupt."""
    try:
        rows = pq.ParquetFile(pa.BufferReader(data)).read(columns=["file_path", "pos"], use_threads=False)
        paths = rows.column("file_path").combine_chunks().dictionary_encode()
        paths = paths.combine_chunks() if isinstance(paths, pa.ChunkedArray) else paths
        places = rows.column("pos").to_numpy().astype(np.int64)
        codes = paths.indices.to_numpy()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise Corrupt(f"a delete file cannot be read: {error}") from error
    return {name: np.unique(places[codes == code]) for code, name in enumerate(paths.dictionary.to_pylist())}


def within(positions: "Sequence[Positions]", start: int, count: int) -> "Positions":
    """The places in [start, start + count), counted from `start`."""
    parts = [each[np.searchsorted(each, start) : np.searchsorted(each, start + count)] for each in positions]
    return np.concatenate(parts) - start if parts else np.empty(0, np.int64)

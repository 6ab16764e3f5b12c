"""Runs: which offsets of which partition lie in which row group of a data file (T3).

A run is one row of a matrix of integers, so that an index of many files costs little and is built fast. Our manifests
carry the runs of their files in an entry of their Avro header, so that an index need not open the files. The entry is
derived and may be dropped; a manifest of another engine has none, and then the files are read.
"""

import base64
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lakestream.data.tables.files.file_stats import Run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    RunMatrix = NDArray[np.int64]

HEADER_KEY = "lakestream.runs"
VERSION = b"\x01"
ROW_GROUP, PARTITION, FIRST, LAST, MAX_TIMESTAMP, ROWS = range(6)
"""The columns of a matrix of runs. A timestamp is in milliseconds, as it was produced; -1 is none."""
COLUMNS = 6
MAX_UNPACKED_BYTES = 1 << 30


def run_matrix(rows: Sequence[Sequence[int]]) -> "RunMatrix":
    """From (row group, partition, first offset, last offset, greatest timestamp, rows)."""
    return np.array(rows, dtype=np.int64).reshape(-1, COLUMNS)


def runs_of_groups(groups: Sequence[Sequence[Run]]) -> "RunMatrix":
    """The matrix of the runs that the writer of a file gives for its row groups."""
    return run_matrix(
        [
            (group, run.partition, run.first, run.last, run.max_timestamp, run.rows)
            for group, runs in enumerate(groups)
            for run in runs
        ]
    )


def runs_of_rows(
    row_group: int, partitions: "NDArray[np.int64]", offsets: "NDArray[np.int64]", timestamps: "NDArray[np.int64]"
) -> "RunMatrix":
    """The runs of a row group, from its rows in any order."""
    if not len(partitions):
        return run_matrix([])
    if partitions[0] == partitions[-1] and (partitions == partitions[0]).all():
        one = (row_group, partitions[0], offsets.min(), offsets.max(), timestamps.max(), len(offsets))
        return run_matrix([one])
    order = np.argsort(partitions, kind="stable")
    sorted_partitions = partitions[order]
    starts = np.flatnonzero(np.concatenate(([True], sorted_partitions[1:] != sorted_partitions[:-1])))
    found = np.empty((len(starts), COLUMNS), np.int64)
    found[:, ROW_GROUP] = row_group
    found[:, PARTITION] = sorted_partitions[starts]
    found[:, FIRST] = np.minimum.reduceat(offsets[order], starts)
    found[:, LAST] = np.maximum.reduceat(offsets[order], starts)
    found[:, MAX_TIMESTAMP] = np.maximum.reduceat(timestamps[order], starts)
    found[:, ROWS] = np.diff(np.append(starts, len(order)))
    return found


def pack_runs(matrices: "Sequence[RunMatrix | None]") -> str:
    """Packs runs for the header of a manifest: item i belongs to entry i; None where the runs are unknown.

    Differences of neighbours, column by column, pack to some ten bytes a run.
    """
    counts = np.array([-1 if matrix is None else len(matrix) for matrix in matrices], dtype="<i8")
    known = [matrix for matrix in matrices if matrix is not None]
    all_runs = np.concatenate(known) if known else run_matrix([])
    columns = np.diff(all_runs, axis=0, prepend=0).T if len(all_runs) else all_runs.T
    body = counts.tobytes() + np.ascontiguousarray(columns, dtype="<i8").tobytes()
    packed = VERSION + len(counts).to_bytes(4, "little") + zlib.compress(body, 1)
    return base64.b64encode(packed).decode()


def unpack_runs(text: bytes | str) -> "list[RunMatrix | None]":
    """Unpacks a header; an empty list if it is not ours: then the files are read."""
    try:
        packed = base64.b64decode(text, validate=True)
        if packed[:1] != VERSION:
            return []
        files = int.from_bytes(packed[1:5], "little")
        body = zlib.decompressobj().decompress(packed[5:], MAX_UNPACKED_BYTES)
        counts = np.frombuffer(body, "<i8", files)
        columns = np.frombuffer(body, "<i8", offset=8 * files).reshape(COLUMNS, -1)
    except (ValueError, zlib.error):
        return []
    whole = np.cumsum(columns, axis=1, dtype=np.int64).T
    lengths = np.maximum(counts, 0)
    if int(lengths.sum()) != len(whole):
        return []
    ends = np.cumsum(lengths)
    return [
        None if count < 0 else whole[end - count : end]
        for count, end in zip(counts.tolist(), ends.tolist(), strict=True)
    ]

"""A ledger of rows for the checker: (offset, hash, tag) of every one, by partition, in order, in bounded memory.

Rows come in any order, as the files of a table have them; they go out in buckets of offsets, sorted. Rows beyond the
memory limit wait in a nameless temporary file. A row is 24 bytes, so ten million rows are 240 MB of disk at most.
"""

import tempfile
from collections.abc import Iterator
from typing import IO

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

BUCKET_BITS = 17
"""A bucket has 2^17 offsets: sorted at once in about 12 MB."""
MEMORY_ROWS = 250_000
"""What is held before it goes to disk, 6 MB. It is written in the order in which it is read: little is sought for."""
OFFSET, HASH, TAG = range(3)
_WIDTH = 3


class Ledger:
    """Filled by `add`, then read by `bucket`. The caller decides the meaning of the tag."""

    def __init__(self, memory_rows: int = MEMORY_ROWS) -> None:
        self._memory_rows = memory_rows
        self._held: dict[tuple[int, int], list[Numbers]] = {}
        self._held_rows = 0
        self._spilled: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._file: IO[bytes] | None = None
        self.rows = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._held, self._spilled, self._file = {}, {}, None

    def add(self, partitions: Numbers, offsets: Numbers, hashes: Numbers, tag: int | Numbers) -> None:
        """Rows of any partitions in any order."""
        lines = np.empty((len(offsets), _WIDTH), dtype=np.int64)
        lines[:, OFFSET], lines[:, HASH], lines[:, TAG] = offsets, hashes, tag
        buckets = offsets >> BUCKET_BITS
        order = np.lexsort((buckets, partitions))
        partitions, buckets, lines = partitions[order], buckets[order], lines[order]
        changes = np.flatnonzero(np.diff(partitions).astype(bool) | np.diff(buckets).astype(bool)) + 1
        starts = [0, *changes.tolist()] if len(lines) else []
        for start, piece in zip(starts, np.split(lines, changes), strict=False):
            self._held.setdefault((int(partitions[start]), int(buckets[start])), []).append(piece)
        self.rows += len(lines)
        self._held_rows += len(lines)
        if self._held_rows > self._memory_rows:
            self._spill()

    def partitions(self) -> list[int]:
        return sorted({partition for partition, _ in self._keys()})

    def buckets(self, partition: int) -> list[int]:
        """The numbers of the buckets that hold rows of a partition, in order."""
        return sorted(bucket for owner, bucket in self._keys() if owner == partition)

    def bucket(self, partition: int, number: int) -> Numbers:
        """All rows of a bucket, one line each, in the order of offsets (then of hashes)."""
        key = (partition, number)
        pieces = list(self._held.get(key, ()))
        for position, rows in self._spilled.get(key, ()):
            assert self._file is not None
            self._file.seek(position)
            data = self._file.read(rows * _WIDTH * 8)
            pieces.append(np.frombuffer(data, dtype=np.int64).reshape(rows, _WIDTH))
        if not pieces:
            return np.empty((0, _WIDTH), dtype=np.int64)
        lines = np.concatenate(pieces)
        return lines[np.lexsort((lines[:, HASH], lines[:, OFFSET]))]

    def tag_at(self, partition: int, offset: int) -> int | None:
        """The tag of the row at an offset."""
        lines = self.bucket(partition, offset >> BUCKET_BITS)
        at = int(np.searchsorted(lines[:, OFFSET], offset))
        return int(lines[at, TAG]) if at < len(lines) and lines[at, OFFSET] == offset else None

    def _keys(self) -> set[tuple[int, int]]:
        return self._held.keys() | self._spilled.keys()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="lakestream-verify-")  # noqa: SIM115 (lives as long as this)
        self._file.seek(0, 2)
        for key, pieces in self._held.items():
            lines = np.concatenate(pieces)
            self._spilled.setdefault(key, []).append((self._file.tell(), len(lines)))
            self._file.write(lines.tobytes())
        self._held, self._held_rows = {}, 0


class LedgerCursor:
    """Walks over one partition of a ledger in the order of offsets."""

    def __init__(self, ledger: Ledger, partition: int, start: int) -> None:
        self._pieces = self._read(ledger, partition)
        self._left = np.empty((0, _WIDTH), dtype=np.int64)
        self._over = False
        self.take(start)

    def take(self, upto: int) -> Numbers:
        """The rows below `upto` that were not taken yet."""
        taken = []
        while True:
            cut = int(np.searchsorted(self._left[:, OFFSET], upto))
            taken.append(self._left[:cut])
            self._left = self._left[cut:]
            if len(self._left) or self._over:
                return np.concatenate(taken)
            piece = next(self._pieces, None)
            if piece is None:
                self._over = True
            else:
                self._left = piece

    @staticmethod
    def _read(ledger: Ledger, partition: int) -> Iterator[Numbers]:
        for number in ledger.buckets(partition):
            yield ledger.bucket(partition, number)

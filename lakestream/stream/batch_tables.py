"""Many small batches at once: their header fields lie in one table, which compiled code works on."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lakestream.errors import LakestreamError
from lakestream.model.append_rows import ROW_BYTES, pack_packed_rows
from lakestream.model.batches.wal_object import HEADER_BYTES, TickSlice, header, lay_out
from lakestream.model.kernels.pointers import address_of
from lakestream.model.kernels.produce_loops import ADDRESS, COLUMNS, LENGTH, STREAM, join_batches, stamp_batches

if TYPE_CHECKING:
    from lakestream.stream.submissions import Batches

Numbers = NDArray[np.int64]
NONE: Numbers = np.empty(0, np.int64)


class ManyBatches:
    """Submitted in place of `Batches`: a table (model/kernels/produce_loops.py) of batches in memory.

    `release` is called when the bytes are not needed any more, then `done`, once: with the results in the order of the
    table, or with the error that failed all batches.
    """

    __slots__ = ("done", "release", "results", "size", "table")

    def __init__(
        self,
        table: Numbers,
        size: int,
        release: Callable[[], None],
        done: Callable[[Numbers | LakestreamError], None],
    ) -> None:
        self.table = table
        self.size = size
        self.release = release
        self.done = done
        self.results = NONE


class JoinedTables:
    """The batches of one tick, ordered by stream: the object's body, and the rows of its `Append`."""

    __slots__ = ("_order", "_parts", "_rows", "_streams", "body", "slices")

    def __init__(self, submissions: "Sequence[Batches | ManyBatches]", sequence: int) -> None:
        """`sequence`: up to where the writer has folded the command log."""
        tables = [one.table if isinstance(one, ManyBatches) else table_of(one) for one in submissions]
        table = np.concatenate(tables)
        self._order = np.argsort(table[:, STREAM], kind="stable")
        self._parts = [(one, len(part)) for one, part in zip(submissions, tables, strict=True)]
        self._streams = table[self._order, STREAM]
        lengths = table[self._order, LENGTH]
        self.body = bytearray(HEADER_BYTES + int(lengths.sum()))
        self.body[:HEADER_BYTES] = header(sequence)
        self._rows = bytearray(ROW_BYTES * len(table))
        join_batches(
            _address(table), _address(self._order), len(table), address_of(self.body), HEADER_BYTES,
            address_of(self._rows),
        )  # fmt: skip
        self.slices = self._lay_out(lengths)

    def _lay_out(self, lengths: Numbers) -> list[TickSlice]:
        firsts = np.flatnonzero(np.diff(self._streams, prepend=-1))
        sizes = np.add.reduceat(lengths, firsts)
        counts = np.diff(firsts, append=len(lengths))
        return lay_out(zip(self._streams[firsts].tolist(), sizes.tolist(), counts.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self._order)

    def payload(self, tick: int, size: int) -> bytes:
        """The body of the `Append`, in the format of `pack_append`."""
        return pack_packed_rows(tick, size, self._rows)

    def streams(self) -> set[int]:
        return set(self._streams.tolist())

    def settle(self, outcome: Sequence[int]) -> int:
        """Stamp the offsets, and give each submission its results; returns how many records were appended."""
        assert len(outcome) == len(self), "a result for each row"
        results = np.array(outcome, np.int64)
        body, rows = address_of(self.body), address_of(self._rows)
        records = int(stamp_batches(body, rows, len(self), _address(results)))
        given = np.empty_like(results)
        given[self._order] = results
        first = 0
        for one, count in self._parts:
            part = given[first : first + count]
            first += count
            if isinstance(one, ManyBatches):
                one.results = part
            else:
                one.results[:] = part.tolist()
        return records


def table_of(batches: "Batches") -> Numbers:
    """The table of batches that came one by one. It is valid as long as their views."""
    table = np.zeros((len(batches.rows), COLUMNS), np.int64)
    table[:, : len(batches.rows[0])] = batches.rows
    table[:, ADDRESS] = [address_of(view) for view in batches.views]
    return table


def _address(numbers: Numbers) -> int:
    """The address of the first number. The numbers lie without gaps: no array here is a part of another one."""
    return int(numbers.__array_interface__["data"][0])

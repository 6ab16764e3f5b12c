"""The stream's side of the checker: what a consumer gets is compared with the table, and the tail has no holes."""

from collections.abc import Sequence

import numpy as np
import pytest

from lakestream.data.tables.files.arrow_view import row_hashes
from lakestream.data.tables.files.decode import decode_slices
from lakestream.lake.verify.ledger import Ledger
from lakestream.lake.verify.report import Finding, FindingKind
from lakestream.lake.verify.stream import Compared, Extent, Unreadable, compare
from lakestream.model.batches.records import Record, encode_batch
from tests.support.reference_batches import control_batch


class Stored:
    """Batches that are given out from the one that holds an offset on, at most `count` at a time."""

    def __init__(self, *batches: bytes, count: int = 2, cut: int = 0) -> None:
        self.batches = batches
        self._count = count
        self._cut = cut

    async def fetch(self, topic: str, partition: int, offset: int) -> bytes:
        behind = [one for one in self.batches if last_of(one) >= offset]
        if not behind:
            raise Unreadable(f"nothing at {offset}")
        whole = b"".join(behind[: self._count])
        return whole + (behind[self._count][: self._cut] if len(behind) > self._count else b"")


def last_of(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big")


def batch(start: int, end: int, tag: str = "v", skip: Sequence[int] = ()) -> bytes:
    records = [Record(offset=n, timestamp=n, value=f"{tag}{n}".encode()) for n in range(start, end) if n not in skip]
    return encode_batch(records, base_offset=start)


def table_of(*batches: bytes) -> Ledger:
    ledger = Ledger()
    for rows in decode_slices([(0, -1, b"".join(batches))]).to_batches():
        partitions = rows.column(0).to_numpy().astype(np.int64)
        ledger.add(partitions, rows.column(1).to_numpy(), row_hashes(rows), 0)
    return ledger


async def compared(source: Stored, table: Ledger, landed: int, end: int, start: int = 0) -> Compared:
    extent = Extent(topic="t", partition=0, start=start, landed=landed, end=end)
    return await compare(source, extent, table)


def kinds(found: Sequence[Finding]) -> list[tuple[FindingKind, list[tuple[int, int]]]]:
    return [(one.kind, list(one.ranges)) for one in found]


@pytest.mark.parametrize("cut", [0, 30, 70])
async def test_the_same_rows_are_the_same_however_they_are_cut(cut: int) -> None:
    source = Stored(batch(0, 7), batch(7, 30), batch(30, 31), batch(31, 60), count=1, cut=cut)
    found = await compared(source, table_of(batch(0, 40)), landed=40, end=60)
    assert found.findings == [] and (found.rows, found.tail) == (40, 20)


async def test_rows_that_only_one_side_has_or_that_differ_are_named() -> None:
    source = Stored(batch(0, 10), batch(10, 20, "other"), batch(20, 30))
    table = table_of(batch(0, 5), batch(6, 15), batch(15, 32))
    found = await compared(source, table, landed=32, end=30)
    told = kinds(found.findings)
    assert (
        (FindingKind.STREAM_DIFFERS, [(5, 6)]) in told
        and (FindingKind.STREAM_DIFFERS, [(10, 20)]) in told
        and len(told) == 2
    )


async def test_progress_comes_to_its_end_also_where_rows_are_missing() -> None:
    source = Stored(batch(0, 10, skip=range(2, 9)), control_batch(10, 10, 0), batch(11, 20), batch(20, 30))
    told: list[int] = []
    extent = Extent(topic="t", partition=0, start=1, landed=20, end=30)
    await compare(source, extent, table_of(batch(0, 10), batch(11, 20)), told.append)
    assert sum(told) == 29 and all(one > 0 for one in told)


async def test_a_stream_that_starts_later_is_compared_from_there() -> None:
    found = await compared(Stored(batch(0, 20)), table_of(batch(0, 20)), landed=20, end=20, start=12)
    assert found.findings == [] and found.rows == 8


async def test_a_gap_under_a_control_batch_is_no_row_lost_and_no_hole() -> None:
    source = Stored(batch(0, 5), control_batch(5, 9, 0), batch(10, 15), control_batch(15, 17, 0), batch(18, 20))
    found = await compared(source, table_of(batch(0, 5), batch(10, 12)), landed=12, end=20)
    assert found.findings == [] and (found.rows, found.tail) == (7, 5)


async def test_a_hole_in_the_tail_is_found() -> None:
    found = await compared(Stored(batch(0, 5), batch(5, 12, skip=[7, 8])), table_of(batch(0, 5)), landed=5, end=12)
    assert kinds(found.findings) == [(FindingKind.TAIL_HOLE, [(7, 9)])]


async def test_a_stream_that_jumps_ends_early_or_is_damaged_is_unreadable() -> None:
    jump = await compared(Stored(batch(0, 5), batch(8, 12), count=1), Ledger(), landed=0, end=12)
    assert kinds(jump.findings) == [(FindingKind.UNREADABLE, [(5, 12)])]
    short = await compared(Stored(batch(0, 5)), Ledger(), landed=0, end=12)
    assert kinds(short.findings) == [(FindingKind.UNREADABLE, [(5, 12)])] and short.tail == 5
    damaged = bytearray(batch(0, 5))
    damaged[-1] ^= 1
    bad = await compared(Stored(bytes(damaged)), Ledger(), landed=0, end=5)
    assert kinds(bad.findings) == [(FindingKind.UNREADABLE, [(0, 5)])] and "CRC" in bad.findings[0].text

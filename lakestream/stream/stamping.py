"""Append times in the bytes of a tick: stamped when it is made, corrected once the fold has decided (L19)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lakestream.model.append_rows import batch_places
from lakestream.model.batches.header import give_append_time, restamp_log_append_time
from lakestream.stream.batch_tables import ManyBatches

if TYPE_CHECKING:
    from lakestream.stream.submissions import Submitted


def stamp_times(submissions: "Sequence[Submitted]", time_ms: int) -> set[int]:
    """Give this append time to the batches that want one; their streams."""
    stamped: set[int] = set()
    for one in submissions:
        if isinstance(one, ManyBatches) or not one.stamped:
            continue
        for index in one.stamped:
            stream, count, length, _, producer, epoch, sequence = one.rows[index]
            restamp_log_append_time(one.views[index], 0, length, time_ms)
            one.rows[index] = (stream, count, length, time_ms, producer, epoch, sequence)
            stamped.add(stream)
    return stamped


def give_later_times(body: bytearray, append: bytes, later: Mapping[int, int]) -> None:
    """Give the batches of some streams another append time than the tick's; `append` has the rows of the tick."""
    for batch in batch_places(append):
        if batch.stream in later:
            give_append_time(body, batch.position, batch.length, later[batch.stream])

"""Append times: what `message.timestamp.type=LogAppendTime` gives to records, never going back in a partition (L19).

Brokers' clocks differ, and their ticks overtake each other on the way to the command log. So a broker stamps what its
clock says, and the fold decides: the append time of a stream's batches in a tick is the broker's time, or the stream's
newest append time if that is later. The entry keeps the append time as its max timestamp. Bytes in the WAL object keep
the broker's time; a reader gives each stamped batch the time of the entry (`header.give_append_time`), as it gives base
offsets.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakestream.model.streams import Entry


class AppendTimes:
    """The append times of streams whose batches a broker stamps."""

    __slots__ = ("by_stream", "objects")

    def __init__(self) -> None:
        self.by_stream: dict[int, int] = {}
        """The newest append time of each stream that has one."""
        self.objects: dict[int, None] = {}
        """Live objects whose stamped batches have the max timestamp of their entry, whatever their bytes say."""

    def of(self, entry: "Entry") -> int | None:
        """The append time of an entry's stamped batches; None if their bytes say it."""
        return entry.max_timestamp if entry.object in self.objects else None

    def among(self, objects: Iterable[int]) -> "AppendTimes":
        """The times of some objects as they are now, for a reader that returns to their entries later."""
        known = AppendTimes()
        known.objects = {number: None for number in objects if number in self.objects}
        return known

    def forget(self, streams: Iterable[int]) -> None:
        """Forget the streams of a deleted topic."""
        if self.by_stream:
            for stream in streams:
                self.by_stream.pop(stream, None)

    def dump(self) -> list[Any]:
        return [list(self.by_stream.items()), list(self.objects)]

    @classmethod
    def load(cls, fields: list[Any]) -> "AppendTimes":
        times = cls()
        times.by_stream = {stream: time_ms for stream, time_ms in fields[0]}
        times.objects = dict.fromkeys(fields[1])
        return times

"""The places of records that have not landed: slices of WAL objects, as the state's entries name them."""

from collections.abc import Iterator
from typing import NamedTuple

from lakestream.model.append_times import AppendTimes
from lakestream.model.batches.wal_object import merged_key, wal_key
from lakestream.model.streams import MERGED, Stream, WalObject


class TailSlice(NamedTuple):
    """The batches of one entry: offsets [base, base + records), of which those from `first` on are wanted."""

    partition: int
    base: int
    records: int
    first: int
    object: int
    position: int
    length: int
    append_ms: int | None = None
    """The append time of batches that a broker stamped; None if the batches have it themselves."""

    @property
    def end(self) -> int:
        return self.base + self.records


class TailObject(NamedTuple):
    """A WAL object: its key, and whether its batches carry their offsets (merged) or count on from the slice's."""

    key: str
    stamped: bool


def source_of(cluster: str, one: WalObject) -> TailObject:
    named = merged_key if one.kind == MERGED else wal_key
    return TailObject(named(cluster, one.member, one.epoch, one.tick), one.kind == MERGED)


def slices_of(stream: Stream, wanted: int, times: AppendTimes) -> Iterator[TailSlice]:
    """A stream's slices from an offset on; `object` is the number that the state knows it by."""
    for entry in stream.entries(wanted):
        first = max(entry.base, wanted)
        yield TailSlice(
            stream.partition, entry.base, entry.records, first, entry.object, entry.position, entry.length,
            times.of(entry),
        )  # fmt: skip

"""The ledger for topics with tables: batches may be cut anew, so every record is checked by itself.

A record keeps its offset, timestamp, key, value and headers until an engine deletes or changes its row. Each such
change is known with the sequence of its command: a reader whose state has folded the command must see the change; a
reader with an older state may see either version.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from lakestream.model.batches.header import CONTROL, CRC_POSITION, checksum
from lakestream.model.batches.records import Header, decode_batch
from lakestream.testing.simulation.ledger import _DELTA, _FRAME, BatchLedger, Partition, Sent, Violation, describe

Place = tuple[Partition, int]


class Content(NamedTuple):
    """The content of a record, without its partition and offset."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class Version(NamedTuple):
    """The content of an offset since a command; None if the record is deleted."""

    sequence: int
    content: Content | None


@dataclass(slots=True)
class RecordLedger(BatchLedger):
    """A ledger of single records. Every value that clients send is unique."""

    texts: dict[bytes, tuple[Sent, int, Content]] = field(default_factory=dict)
    placed: dict[Place, bytes] = field(default_factory=dict)
    versions: dict[Place, list[Version]] = field(default_factory=dict)

    def send(self, partition: Partition, raw: bytes) -> Sent:
        batch = BatchLedger.send(self, partition, raw)
        for index, record in enumerate(decode_batch(raw)):
            assert record.value is not None and record.value not in self.texts
            content = Content(record.timestamp, record.key, record.value, record.headers)
            self.texts[record.value] = (batch, index, content)
        return batch

    def ack(self, batch: Sent, offset: int) -> None:
        BatchLedger.ack(self, batch, offset)
        for index, record in enumerate(decode_batch(batch.raw)):
            assert record.value is not None
            self._put((batch.partition, offset + index), record.value)

    def observe(self, partition: Partition, position: int, data: bytes, sequence: int = 0) -> int:
        at = 0
        self.read.setdefault(partition, {})
        while at < len(data):
            base, length = _FRAME.unpack_from(data, at)
            raw = data[at : at + 12 + length]
            at += 12 + length
            end = base + _DELTA.unpack_from(raw, 23)[0] + 1
            if not base <= position < end:
                raise Violation(f"asked for offset {position}, got the batch [{base}, {end})")
            found = _records(raw, base)
            for offset in range(position, end):
                self._judge((partition, offset), found.get(offset), sequence)
            position = end
        return position

    def _judge(self, place: Place, found: Content | None, sequence: int) -> None:
        versions = self.versions.get(place, [])
        folded = [one for one in versions if one.sequence <= sequence]
        allowed = [one.content for one in [*folded[-1:], *versions[len(folded) :]]]
        if found in allowed:
            return
        where = f"offset {place[1]} of partition {place[0][1]}"
        if found is None:
            raise Violation(f"no record is served at {where}, but it was not deleted")
        if folded:
            raise Violation(f"{where} is served with its value before command {folded[-1].sequence}: {found.value!r}")
        self.place(place, found)

    def place(self, place: Place, found: Content) -> None:
        """Note that a record was found at this place. Raises Violation unless it is as it was sent."""
        partition, offset = place
        known = self.texts.get(found.value or b"")
        if known is None:
            raise Violation(f"the record at offset {offset} was sent by no client: {found.value!r}")
        batch, index, content = known
        if content != found:
            raise Violation(f"the record at offset {offset} is {found}, but {content} was sent")
        if batch.partition != partition:
            raise Violation(f"a record shows up in a partition that it was not sent to ({describe(batch)})")
        for other, what in ((batch.seen, "read"), (batch.acked, "acknowledged")):
            if other is not None and other != offset - index:
                raise Violation(f"a batch {what} at {other} lies at {offset - index} ({describe(batch)})")
        batch.seen = offset - index
        assert found.value is not None
        self._put(place, found.value)

    def _put(self, place: Place, value: bytes) -> None:
        if self.placed.setdefault(place, value) != value:
            raise Violation(f"offset {place[1]} of partition {place[0][1]} holds {value!r} and {self.placed[place]!r}")

    def _is_served(self, batch: Sent, served: set[int], end: int) -> bool:
        """Whether the batch lies below the end: each offset below it was checked by itself."""
        return batch.acked is not None and batch.acked + batch.count <= end

    def change(self, place: Place, sequence: int, content: Content | None) -> None:
        """Note that a command changes the content of this place."""
        self.versions.setdefault(place, []).append(Version(sequence, content))

    def current(self, place: Place) -> Content | None:
        """The latest content of this place; None if it was deleted. Raises KeyError if it never had one."""
        versions = self.versions.get(place)
        return versions[-1].content if versions else self.texts[self.placed[place]][2]


def _records(raw: bytes, base: int) -> dict[int, Content]:
    """The records of a batch by offset; a control batch has none."""
    if int.from_bytes(raw[CRC_POSITION : CRC_POSITION + 4], "big") != checksum(memoryview(raw), 0, len(raw)):
        raise Violation(f"the batch at offset {base} has a wrong checksum")
    if int.from_bytes(raw[21:23], "big") & CONTROL:
        return {}
    return {one.offset: Content(one.timestamp, one.key, one.value, one.headers) for one in decode_batch(raw)}

"""A state with one member, made by real commands, for tests of what plans from it."""

from lakestream.model.append_rows import pack_append
from lakestream.model.commands import (
    AdvanceLogStart,
    CreateTopic,
    DeleteTopic,
    MovedSlice,
    Register,
    ReplaceEntries,
    encode,
    pack,
)
from lakestream.model.levels import NEWEST
from lakestream.model.state import State, apply


class World:
    """A state with one member, made by real commands."""

    def __init__(self) -> None:
        self.state = State()
        body = Register(b"i" * 16, "cluster", "broker", "h", 1, "", 1, NEWEST)
        apply(self.state, 1, encode(1, Register.KIND, 0, 0, 0, pack(body)))
        self._n = 0
        self._tick = 0
        self._move = 0

    def command(self, kind: int, payload: bytes) -> object:
        self._n += 1
        return apply(self.state, self.state.sequence + 1, encode(1, kind, 0, 1, self._n, payload))

    def topic(self, name: str, partitions: int = 1) -> bytes:
        topic_id = name.encode().ljust(16, b".")
        assert self.command(CreateTopic.KIND, pack(CreateTopic(name, topic_id, partitions, 1, {}))) == partitions
        return topic_id

    def stream(self, topic_id: bytes, partition: int = 0) -> int:
        return self.state.topics.by_id[topic_id].streams[partition]

    def append(self, *slices: tuple[bytes, int, int, int]) -> None:
        """One object: (topic, partition, records, bytes), as an appender lays it out: in the order of the streams."""
        self._tick += 1
        rows, at = [], 16
        for stream, records, size in sorted((self.stream(t, p), records, size) for t, p, records, size in slices):
            rows.append((stream, records, at, size, 5, -1, -1, -1))
            at += size
        self.command(10, pack_append(self._tick, at, rows))

    def merge(self, topic_id: bytes, partition: int = 0) -> None:
        """All entries of a partition become one, in a merged object, as the mover does it."""
        stream = self.state.streams.by_id[self.stream(topic_id, partition)]
        base, records, size = stream.bases[0], stream.next - stream.bases[0], stream.size
        self._move += 1
        moved = MovedSlice(stream.id, base, records, 16, size, 5)
        assert self.command(ReplaceEntries.KIND, pack(ReplaceEntries(self._move, size + 16, 0, [moved]))) == [True]

    def delete(self, topic_id: bytes) -> None:
        self.command(DeleteTopic.KIND, pack(DeleteTopic(topic_id)))

    def advance(self, topic_id: bytes, offset: int, partition: int = 0) -> None:
        self.command(AdvanceLogStart.KIND, pack(AdvanceLogStart([(self.stream(topic_id, partition), offset)])))

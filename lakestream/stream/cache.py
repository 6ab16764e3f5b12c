"""Pieces of WAL objects in memory, bounded in bytes, the least recently used go first."""

from collections import OrderedDict
from collections.abc import Iterable

Key = tuple[int, int]
"""The number of an object in the state, and where in the object the piece starts."""

PIECE_BYTES = 600
"""Memory of a piece besides its bytes: for ticks of single records this is the larger part."""


class CachedPiece:
    """Some bytes of one object. Slices get their base offsets stamped in place, once, when they are first served.

    `stamped` has the positions of the stamped slices; None means all (this broker's own ticks, merged objects).
    `ends` remembers where batches were cut: an offset and the position of the batch that starts there.
    """

    __slots__ = ("buffer", "ends", "stamped", "start", "view")

    def __init__(self, start: int, buffer: bytearray, stamped: set[int] | None) -> None:
        self.start = start
        self.buffer = buffer
        self.view = memoryview(buffer)
        self.stamped = stamped
        self.ends: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.buffer)


class Cache:
    """Recently written and read pieces."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self._pieces: OrderedDict[Key, CachedPiece] = OrderedDict()
        self._inner: dict[int, set[int]] = {}
        """The starts of pieces inside of an object, to find the pieces when the object goes."""

    def add(self, number: int, body: bytearray) -> None:
        """Keep a tick of this broker, whose batches are all stamped."""
        self.put((number, 0), CachedPiece(0, body, None))

    def put(self, key: Key, piece: CachedPiece) -> None:
        self._drop(key)
        if len(piece) + PIECE_BYTES > self.limit_bytes:
            return
        self._pieces[key] = piece
        self.size_bytes += len(piece)
        number, start = key
        if start:
            self._inner.setdefault(number, set()).add(start)
        while self.size_bytes + len(self._pieces) * PIECE_BYTES > self.limit_bytes:
            self._drop(next(iter(self._pieces)))

    def get(self, key: Key) -> CachedPiece | None:
        piece = self._pieces.get(key)
        if piece is not None:
            self._pieces.move_to_end(key)
        return piece

    def peek(self, key: Key) -> CachedPiece | None:
        """As `get`, for housekeeping: it does not count as a use."""
        return self._pieces.get(key)

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop the pieces of objects that are gone."""
        for number in numbers:
            for start in (0, *self._inner.get(number, ())):
                self._drop((number, start))

    def _drop(self, key: Key) -> None:
        piece = self._pieces.pop(key, None)
        if piece is None:
            return
        self.size_bytes -= len(piece)
        number, start = key
        if start:
            others = self._inner[number]
            others.discard(start)
            if not others:
                del self._inner[number]

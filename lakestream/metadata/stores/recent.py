"""The newest commands of a log in memory, so that a reader that keeps up never reads the disk."""

import sys
from collections.abc import Sequence
from itertools import count

from lakestream.interfaces import Logged
from lakestream.metadata.stores.limits import cut_page


class Recent:
    """A gapless window that ends at the newest command, bounded in count and bytes."""

    def __init__(self, last: int, *, max_commands: int = 8192, max_bytes: int = 32 * 1024 * 1024) -> None:
        self._commands: list[bytes] = []
        self._first = last + 1
        self._bytes = 0
        self._max_commands = max_commands
        self._max_bytes = max_bytes

    @property
    def last(self) -> int:
        return self._first + len(self._commands) - 1

    def extend(self, first: int, commands: Sequence[bytes]) -> None:
        if first != self.last + 1:  # the store was opened anew: the remembered commands may not be in it
            self._commands.clear()
            self._first, self._bytes = first, 0
        self._commands.extend(commands)
        self._bytes += sum(map(len, commands))
        if len(self._commands) > self._max_commands or self._bytes > self._max_bytes:
            self._shrink()

    def page(self, start: int, limit: int) -> list[Logged] | None:
        """The page from `start` on; None if `start` lies before the window."""
        index = start - self._first
        if index < 0:
            return None
        if index == len(self._commands) - 1 and limit > 0:
            return [(start, self._commands[index])]
        return cut_page(zip(count(start), self._commands[index : index + max(limit, 0)], strict=False), limit)

    def forget(self) -> None:
        """Drop everything until the next append, because the content of the store is in doubt."""
        self._commands.clear()
        self._first, self._bytes = sys.maxsize, 0

    def drop_below(self, floor: int) -> None:
        self._drop(min(max(floor - self._first, 0), len(self._commands)))

    def _shrink(self) -> None:
        """Drop to half of the limits at once, so that a full window does not move its list at each append."""
        dropped = max(len(self._commands) - self._max_commands // 2, 0)
        excess = self._bytes - sum(map(len, self._commands[:dropped])) - self._max_bytes // 2
        while excess > 0 and dropped < len(self._commands):
            excess -= len(self._commands[dropped])
            dropped += 1
        self._drop(dropped)

    def _drop(self, number: int) -> None:
        self._bytes -= sum(map(len, self._commands[:number]))
        del self._commands[:number]
        self._first += number

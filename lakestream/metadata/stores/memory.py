"""A command log in memory, for tests and simulations: no threads, no chance, nothing survives the process."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lakestream.errors import Missing, Retry
from lakestream.interfaces import Appended, CheckpointNote, Logged
from lakestream.metadata.stores.limits import PAGE_COMMANDS, check_append, cut_page
from lakestream.metadata.stores.wakeups import Wakeups


@dataclass(slots=True)
class MemoryLogStore:
    """The state that all handles of one log share: the commands from `floor` on, and the notes."""

    commands: list[Logged] = field(default_factory=list)
    floor: int = 1
    notes: list[CheckpointNote] = field(default_factory=list)
    wakeups: Wakeups = field(default_factory=Wakeups)

    @property
    def last(self) -> int:
        return self.floor + len(self.commands) - 1


class MemoryLog:
    """A handle on a MemoryLogStore."""

    def __init__(self, store: MemoryLogStore) -> None:
        self._store = store
        self._closed = False

    async def append(self, commands: Sequence[bytes], after: int) -> Appended:
        self._check_open()
        check_append(commands)
        store = self._store
        first = store.last + 1
        store.commands.extend(enumerate(map(bytes, commands), first))
        store.wakeups.announce(store.last)
        below_floor = max(after, 1) < store.floor
        return Appended(first, [] if below_floor else self._page(after, PAGE_COMMANDS))

    async def read(self, after: int, limit: int) -> list[Logged]:
        self._check_open()
        if max(after, 1) < self._store.floor:
            raise Missing(f"command {max(after, 1)} is gone: the log begins at {self._store.floor}")
        return self._page(after, limit)

    async def wait(self, after: int, timeout_s: float) -> None:
        self._check_open()
        await self._store.wakeups.wait(after, timeout_s)

    async def save_checkpoint(self, note: CheckpointNote) -> None:
        self._check_open()
        notes = self._store.notes
        if not notes or note.sequence > notes[0].sequence:
            self._store.notes = [note, *notes[:1]]

    async def checkpoints(self) -> list[CheckpointNote]:
        self._check_open()
        return list(self._store.notes)

    async def truncate(self, through: int) -> None:
        self._check_open()
        store = self._store
        floor = min(through + 1, store.last)
        if floor > store.floor:
            del store.commands[: floor - store.floor]
            store.floor = floor

    async def blank(self, sequence: int, command: bytes) -> bool:
        self._check_open()
        at = sequence - self._store.floor
        if not 0 <= at < len(self._store.commands) or self._store.commands[at][1] != command:
            return False
        self._store.commands[at] = (sequence, b"")
        return True

    async def close(self) -> None:
        self._closed = True

    def _page(self, after: int, limit: int) -> list[Logged]:
        start = max(after, 1) - self._store.floor
        return cut_page(self._store.commands[start : start + max(limit, 0)], limit)

    def _check_open(self) -> None:
        if self._closed:
            raise Retry("the command log is closed")

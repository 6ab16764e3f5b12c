"""Every plug point: what a metadata store, a place for bytes and a clock have to offer. Read this first.

Calls take and return lists: answer i belongs to request i. A failure of one item is a value, a failure of the
whole call is an exception from errors.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

Buffer = bytes | bytearray | memoryview
Logged = tuple[int, bytes]
"""A command as the log holds it: its sequence (from 1, gapless) and its bytes."""
PAGE_BYTES = 1 << 20
"""A store may cut a page or a tail short once it holds so many bytes; the reader reads on then."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer to an append: where the commands went, and what the caller has not folded yet."""

    first: int
    tail: list[Logged]
    """From `after` itself (to compare, L5) to the newest command; it may be cut short, then `read` on."""


@dataclass(frozen=True, slots=True)
class CheckpointNote:
    """Where a stored state lies: it holds all commands up to and including `sequence`."""

    sequence: int
    key: str


class CommandLog(Protocol):
    """An ordered, durable, gapless log of commands, and a place to note checkpoints. Nothing else (L1-L11)."""

    async def append(self, commands: Sequence[bytes], after: int) -> Appended:
        """Append all commands in one atomic, durable step, with consecutive sequences.

        Raises Retry if certainly nothing was appended (NoRoom if the disk is full), Unknown if that is uncertain.
        """
        ...

    async def read(self, after: int, limit: int) -> list[Logged]:
        """At most `limit` commands, starting with the one at `after` itself (with the first, if `after` is 0).

        A page with fewer commands and less than PAGE_BYTES ends with the newest command.
        Raises Missing if `after` lies below what truncation kept. An empty list means that the log ends below `after`.
        """
        ...

    async def wait(self, after: int, timeout_s: float) -> None:
        """Return when there may be commands beyond `after`, at the latest after `timeout_s`. A hint only (L11)."""
        ...

    async def save_checkpoint(self, note: CheckpointNote) -> None:
        """Note a stored state. A note that is not newer than the newest one changes nothing. Two are kept."""
        ...

    async def checkpoints(self) -> list[CheckpointNote]:
        """The noted checkpoints, newest first, two at most."""
        ...

    async def truncate(self, through: int) -> None:
        """Drop the commands up to and including `through`, but never the last one; numbers are never reused (L9)."""
        ...

    async def close(self) -> None: ...


class RepairableLog(CommandLog, Protocol):
    """A command log as an operator's tool opens it, while no member uses it."""

    async def blank(self, sequence: int, command: bytes) -> bool:
        """Replace a command, if it is still this one, by an empty one, which every version folds to nothing (L3)."""
        ...


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object as a listing shows it."""

    key: str
    size: int


class Wal(Protocol):
    """A place for immutable objects: the write-ahead log's objects and the checkpoints. Keys are `a/b/c` paths."""

    linger_ms: int
    """How long a tick may gather before it is written: 0 where an object costs nothing."""

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Create the object from the joined parts, durably. Create-only.

        Raises Exists if the key is taken by other bytes (the same bytes are a success: our own lost answer, L21),
        Retry if it is certainly not there (NoRoom if the disk is full), Unknown if that is uncertain.
        """
        ...

    async def read(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytearray]:
        """The byte ranges (start, length); a range beyond the end is cut. Raises Missing if there is no such object."""
        ...

    async def list(self, prefix: str, after: str = "", limit: int = 0) -> list[StoredObject]:
        """All objects whose key starts with `prefix`, in key order. Half-written ones never show.

        Only those behind the key `after`, which need not be there; with a `limit` the first ones, at least so many if
        there are (both for keys of letters and numbers: stores differ in where they put other signs).
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects; those that are gone already are no error."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class ProbesRoom(Protocol):
    """A `Wal` that can find out whether its disk has room again, after a `put` raised NoRoom."""

    async def has_room(self) -> bool:
        """Whether a few megabytes could be written now. Leaves nothing behind."""
        ...


class Clock(Protocol):
    """Time, injected, so that a simulation can own it."""

    def monotonic(self) -> float:
        """Seconds that only grow; for timers."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as the machine believes; data, never compared across machines."""
        ...

"""Every plug point: what a metadata store, a place for bytes, a table format and a clock offer. Read this first.

Calls take and return lists: answer i belongs to request i. A failure of one item is a value, a failure of the
whole call is an exception from errors.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from lakestream.model.reasons import No

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


TableT = TypeVar("TableT", contravariant=True)
ChangeT = TypeVar("ChangeT", contravariant=True)
CommitT = TypeVar("CommitT")
FilesT = TypeVar("FilesT", covariant=True)


class TableFormat(Protocol[TableT, ChangeT, CommitT, FilesT]):
    """How the Parquet files of a topic become a table that engines read: `plan`, then `commit`.

    `TableT` is one version of the table as its metadata says it, `ChangeT` says what a commit adds or takes away,
    `CommitT` is a version that is written and that no reader sees yet, `FilesT` the files of one version. All calls
    but `commit` block, and run in threads, several at once for different topics.

    Iceberg (pipeline/tables/iceberg_format.py) is the format that decides: its commit moves the stream's progress, and
    the log's copy of the rows goes afterwards. A second format is derived: it is a pure function of Iceberg's current
    version over the same files, so its change is that version, and it writes no row and no progress of its own.

    A format keeps these rules, also when its process is killed between any two steps:

    - A file is durable before anything refers to it. Until `commit` has won no reader follows what `plan` wrote, so a
      crash before leaves files only. Their names tell the member and the epoch that wrote them (T12), so that a later
      sweep can delete them; a file is never deleted while its commit may still win.
    - A version becomes visible in one atomic step, on condition that the version it was planned on is still the newest
      (T7). Of two pipelines that plan the same change one wins, and the other is refused.
    - The rows of a version and the progress that they reach are in the same step (T6). A derived format stores the
      sequence number of the Iceberg version it shows: from that alone the next round finds what a crash left out, and
      never writes a version twice.
    - A file that a version of any format still names is not deleted: `expire` of one format knows nothing of others,
      and the caller deletes what all of them have let go, after the readers' grace (T11).
    """

    def plan(self, topic_id: bytes, table: TableT, change: ChangeT) -> CommitT:
        """Write the next version, on top of `table`. Nothing is visible afterwards, and planning again does no harm.

        Raises ValueError if the change does not follow the table's progress, Retry (Stale) if another writer's version
        makes the change worthless, Missing or Corrupt if the table's metadata cannot be read.
        """
        ...

    async def commit(self, topic_id: bytes, commit: CommitT, epoch: int) -> int | No:
        """Make a planned version the current one, or say why it certainly is not. The caller then deletes its files.

        `epoch` is the member's epoch in which files were written: once it has ended they may be swept, so the commit is
        refused (T12). A lost answer is looked up before anything is said; raises Unknown if that fails too, and then
        the files of the commit stay.
        """
        ...

    def progress(self, table: TableT) -> Mapping[int, int]:
        """The first offset of each partition that the version does not hold; no entry for a partition without rows.

        Read from what the format stored with the version, never from the state. Raises Corrupt: an unreadable progress
        must not be taken for none.
        """
        ...

    def files(self, table: TableT, version: int | None = None) -> FilesT:
        """The live files of the table, or of an older version of it. Raises Missing or Corrupt."""
        ...

    def expire(self, topic_id: bytes, table: TableT, older_than_ms: int | None = None) -> CommitT | None:
        """Plan a commit that forgets old versions; None if all of them stay.

        `older_than_ms`: else as old as the table says. Versions that branches or tags name stay, and those whose
        removed rows the state does not know yet (T16), and those that a job of care works from. The commit names the
        files that no reader can reach once it has won; the format itself deletes none of them.
        """
        ...


class Clock(Protocol):
    """Time, injected, so that a simulation can own it."""

    def monotonic(self) -> float:
        """Seconds that only grow; for timers."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as the machine believes; data, never compared across machines."""
        ...

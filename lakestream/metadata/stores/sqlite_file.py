"""The SQLite file behind a command log: schema, transactions, pages. Synchronous; one thread at a time.

Schema and versions: docs/formats/command-log.md.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from lakestream.errors import Corrupt, Halted, LakestreamError, Missing, NoRoom, Retry, Unknown
from lakestream.interfaces import CheckpointNote, Logged
from lakestream.metadata.stores.limits import PAGE_COMMANDS, cut_page

SCHEMA_VERSION = 1
APPLICATION_ID = 0x4C4B434C  # "LKCL"
BUSY_TIMEOUT_S = 1.0
PAGE_SIZE = 4096
ROW_BYTES = 16
"""About the size of a row without its command."""
WAL_PAGES_BEFORE_CHECKPOINT = 2000

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE commands (sequence INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE counter (id INTEGER PRIMARY KEY CHECK (id = 1), last INTEGER NOT NULL);
CREATE TABLE checkpoints (sequence INTEGER PRIMARY KEY, key TEXT NOT NULL);
INSERT INTO counter (id, last) VALUES (1, 0);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

_NOT_COMMITTED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}
"""SQLite reports these before the commit's frame is complete. After any other error of a commit, such as that of a
sync, the frame may be on the disk and show after a crash."""


class SqliteFile:
    """An open file. After an error that leaves the connection in doubt, the next call opens the file anew."""

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        self.path = path
        self.last = 0
        """The newest sequence ever given out; kept in the counter row, so that truncation never frees a number (L9)."""
        self._read_only = read_only
        self._wal_pages = 0
        self._data_version = 0
        self._connection: sqlite3.Connection | None = None
        self._open()

    def append(self, commands: Sequence[bytes]) -> int:
        """Append in one durable transaction; returns the sequence of the first command."""
        with self._transaction() as connection:
            first = self.last + 1
            last = self.last + len(commands)
            connection.executemany("INSERT INTO commands (sequence, body) VALUES (?, ?)", enumerate(commands, first))
            connection.execute("UPDATE counter SET last = ?", (last,))
        self.last = last
        self._wal_pages += 3 + sum(map(len, commands)) // PAGE_SIZE
        return first

    def read(self, after: int, limit: int) -> list[Logged]:
        start = max(after, 1)
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT sequence, body FROM commands WHERE sequence >= ? ORDER BY sequence LIMIT ?",
                (start, max(0, min(limit, PAGE_COMMANDS))),
            )
            page = cut_page(rows, limit)
            rows.close()  # a page cut short would keep a read transaction open
        if page and page[0][0] != start:
            raise Missing(f"command {start} is gone: the log begins at {page[0][0]}")
        return page

    def drop(self, through: int, max_pages: int) -> int:
        """Drop some of the oldest commands up to `through`, never the last one; returns the first sequence kept.

        Drops at least one command, and about `max_pages` pages: SQLite reads and writes each page to free it.
        """
        with self._transaction() as connection:
            kept, pages = self.last + 1, 0.0
            oldest = connection.execute("SELECT sequence, length(body) FROM commands ORDER BY sequence")
            for kept, size in oldest:
                if kept > through or kept >= self.last or pages >= max_pages:
                    break
                pages += (size + ROW_BYTES) / PAGE_SIZE
            oldest.close()
            connection.execute("DELETE FROM commands WHERE sequence < ?", (kept,))
        self._wal_pages += 3 + int(pages)
        return int(kept)

    def blank(self, sequence: int, command: bytes) -> bool:
        with self._transaction() as connection:
            changed = connection.execute(
                "UPDATE commands SET body = X'' WHERE sequence = ? AND body = ?", (sequence, command)
            )
        return changed.rowcount == 1

    def save_checkpoint(self, note: CheckpointNote) -> None:
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO checkpoints (sequence, key) SELECT ?1, ?2 "
                "WHERE ?1 > (SELECT coalesce(max(sequence), -1) FROM checkpoints)",
                (note.sequence, note.key),
            )
            connection.execute(
                "DELETE FROM checkpoints WHERE sequence NOT IN "
                "(SELECT sequence FROM checkpoints ORDER BY sequence DESC LIMIT 2)"
            )

    def checkpoints(self) -> list[CheckpointNote]:
        with self._reading() as connection:
            rows = connection.execute("SELECT sequence, key FROM checkpoints ORDER BY sequence DESC LIMIT 2")
            return [CheckpointNote(sequence, key) for sequence, key in rows]

    def refresh(self) -> int:
        """The newest sequence in a file to which another process appends; a few microseconds while nothing changes."""
        with self._reading() as connection:
            (data_version,) = connection.execute("PRAGMA data_version").fetchone()
            if data_version != self._data_version:
                self.last = self._stored_last(connection)
                self._data_version = data_version
        return self.last

    @property
    def untidy(self) -> bool:
        return self._wal_pages >= WAL_PAGES_BEFORE_CHECKPOINT

    def tidy(self) -> None:
        """Move SQLite's own write-ahead log into the file once it is long. Call it while no caller waits."""
        if self.untidy:
            self._wal_pages = 0
            with self._reading() as connection:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> None:
        try:
            self._connection = connection = self._connect()
            if not self._read_only:
                _ask_durability(connection)
                if _is_new(connection):
                    connection.executescript(_SCHEMA)
                    _sync_folder(self.path)
            _check_version(connection, self.path)
            self.last = self._stored_last(connection)
        except sqlite3.Error as error:
            self.close()
            raise self._translated(error) from error
        except LakestreamError:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        uri = Path(self.path).absolute().as_uri() + ("?mode=ro" if self._read_only else "?mode=rwc")
        # Several threads may use the connection; the worker sees to it that no two use it at once.
        return sqlite3.connect(
            uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S, check_same_thread=False
        )

    def _stored_last(self, connection: sqlite3.Connection) -> int:
        (last,) = connection.execute("SELECT last FROM counter").fetchone()
        return int(last)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if self._connection is None:
            self._open()
        assert self._connection is not None
        try:
            yield self._connection
        except sqlite3.Error as error:
            raise self._translated(error) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Raises Retry if the transaction is certainly undone, Unknown if it may show after a crash."""
        with self._reading() as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
            except BaseException:
                self._undo(connection)
                raise
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            certain = _primary_code(error) in _NOT_COMMITTED
            if certain:
                self._undo(connection)
            else:  # the file decides, not the state of this connection
                self._forget(connection)
            raise self._translated(error, Retry if certain else Unknown) from error

    def _undo(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._forget(connection)

    def _forget(self, connection: sqlite3.Connection) -> None:
        with contextlib.suppress(sqlite3.Error):
            connection.close()
        self._connection = None

    def _translated(self, error: sqlite3.Error, kind: type[LakestreamError] = Retry) -> LakestreamError:
        if _primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            kind = Corrupt
        elif kind is Retry and _primary_code(error) == sqlite3.SQLITE_FULL:
            kind = NoRoom
        return kind(f"{self.path}: {error} ({getattr(error, 'sqlite_errorname', 'SQLite')})")


def _primary_code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _ask_durability(connection: sqlite3.Connection) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise Halted(f"SQLite cannot use its write-ahead log here (journal mode {mode}): choose a local file system")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # `tidy` does it, after the answers are sent


def _is_new(connection: sqlite3.Connection) -> bool:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return bool(tables == 0)


def _check_version(connection: sqlite3.Connection, path: str) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise Corrupt(f"{path} is a SQLite file, but not a command log of Lakestream")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise Halted(
            f"{path} has schema version {version}, written by a newer Lakestream; "
            f"this one knows versions up to {SCHEMA_VERSION}: upgrade it"
        )


def _sync_folder(path: str) -> None:
    """SQLite syncs the bytes of the file, but not its name in the folder."""
    descriptor = os.open(Path(path).absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

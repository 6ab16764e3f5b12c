"""The tables' files in a simulation: one warehouse in memory, and the warehouse as a process sees it through a network.

A request of blocking code has the same fates as a broker's request (faults.py): it may be refused, lost or late, and
its sender may crash. Between two requests all other processes run.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from lakestream.data.memory import MemoryWal
from lakestream.data.tables.stores.table_store import key_below
from lakestream.errors import Exists, Missing, Retry, Unknown
from lakestream.testing.faults import Link, run_without_waiting
from lakestream.testing.simulation.threads import wait_for

T = TypeVar("T")

ROOT = "memory://lake"


class MemoryTables:
    """A TableStore (data/tables/stores/table_store.py) in a dictionary; it reads objects of the WAL, too."""

    root = ROOT
    requests_at_once = 1

    def __init__(self, wal: MemoryWal) -> None:
        self.files: dict[str, bytes] = {}
        self.now_ms: Callable[[], int] = lambda: 0
        self._changed_ms: dict[str, int] = {}
        self._wal = wal

    def put(self, uri: str, data: bytes) -> None:
        key_below(self.root, uri)
        if self.files.setdefault(uri, data) != data:
            raise Exists(f"{uri} exists with other content")
        self._changed_ms.setdefault(uri, self.now_ms())

    def get(self, uri: str) -> bytes:
        found = self.files.get(uri)
        if found is None:
            raise Missing(f"{uri} is not there")
        return found

    def read(self, uri: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if uri not in self.files:
            return [bytes(one) for one in run_without_waiting(self._wal.read(key_below(self.root, uri), ranges))]
        return [self.files[uri][start : start + length] for start, length in ranges]

    def list(self, prefix: str) -> list[tuple[str, int]]:
        return sorted((uri, len(data)) for uri, data in self.files.items() if uri.startswith(prefix))

    def list_dated(self, prefix: str) -> Sequence[tuple[str, int, int]]:
        return [(uri, size, self._changed_ms[uri]) for uri, size in self.list(prefix)]

    def folders(self, prefix: str) -> Sequence[str]:
        below = (uri[len(prefix) :].partition("/") for uri in self.files if uri.startswith(prefix))
        return sorted({f"{prefix}{name}" for name, slash, _ in below if slash})

    def delete(self, uris: Sequence[str]) -> None:
        for uri in uris:
            self.files.pop(uri, None)
            self._changed_ms.pop(uri, None)


class FaultyTables:
    """The warehouse as the threads of one process see it through a link."""

    requests_at_once = 1

    def __init__(self, store: MemoryTables, link: Link) -> None:
        self.root = store.root
        self._store = store
        self._link = link

    def put(self, uri: str, data: bytes) -> None:
        wait_for(lambda: self._link.call(lambda: self._store.put(uri, data)))

    def get(self, uri: str) -> bytes:
        return self._call_repeatable(lambda: self._store.get(uri))

    def read(self, uri: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        wanted = [*ranges]
        return self._call_repeatable(lambda: self._store.read(uri, wanted))

    def list(self, prefix: str) -> list[tuple[str, int]]:
        return self._call_repeatable(lambda: self._store.list(prefix))

    def list_dated(self, prefix: str) -> Sequence[tuple[str, int, int]]:
        return self._call_repeatable(lambda: self._store.list_dated(prefix))

    def folders(self, prefix: str) -> Sequence[str]:
        return self._call_repeatable(lambda: self._store.folders(prefix))

    def delete(self, uris: Sequence[str]) -> None:
        gone = [*uris]
        self._call_repeatable(lambda: self._store.delete(gone))

    def _call_repeatable(self, effect: Callable[[], T]) -> T:
        """Send a request that may be repeated: a lost answer raises Retry, as in the real stores."""
        try:
            return wait_for(lambda: self._link.call(effect))
        except Unknown as error:
            raise Retry(str(error)) from error

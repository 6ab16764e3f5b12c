"""A WAL in a folder: every object a file, synced with its directory before it counts.

An object is written to a file without a name and then linked to its key (placer.py). A writer that numbers its objects
gets its next files named ahead of time (ready_files.py). File work runs in the WAL's own threads, except for small
objects on a quick disk.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from lakestream.data.placer import FileMaker, Placer, not_written
from lakestream.data.ready_files import ReadyFile, ReadyFiles, is_hidden, open_shown, remove_if_left
from lakestream.data.synced_files import (
    Descriptor,
    Directories,
    FreshPages,
    is_synced_copy,
    read_range,
    read_without_waiting,
)
from lakestream.errors import Missing, Retry, Unknown
from lakestream.interfaces import Buffer, Clock, StoredObject
from lakestream.process.sync_pace import SyncPace

WRITERS = 4
"""Four objects of 1 MB at a time are written at 480 MB/s, with one thread at 80 MB/s (2 cores, ext4, cloud disk)."""
READERS = 4
"""Objects that the page cache does not hold are read at 260 MB/s, with one thread at 220 MB/s."""
MAX_OPEN_OBJECTS = 64
MAX_INLINE_READ_BYTES = 1024 * 1024
"""Up to this size a copy from the page cache costs less than the way to another thread and back."""
MAX_INLINE_PUT_BYTES = 64 * 1024
"""Up to this size an object is written on the event loop while the disk is quick (sync_pace.py)."""

T = TypeVar("T")
StoredObjects = list[StoredObject]


class FolderWal:
    """The default WAL. Several processes may share one folder."""

    def __init__(
        self,
        path: str | Path,
        *,
        page_cache_bytes: int = 256 * 1024 * 1024,
        nameless: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.linger_ms = 0
        self._pace = SyncPace(clock)
        self._root = Path(path).absolute()
        self._directories = Directories(self._root)
        self._maker = FileMaker(self._root, nameless)
        self._placer = Placer(self._directories, self._maker)
        self._writers = ThreadPoolExecutor(WRITERS, "wal-write")
        self._readers = ThreadPoolExecutor(READERS, "wal-read")
        self._opened: OrderedDict[str, Descriptor] = OrderedDict()
        self._fresh = FreshPages(self._root, page_cache_bytes)
        self._ready: ReadyFiles | None = None
        if self._maker.nameless:
            self._ready = ReadyFiles(self._directories, self._maker.nameless_files, self._writers.submit)

    def __repr__(self) -> str:
        return f"FolderWal({str(self._root)!r}, {'nameless' if self._maker.nameless else 'hidden'} temporary files)"

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        _check(key)
        small = sum(map(len, parts)) <= MAX_INLINE_PUT_BYTES
        began = self._pace.begin()
        if small and self._pace.quick:
            self._put(key, parts)
        else:
            await _in(self._writers, lambda: self._put(key, parts))
        if small:
            self._pace.end(began)
            if self._ready is not None:
                self._ready.expect_more(key)

    async def has_room(self) -> bool:
        return await _in(self._writers, self._maker.has_room)

    async def read(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytearray]:
        opened = self._opened.pop(key, None)
        if opened is not None and sum(length for _, length in ranges) <= MAX_INLINE_READ_BYTES:
            found = read_without_waiting(opened, ranges)
            if found is not None:
                self._opened[key] = opened
                return found
        _check(key)
        path = self._root / key
        self._opened[key], read = await _in(self._readers, lambda: _open_and_read(path, ranges))
        if len(self._opened) > MAX_OPEN_OBJECTS:
            self._opened.popitem(last=False)
        return read

    async def list(self, prefix: str, after: str = "", limit: int = 0) -> list[StoredObject]:
        return await _in(self._readers, lambda: self._list(prefix, after, limit))

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._opened.pop(key, None)
        await _in(self._writers, lambda: self._delete(keys))

    async def close(self) -> None:
        used = [] if self._ready is None else self._ready.close()
        for pool in (self._writers, self._readers):
            await asyncio.to_thread(pool.shutdown)
        for directory in used:
            self._remove_if_empty(directory)
        self._maker.nameless_files.close()
        self._directories.clear()
        self._opened.clear()

    def _put(self, key: str, parts: Sequence[Buffer]) -> None:
        ready = None if self._ready is None else self._ready.take(key)
        if ready is None:
            self._placer.put(key, parts, lambda: self._is_same(key, parts))
        else:
            _fill(key, ready, parts)
        self._fresh.add(key, sum(map(len, parts)))

    def _is_same(self, key: str, parts: Sequence[Buffer]) -> bool:
        try:
            return is_synced_copy(open_shown(self._root / key), parts)
        except FileNotFoundError:
            remove_if_left(self._root / key)
            raise Retry(f"{key} was there and was deleted meanwhile, or is not written yet") from None

    def _list(self, prefix: str, after: str, limit: int) -> StoredObjects:
        start = prefix.rpartition("/")[0]
        if start and not _is_key(start):
            return []
        found: StoredObjects = []
        for key, entry in _walk(self._root, start, prefix, after):
            with suppress(FileNotFoundError):
                status = entry.stat()
                if is_hidden(status):
                    remove_if_left(entry)
                    self._remove_if_empty(key.rpartition("/")[0])
                else:
                    found.append(StoredObject(key, status.st_size))
            if limit and len(found) >= limit:
                break
        return found

    def _delete(self, keys: Sequence[str]) -> None:
        touched = set()
        try:
            for key in keys:
                _check(key)
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(self._root / key)
                touched.add(key.rpartition("/")[0])
        except OSError as error:
            raise Retry(f"cannot delete: {error}") from error
        for directory in touched:
            self._remove_if_empty(directory)

    def _remove_if_empty(self, directory: str) -> None:
        with suppress(OSError):
            while directory:
                os.rmdir(self._root / directory)
                self._directories.forget(directory)
                directory = directory.rpartition("/")[0]


def _fill(key: str, ready: ReadyFile, parts: Sequence[Buffer]) -> None:
    try:
        ready.write(parts)
    except OSError as error:
        raise not_written(key, error) from error
    try:
        ready.sync()
    except OSError as error:
        raise Unknown(f"{key} is written, but {error}") from error


async def _in(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)


def _open_and_read(path: Path, ranges: Sequence[tuple[int, int]]) -> tuple[Descriptor, list[bytearray]]:
    try:
        file = open_shown(path)
        return file, [read_range(file, start, length) for start, length in ranges]
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise Missing(f"{path} is not there") from None
    except OSError as error:
        raise Retry(f"{path} cannot be read: {error}") from error


def _walk(root: Path, directory: str, prefix: str, after: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """The files in and below a directory, in the order of their keys."""
    found: list[tuple[str, os.DirEntry[str]]] = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(root / directory) as entries:
        for entry in entries:
            key = f"{directory}/{entry.name}" if directory else entry.name
            if entry.name.startswith(".") or not key.startswith(prefix):
                continue
            place = f"{key}/" if entry.is_dir() else key
            if place > after or after.startswith(place):
                found.append((place, entry))
    found.sort(key=itemgetter(0))
    for place, entry in found:
        if place.endswith("/"):
            yield from _walk(root, place[:-1], prefix, after)
        elif place > after:
            yield place, entry


def _check(key: str) -> None:
    """Raises ValueError for a key that could leave the folder or look like a temporary file."""
    if not _is_key(key):
        raise ValueError(f"{key!r} is no key: its steps must not be empty or start with a dot")


def _is_key(key: str) -> bool:
    return not any(not step or step.startswith(".") or "\0" in step for step in key.split("/"))

"""Files and directories that survive a power cut, and the page cache that they fill: the base of the folder WAL."""

import os
import resource
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from lakestream.errors import Unknown
from lakestream.interfaces import Buffer

MAX_PARTS_A_WRITE = 1024
MAX_OPEN_DIRECTORIES = 512
"""A table has three, and every round uses them. At most a quarter of the files that the process may open."""
COMPARE_BYTES = 1024 * 1024
ADVISED_FROM_BYTES = 128 * 1024


class Descriptor:
    """An open file. It closes with its last reference, so a cache may drop it at any time.

    Pass on the Descriptor: the bare number does not keep the file open.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.number)


def open_to_read(path: str | os.PathLike[str]) -> Descriptor:
    return Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def is_linked(file: Descriptor) -> bool:
    """Whether the open file or directory still has a name."""
    return os.fstat(file.number).st_nlink > 0


def write_all(file: int, parts: Sequence[Buffer]) -> None:
    """Write the parts one after the other without joining them."""
    for first in range(0, len(parts), MAX_PARTS_A_WRITE):
        pending = [memoryview(part) for part in parts[first : first + MAX_PARTS_A_WRITE]]
        while pending:
            written = os.writev(file, pending)
            done = 0
            while done < len(pending) and written >= len(pending[done]):
                written -= len(pending[done])
                done += 1
            del pending[:done]
            if written:
                pending[0] = pending[0][written:]


def read_range(file: Descriptor, start: int, length: int) -> bytearray:
    """The bytes of a range, cut at the end of the file."""
    found = bytearray(max(min(length, os.fstat(file.number).st_size - start), 0))
    filled = 0
    with memoryview(found) as view:
        while filled < len(found):
            count = os.preadv(file.number, [view[filled:]], start + filled)
            if not count:
                raise OSError(f"the file ends at {start + filled}, sooner than its size says")
            filled += count
    return found


def read_bytes(file: Descriptor, start: int, length: int) -> bytes:
    """Like read_range, as bytes. The interpreter is free while the kernel fills them."""
    length = max(min(length, os.fstat(file.number).st_size - start), 0)
    found = os.pread(file.number, length, start)
    while len(found) < length:
        more = os.pread(file.number, length - len(found), start + len(found))
        if not more:
            raise OSError(f"the file ends at {start + len(found)}, sooner than its size says")
        found += more
    return found


def read_without_waiting(file: Descriptor, ranges: Sequence[tuple[int, int]]) -> list[bytearray] | None:
    """The ranges if the page cache holds them all and the file still has a name, else None. Never blocks."""
    status = os.fstat(file.number)
    no_wait = getattr(os, "RWF_NOWAIT", None)
    if no_wait is None or not status.st_nlink:
        return None
    found = []
    for start, length in ranges:
        buffer = bytearray(max(min(length, status.st_size - start), 0))
        try:
            if buffer and os.preadv(file.number, [buffer], start, no_wait) != len(buffer):
                return None
        except OSError:
            return None
        found.append(buffer)
    return found


def holds_same_bytes(file: Descriptor, parts: Sequence[Buffer]) -> bool:
    """Whether a file holds exactly the joined parts."""
    if os.fstat(file.number).st_size != sum(map(len, parts)):
        return False
    at = 0
    for part in parts:
        view = memoryview(part)
        for first in range(0, len(view), COMPARE_BYTES):
            piece = view[first : first + COMPARE_BYTES]
            if read_range(file, at, len(piece)) != piece:
                return False
            at += len(piece)
    return True


def link_synced(file: int, path: str, directory: int, name: str, *, nameless: bool) -> bool:
    """Give a written file its name and sync the file; False if the name is taken. The caller syncs the directory.

    Before the directory is synced, a power cut may leave the name without all of the bytes. No command refers to such a
    file, so it is collected like any other that was never committed. The file is synced after its link because of ext4
    without a journal: there the sync of a directory does not write the file's count of links, and a file without links
    counts as deleted when the disk is checked. With a journal the sync of the file covers the directory as well.
    Raises Unknown if the file has its name, but may lose it.
    """
    try:
        os.link(path, name, dst_dir_fd=directory, follow_symlinks=nameless)
    except FileExistsError:
        return False
    try:
        os.fsync(file)
    except OSError as error:
        raise Unknown(f"{name} is written, but {error}") from error
    return True


def is_synced_copy(file: Descriptor, parts: Sequence[Buffer]) -> bool:
    """Whether a file that another writer linked holds the parts. If so, syncs it: its maker may not have done so."""
    same = holds_same_bytes(file, parts)
    if same:
        os.fsync(file.number)
    return same


def make_durable_directory(path: Path, top: Path) -> None:
    """Make the directory, and sync all from `top` to its parent: their makers may not have synced them yet."""
    path.mkdir(parents=True, exist_ok=True)
    while path != top:
        path = path.parent
        sync_directory(path)


def sync_directory(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class Directories:
    """Durable directories, held open: a file is never linked into a later directory of the same name."""

    def __init__(self, root: Path, known_max: int = 0) -> None:
        """`known_max`: how many directories are remembered as durable after they are closed.

        A remembered directory is not synced again, with all directories above it, when it is opened anew.
        """
        self.root = root
        self._known_max = known_max
        self._known: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._open: OrderedDict[str, Descriptor] = OrderedDict()
        self._lock = threading.Lock()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._open_max = min(MAX_OPEN_DIRECTORIES, max(soft // 4, 16))
        standing = next(parent for parent in root.parents if parent.exists())
        make_durable_directory(root, standing)

    def open(self, directory: str) -> Descriptor:
        with self._lock:
            found = self._open.get(directory)
            if found is not None:
                self._open.move_to_end(directory)
                return found
            known = self._known.get(directory)
        made = self._known_one(directory, known) if known is not None else None
        if made is None:
            made = self._durable(directory)
        with self._lock:
            self._open[directory] = made
            if len(self._open) > self._open_max:
                self._open.popitem(last=False)
            if self._known_max:
                self._known[directory] = _identity(made)
                self._known.move_to_end(directory)
                if len(self._known) > self._known_max:
                    self._known.popitem(last=False)
        return made

    def _durable(self, directory: str) -> Descriptor:
        above = directory.rpartition("/")[0]
        if above:
            self._hold(above)
            path = self.root / directory
            path.mkdir(parents=True, exist_ok=True)
            sync_directory(path.parent)
        else:
            make_durable_directory(self.root / directory, self.root)
        return Descriptor(os.open(self.root / directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def _known_one(self, directory: str, known: tuple[int, int]) -> Descriptor | None:
        """The remembered directory, opened again; None if another directory, or none, has its name now."""
        try:
            found = Descriptor(os.open(self.root / directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except FileNotFoundError:
            return None
        return found if _identity(found) == known else None

    def _hold(self, directory: str) -> None:
        """Make sure that a directory above is durable: it is if it is held open and still has a name."""
        held = self.open(directory)
        if not is_linked(held):
            self.forget(directory)
            self.open(directory)

    def forget(self, directory: str) -> None:
        with self._lock:
            self._open.pop(directory, None)
            self._known.pop(directory, None)

    def clear(self) -> None:
        with self._lock:
            self._open.clear()
            self._known.clear()


def _identity(directory: Descriptor) -> tuple[int, int]:
    found = os.fstat(directory.number)
    return found.st_dev, found.st_ino


class FreshPages:
    """Keeps the page cache that our writes fill within a limit.

    Synced pages are rarely read again, as readers have a cache of their own, and a kernel that reuses them writes new
    objects several times cheaper than one that has to find fresh memory for each.
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self._root = root
        self._limit_bytes = limit_bytes
        self._kept: deque[tuple[str, int]] = deque()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def add(self, key: str, size: int) -> None:
        if size < ADVISED_FROM_BYTES or not hasattr(os, "posix_fadvise"):
            return
        for oldest in self._surplus(key, size):
            with suppress(OSError):
                file = open_to_read(self._root / oldest)
                os.posix_fadvise(file.number, 0, 0, os.POSIX_FADV_DONTNEED)

    def _surplus(self, key: str, size: int) -> list[str]:
        surplus = []
        with self._lock:
            self._kept.append((key, size))
            self._kept_bytes += size
            while self._kept_bytes > self._limit_bytes:
                oldest, its_size = self._kept.popleft()
                self._kept_bytes -= its_size
                surplus.append(oldest)
        return surplus

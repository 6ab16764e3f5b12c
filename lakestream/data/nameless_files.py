"""Where nameless files are made, which get their names when they are whole: directories spread over the disk.

The directory in which a file is made decides where ext4 keeps its inode. Without a journal ext4 leaves an inode alone
for minutes after its file was deleted, and looks at all such inodes of the neighbourhood again for each new file: up to
a millisecond in a folder where thousands of objects come and go. So files are made in directories of their own, some
thousand in each, and the file system is asked to put each of these into another neighbourhood.

Who makes files in a directory holds a lock on it: one that nobody holds was left by a dead process, and may go.
"""

import fcntl
import itertools
import os
import struct
import threading
from contextlib import suppress
from pathlib import Path

from lakestream.data.synced_files import Descriptor, is_linked

FILES_A_DIRECTORY = 4096
"""About half of the inodes that ext4 keeps together."""
NAMES = "nursery-"
ATTEMPTS = 4
_GET_FLAGS, _SET_FLAGS, _TOP_DIRECTORY = 0x80086601, 0x40086602, 0x00020000
"""Of Linux: FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL."""


class Nursery:
    """Makes nameless files below one folder. Safe to use from several threads, and by several processes at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        self._left = 0
        self._path: Path | None = None
        self._directory: Descriptor | None = None
        self._lock = threading.Lock()
        spread_subdirectories(folder)

    def make(self, mode: int = 0o644) -> int:
        """The descriptor of a new file without a name, open for writing."""
        attempts = ATTEMPTS
        while True:
            directory = None
            try:
                directory = self._opened()
                return open_nameless(directory, mode)
            except OSError:
                attempts -= 1
                if not attempts or (directory is not None and is_linked(directory)):
                    raise
                with self._lock:  # somebody took the directory away
                    self._left = 0

    def close(self) -> None:
        with self._lock:
            self._leave()

    def _opened(self) -> Descriptor:
        with self._lock:
            if self._directory is None or self._left <= 0:
                self._leave()
                path = self._folder / f"{NAMES}{os.getpid()}-{id(self)}-{next(self._numbers)}"
                path.mkdir()
                self._path, self._left = path, FILES_A_DIRECTORY
                self._directory = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
                with suppress(OSError):  # just swept, before we could hold it: the next one then
                    fcntl.flock(self._directory.number, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._left -= 1
            return self._directory

    def _leave(self) -> None:
        """Files that are still without a name are not in the way."""
        if self._path is not None:
            with suppress(OSError):
                self._path.rmdir()
        self._path = self._directory = None


def sweep_nursery(path: Path) -> None:
    """Remove a directory that a dead process left. Raises OSError if it is in use, or gone."""
    held = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    fcntl.flock(held.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    path.rmdir()


def open_nameless(directory: Descriptor, mode: int = 0o644) -> int:
    """A new file without a name, on the file system of a directory, open for writing."""
    return os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, mode, dir_fd=directory.number)


def spread_subdirectories(folder: Path) -> None:
    """Have ext4 spread them as it does with those of the root. Other file systems do not know this, and do well."""
    with suppress(OSError, AttributeError):
        opened = Descriptor(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        flags = struct.unpack("Q", fcntl.ioctl(opened.number, _GET_FLAGS, bytes(8)))[0] & 0xFFFFFFFF
        fcntl.ioctl(opened.number, _SET_FLAGS, struct.pack("Q", flags | _TOP_DIRECTORY))

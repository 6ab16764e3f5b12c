"""Makes nameless files, which get their names once they are whole, in directories spread over the disk.

The directory in which a file is made decides where ext4 keeps its inode. Without a journal ext4 leaves an inode alone
for minutes after its file was deleted, and checks all such inodes of the neighbourhood for each new file: 0.10 to 1.07
ms in a folder where thousands of objects come and go, against 0.01 ms elsewhere (decision 7). So files are made in
directories of their own, some thousand in each, which ext4 is asked to spread over the disk.

A process holds a lock on the directory in which it makes files. A directory without a lock was left by a dead process.
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


class NamelessFiles:
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
                with self._lock:  # the directory was removed meanwhile
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
                with suppress(OSError):  # another process removes it just now: the next attempt makes another
                    fcntl.flock(self._directory.number, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._left -= 1
            return self._directory

    def _leave(self) -> None:
        """Remove the directory; files in it without a name do not prevent that."""
        if self._path is not None:
            with suppress(OSError):
                self._path.rmdir()
        self._path = self._directory = None


def remove_unused_directory(path: Path) -> None:
    """Remove a directory that a dead process left. Raises OSError if it is in use, or gone."""
    held = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    fcntl.flock(held.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    path.rmdir()


def open_nameless(directory: Descriptor, mode: int = 0o644) -> int:
    """A new file without a name, on the file system of a directory, open for writing."""
    return os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, mode, dir_fd=directory.number)


def spread_subdirectories(folder: Path) -> None:
    """Ask ext4 to spread the subdirectories over the disk. Other file systems ignore the request."""
    with suppress(OSError, AttributeError):
        opened = Descriptor(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        flags = struct.unpack("Q", fcntl.ioctl(opened.number, _GET_FLAGS, bytes(8)))[0] & 0xFFFFFFFF
        fcntl.ioctl(opened.number, _SET_FLAGS, struct.pack("Q", flags | _TOP_DIRECTORY))

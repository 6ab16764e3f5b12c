"""Puts whole files into a folder: written without a name, synced, and linked to it.

So a file appears whole or not at all, whichever process dies in between, and two writers of one name cannot both win.
On a file system without nameless files (NFS) the file gets a hidden temporary name instead.

    FileMaker   makes files in folders of their own below one root (nameless_files.py): for many files that come and
                go on one file system
    near        makes files in the directory that they go to, which may be mounted from elsewhere
"""

import errno
import fcntl
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from lakestream.data.nameless_files import NAMES, NamelessFiles, open_nameless, remove_unused_directory
from lakestream.data.synced_files import Descriptor, Directories, is_linked, link_synced, write_all
from lakestream.errors import Exists, NoRoom, Retry, Unknown
from lakestream.interfaces import Buffer

TEMPORARY = ".tmp"
PLACE_ATTEMPTS = 8
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
PROBE_BYTES = 8 * 1024 * 1024
"""Free space with which a full disk counts as not full any more."""
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
_numbers = itertools.count()


class Unlinked(NamedTuple):
    """A new file, open for writing, and the path to link it from."""

    file: int
    path: str
    nameless: bool


Maker = Callable[[Descriptor, Path], AbstractContextManager[Unlinked]]
"""Makes a file that is then linked into a directory; a file that was not linked is gone afterwards."""


class Placer:
    """Safe to use from several threads, and by several processes at once."""

    def __init__(self, directories: Directories, make: Maker) -> None:
        self._directories = directories
        self._make = make

    def put(self, key: str, parts: Sequence[Buffer], is_same: Callable[[], bool]) -> None:
        """Returns when the file is durable. `is_same` says whether a file that existed before holds the same bytes.

        Raises Exists if it does not, Retry if no file is there, Unknown if a file may be there.
        """
        place, placed = self._place(key, parts)
        try:
            # The directory is synced for a file that existed before, too: its maker may not have synced it yet.
            if not placed and not is_same():
                raise Exists(f"{key} exists with other content")
            os.fsync(place.number)
        except OSError as error:
            raise Unknown(f"{key} is written, but {error}") from error

    def _place(self, key: str, parts: Sequence[Buffer]) -> tuple[Descriptor, bool]:
        """Write and link the file; whether the name was free. After an error no file is there."""
        directory, _, name = key.rpartition("/")
        for _ in range(PLACE_ATTEMPTS):
            place = None
            try:
                place = self._directories.open(directory)
                with self._make(place, self._directories.root / directory) as made:
                    write_all(made.file, parts)
                    return place, link_synced(made.file, made.path, place.number, name, nameless=made.nameless)
            except OSError as error:
                if not isinstance(error, FileNotFoundError) and (place is None or is_linked(place)):
                    raise not_written(key, error) from error
                # The directory was empty and a process that deletes objects removed it: make it again.
                self._directories.forget(directory)
        raise Retry(f"{key} cannot be written: its directory keeps vanishing")


def not_written(key: str, error: OSError) -> Retry:
    """The error to raise when no part of a file is there."""
    kind = NoRoom if error.errno in NO_ROOM else Retry
    return kind(f"{key} cannot be written: {error}")


def near(place: Descriptor, path: Path) -> AbstractContextManager[Unlinked]:
    """A Maker: makes the file in the directory that it goes to."""
    try:
        return _nameless(open_nameless(place))
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        return near_by_name(place, path)


def near_by_name(_: Descriptor, path: Path) -> AbstractContextManager[Unlinked]:
    return _hidden(path / _temporary_name())


@contextmanager
def _hidden(path: Path) -> Iterator[Unlinked]:
    """A file with a temporary name."""
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        # Held as long as the writer lives: an unlocked temporary file was left by a dead one.
        fcntl.flock(file, fcntl.LOCK_EX)
        with _closed(Unlinked(file, str(path), False)) as made:
            yield made
    finally:
        with suppress(OSError):
            os.unlink(path)


class FileMaker:
    """A Maker for one root: nameless files if the file system has them, else files with temporary names."""

    def __init__(self, root: Path, nameless: bool = True) -> None:
        self._folder = root / TEMPORARY
        self._folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        self.nameless = nameless and self._knows_nameless_files()
        self.nameless_files = NamelessFiles(self._folder)

    def __call__(self, place: Descriptor, path: Path) -> AbstractContextManager[Unlinked]:
        return _nameless(self.nameless_files.make()) if self.nameless else near_by_name(place, self._folder)

    def has_room(self) -> bool:
        """Whether a file of some megabytes could be written; leaves no file. True if the system does not say."""
        try:
            path = self._folder / _temporary_name()
            with _nameless(self.nameless_files.make()) if self.nameless else _hidden(path) as made:
                os.posix_fallocate(made.file, 0, PROBE_BYTES)
        except OSError as error:
            return error.errno not in NO_ROOM
        return True

    def _knows_nameless_files(self) -> bool:
        """Whether nameless files work here: the file system may lack them, and linking them needs /proc."""
        probe = f"probe-{os.getpid()}-{id(self)}"
        folder = Descriptor(os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            file = Descriptor(open_nameless(folder))
            os.link(f"/proc/self/fd/{file.number}", probe, dst_dir_fd=folder.number, follow_symlinks=True)
            os.unlink(probe, dir_fd=folder.number)
        except (AttributeError, OSError):
            return False
        return True

    def _sweep(self) -> None:
        """Remove the files that dead writers left."""
        for path in self._folder.iterdir():
            with suppress(OSError):
                if path.name.startswith(NAMES):
                    remove_unused_directory(path)
                    continue
                file = Descriptor(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
                fcntl.flock(file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def _temporary_name() -> str:
    """A new name each time, different on all machines that share the folder."""
    return f".tmp-{os.uname().nodename}-{os.getpid()}-{next(_numbers)}"


def _nameless(file: int) -> AbstractContextManager[Unlinked]:
    return _closed(Unlinked(file, f"/proc/self/fd/{file}", True))


@contextmanager
def _closed(made: Unlinked) -> Iterator[Unlinked]:
    """Close the file in the end. It is synced by then, so a failure to close it is no failure to write it."""
    try:
        yield made
    finally:
        with suppress(OSError):
            os.close(made.file)

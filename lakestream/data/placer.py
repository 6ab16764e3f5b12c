"""Puts whole files into a folder: written without a name, synced, and linked to it.

So a file appears whole or not at all, whichever process dies in between, and two writers of one name cannot both win.
Where the file system knows no nameless files (NFS) a hidden temporary name takes their place.
"""

import fcntl
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lakestream.data.nursery import NAMES, Nursery, sweep_nursery
from lakestream.data.synced_files import Descriptor, Directories, is_linked, link_synced, write_all
from lakestream.errors import Exists, Retry, Unknown
from lakestream.interfaces import Buffer

TEMPORARY = ".tmp"
PLACE_ATTEMPTS = 8


class Placer:
    """Safe to use from several threads, and by several processes at once."""

    def __init__(self, root: Path, nameless: bool = True) -> None:
        self.directories = Directories(root)
        self._root = root
        self._sweep()
        self.nameless = nameless and self._knows_nameless_files()
        self.nursery = Nursery(root / TEMPORARY)
        self._numbers = itertools.count()

    def close(self) -> None:
        self.nursery.close()
        self.directories.clear()

    def make(self, key: str, parts: Sequence[Buffer], is_same: Callable[[], bool]) -> None:
        """Returns when the file is durable. `is_same` says whether one that was there already holds the same.

        Raises Exists if it does not, Retry if nothing is there, Unknown if something may be.
        """
        place, placed = self._place(key, parts)
        try:
            # The directory is synced for a file that was there already, too: its maker may not have come to that yet.
            if not placed and not is_same():
                raise Exists(f"{key} exists with other content")
            os.fsync(place.number)
        except OSError as error:
            raise Unknown(f"{key} is written, but {error}") from error

    def _place(self, key: str, parts: Sequence[Buffer]) -> tuple[Descriptor, bool]:
        """Write and link the file, and say whether the name was free. If this fails, nothing is there."""
        directory, _, name = key.rpartition("/")
        for _ in range(PLACE_ATTEMPTS):
            place = None
            try:
                place = self.directories.open(directory)
                return place, self._write_and_link(place.number, name, parts)
            except OSError as error:
                if not isinstance(error, FileNotFoundError) and (place is None or is_linked(place)):
                    raise Retry(f"{key} cannot be written: {error}") from error
                # The directory was empty and somebody who deletes, maybe another process, took it away: make it again.
                self.directories.forget(directory)
        raise Retry(f"{key} cannot be written: its directory keeps vanishing")

    def _write_and_link(self, directory: int, name: str, parts: Sequence[Buffer]) -> bool:
        with self._unlinked_file() as (file, path):
            write_all(file, parts)
            return link_synced(file, path, directory, name, nameless=self.nameless)

    @contextmanager
    def _unlinked_file(self) -> Iterator[tuple[int, str]]:
        """A new file and the path to link it from; what was not linked is gone afterwards."""
        path = ""
        if self.nameless:
            file = self.nursery.make()
        else:
            path = str(self._root / TEMPORARY / f"{os.getpid()}-{id(self)}-{next(self._numbers)}")
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
            # Held as long as the writer lives: an unlocked temporary file was left by a dead one.
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield file, path or f"/proc/self/fd/{file}"
        finally:
            # What matters has been synced by now, so a failure here must not make a linked file look unwritten.
            with suppress(OSError):
                os.close(file)
            if path:
                with suppress(OSError):
                    os.unlink(path)

    def _knows_nameless_files(self) -> bool:
        """Try it: the file system may not know them, and a process without /proc cannot link them."""
        probe = f"probe-{os.getpid()}-{id(self)}"
        hidden = Descriptor(os.open(self._root / TEMPORARY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            file = Descriptor(os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, dir_fd=hidden.number))
            os.link(f"/proc/self/fd/{file.number}", probe, dst_dir_fd=hidden.number, follow_symlinks=True)
            os.unlink(probe, dir_fd=hidden.number)
        except (AttributeError, OSError):
            return False
        return True

    def _sweep(self) -> None:
        """Remove what dead writers left behind."""
        temporaries = self._root / TEMPORARY
        temporaries.mkdir(exist_ok=True)
        for path in temporaries.iterdir():
            with suppress(OSError):
                if path.name.startswith(NAMES):
                    sweep_nursery(path)
                    continue
                file = Descriptor(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
                fcntl.flock(file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()

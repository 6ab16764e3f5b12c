"""Temporary folders of processes that may be killed at any moment.

A folder is locked as long as its owner lives. The process that makes the next folder of a kind removes the unlocked
ones, so nothing piles up in the temporary folder of the machine.
"""

import fcntl
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

ATTEMPTS = 8


class TemporaryFolder:
    """A folder that only this user may read. `remove` it; after a kill the next process of its kind does."""

    def __init__(self, kind: str, parent: Path | None = None) -> None:
        above = parent or Path(tempfile.gettempdir())
        sweep(kind, above)
        for _ in range(ATTEMPTS):
            path = Path(tempfile.mkdtemp(prefix=_prefix(kind), dir=above))
            held = _locked(path)
            if held is not None:
                self.path, self._held = path, held
                return
        raise OSError(f"no temporary folder could be kept in {above}: each was removed at once")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def sweep(kind: str, above: Path) -> None:
    """Remove the folders of one kind whose owners are dead. Those of other users are left alone."""
    for path in above.glob(_prefix(kind) + "*"):
        with suppress(OSError):
            if path.lstat().st_uid != os.getuid():
                continue
            held = _locked(path)
            if held is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(held)
                log.info("removed what a killed process left in %s", path)


def _prefix(kind: str) -> str:
    return f"lakestream-{kind}-"


def _locked(path: Path) -> int | None:
    """The descriptor that locks a folder; None if another process locked it, or it is gone. Raises OSError."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have removed the folder before this lock: then it has no name any more.
        if os.path.samestat(os.fstat(held), path.lstat()):
            return held
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(held)
    return None

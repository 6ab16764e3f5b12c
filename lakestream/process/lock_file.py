"""A lock on a file that names its holder. The kernel frees the lock when the process dies."""

import fcntl
import os

from lakestream.errors import Retry


class LockHeld(Retry):
    """Another process has the lock."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(
            f"{path} is held by process {holder}, which owns this command log: "
            "stop it first, or reach the log through the owner's socket"
        )
        self.holder = holder


class LockFile:
    """An exclusive lock on `path`, held until `release`; the file is never deleted. Raises Held, or OSError."""

    def __init__(self, path: str, mode: int = 0o600) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise LockHeld(path, holder) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        os.close(self._descriptor)

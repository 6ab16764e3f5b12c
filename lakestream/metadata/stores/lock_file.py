"""One process at a time owns a command log: a lock on a file beside it, which the kernel frees with the process."""

import fcntl
import os

from lakestream.errors import Retry


class LockFile:
    """An exclusive lock on `path`, held until `release`; the file names the holder and is never deleted."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise Retry(
                f"{path} is held by process {holder}, which owns this command log: "
                "stop it first, or reach the log through the owner's socket"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        os.close(self._descriptor)

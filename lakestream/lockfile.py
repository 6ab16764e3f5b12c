"""A lock file that says who holds it, so that two clusters never share a folder by mistake."""

import fcntl
import os
from pathlib import Path
from types import TracebackType

from lakestream.settings import SettingsError


class LockedFile:
    """Held from `with` to its end; the kernel lets go of it when the process dies, however that happens."""

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._fd = -1

    def __enter__(self) -> "LockedFile":
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise SettingsError(f"{self._what} cannot be used: {error.strerror} ({self._path})") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 20).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise SettingsError(
                f"{self._what} is in use by another `lakestream serve` (pid {holder}); stop that one or choose another"
            ) from None
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"{os.getpid()}\n".encode())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

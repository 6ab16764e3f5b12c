"""A lock file that names its holder, so that two clusters never share a folder by mistake."""

from pathlib import Path
from types import TracebackType

from lakestream.process.lock_file import LockFile, LockHeld
from lakestream.settings import SettingsError


class LockedFile:
    """Locked inside of `with`. The kernel frees the lock when the process dies, however it dies."""

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._lock: LockFile | None = None

    def __enter__(self) -> "LockedFile":
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = LockFile(str(self._path), 0o644)
        except OSError as error:
            raise SettingsError(f"{self._what} cannot be used: {error.strerror} ({self._path})") from None
        except LockHeld as held:
            raise SettingsError(
                f"{self._what} is in use by another `lakestream serve` (pid {held.holder}); "
                "stop that one or choose another"
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lock is not None
        self._lock.release()

"""Where numba keeps compiled loops if this user may write neither beside the package nor at home.

numba refuses to compile code that it cannot store. In a container the user often has neither a home nor a package
folder to write to, and gets a temporary folder instead. Only this user may write to it, since its content is executed.
"""

import os
import stat
import sys
from collections.abc import Iterable, MutableMapping
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"


def choose(environ: MutableMapping[str, str]) -> None:
    """Name a folder if numba would find none itself. Call this before numba is imported."""
    if not environ.get(VARIABLE) and not any(map(may_write, _usual(environ))):
        environ[VARIABLE] = str(own_folder())


def may_write(place: Path) -> bool:
    """Whether files can be made in a folder, which may not exist yet."""
    if not place.is_absolute():
        return False
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def own_folder(temporary: Path | None = None) -> Path:
    """A folder that belongs to this user: the same one each time, or a new one if another user made that one."""
    import tempfile

    folder = (temporary or Path(tempfile.gettempdir())) / f"lakestream-kernels-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            return _passing(tempfile.mkdtemp(prefix="lakestream-kernels-", dir=temporary))
    return folder


def _passing(folder: str) -> Path:
    import atexit
    import shutil

    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _usual(environ: MutableMapping[str, str]) -> Iterable[Path]:
    """The folders that numba tries, in its order."""
    yield Path(__file__).resolve().parent.parent / "model" / "__pycache__"
    home = Path(os.path.expanduser("~"))
    mac = home / "Library" / "Caches"
    yield mac if sys.platform == "darwin" else Path(environ.get("XDG_CACHE_HOME") or home / ".cache")

"""Where compiled loops are kept from one process to the next, if nobody may write beside them or at home.

numba refuses to compile what it cannot keep. In a container there is often neither a home nor a package folder that
belongs to us, so such a user gets a folder of temporary files, which nobody else can put anything into: what lies there
is run.
"""

import os
import stat
import sys
from collections.abc import Iterable, MutableMapping
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"


def choose(environ: MutableMapping[str, str]) -> None:
    """Name a folder, before numba is imported, where it would find none itself."""
    if not environ.get(VARIABLE) and not any(map(may_write, _usual(environ))):
        environ[VARIABLE] = str(own_folder())


def may_write(place: Path) -> bool:
    """Whether files can be made in a folder, which may have to be made itself."""
    if not place.is_absolute():
        return False
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def own_folder(temporary: Path | None = None) -> Path:
    """A folder that is ours alone: the same one next time, or a fresh one if somebody was there before us."""
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
    """Where numba looks, in its order."""
    yield Path(__file__).resolve().parent.parent / "model" / "__pycache__"
    home = Path(os.path.expanduser("~"))
    mac = home / "Library" / "Caches"
    yield mac if sys.platform == "darwin" else Path(environ.get("XDG_CACHE_HOME") or home / ".cache")

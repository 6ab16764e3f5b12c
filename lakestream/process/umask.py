"""Makes the files of a cluster readable for its own user only, unless the setting `umask` says otherwise.

A process applies the umask before it makes the first file, and its children inherit it: brokers, the owner of the
command log, the pipeline with Spark and its workers. So the umask holds for files that libraries make, too.
"""

import os
from contextlib import suppress
from pathlib import Path

PRIVATE = 0o077
"""Files are made 0600 and folders 0700."""


def apply_umask(text: str) -> None:
    """`text` is octal, as umask(1) takes it."""
    os.umask(int(text, 8))


def open_to_others(folder: Path, umask: str) -> bool:
    """Whether an existing folder gives more permissions than a new one would."""
    return folder.is_dir() and bool(folder.stat().st_mode & int(umask, 8) & 0o077)


def current_umask() -> int:
    """Read without setting it, since other threads would notice."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return PRIVATE

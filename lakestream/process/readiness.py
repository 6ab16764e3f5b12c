"""What a broker's process tells its supervisor: one line of JSON on a descriptor made for it once it serves, and at its
end, by its exit code, whether to start it again."""

import json
import os
from dataclasses import asdict, dataclass

GIVE_UP = 78
"""Exit code of a child that must not be started again (sysexits' EX_CONFIG): a person has to look."""

NO_STORE = 69
"""Exit code of a child that cannot use its store (EX_UNAVAILABLE): at a first start nobody tries again, later on it may
come back."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """Who serves, at the addresses that clients should use (HOST:PORT)."""

    id: int
    kafka: str
    http: str
    pid: int


def announce(fd: int, announcement: Announcement) -> None:
    """Write the line and close the descriptor; the supervisor counts on both."""
    with os.fdopen(fd, "w") as pipe:
        pipe.write(json.dumps(asdict(announcement)) + "\n")


def parse(line: bytes) -> Announcement:
    return Announcement(**json.loads(line))

"""What a broker's process tells its supervisor: one line of JSON on a pipe when it serves, and an exit code that says
whether to start it again."""

import json
import os
from dataclasses import asdict, dataclass

GIVE_UP = 78
"""Exit code of a child that must not be started again (sysexits' EX_CONFIG): an operator has to act."""

NO_STORE = 69
"""Exit code of a child that cannot use its store (EX_UNAVAILABLE): ends a first start, later it is started again."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """A broker that serves, and its addresses for clients (HOST:PORT)."""

    id: int
    kafka: str
    http: str
    pid: int


def announce(fd: int, announcement: Announcement) -> None:
    """Write the line and close the descriptor; the supervisor waits for both."""
    with os.fdopen(fd, "w") as pipe:
        pipe.write(json.dumps(asdict(announcement)) + "\n")


def parse(line: bytes) -> Announcement:
    return Announcement(**json.loads(line))

"""What a broker's process tells its supervisor once it serves: one line of JSON on a descriptor made for it."""

import json
import os
from dataclasses import asdict, dataclass


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

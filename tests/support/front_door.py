"""A front door over a broker's parts; what a test does not hand over is made here, on memory stores."""

from random import Random

from lakestream.data.memory import MemoryWal
from lakestream.interfaces import Clock, Wal
from lakestream.metadata.replica import Replica
from lakestream.process.clock import SystemClock
from lakestream.settings import Settings
from lakestream.stream.appender import Appender
from lakestream.stream.cache import Cache
from lakestream.stream.groups.coordinator import GroupCoordinator
from lakestream.stream.limits import AppendLimits, ReadLimits
from lakestream.stream.reader import Reader
from lakestream.stream.rules import Rules
from lakestream.stream.streams import FrontDoor
from lakestream.stream.waiting import Waiting


def front_door(
    replica: Replica, *, wal: Wal | None = None, clock: Clock | None = None, appender: Appender | None = None,
    reader: Reader | None = None, waiting: Waiting | None = None, groups: GroupCoordinator | None = None,
) -> FrontDoor:  # fmt: skip
    wal, clock, cache = wal or MemoryWal(), clock or SystemClock(), Cache(1 << 20)
    return FrontDoor(
        replica,
        appender or Appender(replica, wal, cache, clock, AppendLimits()),
        reader or Reader(replica, wal, cache, ReadLimits()),
        waiting or Waiting(replica),
        Rules(replica, {}),
        groups or GroupCoordinator(replica, Settings(), clock, Random(1), lambda: True),
    )

"""Settings to running parts: the only file that names concrete backends, and where everything is put together."""

from dataclasses import dataclass
from pathlib import Path
from random import Random

from lakestream.clock import SystemClock, system_random
from lakestream.interfaces import Clock, CommandLog, Wal
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.model.commands import LEVEL, Register
from lakestream.settings import Settings, data_folder, sqlite_path
from lakestream.stream.appender import Appender
from lakestream.stream.cache import Cache
from lakestream.stream.limits import AppendLimits, ReadLimits
from lakestream.stream.reader import Reader
from lakestream.stream.rules import Rules
from lakestream.stream.waiting import Waiting


async def open_command_log(settings: Settings) -> CommandLog:
    """The command log that `metadata` names."""
    where = settings.metadata
    if where.startswith("owner:"):
        from lakestream.metadata.stores.socket_client import SocketLog

        return await SocketLog.open(where.removeprefix("owner:"))
    if where == "memory:":
        from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore

        return MemoryLog(MemoryLogStore())
    path = sqlite_path(where) or (data_folder(settings) or Path()) / "metadata.sqlite"
    from lakestream.metadata.stores.sqlite import SqliteLog

    path.parent.mkdir(parents=True, exist_ok=True)
    return await SqliteLog.open(path)


async def open_wal(settings: Settings) -> Wal:
    """The place for bytes that `data` names."""
    if settings.data == "memory:":
        from lakestream.data.memory import MemoryWal

        return MemoryWal()
    folder = data_folder(settings)
    if folder is not None:
        from lakestream.data.folder import FolderWal

        return FolderWal(folder)
    from lakestream.data.object_store import ObjectStoreWal

    store = ObjectStoreWal(settings.data, linger_ms=settings.linger_ms)
    await store.probe()
    return store


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The layers below the protocols, put together and not yet running."""

    settings: Settings
    clock: Clock
    random: Random
    command_log: CommandLog
    wal: Wal
    replica: Replica
    cache: Cache
    appender: Appender
    reader: Reader
    waiting: Waiting
    rules: Rules


async def build_core(settings: Settings, broker_id: int) -> Core:
    clock, random = SystemClock(), system_random()
    command_log = await open_command_log(settings)
    wal = await open_wal(settings)
    replica = Replica(command_log, wal, clock, broker_id)
    cache = Cache(settings.cache_bytes)
    append_limits = AppendLimits(
        tick_bytes=settings.tick_max_bytes,
        under_way_bytes=settings.memory_bytes // 2,
        uploads=settings.ticks_in_flight if wal.linger_ms else 1,
    )
    return Core(
        settings=settings,
        clock=clock,
        random=random,
        command_log=command_log,
        wal=wal,
        replica=replica,
        cache=cache,
        appender=Appender(replica, wal, cache, clock, append_limits),
        reader=Reader(replica, wal, cache, ReadLimits(cache_bytes=settings.cache_bytes)),
        waiting=Waiting(replica),
        rules=Rules(replica, topic_defaults(settings)),
    )


def topic_defaults(settings: Settings) -> dict[str, str]:
    """What a topic that does not say otherwise gets from this broker's settings."""
    return {
        "max.message.bytes": str(settings.message_max_bytes),
        "message.timestamp.type": settings.log_message_timestamp_type,
        "retention.ms": str(settings.log_retention_ms),
        "retention.bytes": str(settings.log_retention_bytes),
    }

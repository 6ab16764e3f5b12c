"""Settings to stores: the backends of the command log and of the write-ahead log, by name."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

from lakestream.errors import Unusable
from lakestream.interfaces import CommandLog, RepairableLog, Wal
from lakestream.process.clock import SystemClock
from lakestream.settings import Settings, data_folder, sqlite_path

if TYPE_CHECKING:
    from lakestream.metadata.stores.owner import Owner


async def open_command_log(settings: Settings) -> CommandLog:
    """The command log that `metadata` names."""
    where = settings.metadata
    if where.startswith("owner:"):
        from lakestream.metadata.stores.socket_client import SocketLog

        return await SocketLog.open(where.removeprefix("owner:"))
    if where == "memory:":
        from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore

        return MemoryLog(MemoryLogStore())
    path = command_log_path(settings)
    from lakestream.metadata.stores.sqlite import SqliteLog

    path.parent.mkdir(parents=True, exist_ok=True)
    return await SqliteLog.open(path, clock=SystemClock())


def command_log_path(settings: Settings) -> Path:
    """The SQLite file of the command log."""
    return sqlite_path(settings.metadata) or (data_folder(settings) or Path()) / "metadata.sqlite"


async def open_repairable_log(settings: Settings) -> RepairableLog:
    """The command log as an operator's tool needs it. Raises Retry if a process owns it."""
    opened = await open_command_log(settings)
    if not hasattr(opened, "blank"):
        raise Unusable(f"the command log {settings.metadata} cannot be repaired from here")
    return cast(RepairableLog, opened)


async def share_command_log(command_log: CommandLog, socket_path: str) -> "Owner":
    """A single broker owns its log in its own process; the pipeline uses it through a socket."""
    from lakestream.metadata.stores.owner import Owner
    from lakestream.metadata.stores.sqlite import SqliteLog

    assert isinstance(command_log, SqliteLog), "only a file has to be shared"
    return await Owner.serve(command_log, socket_path)


async def open_wal(settings: Settings) -> Wal:
    """The place for bytes that `data` names."""
    if settings.data == "memory:":
        from lakestream.data.memory import MemoryWal

        return MemoryWal()
    folder = data_folder(settings)
    if folder is not None:
        from lakestream.data.folder import FolderWal

        return FolderWal(folder, clock=SystemClock())
    from lakestream.data.opening import open_object_store

    return await open_object_store(settings.data, linger_ms=settings.linger_ms)

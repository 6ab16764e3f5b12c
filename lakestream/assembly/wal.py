"""Settings to the place of the write-ahead log: the backend that `data` names."""

from lakestream.interfaces import Wal
from lakestream.process.clock import SystemClock
from lakestream.settings import Settings, data_folder


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

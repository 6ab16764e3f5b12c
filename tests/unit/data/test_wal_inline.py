"""Small objects are written without a thread while the disk is fast, and with one when it is not."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from lakestream.data.folder import MAX_INLINE_PUT_BYTES, FolderWal
from lakestream.interfaces import Buffer
from lakestream.process.clock import SystemClock
from lakestream.process.sync_pace import QUICK_S


class WatchedWal(FolderWal):
    """Notes which thread writes, and can be as slow as a bad disk."""

    slow_s = 0.0
    on_the_loop: bool | None = None

    def _put(self, key: str, parts: Sequence[Buffer]) -> None:
        self.on_the_loop = threading.current_thread() is threading.main_thread()
        time.sleep(self.slow_s)
        super()._put(key, parts)


async def test_a_disk_that_gets_slow_is_waited_for_in_a_thread(tmp_path: Path) -> None:
    wal = WatchedWal(tmp_path, clock=SystemClock())
    wal._pace._mean_s = 0.0
    await wal.put("c/1", [b"small"])
    assert wal.on_the_loop
    wal.slow_s = 10 * QUICK_S
    await wal.put("c/2", [b"small"])
    await wal.put("c/3", [b"small"])
    assert wal.on_the_loop is False
    wal._pace._mean_s = 0.0
    await wal.put("c/4", [bytes(MAX_INLINE_PUT_BYTES + 1)])
    assert wal.on_the_loop is False
    assert len(await wal.list("c/")) == 4
    await wal.close()


async def test_without_a_clock_every_object_is_written_in_a_thread(tmp_path: Path) -> None:
    wal = WatchedWal(tmp_path)
    for number in range(50):
        await wal.put(f"c/{number}", [b"small"])
        assert wal.on_the_loop is False
    await wal.close()

"""Small appends are done on the event loop while the disk is quick, and in the thread when it is not."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from lakestream.errors import Retry
from lakestream.metadata.stores import sqlite_file
from lakestream.metadata.stores.sqlite import MAX_INLINE_BYTES, SqliteLog
from lakestream.metadata.stores.sqlite_file import SqliteFile
from lakestream.metadata.stores.sqlite_worker import ThreadWorker
from lakestream.process.clock import SystemClock
from lakestream.process.sync_pace import QUICK_S


class Watched:
    """Notes which thread appends, and can be as slow as a bad disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slow_s = 0.0
        self.on_the_loop: bool | None = None
        self.tidied_on_the_loop: bool | None = None
        append, tidy = SqliteFile.append, SqliteFile.tidy

        def watched(file: SqliteFile, commands: Sequence[bytes]) -> int:
            self.on_the_loop = threading.current_thread() is threading.main_thread()
            time.sleep(self.slow_s)
            return append(file, commands)

        def watched_tidy(file: SqliteFile) -> None:
            if file.untidy:
                self.tidied_on_the_loop = threading.current_thread() is threading.main_thread()
            tidy(file)

        monkeypatch.setattr(SqliteFile, "append", watched)
        monkeypatch.setattr(SqliteFile, "tidy", watched_tidy)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


async def open_quick(path: Path) -> SqliteLog:
    log = await SqliteLog.open(path, clock=SystemClock())
    assert isinstance(log._worker, ThreadWorker)
    with log._worker._using:  # the thread has answered, and is about to let go of the file
        pass
    log._pace._mean_s = 0.0
    return log


async def test_a_disk_that_gets_slow_is_waited_for_in_the_thread(tmp_path: Path, watched: Watched) -> None:
    log = await open_quick(tmp_path / "log.db")
    assert (await log.append([b"1"], 0)).tail == [(1, b"1")]
    assert watched.on_the_loop
    watched.slow_s = 10 * QUICK_S
    await log.append([b"2"], 1)
    appended = await log.append([b"3"], 2)
    assert watched.on_the_loop is False
    assert (appended.first, appended.tail) == (3, [(2, b"2"), (3, b"3")])
    await log.close()


async def test_large_appends_and_those_behind_others_go_to_the_thread(tmp_path: Path, watched: Watched) -> None:
    log = await open_quick(tmp_path / "log.db")
    await log.append([bytes(MAX_INLINE_BYTES + 1)], 0)
    assert watched.on_the_loop is False
    log._pace._mean_s = 0.0
    release = threading.Event()
    held = asyncio.create_task(log._do(lambda file: release.wait(10)))
    await asyncio.sleep(0)
    behind = asyncio.create_task(log.append([b"small"], 1))
    await asyncio.sleep(0)
    assert not behind.done()
    release.set()
    assert (await behind).first == 2
    assert watched.on_the_loop is False
    await held
    await log.close()


async def test_tidying_is_left_to_the_thread_and_nothing_is_lost(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "WAL_PAGES_BEFORE_CHECKPOINT", 10)
    log = await open_quick(tmp_path / "log.db")
    for number in range(1, 101):
        log._pace._mean_s = 0.0
        assert (await log.append([b"%d" % number], number - 1)).first == number
    await log.close()
    assert watched.tidied_on_the_loop is False
    again = await SqliteLog.open(tmp_path / "log.db")
    assert [command for _, command in await again.read(0, 1000)] == [b"%d" % number for number in range(1, 101)]
    await again.close()


async def test_without_a_clock_every_append_is_done_in_the_thread(tmp_path: Path, watched: Watched) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    for _ in range(30):
        await log.append([b"x"], 0)
        assert watched.on_the_loop is False
    await log.close()


async def test_a_closed_log_appends_nothing_on_the_loop_either(tmp_path: Path, watched: Watched) -> None:
    log = await open_quick(tmp_path / "log.db")
    await log.close()
    with pytest.raises(Retry):
        await log.append([b"x"], 0)
    assert watched.on_the_loop is None

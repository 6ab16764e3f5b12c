"""The contract of `CommandLog`, on every store; and that the check finds what is broken."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from lakestream.interfaces import Appended, Logged
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.metadata.stores.owner import Owner
from lakestream.metadata.stores.socket_client import SocketLog
from lakestream.metadata.stores.sqlite import SqliteLog
from lakestream.process.clock import SystemClock
from lakestream.testing.command_log_contract import check_command_log


async def test_memory_keeps_the_contract() -> None:
    store = MemoryLogStore()

    async def open_handle() -> MemoryLog:
        return MemoryLog(store)

    await check_command_log(open_handle, persistent=True)


async def test_sqlite_in_process_keeps_the_contract(tmp_path: Path) -> None:
    await check_command_log(lambda: SqliteLog.open(tmp_path / "log.db"), persistent=True, max_handles=1)


async def test_sqlite_on_the_event_loop_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No disk is so slow that the write would go to the thread.
    monkeypatch.setattr("lakestream.process.sync_pace.QUICK_S", 60.0)
    await check_command_log(
        lambda: SqliteLog.open(tmp_path / "log.db", clock=SystemClock()), persistent=True, max_handles=1
    )


async def test_sqlite_through_its_owner_keeps_the_contract(tmp_path: Path) -> None:
    owner = await Owner.open(tmp_path / "log.db", tmp_path / "s")
    try:
        await check_command_log(lambda: SocketLog.open(tmp_path / "s"), persistent=True, max_handles=4)
    finally:
        await owner.close()


class _Swapping(MemoryLog):
    """Shows a reader of several commands two of them in the wrong order."""

    async def read(self, after: int, limit: int) -> list[Logged]:
        page = await super().read(after, limit)
        return [*page[:-2], page[-1], page[-2]] if len(page) > 2 else page


class _Skipping(MemoryLog):
    """Forgets the command at `after` (L5)."""

    async def append(self, commands: Sequence[bytes], after: int) -> Appended:
        appended = await super().append(commands, after)
        return Appended(appended.first, [each for each in appended.tail if each[0] != after])


class _Deaf(MemoryLog):
    """Never returns from a wait."""

    async def wait(self, after: int, timeout_s: float) -> None:
        await asyncio.Event().wait()


class _Eager(MemoryLog):
    """Truncates all, the last command too (L9)."""

    async def truncate(self, through: int) -> None:
        self._store.commands = [each for each in self._store.commands if each[0] > through]
        self._store.floor = min(through, self._store.last) + 1


@pytest.mark.parametrize("broken", [_Swapping, _Skipping, _Eager])
async def test_the_check_finds_a_broken_log(broken: type[MemoryLog]) -> None:
    store = MemoryLogStore()

    async def open_handle() -> MemoryLog:
        return broken(store)

    with pytest.raises(AssertionError):
        await check_command_log(open_handle, persistent=False)


async def test_the_check_finds_a_wait_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.testing.command_log_contract.PATIENCE_S", 0.2)
    store = MemoryLogStore()

    async def open_handle() -> MemoryLog:
        return _Deaf(store)

    with pytest.raises((AssertionError, TimeoutError)):
        await check_command_log(open_handle, persistent=False)

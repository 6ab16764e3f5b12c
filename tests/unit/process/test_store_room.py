"""Stores without room: who notices, what is logged, and when it is over."""

import errno
import logging
import os
from pathlib import Path

import pytest

from lakestream.data.folder import FolderWal
from lakestream.data.placer import not_written
from lakestream.errors import NoRoom, Retry
from lakestream.interfaces import ProbesRoom
from lakestream.metadata.stores.wire import decode_error, encode_error
from lakestream.process.store_room import QUIET_S, StoreRoom


class HandClock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


def test_one_line_when_it_begins_and_one_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    room = StoreRoom("the store", clock)
    with caplog.at_level(logging.INFO):
        room.taken()
        assert caplog.messages == []
        for _ in range(5):
            clock.now += QUIET_S / 2
            room.refused(NoRoom("full"))
            room.taken()
        assert room.why == "full" and len(caplog.messages) == 1
        clock.now += QUIET_S
        room.taken()
        room.taken()
    assert room.why == ""
    assert caplog.messages[1:] == ["the store has room again, after 3 s"]


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, NoRoom), (errno.EDQUOT, NoRoom), (errno.EIO, Retry), (errno.EACCES, Retry)]
)
def test_a_full_disk_and_a_used_up_quota_are_no_room(number: int, kind: type[Retry]) -> None:
    assert type(not_written("a/b", OSError(number, os.strerror(number)))) is kind


def test_no_room_passes_through_the_socket_of_the_logs_owner() -> None:
    told = decode_error(encode_error(NoRoom("the disk is full")))
    assert isinstance(told, NoRoom) and str(told) == "the disk is full"


@pytest.mark.parametrize("nameless", [True, False])
async def test_a_folder_is_probed_without_leaving_anything_behind(tmp_path: Path, nameless: bool) -> None:
    wal = FolderWal(tmp_path, nameless=nameless)
    assert isinstance(wal, ProbesRoom)
    await wal.put("a/0", [b"x"])
    before = files_of(tmp_path)
    assert await wal.has_room()
    assert files_of(tmp_path) == before
    await wal.close()


def files_of(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}

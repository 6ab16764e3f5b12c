"""Files that are made ahead of time: one wait for a put, nothing of them shows, and none is left."""

import asyncio
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lakestream.data import ready_files
from lakestream.data.folder import FolderWal
from lakestream.data.nameless_files import NamelessFiles
from lakestream.data.ready_files import AHEAD, ROW_FROM, ReadyFiles
from lakestream.data.synced_files import Descriptor, Directories
from lakestream.errors import Missing, Retry


def key(number: int) -> str:
    return f"c/wal/1/{number:020d}"


async def with_a_row(path: Path) -> FolderWal:
    """A WAL that expects objects from `ROW_FROM` on."""
    wal = FolderWal(path)
    assert wal._ready is not None
    for number in range(ROW_FROM):
        await wal.put(key(number), [b"%d" % number])
    while wal._ready._rows["c/wal/1"].making:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return wal


def hidden(path: Path) -> list[int]:
    return sorted(int(one.name) for one in (path / "c/wal/1").iterdir() if not one.stat().st_mode & 0o444)


async def test_a_put_waits_once_and_nothing_shows_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wal = await with_a_row(tmp_path)
    assert hidden(tmp_path) == list(range(ROW_FROM, ROW_FROM + AHEAD))
    assert [one.key for one in await wal.list("")] == [key(number) for number in range(ROW_FROM)]
    with pytest.raises(Missing):
        await wal.read(key(ROW_FROM), [(0, 1)])
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(stat.S_IFMT(os.fstat(number).st_mode)))
    await wal.put(key(ROW_FROM), [b"ne", b"xt"])
    assert synced == [stat.S_IFREG]
    assert await wal.read(key(ROW_FROM), [(0, 10)]) == [b"next"]
    await wal.put(key(ROW_FROM), [b"next"])
    assert [one.size for one in await wal.list(key(ROW_FROM))] == [4]
    await wal.close()


async def test_the_next_ones_are_made_again_and_again(tmp_path: Path) -> None:
    wal = await with_a_row(tmp_path)
    for number in range(ROW_FROM, 300):
        await wal.put(key(number), [b"%d" % number])
        await asyncio.sleep(0)
    listed = await wal.list("")
    assert [one.key for one in listed] == [key(number) for number in range(300)]
    for number in range(300):
        assert await wal.read(key(number), [(0, 10)]) == [b"%d" % number]
    await wal.close()
    assert hidden(tmp_path) == []
    assert len(list((tmp_path / "c/wal/1").iterdir())) == 300


async def test_a_name_of_other_digits_is_another_name(tmp_path: Path) -> None:
    wal = await with_a_row(tmp_path)
    await wal.put(f"c/wal/1/{ROW_FROM}", [b"short"])
    assert await wal.read(f"c/wal/1/{ROW_FROM}", [(0, 9)]) == [b"short"]
    with pytest.raises(Missing):
        await wal.read(key(ROW_FROM), [(0, 9)])
    await wal.close()


async def test_single_objects_and_other_names_make_nothing(tmp_path: Path) -> None:
    wal = FolderWal(tmp_path)
    for number in range(3 * ROW_FROM):
        await wal.put(f"c/checkpoints/{number}/0/{1:020d}", [b"x"])
        await wal.put(f"c/wal/1/x{number}", [b"x"])
    await asyncio.to_thread(wal._writers.shutdown)
    assert len(await wal.list("")) == 6 * ROW_FROM == sum(len(names) for _, _, names in os.walk(tmp_path / "c"))
    await wal.close()


LEAVES_THEM = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.unit.data.test_ready_files import with_a_row
asyncio.run(with_a_row(Path(sys.argv[1])))
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_what_a_dead_maker_left_is_removed_and_what_a_living_one_made_is_not(tmp_path: Path) -> None:
    leaving = await asyncio.create_subprocess_exec(sys.executable, "-c", LEAVES_THEM, str(tmp_path))
    await asyncio.wait_for(leaving.wait(), 60)
    assert len(hidden(tmp_path)) == AHEAD
    wal = FolderWal(tmp_path)
    with pytest.raises(Retry):
        await wal.put(key(ROW_FROM), [b"mine"])
    await wal.put(key(ROW_FROM), [b"mine"])
    assert len(await wal.list("")) == ROW_FROM + 1
    assert hidden(tmp_path) == []
    alive = await with_a_row(tmp_path / "other")
    assert len(await FolderWal(tmp_path / "other").list("")) == ROW_FROM
    assert len(hidden(tmp_path / "other")) == AHEAD
    await alive.close()
    await wal.close()


async def test_a_full_disk_leaves_nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wal = await with_a_row(tmp_path)

    def full(file: int, parts: object) -> None:
        os.write(file, b"half")
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(ready_files, "write_all", full)
        with pytest.raises(Retry, match="no space"):
            await wal.put(key(ROW_FROM), [b"whole"])
    assert len(await wal.list("")) == ROW_FROM
    await wal.put(key(ROW_FROM), [b"whole"])
    assert await wal.read(key(ROW_FROM), [(0, 10)]) == [b"whole"]
    await wal.close()


async def test_where_files_cannot_be_made_ahead_objects_are_made_when_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def unsupported(file: int, how: int) -> None:
        if how & fcntl.LOCK_EX:
            tried.append(file)
        raise OSError(95, "not supported")

    monkeypatch.setattr(ready_files.fcntl, "flock", unsupported)
    wal = await with_a_row(tmp_path)
    for number in range(ROW_FROM, 5 * ROW_FROM):
        await wal.put(key(number), [b"x"])
        await asyncio.sleep(0.001)
    assert len(tried) == 1 and hidden(tmp_path) == []
    assert len(await wal.list("")) == 5 * ROW_FROM
    await wal.close()


def test_who_is_faster_than_the_directorys_sync_does_it_himself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Callable[[], None]] = []
    (tmp_path / "nursery").mkdir()
    ready = ReadyFiles(Directories(tmp_path), NamelessFiles(tmp_path / "nursery"), jobs.append)
    for number in range(ROW_FROM):
        ready.expect_more(key(number))
    synced: list[int] = []
    fsync = os.fsync

    def watched(number: int) -> None:
        synced.append(stat.S_IFMT(os.fstat(number).st_mode))
        fsync(number)
        if len(synced) == 1:  # the maker's, of the directory
            early = ready.take(key(ROW_FROM))
            assert early is not None
            early.write([b"early"])
            early.sync()

    [make] = jobs
    ready._directories.open("c/wal/1")
    monkeypatch.setattr(os, "fsync", watched)
    make()
    assert synced == [stat.S_IFDIR, stat.S_IFREG, stat.S_IFDIR]
    late = ready.take(key(ROW_FROM + 1))
    assert late is not None
    late.write([b"late"])
    late.sync()
    assert synced[3:] == [stat.S_IFREG]
    ready.close()


async def test_who_may_not_read_hidden_files_sees_none_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for everybody but root."""
    wal = await with_a_row(tmp_path)

    def checked(path: Path) -> Descriptor:
        if not os.stat(path).st_mode & 0o444:
            raise PermissionError(13, "denied")
        return Descriptor(os.open(path, os.O_RDONLY))

    monkeypatch.setattr(ready_files, "open_to_read", checked)
    with pytest.raises(Missing):
        await wal.read(key(ROW_FROM), [(0, 1)])
    assert await wal.read(key(0), [(0, 1)]) == [b"0"]
    await wal.close()


def test_objects_are_as_private_as_the_user_asks(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, sys; os.umask(0o077); from pathlib import Path\n"
        "from tests.unit.data.test_ready_files import with_a_row, key, ROW_FROM\n"
        "async def main():\n"
        "    wal = await with_a_row(Path(sys.argv[1])); await wal.put(key(ROW_FROM), [b'x']); await wal.close()\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)
    assert {stat.S_IMODE(one.stat().st_mode) for one in (tmp_path / "c/wal/1").iterdir()} == {0o600}

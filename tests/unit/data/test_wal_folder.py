"""What is the folder's own business: crashes, full disks, leftovers, shared directories."""

import asyncio
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lakestream.data import folder, synced_files
from lakestream.data.folder import FolderWal
from lakestream.errors import Missing
from lakestream.interfaces import StoredObject
from lakestream.model.batches.wal_object import parse_wal_key, verify
from tests.support.places import ROOT

# A writer that puts whole WAL objects as fast as it can and says so after each ack.
WRITER = """
import asyncio, sys
from lakestream.data.folder import FolderWal
from lakestream.model.batches.wal_object import TickSlice, header, tick_tail, wal_key

async def main(path, member, nameless):
    wal = FolderWal(path, nameless=nameless)
    async def write(tick):
        body = header(0) + tick.to_bytes(4, "big") * (1 + tick * 7919 % 60_000)
        key = wal_key("c", member, 1, tick)
        await wal.put(key, [body, tick_tail(body, [TickSlice(1, 16, len(body) - 16, 1)])])
        print(key, flush=True)
    for tick in range(0, 1_000_000, 3):
        await asyncio.gather(*(write(tick + n) for n in range(3)))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "nameless"))
"""


def acked_before_kill(arguments: list[str], after_s: float) -> set[str]:
    command = [sys.executable, "-c", WRITER, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(after_s)
        writer.send_signal(signal.SIGKILL)
        # The last line may have been cut by the kill.
        lines = (first + writer.stdout.read()).split("\n")[:-1]
    return set(lines)


@pytest.mark.parametrize("mode", ["nameless", "hidden"])
async def test_after_kill_9_all_acked_objects_are_whole_and_nothing_else_is_listed(tmp_path: Path, mode: str) -> None:
    moments = random.Random(7)
    acked: set[str] = set()
    for member in range(6):
        acked |= acked_before_kill([str(tmp_path), str(member), mode], moments.uniform(0, 0.15))
    wal = FolderWal(tmp_path)
    listed = {stored.key: stored.size for stored in await wal.list("")}
    assert acked <= listed.keys()
    for key, size in listed.items():
        [whole] = await wal.read(key, [(0, size + 1)])
        verify(whole)
        name = parse_wal_key(key)
        assert name is not None
        assert whole[16:20] == name.number.to_bytes(4, "big")
    assert list((tmp_path / ".tmp").iterdir()) == [], "the dead writers' temporary files are swept"
    await wal.close()


# Beyond the limit the kernel first writes less than it was asked to, then fails: as a full disk does.
FULL_DISK = """
import asyncio, os, resource, sys
from lakestream.data.folder import FolderWal
from lakestream.errors import Retry

async def main(path, nameless):
    wal = FolderWal(path, nameless=nameless)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        await wal.put("a/b/big", [b"x" * 70_000, b"y" * 70_000])
    except Retry as error:
        print("Retry", error)
    print(await wal.list(""), [name for _, _, names in os.walk(path + "/.tmp") for name in names])
    await wal.put("a/b/small", [b"x" * 50_000, b"y" * 50_000])
    print(await wal.list(""))
    await wal.close()

asyncio.run(main(sys.argv[1], sys.argv[2] == "nameless"))
"""


@pytest.mark.parametrize("mode", ["nameless", "hidden"])
def test_a_full_disk_is_retry_and_leaves_nothing(tmp_path: Path, mode: str) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path), mode]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()
    assert said[0].startswith("Retry a/b/big cannot be written")
    assert said[1:] == ["[] []", "[StoredObject(key='a/b/small', size=100000)]"]


async def test_nameless_files_are_used_where_the_file_system_knows_them(tmp_path: Path) -> None:
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))
    except OSError:
        pytest.skip("the file system of the temporary folder knows no nameless files")
    for nameless in (True, False):
        wal = FolderWal(tmp_path, nameless=nameless)
        assert repr(wal).endswith(("hidden temporary files)", "nameless temporary files)")[nameless])
        await wal.close()


async def test_temporary_files_of_the_living_stay_and_those_of_the_dead_go(tmp_path: Path) -> None:
    hidden = tmp_path / ".tmp"
    hidden.mkdir()
    (hidden / "dead").write_bytes(b"half")
    with (hidden / "living").open("wb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        wal = FolderWal(tmp_path)
        assert [path.name for path in hidden.iterdir()] == ["living"]
        assert await wal.list("") == []
        await wal.close()


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", ".tmp/x", "a/.b", "a/\0"])
async def test_what_leaves_the_folder_is_no_key(tmp_path: Path, key: str) -> None:
    wal = FolderWal(tmp_path / "wal")
    (tmp_path / "a").write_bytes(b"not ours")
    for call in (wal.put(key, [b"x"]), wal.read(key, [(0, 1)]), wal.delete([key])):
        with pytest.raises(ValueError, match="is no key"):
            await call
    await wal.close()


async def test_no_list_leaves_the_folder(tmp_path: Path) -> None:
    wal = FolderWal(tmp_path / "wal")
    (tmp_path / "a").write_bytes(b"not ours")
    for prefix in ("../", "..", "/", "./", "x/../../", ".tmp/"):
        assert await wal.list(prefix) == []
    await wal.close()


async def test_two_folders_at_one_place_may_remove_and_make_each_others_directories(tmp_path: Path) -> None:
    one, other = FolderWal(tmp_path), FolderWal(tmp_path)
    await one.put("x/y/1", [b"1"])
    await other.delete(["x/y/1"])
    assert not (tmp_path / "x").exists()
    await one.put("x/y/2", [b"2"])
    assert await other.list("x") == [StoredObject("x/y/2", 1)]
    await asyncio.gather(one.close(), other.close())


async def test_an_object_that_another_process_deleted_is_missing_although_it_was_open(tmp_path: Path) -> None:
    one, other = FolderWal(tmp_path), FolderWal(tmp_path)
    await one.put("x/1", [b"old"])
    for _ in range(2):
        assert await one.read("x/1", [(0, 3)]) == [b"old"]
    await other.delete(["x/1"])
    with pytest.raises(Missing):
        await one.read("x/1", [(0, 3)])
    await other.put("x/1", [b"new"])
    assert await one.read("x/1", [(0, 3)]) == [b"new"]
    await asyncio.gather(one.close(), other.close())


async def test_open_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MAX_OPEN_OBJECTS", 5)
    monkeypatch.setattr(synced_files, "MAX_OPEN_DIRECTORIES", 5)
    before = len(os.listdir("/proc/self/fd"))
    wal = FolderWal(tmp_path)
    for number in range(40):
        await wal.put(f"{number}/1", [b"x"])
        assert await wal.read(f"{number}/1", [(0, 1)]) == [b"x"]
    assert len(os.listdir("/proc/self/fd")) <= before + 11, "five objects, five directories, one to make files in"
    await wal.close()
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_objects_survive_when_their_pages_are_dropped_from_the_cache(tmp_path: Path) -> None:
    wal = FolderWal(tmp_path, page_cache_bytes=1_000_000)
    bodies = {f"a/{number}": bytes([number]) * 300_000 for number in range(10)}
    for key, body in bodies.items():
        await wal.put(key, [body])
    await wal.delete(["a/9"])
    await wal.put("a/10", [b"x" * 2_000_000])
    for key, body in list(bodies.items())[:9]:
        for _ in range(2):
            assert await wal.read(key, [(0, 400_000)]) == [body]
    await wal.close()


async def test_the_event_loop_goes_on_while_objects_are_written(tmp_path: Path) -> None:
    wal = FolderWal(tmp_path)
    turns = 0
    writing = asyncio.gather(*(wal.put(f"a/{number}", [bytes(8_000_000)]) for number in range(4)))
    while not writing.done():
        await asyncio.sleep(0)
        turns += 1
    await writing
    assert turns > 10
    await wal.close()


def test_directories_are_durable_from_the_root_down_and_again_when_somebody_replaced_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = synced_files.Directories(tmp_path)
    synced: list[Path] = []
    monkeypatch.setattr(synced_files, "sync_directory", synced.append)
    a, b = tmp_path / "a", tmp_path / "a" / "b"
    directories.open("a/b/c")
    assert synced == [tmp_path, a, b]
    synced.clear()
    directories.open("a/b/d")
    assert synced == [b], "what is held is known to be durable"
    shutil.rmtree(a)
    synced.clear()
    directories.open("a/b/e")
    assert synced == [tmp_path, a, b]


def test_a_directory_that_was_durable_is_not_synced_again_unless_another_one_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand tables have more directories than are held open, and every round comes back to them."""
    monkeypatch.setattr(synced_files, "MAX_OPEN_DIRECTORIES", 1)
    directories = synced_files.Directories(tmp_path, known_max=10)
    directories.open("a/b")
    directories.open("a/c")
    synced: list[Path] = []
    monkeypatch.setattr(synced_files, "sync_directory", synced.append)
    directories.open("a/b")
    directories.open("a/c")
    assert synced == []
    (tmp_path / "a" / "b").rename(tmp_path / "a" / "old")
    (tmp_path / "a" / "b").mkdir()
    directories.open("a/b")
    assert synced == [tmp_path / "a"]

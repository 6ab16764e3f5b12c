"""Nameless files are made in directories that come and go, and nobody is hurt when one goes early."""

import asyncio
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lakestream.data import nameless_files, placer
from lakestream.data.folder import FolderWal
from lakestream.data.nameless_files import NamelessFiles
from lakestream.data.tables.stores.table_store import FolderTableStore
from lakestream.errors import Exists


def _made(one: NamelessFiles) -> int:
    try:
        return one.make()
    except OSError as error:
        pytest.skip(f"the file system of the temporary folder knows no nameless files: {error}")


def test_a_directory_takes_so_many_files_and_then_another_one_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nameless_files, "FILES_A_DIRECTORY", 3)
    one, used = NamelessFiles(tmp_path), set()
    for _ in range(7):
        os.close(_made(one))
        (directory,) = tmp_path.iterdir()
        used.add(directory.name)
    assert len(used) == 3
    one.close()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_another_process_swept_away_is_made_again(tmp_path: Path) -> None:
    one = NamelessFiles(tmp_path)
    os.close(_made(one))
    (swept,) = tmp_path.iterdir()
    swept.rmdir()
    os.close(one.make())
    (made,) = tmp_path.iterdir()
    assert made != swept
    one.close()


async def test_a_folder_that_is_opened_sweeps_what_the_dead_left_and_the_living_go_on(tmp_path: Path) -> None:
    (tmp_path / ".tmp" / f"{nameless_files.NAMES}of-the-dead").mkdir(parents=True)
    living = FolderWal(tmp_path)
    await living.put("x/1", [b"one"])
    other = FolderWal(tmp_path)
    [mine] = (tmp_path / ".tmp").iterdir()
    assert mine.name != f"{nameless_files.NAMES}of-the-dead"
    await living.put("x/2", [b"two"])
    assert await other.read("x/2", [(0, 3)]) == [b"two"]
    assert list((tmp_path / ".tmp").iterdir()) == [mine]
    await living.close()
    await other.close()


def test_many_stores_that_open_and_write_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """As the workers of a pipeline do."""

    def work(number: int) -> int:
        store = FolderTableStore(tmp_path)
        for n in range(5):
            store.put(f"{store.root}/{number % 3}/{number}-{n}", b"x")
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(200))) == list(range(200))
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 1000


async def test_many_folders_that_open_and_write_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    async def work(number: int) -> None:
        wal = FolderWal(tmp_path)
        for n in range(5):
            await wal.put(f"x/{number}-{n}", [b"x" * 100_000])
        await wal.close()

    await asyncio.gather(*(work(number) for number in range(40)))
    made = await asyncio.to_thread(lambda: sum(path.is_file() for path in tmp_path.rglob("*")))
    assert made == 200


def test_a_table_in_a_file_system_without_nameless_files_is_written_by_hidden_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be mounted below a root that knows them: each file finds out for itself."""
    real, refused = os.open, []

    def without(path: Any, flags: int, *more: Any, **how: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            refused.append(path)
            raise OSError(errno.EOPNOTSUPP, "not here")
        return real(path, flags, *more, **how)

    monkeypatch.setattr(placer.os, "open", without)
    store = FolderTableStore(tmp_path)
    store.put(f"{store.root}/a/b", b"whole")
    store.put(f"{store.root}/a/b", b"whole")
    with pytest.raises(Exists):
        store.put(f"{store.root}/a/b", b"other")
    assert len(refused) == 3 and store.list(f"{store.root}/") == [(f"{store.root}/a/b", 5)]

"""Nameless files are made in directories that come and go, and nobody is hurt when one goes early."""

import os
from pathlib import Path

import pytest

from lakestream.data import nursery
from lakestream.data.folder import FolderWal
from lakestream.data.nursery import Nursery


def _made(one: Nursery) -> int:
    try:
        return one.make()
    except OSError as error:
        pytest.skip(f"the file system of the temporary folder knows no nameless files: {error}")


def test_a_directory_takes_so_many_files_and_then_another_one_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery, "FILES_A_DIRECTORY", 3)
    one, used = Nursery(tmp_path), set()
    for _ in range(7):
        os.close(_made(one))
        (directory,) = tmp_path.iterdir()
        used.add(directory.name)
    assert len(used) == 3
    one.close()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_another_process_swept_away_is_made_again(tmp_path: Path) -> None:
    one = Nursery(tmp_path)
    os.close(_made(one))
    (swept,) = tmp_path.iterdir()
    swept.rmdir()
    os.close(one.make())
    (made,) = tmp_path.iterdir()
    assert made != swept
    one.close()


async def test_a_folder_that_is_opened_sweeps_what_the_dead_left_and_the_living_go_on(tmp_path: Path) -> None:
    (tmp_path / ".tmp" / f"{nursery.NAMES}of-the-dead").mkdir(parents=True)
    living = FolderWal(tmp_path)
    await living.put("x/1", [b"one"])
    other = FolderWal(tmp_path)
    assert list((tmp_path / ".tmp").iterdir()) == []
    await living.put("x/2", [b"two"])
    assert await other.read("x/2", [(0, 3)]) == [b"two"]
    await living.close()
    await other.close()

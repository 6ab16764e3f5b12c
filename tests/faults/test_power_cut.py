"""What was acknowledged survives a power cut: the disk holds it at the moment at which `put` returns (C1).

The folder lies on a file system in a file. A copy of that file, made while the file system is in use, is what the disk
would hold if the power went: what was only in memory is missing. The copy is then checked and repaired, as a machine
does when it starts again.
"""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakestream.data.folder import FolderWal
from lakestream.data.tables.stores.table_store import FolderTableStore

COUNT = 40
KINDS = {"ext4": [], "ext4 without a journal": ["-O", "^has_journal"]}


@contextlib.contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system that lies in a file")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


@pytest.fixture(params=KINDS)
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An empty disk."""
    path = tmp_path / "disk"
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.truncate(64 << 20)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4")
    subprocess.run(["mkfs.ext4", "-q", *KINDS[request.param], str(path)], check=True)
    return path


def after_the_power_went(image: Path, folder: Path) -> contextlib.AbstractContextManager[Path]:
    copy = image.with_name("copy")
    shutil.copyfile(image, copy)
    subprocess.run(["e2fsck", "-f", "-y", str(copy)], capture_output=True, check=False)
    return mounted(copy, folder)


@pytest.mark.parametrize("nameless", [True, False], ids=["nameless", "hidden"])
async def test_an_object_is_there_after_a_power_cut(image: Path, tmp_path: Path, nameless: bool) -> None:
    with mounted(image, tmp_path / "before") as folder:
        wal = FolderWal(folder / "wal", nameless=nameless)
        for number in range(COUNT):
            await wal.put(f"a/{number:02d}", [b"x" * 3000, b"%02d" % number])
            await asyncio.sleep(0.005)  # in which the next files are made
        if wal._ready is not None:
            assert wal._ready._rows["a"].ready, "none was made ahead of time"
        with after_the_power_went(image, tmp_path / "after") as found:
            again = FolderWal(found / "wal", nameless=nameless)
            listed = [(one.key, one.size) for one in await again.list("")]
            assert listed == [(f"a/{number:02d}", 3002) for number in range(COUNT)]
            for number in range(COUNT):
                assert await again.read(f"a/{number:02d}", [(3000, 2)]) == [b"%02d" % number]
            await again.close()
        await wal.close()


def test_a_file_of_a_table_is_there_after_a_power_cut(image: Path, tmp_path: Path) -> None:
    with mounted(image, tmp_path / "before") as folder:
        store = FolderTableStore(folder / "lake")
        store.put(f"{store.root}/t/data/1.parquet", b"rows" * 1000)
        with after_the_power_went(image, tmp_path / "after") as found:
            again = FolderTableStore(found / "lake")
            assert again.get(f"{again.root}/t/data/1.parquet") == b"rows" * 1000
            del again
        del store

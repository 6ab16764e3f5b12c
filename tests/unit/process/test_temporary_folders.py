"""Temporary folders: nobody else reads them, and what a killed process left is swept by the next."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

from lakestream.process.temporary_folders import TemporaryFolder, sweep

KEEP = """
import sys, time
from pathlib import Path
from lakestream.process.temporary_folders import TemporaryFolder
made = TemporaryFolder("test", Path(sys.argv[1]))
(made.path / "left").write_text("x")
print(made.path, flush=True)
time.sleep(600)
"""


def test_what_a_killed_process_left_is_gone_when_the_next_one_starts_and_the_living_keep_theirs(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", KEEP, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as dies:
        assert dies.stdout is not None
        left = Path(dies.stdout.readline().strip())
        mine = TemporaryFolder("test", tmp_path)
        assert left.exists() and mine.path.exists(), "both owners live"
        dies.send_signal(signal.SIGKILL)
        dies.wait()
    assert (left / "left").exists(), "nobody has swept yet"
    next_one = TemporaryFolder("test", tmp_path)
    assert not left.exists() and mine.path.exists()
    mine.remove()
    mine.remove()
    next_one.remove()
    assert list(tmp_path.iterdir()) == []


def test_only_folders_of_the_kind_are_swept_and_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "lakestream-testing").mkdir()
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "lakestream-test-link")
    sweep("test", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"lakestream-testing", "elsewhere", "lakestream-test-link"}


def test_the_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    made = TemporaryFolder("test", tmp_path)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    made.remove()

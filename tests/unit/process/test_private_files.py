"""What a cluster writes is for its own user, whatever the shell's umask says; other users get in where they are let."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.serve_process import Cluster, clean_environment, serving


def produce(cluster: Cluster) -> None:
    argv = [sys.executable, "-m", "lakestream", "produce", "private", "--bootstrap", cluster.bootstrap]
    asked = subprocess.run(argv, input="hello\n", text=True, capture_output=True, env=clean_environment(), check=False)
    assert asked.returncode == 0, asked.stderr


def modes(folder: Path) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {"files": set(), "folders": {stat.S_IMODE(folder.stat().st_mode)}}
    for path in folder.rglob("*"):
        if not path.is_socket():
            found["folders" if path.is_dir() else "files"].add(stat.S_IMODE(path.lstat().st_mode))
    return found


@pytest.mark.parametrize(
    ("brokers", "umask", "file", "folder"),
    [(1, "077", 0o600, 0o700), (2, "077", 0o600, 0o700), (1, "027", 0o640, 0o750)],
)
def test_files_and_folders_are_private(tmp_path: Path, brokers: int, umask: str, file: int, folder: int) -> None:
    with serving(tmp_path, brokers, umask=umask) as cluster:
        produce(cluster)
        found = modes(tmp_path / "data")
    # A WAL file that is not whole yet is readable for nobody, and a lock of the command log is its owner's alone.
    assert found["files"] - {0o200, 0o600} <= {file} and found["folders"] == {folder}
    assert file in found["files"]
    assert "other users of this machine" not in cluster.log_text()


def test_a_folder_that_is_open_already_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o755)
    with serving(tmp_path) as cluster:
        assert "other users of this machine may read" in cluster.log_text()


def test_a_cluster_opens_to_other_machines_only_by_an_explicit_word(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "lakestream", "serve", "--kafka-host", "0.0.0.0", "--data", "d"]
    refused = subprocess.run(argv, cwd=tmp_path, text=True, capture_output=True, env=clean_environment(), check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: kafka_host = '0.0.0.0'") and "--allow-unauthenticated" in refused.stderr
    assert not (tmp_path / "d").exists()
    with serving(tmp_path, kafka_host="0.0.0.0", advertised_host="127.0.0.1", allow_unauthenticated=True) as cluster:
        produce(cluster)

"""A command log that is damaged, restored from an older copy, or has lost checkpoints: nothing is guessed (L3, L5)."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.acked_workload import create_topic, read_all, send
from tests.support.places import ROOT
from tests.support.serve_process import Cluster, eventually, serving

# What is made once for the module is made by one test process.
pytestmark = pytest.mark.xdist_group("metadata faults")

QUICK = {"broker_session_ms": 2000, "broker_heartbeat_ms": 200, "checkpoint_every": 10}


KEPT = [b"%d" % number for number in range(30)]


def checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(path for path in (folder / "data").glob("*/checkpoints/**/*") if path.is_file())


def noted(folder: Path) -> int:
    with sqlite3.connect(f"file:{folder}/data/metadata.sqlite?mode=ro", uri=True) as connection:
        return int(connection.execute("SELECT count(*) FROM checkpoints").fetchone()[0])


def refusal(folder: Path, **settings: int) -> tuple[int, str]:
    """The exit code of a `serve` that is expected not to come up, and what it says."""
    flags = [item for name, value in settings.items() for item in (f"--{name.replace('_', '-')}", str(value))]
    program = [sys.executable, "-m", "lakestream.cli.main", "serve", "--no-tables", "--data", str(folder / "data")]
    ended = subprocess.run(
        [*program, "--kafka-port", "0", "--http-port", "0", *flags], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def checkpointed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpointed")
    with serving(folder, **QUICK) as cluster:
        create_topic(cluster.bootstrap, "kept")
        for count in range(3):
            send(cluster.bootstrap, "kept", KEPT[count * 10 :][:10])
            if count < 2:
                await_checkpoints(cluster, count + 1)
        cluster.crash()
    return folder


@pytest.fixture
def checkpointed(checkpointed_once: Path, tmp_path: Path) -> Path:
    """A folder with two checkpoints, whose log was truncated, and records before, between and behind them."""
    shutil.copytree(checkpointed_once / "data", tmp_path / "data")
    return tmp_path


def await_checkpoints(cluster: Cluster, count: int) -> None:
    eventually(lambda: noted(cluster.folder) >= count, "no checkpoint", 30, cluster)


def values(cluster: Cluster) -> list[bytes]:
    return [value for _, value in read_all(cluster.bootstrap, "kept")[0]]


@pytest.mark.parametrize("how", ["cut", "flipped", "missing"])
def test_a_damaged_checkpoint_is_passed_over_for_the_older_one(checkpointed: Path, how: str) -> None:
    """L10: two are kept, with the commands since the older of them."""
    newest = checkpoints(checkpointed)[-1]
    if how == "missing":
        newest.unlink()
    else:
        body = bytearray(newest.read_bytes())
        body[len(body) // 2] ^= 0xFF
        newest.write_bytes(body if how == "flipped" else body[: len(body) // 2])
    with serving(checkpointed, **QUICK) as cluster:
        assert "cannot be used" in cluster.log_text()
        assert values(cluster) == KEPT
        assert send(cluster.bootstrap, "kept", [b"more"]) == [30]


def test_without_a_readable_checkpoint_it_does_not_start_and_says_why(checkpointed: Path) -> None:
    for path in checkpoints(checkpointed):
        path.write_bytes(b"junk" * 100)
    code, said = refusal(checkpointed)
    assert code not in (0, None)
    assert "checkpoint" in said
    assert "Traceback" not in said


def test_a_broker_that_cannot_come_back_leaves_the_others_alone(checkpointed: Path) -> None:
    with serving(checkpointed, brokers=2, broker_session_ms=2000, broker_heartbeat_ms=200) as cluster:
        for path in checkpoints(checkpointed):
            path.write_bytes(b"junk" * 100)
        cluster.kill(1)
        eventually(lambda: "gave up" in cluster.log_text(), "it is started again and again", 30, cluster)
        assert cluster.pid(1) is None
        assert values(cluster) == KEPT
        assert send(cluster.kafka[0], "kept", [b"more"]) == [30]
        assert cluster.process.poll() is None


@pytest.mark.parametrize("brokers", [1, 2])
@pytest.mark.parametrize("place", [0, 4096])
def test_a_damaged_sqlite_file_is_a_clear_error(tmp_path: Path, brokers: int, place: int) -> None:
    with serving(tmp_path) as cluster:
        create_topic(cluster.bootstrap, "kept")
        send(cluster.bootstrap, "kept", KEPT)
    database = tmp_path / "data" / "metadata.sqlite"
    with database.open("r+b") as file:
        file.seek(place)
        file.write(os.urandom(200_000))
    code, said = refusal(tmp_path, brokers=brokers)
    assert code not in (0, None)
    assert "metadata.sqlite" in said
    assert "not a database" in said or "malformed" in said
    assert "Traceback" not in said


def copied(database: Path, to: Path) -> None:
    """A consistent copy of a database in use, as a backup tool makes it."""
    source, target = sqlite3.connect(database), sqlite3.connect(to)
    with source, target:
        source.backup(target)
    source.close()
    target.close()


def put_back(copy: Path, database: Path) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{database}{suffix}").unlink(missing_ok=True)
    shutil.copyfile(copy, database)


def test_brokers_halt_when_the_log_under_them_is_replaced_by_an_older_copy(tmp_path: Path) -> None:
    """L5: they hold newer commands than the log; going on would give offsets away a second time."""
    database, copy = tmp_path / "data" / "metadata.sqlite", tmp_path / "copy.sqlite"
    with serving(tmp_path, brokers=2, broker_session_ms=2000, broker_heartbeat_ms=200) as cluster:
        create_topic(cluster.bootstrap, "kept")
        send(cluster.bootstrap, "kept", KEPT[:10])
        copied(database, copy)
        assert send(cluster.bootstrap, "kept", KEPT[10:]) == list(range(10, 30))
        owner = eventually(cluster.owner_pid, "no owner", 10, cluster)
        os.kill(owner, signal.SIGSTOP)
        put_back(copy, database)
        os.kill(owner, signal.SIGKILL)
        code = eventually(lambda: cluster.process.poll(), "they go on with an older log", 30, cluster)
        assert code != 0
        said = cluster.log_text()
        assert "it was restored or failed over" in said
        assert "Traceback" not in said


def test_a_log_older_than_a_checkpoint_in_the_store_is_refused_at_the_start(tmp_path: Path) -> None:
    """L5, for brokers that were started again and remember nothing: the newest checkpoint does."""
    database, copy = tmp_path / "data" / "metadata.sqlite", tmp_path / "copy.sqlite"
    with serving(tmp_path, **QUICK) as cluster:
        create_topic(cluster.bootstrap, "kept")
        send(cluster.bootstrap, "kept", KEPT[:10])
        copied(database, copy)
        send(cluster.bootstrap, "kept", KEPT[10:])
        eventually(lambda: noted(tmp_path), "no checkpoint", 30, cluster)
    put_back(copy, database)
    code, said = refusal(tmp_path)
    assert code not in (0, None)
    assert "restored" in said and "checkpoint" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("kept_epoch", [True, False], ids=["within an epoch", "an epoch later"])
def test_a_log_older_than_a_wal_object_in_the_store_is_refused_at_the_start(tmp_path: Path, kept_epoch: bool) -> None:
    """L5, where no checkpoint was made since the copy: the objects of later ticks, or of later epochs, prove it."""
    database, copy = tmp_path / "data" / "metadata.sqlite", tmp_path / "copy.sqlite"
    slow = {**QUICK, "checkpoint_every": 1_000_000}
    with serving(tmp_path, **slow) as cluster:
        create_topic(cluster.bootstrap, "kept")
        send(cluster.bootstrap, "kept", KEPT[:10])
        copied(database, copy)
        for record in KEPT[10:20] if kept_epoch else ():
            send(cluster.bootstrap, "kept", [record])
    if not kept_epoch:
        with serving(tmp_path, **slow) as cluster:
            send(cluster.bootstrap, "kept", KEPT[10:20])
    assert not checkpoints(tmp_path)
    newest = tmp_path / "newest.sqlite"
    copied(database, newest)
    objects = sorted((tmp_path / "data").glob("*/wal/**/*"))
    put_back(copy, database)
    for _ in range(2):
        code, said = refusal(tmp_path)
        assert code not in (0, None)
        assert "restored from an older copy" in said and "Put the newest copy of the metadata back" in said
        assert "Traceback" not in said
    assert sorted((tmp_path / "data").glob("*/wal/**/*")) == objects, "nothing was removed"
    put_back(newest, database)
    with serving(tmp_path, **slow) as cluster:
        assert values(cluster) == KEPT[:20]

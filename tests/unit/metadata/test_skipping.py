"""Past a command that no version can fold: what the operator's tool does, and refuses (L3)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from lakestream.cli.main import cli
from lakestream.data.memory import MemoryWal
from lakestream.errors import Halted, Rejected, Retry
from lakestream.interfaces import RepairableLog
from lakestream.metadata import skipping
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.metadata.stores.sqlite import SqliteLog
from lakestream.model.commands import RaiseLevel, Register, encode, pack
from lakestream.model.levels import FIRST, NEWEST
from tests.support.acked_workload import create_topic, read_all, send
from tests.support.memory_broker import start_broker
from tests.support.serve_process import serving

UNKNOWN = encode(FIRST, 250, 0, 1, 99, b"of tomorrow")


@pytest.fixture(autouse=True)
def kept_umask() -> Iterator[None]:
    """The command makes its process's files private; here this is the process of all tests."""
    before = os.umask(0o022)
    yield
    os.umask(before)


async def opened(kind: str, folder: Path) -> RepairableLog:
    return MemoryLog(MemoryLogStore()) if kind == "memory" else await SqliteLog.open(folder / "log.sqlite")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_skipped_command_folds_to_nothing_and_the_log_goes_on_L3(kind: str, tmp_path: Path) -> None:
    log, wal = await opened(kind, tmp_path), MemoryWal()
    broker = await start_broker(log, wal)
    await broker.topic("before")
    sequence = (await log.append([UNKNOWN], 0)).first
    with pytest.raises(Retry):
        await broker.replica.catch_up()
    await broker.stop()
    stuck = skipping.wanted(await skipping.find_stuck(log, wal), sequence)
    await skipping.skip(log, stuck)
    assert stuck.command == UNKNOWN and "kind 250" in stuck.reason
    assert await skipping.find_stuck(log, wal) is None
    assert await log.read(sequence, 1) == [(sequence, b"")]
    again = await start_broker(log, wal, seed=2)
    await again.topic("after")
    assert set(again.replica.state.topics.by_name) == {"before", "after"}
    await again.stop()
    await log.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_what_can_be_folded_is_never_skipped_L3(kind: str, tmp_path: Path) -> None:
    log, wal = await opened(kind, tmp_path), MemoryWal()
    broker = await start_broker(log, wal)
    await broker.topic("t")
    end = broker.replica.state.sequence
    await broker.stop()
    with pytest.raises(Rejected, match="nothing to skip"):
        skipping.wanted(await skipping.find_stuck(log, wal), end)
    await log.append([UNKNOWN, UNKNOWN], 0)
    with pytest.raises(Rejected, match=f"that is command {end + 1}"):
        skipping.wanted(await skipping.find_stuck(log, wal), end + 2)
    assert not await log.blank(end, b"another command")
    assert not await log.blank(end + 9, UNKNOWN)
    assert len(await log.read(0, 100)) == end + 2
    await log.close()


def test_the_command_line_skips_with_all_brokers_stopped_and_nothing_else_is_lost(tmp_path: Path) -> None:
    with serving(tmp_path) as cluster:
        create_topic(cluster.bootstrap, "t", 1)
        send(cluster.bootstrap, "t", [b"kept"])
        busy = CliRunner().invoke(cli, ["metadata", "skip", "5", "--yes", "--data", str(tmp_path / "data")])
        assert busy.exit_code != 0 and "in use" in busy.output + str(busy.exception)
    sequence = _append_unknown(tmp_path / "data" / "metadata.sqlite")
    with pytest.raises(AssertionError, match="kind 250"), serving(tmp_path):
        pass
    asked = ["metadata", "skip", str(sequence), "--data", str(tmp_path / "data")]
    refused = CliRunner().invoke(cli, asked, input="n\n")
    assert refused.exit_code != 0 and "kind 250" in refused.output
    done = CliRunner().invoke(cli, [*asked, "--yes"])
    assert done.exit_code == 0, done.output
    assert f"command {sequence} is skipped" in done.output
    with serving(tmp_path) as cluster:
        assert read_all(cluster.bootstrap, "t")[0] == [(0, b"kept")]


def _append_unknown(path: Path) -> int:
    import asyncio

    async def run() -> int:
        log = await SqliteLog.open(path)
        try:
            return (await log.append([UNKNOWN], 0)).first
        finally:
            await log.close()

    return asyncio.run(run())


async def test_a_command_of_a_level_that_a_newer_version_raised_is_never_skipped_L3() -> None:
    log, wal = MemoryLog(MemoryLogStore()), MemoryWal()
    newer = Register(b"i" * 16, "c", "broker", "h", 1, "", 1, NEWEST + 1)
    await log.append(
        [
            encode(FIRST, Register.KIND, 0, 0, 0, pack(newer)),
            encode(FIRST, RaiseLevel.KIND, 0, 1, 1, pack(RaiseLevel(NEWEST + 1))),
            encode(NEWEST + 1, 250, 0, 1, 2, b"of tomorrow, acknowledged"),
        ],
        0,
    )
    with pytest.raises(Halted, match="upgrade"):
        await skipping.find_stuck(log, wal)
    assert (await log.read(3, 1))[0][1] != b""


def test_a_folder_without_a_command_log_is_refused_and_left_alone(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["metadata", "skip", "5", "--yes", "--data", str(tmp_path / "mistyped")])
    assert done.exit_code != 0 and "there is no command log at" in done.output + str(done.exception)
    assert list(tmp_path.iterdir()) == []

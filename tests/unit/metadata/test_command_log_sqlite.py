"""The SQLite command log in one process: schema, lock, group commit, errors, the window of recent commands."""

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest

from lakestream.errors import Corrupt, Halted, Missing, Retry
from lakestream.interfaces import CheckpointNote
from lakestream.metadata.stores import limits
from lakestream.metadata.stores.recent import Recent
from lakestream.metadata.stores.sqlite import SqliteLog
from lakestream.metadata.stores.sqlite_file import SCHEMA_VERSION, SqliteFile


async def test_a_second_opener_is_told_which_process_holds_the_log(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    with pytest.raises(Retry, match=f"held by process {os.getpid()}"):
        await SqliteLog.open(tmp_path / "log.db")
    await log.close()
    await (await SqliteLog.open(tmp_path / "log.db")).close()


async def test_a_newer_schema_is_refused_with_advice(tmp_path: Path) -> None:
    await (await SqliteLog.open(tmp_path / "log.db")).close()
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(Halted, match="upgrade"):
        await SqliteLog.open(tmp_path / "log.db")


async def test_what_is_no_command_log_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_bytes(b"not a database at all, " * 100)
    with pytest.raises(Corrupt):
        await SqliteLog.open(tmp_path / "text.db")
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(Corrupt, match="not a command log"):
        await SqliteLog.open(tmp_path / "other.db")


async def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises((OSError, Retry), match="nowhere"):
        await SqliteLog.open(tmp_path / "nowhere" / "log.db")


async def test_every_commit_is_synced(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    (synchronous,) = await log._do(lambda file: file._connection.execute("PRAGMA synchronous").fetchone())
    (mode,) = await log._do(lambda file: file._connection.execute("PRAGMA journal_mode").fetchone())
    assert (synchronous, mode) == (2, "wal")
    await log.close()


async def test_appends_that_wait_go_together_in_one_transaction(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    transactions: list[str] = []
    await log._do(lambda file: file._connection.set_trace_callback(transactions.append))
    appended = await asyncio.gather(*(log.append([b"a%d" % n, b"b%d" % n], 0) for n in range(100)))
    assert [each.first for each in appended] == list(range(1, 201, 2))
    commits = [each for each in transactions if each == "COMMIT"]
    assert len(commits) < 50
    await log.close()


async def test_a_locked_file_is_a_retry_and_nothing_was_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakestream.metadata.stores.sqlite_file.BUSY_TIMEOUT_S", 0.02)
    log = await SqliteLog.open(tmp_path / "log.db")
    foreign = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(Retry, match="locked"):
        await log.append([b"x"], 0)
    foreign.execute("ROLLBACK")
    foreign.close()
    assert (await log.append([b"y"], 0)).tail == [(1, b"y")]
    await log.close()


async def test_a_full_disk_is_a_retry_and_the_log_goes_on(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    await log.append([b"one"], 0)
    await log._do(lambda file: file._connection.execute("PRAGMA max_page_count = 1").fetchone())
    with pytest.raises(Retry, match="full"):
        await log.append([bytes(100_000)], 1)
    await log._do(lambda file: file._connection.execute("PRAGMA max_page_count = 1000000").fetchone())
    assert (await log.append([b"two"], 1)).tail == [(1, b"one"), (2, b"two")]
    await log.close()


async def test_reading_works_without_the_window_of_recent_commands(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    await log.append([b"%d" % n for n in range(10)], 0)
    await log.close()
    log = await SqliteLog.open(tmp_path / "log.db")
    assert await log.read(0, 2) == [(1, b"0"), (2, b"1")]
    assert (await log.append([b"new"], 9)).tail == [(9, b"8"), (10, b"9"), (11, b"new")]
    log._recent.forget()
    assert await log.read(10, 9) == [(10, b"9"), (11, b"new")]
    assert (await log.append([b"newer"], 11)).tail == [(11, b"new"), (12, b"newer")]
    await log.close()


async def test_large_truncations_go_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    drop = SqliteFile.drop

    def watched(file: SqliteFile, through: int, max_pages: int) -> int:
        kept.append(drop(file, through, max_pages))
        return kept[-1]

    monkeypatch.setattr(SqliteFile, "drop", watched)
    monkeypatch.setattr("lakestream.metadata.stores.sqlite.DROPPED_PAGES", 4)
    log = await SqliteLog.open(tmp_path / "log.db")
    await log.append([bytes(4000)] * 20 + [b"x"] * 30 + [bytes(40_000)] + [b"x"] * 49, 0)
    await log.truncate(50)
    assert kept == [6, 11, 16, 21, 51]  # by what they hold, not by how many they are
    assert (await log.read(51, 1))[0][0] == 51
    with pytest.raises(Missing, match="begins at 51"):
        await log.read(50, 1)
    await log.truncate(1000)
    assert await log.read(100, 5) == [(100, b"x")]
    await log.close()


async def test_the_counter_alone_keeps_numbers_from_being_reused_L9(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    await log.append([b"x"] * 5, 0)
    await log.close()
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.execute("DELETE FROM commands")
    connection.close()
    log = await SqliteLog.open(tmp_path / "log.db")
    assert (await log.append([b"y"], 5)).first == 6
    await log.close()


async def test_a_follower_in_another_handle_sees_appends_by_polling_L11(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    follower = await SqliteLog.open(tmp_path / "log.db", read_only=True)
    waiting = asyncio.create_task(follower.wait(0, 20))
    await asyncio.sleep(0.02)
    await log.append([b"one"], 0)
    async with asyncio.timeout(5):
        await waiting
    assert await follower.read(0, 10) == [(1, b"one")]
    await log.save_checkpoint(CheckpointNote(1, "k"))
    assert await follower.checkpoints() == [CheckpointNote(1, "k")]
    await follower.wait(1, 0.01)
    with pytest.raises(Retry, match="readonly"):
        await follower.append([b"two"], 1)
    await follower.close()
    await log.close()


async def test_a_closed_log_says_so(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    pending = asyncio.create_task(log.append([b"in time"], 0))
    await asyncio.sleep(0)
    await log.close()
    await log.close()
    assert (await pending).first == 1
    with pytest.raises(Retry, match="closed"):
        await log.append([b"late"], 0)
    with pytest.raises(Retry, match="closed"):
        await log.read(0, 1)


async def test_a_cancelled_append_leaves_the_others_alone(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    tasks = [asyncio.create_task(log.append([b"%d" % n], 0)) for n in range(10)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in results].count(True) == 1
    assert len(await log.read(0, 100)) in (9, 10)
    assert log._queued_bytes == 0
    await log.close()


async def test_too_large_an_append_is_refused_before_it_does_anything(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    with pytest.raises(ValueError, match="limit"):
        await log.append([bytes(limits.MAX_APPEND_BYTES + 1)], 0)
    assert await log.read(0, 10) == []
    await log.close()


async def test_the_queue_of_appends_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.metadata.stores.sqlite.MAX_QUEUED_BYTES", 1000)
    log = await SqliteLog.open(tmp_path / "log.db")
    results = await asyncio.gather(*(log.append([bytes(400)], 0) for _ in range(5)), return_exceptions=True)
    assert [type(each).__name__ for each in results] == ["Appended"] * 2 + ["Retry"] * 3
    assert (await log.append([bytes(900)], 2)).first == 3
    await log.close()


def test_sqlites_own_write_ahead_log_stays_short(tmp_path: Path) -> None:
    file = SqliteFile(str(tmp_path / "log.db"))
    for _ in range(60):
        file.append([bytes(1_000_000)])
        file.tidy()
    assert (tmp_path / "log.db-wal").stat().st_size < 20_000_000
    file.close()


def test_a_page_is_cut_by_bytes_but_always_lets_the_reader_advance() -> None:
    large = [(sequence, bytes(limits.PAGE_BYTES)) for sequence in range(1, 5)]
    assert [sequence for sequence, _ in limits.cut_page(large, 10)] == [1, 2]
    assert [sequence for sequence, _ in limits.cut_page(large, 1)] == [1]
    assert limits.cut_page(large, 0) == []


def test_the_window_of_recent_commands_is_bounded_in_count_and_bytes() -> None:
    recent = Recent(0, max_commands=10, max_bytes=100)
    for sequence in range(1, 31):
        recent.extend(sequence, [b"x"])
        assert recent.page(sequence, 5) == [(sequence, b"x")]
    assert recent.page(10, 5) is None
    assert len(recent.page(25, 100) or []) == 6
    recent.extend(31, [bytes(60), bytes(60)])
    assert recent.last == 32
    assert recent.page(31, 5) is None
    recent.drop_below(40)
    assert (recent.last, recent.page(33, 5), recent.page(34, 5)) == (32, [], [])

"""The documented schema is the real one: a file made by the words of docs/formats/command-log.md opens and reads."""

import sqlite3
from pathlib import Path

from lakestream.interfaces import CheckpointNote
from lakestream.metadata.stores.sqlite import SqliteLog
from tests.support.places import ROOT

PAGE = ROOT / "docs" / "formats" / "command-log.md"


def _documented_schema() -> str:
    return PAGE.read_text().split("```sql\n")[1].split("```")[0]


def _described(path: Path) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    tables = connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()
    settings = [connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")]
    connection.close()
    return [*tables, *settings]


async def test_a_new_file_has_the_documented_schema(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "documented.db").executescript(_documented_schema()).connection.close()
    await (await SqliteLog.open(tmp_path / "real.db")).close()
    assert _described(tmp_path / "real.db") == _described(tmp_path / "documented.db")


async def test_a_file_of_schema_version_1_still_opens(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "log.db")
    connection.executescript(
        _documented_schema() + "INSERT INTO commands VALUES (4, x'64'), (5, x''), (6, x'66');"
        "UPDATE counter SET last = 6; INSERT INTO checkpoints VALUES (2, 'c/2'), (4, 'c/4');"
    )
    connection.close()
    log = await SqliteLog.open(tmp_path / "log.db")
    assert await log.read(4, 10) == [(4, b"d"), (5, b""), (6, b"f")]
    assert await log.checkpoints() == [CheckpointNote(4, "c/4"), CheckpointNote(2, "c/2")]
    assert (await log.append([b"g"], 6)).tail == [(6, b"f"), (7, b"g")]
    await log.close()

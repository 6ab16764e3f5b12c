"""A command log written by the first version still opens, reads and grows."""

import shutil
from pathlib import Path

from lakestream.interfaces import CheckpointNote
from lakestream.metadata.stores.sqlite import SqliteLog
from tests.support import places

GOLDEN = places.GOLDEN / "command-log-v1.sqlite"


async def write(path: Path) -> None:
    """How the golden file was made: seven commands, two checkpoints, the first three commands dropped."""
    log = await SqliteLog.open(path)
    for number in range(1, 8):
        await log.append([b"command %d" % number], number - 1)
    await log.save_checkpoint(CheckpointNote(3, "c/checkpoints/3"))
    await log.save_checkpoint(CheckpointNote(6, "c/checkpoints/6"))
    await log.truncate(3)
    await log.close()


async def test_a_log_of_the_first_version_still_opens_and_grows(tmp_path: Path) -> None:
    copy = tmp_path / "metadata.sqlite"
    shutil.copy(GOLDEN, copy)
    log = await SqliteLog.open(copy)
    assert await log.read(4, 10) == [(number, b"command %d" % number) for number in range(4, 8)]
    assert [note.sequence for note in await log.checkpoints()] == [6, 3]
    assert (await log.append([b"one more"], 7)).first == 8
    await log.close()

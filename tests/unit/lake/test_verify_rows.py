"""How the checker reads data files: whatever their row groups are like, a little at a time."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from lakestream.data.tables.stores.table_store import FolderTableStore
from lakestream.errors import Corrupt
from lakestream.lake.verify.rows import PART_BYTES, WHOLE_BYTES, RowReader
from tests.support.iceberg_tables import Lake, OtherEngine

ROWS, NOISE_BYTES = 1200, 40_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "warehouse")
    made.row_group_bytes = 1 << 30
    made.append([(0, 0, ROWS)], noise_bytes=NOISE_BYTES)
    return made


def read(lake: Lake) -> tuple[list[pa.RecordBatch], int]:
    [task] = lake.read_by_pyiceberg().scan().plan_files()
    found: list[pa.RecordBatch] = []
    store = FolderTableStore(Path(lake.store.root.removeprefix("file://")))
    deletes = [one.file_path for one in task.delete_files]
    told = RowReader(store).read(task.file.file_path, task.file.file_size_in_bytes, deletes, found.append)
    assert told.rows == ROWS and told.extremes[2] == (0, ROWS - 1)
    return found, told.live


def test_a_large_row_group_is_read_in_parts(lake: Lake) -> None:
    assert ROWS * NOISE_BYTES > WHOLE_BYTES
    parts, live = read(lake)
    assert live == ROWS and max(part.nbytes for part in parts) < 2 * PART_BYTES
    assert [n for part in parts for n in part.column(1).to_pylist()] == list(range(ROWS))
    assert all(part.schema.names[-1] == "value" for part in parts)


def test_deletes_by_position_are_found_in_every_part(lake: Lake) -> None:
    [task] = lake.read_by_pyiceberg().scan().plan_files()
    gone = {0, 1, 599, 600, ROWS - 1}
    OtherEngine(lake, random.Random(1)).delete({task.file.file_path: sorted(gone)})
    parts, live = read(lake)
    assert live == ROWS - len(gone)
    assert [n for part in parts for n in part.column(1).to_pylist()] == [n for n in range(ROWS) if n not in gone]


def test_a_large_row_group_that_is_damaged_says_so(lake: Lake) -> None:
    [task] = lake.read_by_pyiceberg().scan().plan_files()
    path = Path(task.file.file_path.removeprefix("file://"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200_000] = bytes(200_000)
    path.write_bytes(data)
    with pytest.raises(Corrupt, match="row group 0"):
        read(lake)

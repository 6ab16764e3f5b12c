"""Reading below a stream's progress: the table's rows come back as the records that were produced, whoever asks."""

import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from lakestream.data.tables.stores.table_store import open_table_store
from lakestream.errors import Corrupt, Rejected, Retry
from lakestream.model.batches.header import HEADER
from lakestream.model.batches.records import Record, decode_batch, encode_batch
from lakestream.model.commands import AdvanceLogStart
from lakestream.model.streams import Stream
from lakestream.stream.history import CODECS, HistoryReader
from lakestream.stream.limits import ReadLimits
from lakestream.stream.reader import FoundRecord, Reader
from tests.support.broker_and_pipeline import TestPipeline, start_both
from tests.support.memory_broker import TestBroker

RECORDS = [
    Record(offset=0, timestamp=1000, key=b"k", value=b"one", headers=(("h", b"1"), ("n", None), ("e", b""))),
    Record(offset=1, timestamp=3000, key=None, value=b""),
    Record(offset=2, timestamp=2000, key=b"", value=None),
    Record(offset=3, timestamp=4000, key=b"k", value=b"x" * 5000),
]


@dataclass
class World:
    folder: Path
    broker: TestBroker
    pipeline: TestPipeline
    reader: Reader
    stream: Stream

    async def append(self, *records: Record) -> None:
        await self.broker.append((self.stream, bytes(encode_batch(list(records)))))

    async def land(self) -> None:
        assert await self.pipeline.driver.drain() == 0
        await self.broker.replica.catch_up()

    async def records(self, offset: int, max_bytes: int = 1 << 20) -> list[Record]:
        """What a consumer gets, which goes on behind the last batch whatever was in it."""
        found: list[Record] = []
        while offset < self.stream.next:
            for view in await self.reader.read(self.stream, offset, max_bytes):
                for batch in batches(view):
                    head = HEADER.unpack_from(batch)
                    assert head[0] <= offset, "a gap between two batches"
                    if not head[5] & 0x20:
                        found += [one for one in decode_batch(batch) if one.offset >= offset]
                    offset = head[0] + head[6] + 1
        return found


def batches(view: memoryview) -> list[memoryview]:
    found = []
    while view:
        length = 12 + int.from_bytes(view[8:12], "big")
        found.append(view[:length])
        view = view[length:]
    return found


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    broker, pipeline, _ = await start_both(tmp_path)
    [stream] = await broker.topic("a")
    history = HistoryReader(broker.replica, open_table_store(f"file://{tmp_path}"))
    reader = Reader(broker.replica, broker.wal, broker.cache, ReadLimits(), history)
    yield World(tmp_path, broker, pipeline, reader, stream)
    await history.close()
    await pipeline.stop()
    await broker.stop()


async def test_landed_records_are_read_as_they_were_produced_and_the_others_behind_them(world: World) -> None:
    await world.append(*RECORDS)
    await world.land()
    assert (world.stream.landed, world.stream.next, len(world.stream.bases)) == (4, 4, 0)
    await world.append(Record(offset=0, timestamp=5000, key=None, value=b"fresh"))
    fresh = Record(offset=4, timestamp=5000, key=None, value=b"fresh")
    assert await world.records(0) == [*RECORDS, fresh]
    assert await world.records(2) == [*RECORDS[2:], fresh]
    assert await world.records(0, max_bytes=1) == [*RECORDS, fresh]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_batches_made_of_rows_are_compressed_as_the_topic_says(world: World, codec: str) -> None:
    [world.stream] = await world.broker.topic("packed", **{"compression.type": codec})
    await world.append(*RECORDS)
    await world.land()
    [view] = await world.reader.read(world.stream, 0, 1 << 20)
    assert HEADER.unpack_from(view)[5] & 7 == CODECS[codec] and len(view) < 5000
    assert await world.records(0) == RECORDS


async def test_nothing_below_the_progress_is_ever_said_to_be_at_hand(world: World) -> None:
    await world.append(*RECORDS)
    assert world.reader.cached(world.stream, 0, 1 << 20)
    await world.land()
    await world.append(*RECORDS)
    assert world.reader.cached(world.stream, 3, 1 << 20) is None
    assert world.reader.cached(world.stream, 4, 1 << 20)


async def test_a_read_that_need_not_give_one_batch_gives_none_that_is_too_large(world: World) -> None:
    await world.append(*RECORDS)
    await world.land()
    assert await world.reader.read(world.stream, 3, 100, at_least_one=False) == []
    assert await world.reader.read(world.stream, 3, 100)


async def test_times_are_found_in_the_table_and_behind_it(world: World) -> None:
    await world.append(*RECORDS)
    await world.land()
    assert await world.reader.find_timestamp(world.stream, 2500) == FoundRecord(1, 3000)
    assert await world.reader.find_timestamp(world.stream, 4001) is None
    assert await world.reader.find_max_timestamp(world.stream) == FoundRecord(3, 4000)
    await world.append(Record(offset=0, timestamp=4000, key=None, value=b""))
    assert await world.reader.find_max_timestamp(world.stream) == FoundRecord(3, 4000)
    await world.append(Record(offset=0, timestamp=6000, key=None, value=b""))
    assert await world.reader.find_timestamp(world.stream, 4001) == FoundRecord(5, 6000)
    assert await world.reader.find_max_timestamp(world.stream) == FoundRecord(5, 6000)


async def test_the_log_start_holds_for_what_has_landed_too(world: World) -> None:
    await world.append(*RECORDS)
    await world.land()
    await world.broker.replica.propose(AdvanceLogStart([(world.stream.id, 2)]))
    with pytest.raises(Rejected):
        await world.reader.read(world.stream, 1, 1 << 20)
    assert await world.records(2) == RECORDS[2:]
    assert await world.reader.find_timestamp(world.stream, 0) == FoundRecord(2, 2000)


async def test_a_table_whose_files_are_lost_is_a_fault_of_the_store_and_never_of_the_offset(world: World) -> None:
    await world.append(*RECORDS)
    await world.land()
    for path in world.folder.rglob("*.parquet"):
        path.unlink()
    with pytest.raises(Corrupt):
        await world.reader.read(world.stream, 0, 1 << 20)
    with pytest.raises(Corrupt):
        await world.reader.find_max_timestamp(world.stream)


async def test_without_tables_old_records_wait_and_are_not_skipped(world: World) -> None:
    await world.append(*RECORDS)
    await world.land()
    await world.append(*RECORDS)
    assert world.broker.reader.cached(world.stream, 0, 1 << 20) is None
    with pytest.raises(Retry, match="tables"):
        await world.broker.reader.read(world.stream, 0, 1 << 20)


def test_a_broker_without_tables_loads_nothing_of_theirs() -> None:
    code = """
import sys
import lakestream.assembly.broker, lakestream.supervisor, lakestream.cli.main
loaded = {"pyarrow", "pyiceberg", "pyspark", "pandas", "lakestream.assembly.lake", "lakestream.stream.history"}
sys.exit(", ".join(loaded & set(sys.modules)) or None)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_broker_with_tables_loads_the_large_libraries_only_when_they_are_needed() -> None:
    code = """
import sys
import lakestream.assembly.broker, lakestream.assembly.lake
sys.exit(", ".join({"pyarrow", "pyiceberg", "pyspark", "pandas"} & set(sys.modules)) or None)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

"""A table whose files are damaged, lost or back again: the topic alone suffers, says why, and goes on by itself."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("pyarrow")

from lakestream.data.tables.stores.table_store import open_table_store
from lakestream.errors import Corrupt, LakestreamError
from lakestream.metadata.stores.memory import MemoryLogStore
from lakestream.model.streams import Stream
from lakestream.stream.history import HistoryReader
from tests.support.broker_and_pipeline import TestPipeline, start_both, start_pipeline
from tests.support.memory_broker import TestBroker, batch

VALUES = [b"v%d" % n for n in range(50)]
DAMAGES = 12


@dataclass
class World:
    """A topic of which two rounds have landed, and another one beside it."""

    folder: Path
    log: MemoryLogStore
    broker: TestBroker
    pipeline: TestPipeline
    stream: Stream
    beside: Stream

    def metadata_file(self) -> Path:
        bound = self.pipeline.replica.state.catalog.of_topic(self.stream.topic.id)
        assert bound is not None
        return Path(bound.location.removeprefix("file://"))

    def files(self, ending: str) -> list[Path]:
        return sorted(path for path in self.metadata_file().parent.parent.rglob(f"*{ending}") if path.is_file())

    async def read(self) -> int:
        """How many bytes a broker that knows nothing yet serves."""
        history = HistoryReader(self.broker.replica, open_table_store(f"file://{self.folder}"))
        try:
            found = await history.read(self.stream, 0, 1 << 20, True)
            await history.find_time(self.stream, 1020, 0, self.stream.landed)
            return sum(map(len, found))
        finally:
            await history.close()

    async def fill(self, *streams: Stream) -> None:
        made = ((stream, batch(*VALUES)) for stream in sorted(streams, key=lambda one: one.id))
        assert all(base >= 0 for base in await self.broker.append(*made))

    def held(self, stream: Stream, pipeline: TestPipeline) -> str:
        return pipeline.replica.state.catalog.landings[stream.topic.id].held


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    broker, pipeline, log = await start_both(tmp_path)
    [stream], [beside] = await broker.topic("orders"), await broker.topic("beside")
    world = World(tmp_path, log, broker, pipeline, stream, beside)
    for _ in range(2):
        await world.fill(stream, beside)
        assert await pipeline.driver.drain() == 0
    await broker.replica.catch_up()
    yield world
    await pipeline.stop()
    await broker.stop()


def damaged(whole: bytes, chance: Random) -> bytes:
    hurt = bytearray(whole)
    at = chance.randrange(len(hurt))
    match chance.randrange(3):
        case 0:
            hurt[at] ^= 1 << chance.randrange(8)
        case 1:
            del hurt[at:]
        case _:
            hurt[at : at + 4] = chance.randbytes(4)
    return bytes(hurt)


@pytest.mark.parametrize("ending", [".metadata.json", ".avro", ".parquet"])
async def test_c9_a_reader_of_damaged_files_gets_rows_or_an_error_of_the_store_and_nothing_else(
    world: World, ending: str
) -> None:
    chance = Random(f"damage-{ending}")
    sound = await world.read()
    failures = 0
    for path in world.files(ending):
        whole = path.read_bytes()
        for _ in range(DAMAGES):
            path.write_bytes(damaged(whole, chance))
            try:
                assert await world.read() > 0
            except LakestreamError as error:
                assert isinstance(error, Corrupt), error
                failures += 1
        path.write_bytes(whole)
    assert failures, "no damage did any harm"
    assert await world.read() == sound


def lose(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}.aside"))


def put_back(path: Path) -> None:
    path.with_name(f"{path.name}.aside").rename(path)


def garble(path: Path) -> None:
    path.with_name(f"{path.name}.aside").write_bytes(path.read_bytes())
    path.write_bytes(b'{"format-version": 2}')


HARM: dict[str, Callable[[Path], None]] = {"lost": lose, "garbled": garble}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("which", ["metadata file", "manifest list"])
async def test_a_pipeline_that_cannot_read_a_tables_metadata_holds_the_topic_alone_until_it_can(
    world: World, which: str, harm: str
) -> None:
    await world.pipeline.stop()
    lists = [path for path in world.files(".avro") if path.name.startswith("snap-")]
    paths = [world.metadata_file()] if which == "metadata file" else lists
    for path in paths:
        HARM[harm](path)
    await world.fill(world.stream, world.beside)
    fresh = await start_pipeline(world.folder, world.log, seed=9)
    assert await fresh.driver.drain() == 1
    assert world.held(world.stream, fresh) and not world.held(world.beside, fresh)
    await world.broker.replica.catch_up()
    assert world.beside.landed == 150 and world.stream.landed == 100, "what waits is not lost, and not landed"
    for path in paths:
        put_back(path)
    assert await fresh.driver.drain() == 0
    assert not world.held(world.stream, fresh) and fresh.rows("orders").num_rows == 150
    await fresh.stop()


async def test_a_topic_whose_work_fails_in_an_unforeseen_way_does_not_stop_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = world.pipeline.tables.format.committer
    append = committer.append

    def stumble(table: object, *args: object, **more: object) -> object:
        if "orders" in str(table):
            raise ZeroDivisionError("nobody thought of this")
        return append(table, *args, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(committer, "append", stumble)
        await world.fill(world.stream, world.beside)
        assert await world.pipeline.driver.drain() == 1
    assert "nobody thought of this" in world.held(world.stream, world.pipeline)
    assert world.pipeline.rows("beside").num_rows == 150
    assert await world.pipeline.driver.drain() == 0
    assert not world.held(world.stream, world.pipeline)


async def test_a_table_on_a_full_disk_waits_and_its_neighbour_does_not(world: World) -> None:
    """The folder of one table cannot be written to: a file is in its way."""
    data = world.metadata_file().parent.parent / "data"
    aside = data.rename(data.with_name("aside"))
    data.write_bytes(b"")
    await world.fill(world.stream, world.beside)
    assert await world.pipeline.driver.drain() == 1
    assert world.pipeline.rows("beside").num_rows == 150
    data.unlink()
    aside.rename(data)
    assert await world.pipeline.driver.drain() == 0 and world.pipeline.rows("orders").num_rows == 150


@pytest.mark.parametrize("ending", [".metadata.json", ".avro", ".parquet"])
async def test_a_broker_serves_again_when_damaged_files_are_put_back(world: World, ending: str) -> None:
    history = HistoryReader(world.broker.replica, open_table_store(f"file://{world.folder}"))
    paths = [world.metadata_file()] if ending == ".metadata.json" else world.files(ending)
    for path in paths:
        garble(path)
    for _ in range(2):
        with pytest.raises(Corrupt):
            await history.read(world.stream, 0, 1 << 20, True)
    for path in paths:
        put_back(path)
    assert await history.read(world.stream, 0, 1 << 20, True)
    await history.close()

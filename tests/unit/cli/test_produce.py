"""Standard input as `lakestream produce` takes it."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakestream.cli import produce
from lakestream.cli.produce import standard_input
from lakestream.errors import LakestreamError


@dataclass(frozen=True, slots=True)
class Input:
    """What stands in for standard input: a descriptor."""

    number: int

    def fileno(self) -> int:
        return self.number


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    reading, writing = os.pipe()
    monkeypatch.setattr(produce.sys, "stdin", Input(reading))
    yield writing
    os.close(writing)
    for thread in readers():
        thread.join(5)
    os.close(reading)


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "standard input"]


async def taken(count: int) -> list[list[bytes]]:
    found: list[list[bytes]] = []
    async for lines in standard_input(asyncio.Event()):
        found.append(lines)
        if len(found) == count:
            break
    return found


@pytest.mark.filterwarnings("error")
def test_input_that_comes_after_the_command_has_ended_is_nobodys_trouble(
    writing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[object] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    os.write(writing, b"one\r\ntwo\nth")
    assert asyncio.run(taken(1)) == [[b"one", b"two"]]
    for _ in range(3):
        os.write(writing, b"ree\n")
        time.sleep(0.05)
    assert complaints == [] and [reader.daemon for reader in readers()] == [True]


def test_input_that_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(produce.sys, "stdin", Input(folder))
    with pytest.raises(LakestreamError, match="standard input cannot be read: Is a directory"):
        asyncio.run(taken(1))
    os.close(folder)


async def test_after_an_interrupt_no_line_is_taken_not_even_the_part_of_one(writing: int) -> None:
    stop = asyncio.Event()
    os.write(writing, b"one\npart")
    found = []
    async for lines in standard_input(stop):
        found.append(lines)
        stop.set()
    assert found == [[b"one"]]


async def test_what_is_under_way_at_an_interrupt_gets_a_moment_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "INTERRUPTED_S", 0.05)
    stop = asyncio.Event()
    assert await produce._ended_in_time(asyncio.sleep(0.01), stop)
    stop.set()
    assert await produce._ended_in_time(asyncio.sleep(0.01), stop)
    assert not await produce._ended_in_time(asyncio.sleep(60), stop)

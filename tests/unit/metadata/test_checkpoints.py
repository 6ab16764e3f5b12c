"""Checkpoints: when they are taken and noted, and that neither writing nor reading one harms the broker (L10)."""

import asyncio
import errno
import io
import os
import time
from collections.abc import Callable
from random import Random
from threading import Thread
from typing import NoReturn

import pytest

from lakestream.data.memory import MemoryWal
from lakestream.errors import Retry
from lakestream.metadata import checkpoint, checkpointer
from lakestream.metadata.checkpoint import dump_in_a_fork, load_newest
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.commands import AllocateProducerId, CreateTopic, Heartbeat, Register
from lakestream.model.state import State, dump, load
from lakestream.process.clock import SystemClock
from tests.support.memory_broker import TestBroker, checkpoint_now, start_broker

EAGER = Timing(checkpoint_commands=1)


class Trio:
    """Three brokers of one cluster; the first one takes the checkpoints."""

    def __init__(self, brokers: list[TestBroker], store: MemoryLogStore, wal: MemoryWal) -> None:
        self.brokers, self.log, self.wal = brokers, MemoryLog(store), wal
        self.taker = taker(brokers[0], EAGER)

    async def step(self) -> bool:
        return await self.taker.checkpoint_if_due(self.log, self.wal)

    async def beat(self, number: int) -> None:
        """A broker reports its outcomes so far, and the first one hears of them."""
        replica = self.brokers[number].replica
        await replica.catch_up()
        await replica.propose(Heartbeat(1, replica.state.sequence, replica.state.digest, 0))
        await self.brokers[0].replica.catch_up()


@pytest.fixture
async def trio() -> Trio:
    store, wal = MemoryLogStore(), MemoryWal()
    brokers = [await start_broker(store, wal, number) for number in range(3)]
    for broker in brokers:
        await broker.replica.catch_up()
    return Trio(brokers, store, wal)


def taker(broker: TestBroker, timing: Timing) -> Membership:
    return Membership(broker.replica, SystemClock(), Random(1), Register(b"", "", "broker", "h", 1, "", 1, 1), timing)


async def test_l10_a_checkpoint_is_noted_after_most_brokers_agreed_at_or_above_it(trio: Trio) -> None:
    await trio.brokers[0].topic("t")
    assert not await trio.step(), "what the others said so far is older than this state"
    assert await trio.log.checkpoints() == [] and len(await trio.wal.list("")) == 1
    await trio.beat(0)
    assert not await trio.step()
    await trio.beat(1)
    assert await trio.step()
    [note] = await trio.log.checkpoints()
    found = await load_newest(trio.log, trio.wal)
    assert found is not None and found[0].sequence == note.sequence


async def test_l10_a_state_that_went_wrong_after_the_last_heartbeats_is_never_noted(trio: Trio) -> None:
    for number in range(3):
        await trio.beat(number)
    wrong = trio.brokers[0].replica
    wrong.state.producers.next_id += 100
    await wrong.propose(AllocateProducerId())
    assert not await trio.step()
    for number in (1, 2, 1, 2):
        await trio.beat(number)
        assert not await trio.step()
    assert await trio.log.checkpoints() == []


async def test_l10_a_lone_broker_agrees_with_itself() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    broker = await start_broker(store, wal)
    assert await taker(broker, EAGER).checkpoint_if_due(MemoryLog(store), wal)
    assert len(await MemoryLog(store).checkpoints()) == 1
    await broker.stop()


async def test_l10_brokers_that_ended_have_no_say(trio: Trio) -> None:
    await trio.brokers[0].topic("t")
    assert not await trio.step()
    for broker in trio.brokers[1:]:
        await broker.membership.leave()
    await trio.brokers[0].replica.catch_up()
    assert await trio.step()


async def test_a_checkpoint_is_due_by_bytes_of_commands_too() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    broker = await start_broker(store, wal)
    one = taker(broker, Timing(checkpoint_commands=1_000_000, checkpoint_bytes=20_000))
    assert not await one.checkpoint_if_due(MemoryLog(store), wal)
    await long_command(broker)
    assert await one.checkpoint_if_due(MemoryLog(store), wal)
    assert not await one.checkpoint_if_due(MemoryLog(store), wal)
    await broker.stop()


async def test_a_large_state_is_not_stored_for_fewer_bytes_of_commands_than_it_has() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    broker = await start_broker(store, wal)
    await broker.topic("wide", 100)
    one = taker(broker, Timing(checkpoint_commands=1_000_000, checkpoint_bytes=1))
    assert await one.checkpoint_if_due(MemoryLog(store), wal)
    await broker.replica.propose(AllocateProducerId())
    assert not await one.checkpoint_if_due(MemoryLog(store), wal)
    await long_command(broker)
    assert await one.checkpoint_if_due(MemoryLog(store), wal)
    await broker.stop()


async def long_command(broker: TestBroker) -> None:
    """Its size counts, though it is refused."""
    await broker.replica.propose(CreateTopic("x" * 20_000, bytes(16), 1, 1, {}))


def refuse(code: int) -> Callable[[], NoReturn]:
    def call() -> NoReturn:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize(("call", "code"), [("pipe", errno.EMFILE), ("fork", errno.ENOMEM), ("fork", errno.EAGAIN)])
async def test_without_a_pipe_or_a_process_a_checkpoint_is_taken_later(
    monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    monkeypatch.setattr(checkpointer, "RETRY_S", 0.05)
    store, wal = MemoryLogStore(), MemoryWal()
    broker = await start_broker(store, wal)
    one, log = taker(broker, EAGER), MemoryLog(store)
    open_files = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse(code))
        with pytest.raises(Retry, match=os.strerror(code)):
            await one.checkpoint_if_due(log, wal, dump_in_a_fork)
    assert len(os.listdir("/proc/self/fd")) == open_files, "no end of a pipe is left open"
    assert not await one.checkpoint_if_due(log, wal, dump_in_a_fork), "not at once again"
    await asyncio.sleep(0.06)
    assert await one.checkpoint_if_due(log, wal, dump_in_a_fork)
    await broker.stop()


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were forked."""
    forked: list[int] = []
    real = os.fork

    def fork() -> int:
        forked.append(real())
        return forked[-1]

    monkeypatch.setattr(os, "fork", fork)
    return forked


async def test_without_a_thread_a_checkpoint_is_taken_later(
    monkeypatch: pytest.MonkeyPatch, children: list[int]
) -> None:
    def no_thread(_: Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    open_files = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", no_thread)
        with pytest.raises(Retry, match="new thread"):
            await dump_in_a_fork(State())
    assert len(os.listdir("/proc/self/fd")) == open_files
    with pytest.raises(ProcessLookupError):
        os.kill(children[0], 0)
    assert load(await dump_in_a_fork(State())).sequence == 0


async def test_without_memory_for_its_bytes_a_checkpoint_is_taken_later(
    monkeypatch: pytest.MonkeyPatch, children: list[int]
) -> None:
    class NoRoom(io.FileIO):
        def read(self, size: int | None = -1) -> NoReturn:
            raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", NoRoom)
        with pytest.raises(Retry, match="MemoryError"):
            await dump_in_a_fork(State())
    with pytest.raises(ProcessLookupError):
        os.kill(children[0], 0)


async def test_a_child_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch, children: list[int]) -> None:
    def hang(_: State) -> bytes:
        time.sleep(600)
        return b""

    monkeypatch.setattr(checkpoint, "dump", hang)
    monkeypatch.setattr(checkpoint, "CHILD_LIMIT_S", 0.1)
    with pytest.raises(Retry):
        await asyncio.wait_for(dump_in_a_fork(State()), 60)
    with pytest.raises(ProcessLookupError):
        os.kill(children[0], 0)


async def test_a_broker_that_stops_does_not_wait_for_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_: State) -> bytes:
        time.sleep(600)
        return b""

    monkeypatch.setattr(checkpoint, "dump", hang)
    writing = asyncio.create_task(dump_in_a_fork(State()))
    await asyncio.sleep(0.1)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 60)


async def test_loading_a_large_checkpoint_leaves_the_loop_to_others() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    broker = await start_broker(store, wal)
    await broker.topic("wide", 20_000)
    await checkpoint_now(broker.replica, MemoryLog(store), wal)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    found = await load_newest(MemoryLog(store), wal)
    counting.cancel()
    assert found is not None and dump(found[0]) == dump(broker.replica.state)
    assert turns > 20, "on the loop's own thread it would be a handful"
    await broker.stop()

"""Ticks that are written side by side and fail: what the appender owes to the order of a stream (L16)."""

import asyncio
from collections.abc import Sequence
from functools import partial
from random import Random

import pytest

from lakestream.data.memory import MemoryWal
from lakestream.errors import LakestreamError, Retry
from lakestream.interfaces import Appended, Buffer
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.batches.wal_object import parse_wal_key
from lakestream.model.commands import CreateTopic, Register
from lakestream.model.levels import NEWEST
from lakestream.stream.appender import Appender
from lakestream.stream.cache import Cache
from lakestream.stream.limits import AppendLimits
from lakestream.stream.submissions import AppendAnswer, Submission
from lakestream.testing.simulation.event_loop import SimClock, SimulatedLoop, run


class SlowWal(MemoryWal):
    """Writes of ticks take as long, and fail, as the test says: tick -> (seconds, whether it fails)."""

    def __init__(self, plan: dict[int, tuple[float, bool]]) -> None:
        super().__init__()
        self._plan = plan

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        name = parse_wal_key(key)
        seconds, fails = self._plan.get(name.number, (0.0, False)) if name is not None else (0.0, False)
        await asyncio.sleep(seconds)
        if fails:
            raise Retry("the disk is full")
        await super().put(key, parts)


def submit_to(streams: list[int], plan: dict[int, tuple[float, bool]]) -> list[AppendAnswer]:
    """One tick for each stream named, all under way at once; then one more for the first, when all is over."""

    async def main(loop: SimulatedLoop) -> list[AppendAnswer]:
        clock, wal = SimClock(loop), SlowWal(plan)
        replica = Replica(MemoryLog(MemoryLogStore()), wal, clock, 0)
        about = Register(b"", "", "broker", "host", 1, "", 1, NEWEST)
        await replica.start()
        await Membership(replica, clock, Random(1), about, Timing()).join()
        await replica.propose(CreateTopic("t", bytes(16), 2, 1, {}))
        appender = Appender(replica, wal, Cache(1 << 20), clock, AppendLimits(uploads=8))
        answers: list[AppendAnswer] = []

        def submit(stream: int) -> None:
            row = (stream, 1, 70, 0, -1, -1, -1)
            appender.submit(Submission([row], [memoryview(bytes(70))], lambda: None, answers.append))

        for stream in streams:
            submit(stream)
            await asyncio.sleep(0.01)
        await asyncio.wait_for(appender.drain(), 60)
        submit(streams[0])
        await asyncio.wait_for(appender.drain(), 60)
        assert loop.failures == []
        return answers

    return run(main, 1)


def failed(answer: AppendAnswer) -> bool:
    return isinstance(answer, LakestreamError)


def test_a_failed_tick_fails_the_later_ones_of_its_stream_and_no_other_L16() -> None:
    plan = {1: (1.0, True), 2: (0.5, False), 3: (0.2, False)}
    answers = submit_to([1, 1, 2], plan)
    assert sorted(map(failed, answers[:3])) == [False, True, True]
    assert answers[-1] == [0]


def test_a_tick_that_fails_after_an_earlier_one_took_it_down_is_answered_once_L16() -> None:
    plan = {1: (0.5, True), 2: (1.0, True)}
    answers = submit_to([1, 1], plan)
    assert list(map(failed, answers)) == [True, True, False]
    assert answers[-1] == [0]


def test_ticks_that_are_written_early_wait_for_those_before_them_L16() -> None:
    plan = {1: (1.0, False), 2: (0.1, False), 3: (0.5, False)}
    assert submit_to([1, 1, 1], plan) == [[0], [1], [2], [3]]


def test_a_tick_whose_command_was_given_up_fails_what_its_streams_have_under_way_L16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command log is away for longer than a proposal waits, while later ticks are written and gathered."""
    log = MemoryLog(MemoryLogStore())
    append = log.append
    away = False

    async def append_unless_away(commands: Sequence[bytes], after: int) -> Appended:
        if away:
            raise Retry("away")
        return await append(commands, after)

    monkeypatch.setattr(log, "append", append_unless_away)

    async def main(loop: SimulatedLoop) -> None:
        nonlocal away
        clock, wal = SimClock(loop), SlowWal({2: (40.0, False)})
        replica = Replica(log, wal, clock, 0)
        about = Register(b"", "", "broker", "host", 1, "", 1, NEWEST)
        await replica.start()
        await Membership(replica, clock, Random(1), about, Timing()).join()
        await replica.propose(CreateTopic("t", bytes(16), 2, 1, {}))
        limits = AppendLimits(uploads=8, write_timeout_s=60.0)
        appender = Appender(replica, wal, Cache(1 << 20), clock, limits)
        answers: dict[str, AppendAnswer] = {}

        def submit(name: str, stream: int) -> None:
            row = (stream, 1, 70, 0, -1, -1, -1)
            done = partial(answers.__setitem__, name)
            appender.submit(Submission([row], [memoryview(bytes(70))], lambda: None, done))

        away = True
        submit("given up", 1)
        await asyncio.sleep(0.01)
        submit("written later", 1)
        await asyncio.sleep(0.01)
        submit("of another stream", 2)
        await asyncio.sleep(35.0)
        away = False
        await asyncio.wait_for(appender.drain(), 60)
        assert failed(answers["given up"]) and failed(answers["written later"])
        submit("after", 1)
        await asyncio.wait_for(appender.drain(), 60)
        assert answers["after"] == [0]

    run(main, 1)

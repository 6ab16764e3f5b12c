"""The simulated event loop itself: virtual time, processes that pause and die, and its limits."""

import asyncio
import threading
import time

import pytest

from lakestream.testing.faults import Link, StoreFaults
from lakestream.testing.simulation import event_loop
from lakestream.testing.simulation.event_loop import Process, SimClock, SimulatedLoop, SimulationError, run
from lakestream.testing.simulation.threads import wait_for


def test_time_jumps_instead_of_passing() -> None:
    async def main(loop: SimulatedLoop) -> float:
        await asyncio.sleep(1000)
        return loop.time()

    began = time.monotonic()
    assert run(main, 1) == pytest.approx(1000)
    assert time.monotonic() - began < 10


def test_a_deadlock_is_an_error() -> None:
    async def main(loop: SimulatedLoop) -> None:
        await loop.create_future()

    with pytest.raises(SimulationError, match="deadlock"):
        run(main, 1)


def test_time_and_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def waits(_: SimulatedLoop) -> None:
        await asyncio.sleep(event_loop.TIME_LIMIT_S + 1)

    async def spins(loop: SimulatedLoop) -> None:
        def again() -> None:
            loop.call_soon(again)

        again()
        await loop.create_future()

    with pytest.raises(SimulationError, match="virtual seconds"):
        run(waits, 1)
    monkeypatch.setattr(event_loop, "STEPS_LIMIT", 100)
    with pytest.raises(SimulationError, match="more than 100 steps"):
        run(spins, 1)


def test_a_callback_that_never_returns_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(_: SimulatedLoop) -> None:
        while True:
            pass

    monkeypatch.setattr(event_loop, "STUCK_S", 0.2)
    with pytest.raises(SimulationError, match="never return"):
        run(main, 1)


def test_processes_take_turns_as_the_seed_says_and_keep_their_own_order() -> None:
    def turns(seed: int) -> list[str]:
        seen: list[str] = []

        async def main(loop: SimulatedLoop) -> None:
            processes = [Process(name, loop) for name in "abc"]
            for number in range(5):
                for process in processes:
                    loop.call_soon(seen.append, f"{process.name}{number}", context=process.context)
            await asyncio.sleep(1)

        run(main, seed)
        return seen

    assert turns(1) == turns(1)
    assert len({tuple(turns(seed)) for seed in range(5)}) > 1
    for name in "abc":
        own = [one for one in turns(3) if one[0] == name]
        assert own == sorted(own)


def test_a_paused_process_wakes_late_and_its_timers_with_it() -> None:
    seen: list[tuple[str, float]] = []

    async def ticks(name: str, loop: SimulatedLoop) -> None:
        for _ in range(4):
            await asyncio.sleep(1)
            seen.append((name, loop.time()))

    async def main(loop: SimulatedLoop) -> None:
        paused, other = Process("paused", loop), Process("other", loop)
        paused.start(ticks("paused", loop))
        other.start(ticks("other", loop))
        await asyncio.sleep(1.5)
        paused.pause()
        await asyncio.sleep(5)
        assert [name for name, _ in seen].count("paused") == 1
        paused.resume()
        await asyncio.sleep(5)

    run(main, 1)
    assert [at for name, at in seen if name == "other"] == [1, 2, 3, 4]
    assert [at for name, at in seen if name == "paused"] == [1, 6.5, 7.5, 8.5]


def test_nothing_of_a_killed_process_runs_any_more_not_even_a_finally() -> None:
    seen: list[str] = []

    async def works() -> None:
        try:
            await asyncio.sleep(2)
            seen.append("went on")
        finally:
            seen.append("cleaned up")

    async def main(loop: SimulatedLoop) -> None:
        victim = Process("victim", loop)
        victim.start(works())
        await asyncio.sleep(1)
        victim.kill()
        await asyncio.sleep(5)
        assert seen == []

    run(main, 1)


def test_a_process_that_was_killed_leaves_its_requests_behind() -> None:
    happened: list[float] = []

    async def main(loop: SimulatedLoop) -> None:
        victim = Process("victim", loop)
        link = Link(loop, victim, event_loop.Random(1), StoreFaults(latency_s=(1.0, 1.0)), victim.kill)
        victim.start(link.call(lambda: happened.append(loop.time())))
        await asyncio.sleep(0.5)
        victim.kill()
        await asyncio.sleep(5)

    run(main, 1)
    assert happened == [1.0]


def test_a_wall_clock_may_be_wrong_and_jump_while_timers_do_not() -> None:
    async def main(loop: SimulatedLoop) -> None:
        clock = SimClock(loop, skew_ms=-5000)
        before = clock.wall_ms()
        assert before == event_loop.WALL_START_MS - 5000
        await asyncio.sleep(2)
        clock.jump(-60_000)
        assert clock.wall_ms() == before + 2000 - 60_000
        assert clock.monotonic() == 2

    run(main, 1)


def test_exceptions_that_nobody_catches_are_kept_for_the_checker() -> None:
    async def main(loop: SimulatedLoop) -> list[str]:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)
        return loop.failures

    assert "ZeroDivisionError" in run(main, 1)[0]


def test_work_for_threads_takes_turns_with_everything_else_and_waits_in_virtual_time() -> None:
    seen: list[tuple[str, float]] = []

    def work(name: str, loop: SimulatedLoop) -> str:
        for _ in range(3):
            wait_for(lambda: asyncio.sleep(1))
            seen.append((name, round(loop.time())))
        return name

    async def main(loop: SimulatedLoop) -> list[str]:
        one, two = Process("one", loop), Process("two", loop)

        async def run_work(name: str) -> str:
            return await asyncio.to_thread(work, name, loop)

        return list(await asyncio.gather(one.start(run_work("one")), two.start(run_work("two"))))

    assert run(main, 1) == ["one", "two"]
    assert sorted(seen) == [(name, at) for name in ("one", "two") for at in (1, 2, 3)]
    assert [at for _, at in seen] == [1, 1, 2, 2, 3, 3], "one did not wait for the other"


def test_work_of_a_killed_process_goes_no_further_and_its_thread_ends_with_the_simulation() -> None:
    seen: list[str] = []

    def work() -> None:
        seen.append("began")
        wait_for(lambda: asyncio.sleep(1))
        seen.append("went on")

    async def main(loop: SimulatedLoop) -> None:
        victim = Process("victim", loop)

        async def run_work() -> None:
            await asyncio.to_thread(work)

        victim.start(run_work())
        await asyncio.sleep(0.5)
        victim.kill()
        await asyncio.sleep(5)

    before = threading.active_count()
    run(main, 1)
    assert seen == ["began"]
    assert threading.active_count() == before


def test_what_work_in_a_thread_raises_is_raised_where_it_is_awaited() -> None:
    async def fails() -> None:
        raise ValueError("no answer")

    async def main(_: SimulatedLoop) -> None:
        with pytest.raises(ValueError, match="no answer"):
            await asyncio.to_thread(wait_for, fails)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)

    run(main, 1)
    with pytest.raises(RuntimeError, match="a simulated thread only"):
        wait_for(fails)

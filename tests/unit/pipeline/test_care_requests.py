"""Requests for care that go wrong: each ends with its reason, and neither landing nor other requests wait for it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

import httpx
import pytest

from lakestream.data.tables.conditions.process import ConditionProcess, check_apart
from lakestream.model.catalog.care import DONE, FAILED, RUNNING, CareRequest, RequestCare
from lakestream.model.state import dump, load
from lakestream.pipeline.care.caretaker import CareSchedule, Caretaker
from lakestream.pipeline.care.jobs import CareJobs
from lakestream.pipeline.care.plan import CareLimits
from lakestream.pipeline.care.requests import attempts_of
from lakestream.pipeline.care.tasks import CareFailed, unpack_care_answer, unpack_care_task
from lakestream.pipeline.care.worker import care_in, care_task
from lakestream.pipeline.landing.rounds import JobFailed, LocalEngine, Work
from lakestream.process.clock import SystemClock
from tests.support.broker_and_pipeline import TestPipeline, start_pipeline
from tests.support.care_cluster import CareWorld, start_world
from tests.unit.data.tables.test_condition_process import FOR_EVER, FOR_EVER_ON_ROWS
from tests.unit.pipeline.test_care_jobs import filled

FIRST, SECOND = b"1" * 16, b"2" * 16


class Moody(LocalEngine):
    """An engine whose jobs of care hang until they are cancelled, or fail, as often as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = 0
        self.failures = 0
        self.cancelled = 0
        self.over = threading.Event()

    def run(self, work: Work, tasks: Sequence[bytes]) -> list[list[bytes]]:
        if work is care_task and self.hangs:
            self.hangs -= 1
            self.over.wait(60)
            raise JobFailed("cancelled")
        if work is care_task and self.failures:
            self.failures -= 1
            raise JobFailed("a worker was lost")
        return super().run(work, tasks)

    def cancel(self, work: Work) -> None:
        self.cancelled += 1
        self.over.set()


class HastyJobs(CareJobs):
    """A condition is checked within a second, or never."""

    def condition_problem(self, where: str) -> str:
        return check_apart(where, check_s=1.0)


class Stepped(SystemClock):
    """Time goes on when the test says so."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def engine() -> Moody:
    return Moody()


@pytest.fixture
async def world(tmp_path: Path, engine: Moody) -> AsyncIterator[CareWorld]:
    made = await start_world(tmp_path, engine)
    yield made
    engine.over.set()
    await made.stop()


def caretaker(
    world: CareWorld, pipeline: TestPipeline | None = None, clock: SystemClock | None = None,
    kind: type[CareJobs] = CareJobs,
) -> Caretaker:  # fmt: skip
    """One that does what it is asked for, and nothing else."""
    one = pipeline or world.pipeline
    limits, clock = CareLimits(), clock or Stepped()
    jobs = kind(one.tables, one.driver, one.driver._engine, limits, f"file://{world.folder}")
    return Caretaker(one.replica, one.tables, jobs, clock, Random(6), limits, CareSchedule(enabled=False, hang_s=0.05))


async def until(check: Callable[[], bool]) -> None:
    """Returns when the check holds."""
    for _ in range(6000):
        if check():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")


async def until_hung(engine: Moody, left: int = 0) -> None:
    await until(lambda: engine.hangs == left)


async def ask(world: CareWorld, request: bytes, kind: str, **arguments: str) -> None:
    """Note a request as a broker of before did, without a look at it."""
    topic_id = world.broker.replica.state.topics.by_name["a"].id
    assert await world.broker.replica.propose(RequestCare(request, topic_id, kind, arguments)) is None
    await world.pipeline.replica.catch_up()


def found(world: CareWorld, request: bytes, pipeline: TestPipeline | None = None) -> CareRequest:
    return (pipeline or world.pipeline).replica.state.care.requests[request]


@pytest.mark.parametrize(("where", "why"), [("exists (select 1)", "no subquery"), ("no such thing", "syntax error")])
async def test_what_is_no_condition_is_refused_before_it_is_noted(world: CareWorld, where: str, why: str) -> None:
    await filled(world, rounds=1)
    async with httpx.AsyncClient(base_url=f"http://{world.page}", timeout=60) as client:
        answer = await client.post("/tables/a/delete", json={"where": where})
    assert answer.status_code == 400 and why in answer.json()["error"], answer.text
    assert not world.broker.replica.state.care.requests
    told = await world.command("delete", "a", "--where", where)
    assert told.exit_code == 1 and why in str(told.exception)


async def test_landing_goes_on_while_a_condition_is_checked_that_never_ends(world: CareWorld) -> None:
    """It was worked out on the event loop, by every pipeline that came."""
    await filled(world, rounds=1)
    [other] = await world.broker.topic("b", 1)
    await ask(world, FIRST, "delete", where=FOR_EVER)
    caring = asyncio.create_task(caretaker(world, kind=HastyJobs).step())
    await until(lambda: found(world, FIRST).status == RUNNING)
    await world.land(other)
    assert world.pipeline.rows("b").num_rows == 10 and not caring.done()
    await caring
    one = found(world, FIRST)
    assert one.status == FAILED and "takes longer than 1 s" in one.text
    assert world.pipeline.rows("a").num_rows == 20


async def test_a_condition_that_never_ends_on_the_rows_fails_its_task_and_says_that_it_hung(world: CareWorld) -> None:
    """The condition is good, and some row makes it take for ever."""
    await filled(world, rounds=1)
    seen: list[bytes] = []
    world.pipeline.driver._engine.run = lambda _, tasks: seen.extend(tasks) or []  # type: ignore[method-assign]
    await ask(world, FIRST, "delete", where=FOR_EVER_ON_ROWS.replace("stream_key", "value"))
    await caretaker(world).step()
    store, task = world.pipeline.store, unpack_care_task(seen[0])
    [answer] = care_in(lambda: store, task, 0, partial(ConditionProcess, rows_s=0.5))
    failed = unpack_care_answer(answer)
    assert isinstance(failed, CareFailed) and failed.hung and "takes longer than" in failed.reason


async def test_a_request_that_hangs_twice_is_given_up_while_landing_goes_on(
    world: CareWorld, engine: Moody, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(world)
    [other] = await world.broker.topic("b", 1)
    await ask(world, FIRST, "optimize")
    await ask(world, SECOND, "delete", where="stream_offset = 0")
    engine.hangs = 2
    clock = Stepped()
    care = caretaker(world, clock=clock)
    for attempt in (1, 2):
        engine.over.clear()
        answering = asyncio.create_task(care.requests.answer(FIRST))
        await until_hung(engine, 2 - attempt)
        await world.land(other, tag=f"{attempt}-")
        assert not answering.done()
        clock.now_s += 1.0
        await answering
        assert engine.cancelled == attempt, "the job does not go on without anybody who waits for it"
        assert found(world, FIRST).over == (attempt == 2)
    assert world.pipeline.rows("b").num_rows == 20
    one = found(world, FIRST)
    assert (one.status, one.text) == (FAILED, "given up after 2 attempts: nothing moved for 0 s")
    assert "optimize of topic a was asked for and failed: given up after 2 attempts" in caplog.text
    await care.step()
    assert found(world, SECOND).status == DONE
    listed = await world.command("list")
    assert "a request failed: optimize: given up after 2 attempts" in " ".join(listed.stdout.split())


async def test_an_engine_that_fails_once_gets_another_attempt(world: CareWorld, engine: Moody) -> None:
    await filled(world)
    await ask(world, FIRST, "optimize")
    engine.failures = 1
    care = caretaker(world)
    await care.step()
    one = found(world, FIRST)
    assert not one.over and one.text == "attempt 1 of 2 failed: a worker was lost" and attempts_of(one) == 1
    await care.step()
    assert found(world, FIRST).status == DONE and len(world.files("a")) == 1


async def test_a_request_that_takes_two_pipelines_along_is_given_up_by_the_third(world: CareWorld) -> None:
    """Each is killed in the middle of its attempt. What counts them is in the state, and in its checkpoints."""
    await filled(world)
    await ask(world, FIRST, "optimize")
    for n in range(2):
        pipeline = await start_pipeline(world.folder, world.log, member=1_000_001 + n, seed=20 + n, engine=Moody())
        engine = pipeline.driver._engine
        assert isinstance(engine, Moody)
        engine.hangs = 1
        dying = asyncio.create_task(caretaker(world, pipeline).step())
        await until_hung(engine)
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        stored = load(dump(pipeline.replica.state)).care.requests[FIRST]
        assert (stored.status, attempts_of(stored)) == (RUNNING, n + 1)
        await pipeline.stop()
    await world.pipeline.replica.catch_up()
    await caretaker(world).step()
    one = found(world, FIRST)
    assert one.status == FAILED and one.text.startswith("given up: a pipeline died or was taken over in each of 2")
    assert len(world.files("a")) == 6


async def test_a_pipeline_that_is_stopped_does_not_count_the_attempt_that_it_breaks_off(
    world: CareWorld, engine: Moody
) -> None:
    await filled(world)
    await ask(world, FIRST, "optimize")
    for _ in range(3):
        care = caretaker(world)
        engine.hangs = 1
        engine.over.clear()
        stopping = asyncio.create_task(care.step())
        await until_hung(engine)
        care.requests.stopping = True
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        assert attempts_of(found(world, FIRST)) == 0
    await caretaker(world).step()
    assert found(world, FIRST).status == DONE

"""A seeded event loop on virtual time: several processes in one thread, which can be paused and killed like real ones.

The loop never sleeps: when no callback is ready, time jumps to the next timer. Every callback belongs to the process in
whose context it was made (a context variable, so tasks and timers inherit it). Callbacks of one process keep asyncio's
order; the seed decides which process runs next, as the kernel does on a real machine.

    paused   its callbacks and due timers are held while time goes on; when it is resumed they all run, late
    killed   none of its callbacks ever runs again, not even a `finally`; requests that it sent may still arrive

Work for threads alternates with callbacks (threads.py). A process runs one job at a time; with `separate_pools`, one
job in each thread pool.
"""

import asyncio
import heapq
import signal
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from functools import partial
from random import Random
from types import FrameType
from typing import Any, TypeVar
from weakref import WeakSet

from lakestream.testing.simulation.threads import SimulatedThread, SimulatedThreads

T = TypeVar("T")
Jobs = deque[tuple[Callable[[], Any], asyncio.Future[Any]]]

STEPS_LIMIT = 5_000_000
TIME_LIMIT_S = 3600.0
STUCK_S = 60.0
WALL_START_MS = 1_700_000_000_000
THREAD_START_S = (0.0, 0.002)
"""How long a job waits for a thread."""

_process: ContextVar["Process | None"] = ContextVar("process", default=None)


class SimulationError(AssertionError):
    """The simulation cannot go on: no callback can ever run again, or one never ends."""


class Process:
    """A unit that is paused and killed as a whole: the callbacks, timers and tasks that its code makes."""

    def __init__(self, name: str, loop: "SimulatedLoop") -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.waiting: deque[Any] = deque()
        self.separate_pools = False
        """One job runs in each thread pool. No job may wait for another pool's lock: that would block the loop."""
        self.jobs: dict[Any, Jobs] = {}
        """The jobs of each thread pool; the first one is under way."""
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._loop = loop
        self._context = Context()
        self._context.run(_process.set, self)

    def __repr__(self) -> str:
        return f"<Process {self.name}{'' if self.alive else ' dead'}{' paused' if self.paused else ''}>"

    @property
    def context(self) -> Context:
        """A context whose callbacks belong to this process."""
        return self._context.copy()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a task as part of this process."""
        return self._loop.create_task(coroutine, context=self.context)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def kill(self) -> None:
        """End the process. A caller inside of it must not go on: it has to await a future that is never done."""
        self.alive = False
        # A reference is kept: a task that is garbage-collected would run its `finally`.
        self._loop.killed_tasks.extend(self.tasks)
        self.waiting.clear()


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop without a selector, threads or real time."""

    def __init__(self, seed: int | str) -> None:
        super().__init__()
        self.steps = 0
        self.failures: list[str] = []
        """Exceptions that were not caught, of all processes."""
        self.killed_tasks: list[asyncio.Task[Any]] = []
        self.environment = Process("environment", self)
        self._chance = Random(f"schedule-{seed}")
        self._now = 0.0
        self._queues: dict[Process, None] = {}
        self._finished = False
        self._workers = SimulatedThreads()

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        self._sort_in()
        runnable = [process for process in self._queues if not process.paused]
        if not runnable:
            self._jump()
            return
        process = runnable[0] if len(runnable) == 1 else self._chance.choice(runnable)
        handle = process.waiting.popleft()
        if not process.waiting:
            del self._queues[process]
        self.steps += 1
        if self.steps > STEPS_LIMIT:
            raise SimulationError(f"more than {STEPS_LIMIT} steps, at {self._now:.3f} s: something runs for ever")
        if not handle._cancelled:
            handle._run()

    def _sort_in(self) -> None:
        """Give ready callbacks and due timers to their processes."""
        ready: deque[Any] = self._ready  # type: ignore[attr-defined]
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while timers and (timers[0]._cancelled or timers[0]._when <= self._now):
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if not timer._cancelled:
                ready.append(timer)
        while ready:
            handle = ready.popleft()
            process = handle._context.get(_process) or self.environment
            if process.alive and not handle._cancelled:
                process.waiting.append(handle)
                self._queues[process] = None
        for process in [process for process in self._queues if not process.waiting]:
            del self._queues[process]

    def _jump(self) -> None:
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        if not timers:
            raise SimulationError(f"deadlock at {self._now:.3f} s: nothing is ready and no timer is set")
        self._now = max(self._now, timers[0]._when)
        if self._now > TIME_LIMIT_S:
            raise SimulationError(f"not finished after {TIME_LIMIT_S} virtual seconds")

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> "asyncio.Task[Any]":
        task = super().create_task(coro, name=name, context=context)
        process = (context.get(_process) if context is not None else _process.get()) or self.environment
        process.tasks.add(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._finished:
            self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    # -- threads ----------------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        process = _process.get() or self.environment
        done: asyncio.Future[T] = self.create_future()
        jobs = process.jobs.setdefault(executor if process.separate_pools else None, deque())
        jobs.append((partial(func, *args), done))
        if len(jobs) == 1:
            self._begin_later(process, jobs)
        return done

    def _begin_later(self, process: Process, jobs: Jobs) -> None:
        self.call_later(self._chance.uniform(*THREAD_START_S), self._begin, process, jobs, context=process.context)

    def _begin(self, process: Process, jobs: Jobs) -> None:
        worker = self._workers.take()
        worker.begin(jobs[0][0])
        self._take_back(process, jobs, worker)

    def _take_back(self, process: Process, jobs: Jobs, worker: SimulatedThread) -> None:
        """Take the baton back from a thread: serve its request, or deliver its result and begin the next job."""
        if worker.request is not None:
            asked = process.start(worker.request())
            asked.add_done_callback(partial(self._answer, process, jobs, worker), context=process.context)
            return
        _, done = jobs.popleft()
        self._workers.give_back(worker)
        if jobs:
            self._begin_later(process, jobs)
        if done.done():
            return
        if worker.error is not None:
            done.set_exception(worker.error)
        else:
            done.set_result(worker.result)

    def _answer(self, process: Process, jobs: Jobs, worker: SimulatedThread, asked: "asyncio.Task[Any]") -> None:
        error = asked.exception()
        worker.answer(None if error is not None else asked.result(), error)
        self._take_back(process, jobs, worker)

    def _write_to_self(self) -> None:
        """Do nothing: the loop has no selector that would have to be woken."""

    def _timer_handle_cancelled(self, _handle: Any) -> None:
        """Do nothing: a cancelled timer is skipped when it is due."""

    def finish(self) -> None:
        """Close the tasks of killed and running processes, and ignore the errors of their `finally` blocks."""
        self._finished = True
        self._workers.stop()
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            try:
                coroutine.close()
            except RuntimeError:
                continue


class SimClock:
    """The Clock of one simulated machine; its wall clock may be wrong, and may jump."""

    def __init__(self, loop: SimulatedLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def monotonic(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return WALL_START_MS + int(self._loop.time() * 1000) + self.skew_ms

    def jump(self, milliseconds: int) -> None:
        self.skew_ms += milliseconds


def run(main: Callable[[SimulatedLoop], Coroutine[Any, Any, T]], seed: int | str) -> T:
    """Run a simulation to its end. The same seed gives the same run."""
    loop = SimulatedLoop(seed)
    try:
        with _alarm():
            return loop.run_until_complete(main(loop))
    finally:
        loop.finish()
        loop.close()


@contextmanager
def _alarm() -> Iterator[None]:
    """Raise SimulationError after STUCK_S of real time: a callback that never returns stops virtual time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise SimulationError(f"a simulation took more than {STUCK_S} real seconds: a callback may never return")

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, STUCK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)

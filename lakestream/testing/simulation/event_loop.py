"""A seeded event loop on virtual time: several processes in one thread, which can be paused and killed like real ones.

Nothing sleeps: when nobody can run, time jumps to the next timer. Every callback belongs to the process in whose
context it was made (a context variable, so tasks and timers inherit it). Callbacks of one process keep asyncio's order;
which process goes next is drawn from the seed, as the kernel of a real machine would draw it.

    paused   callbacks and due timers are held, time goes on for the others; afterwards they all run, late
    killed   no callback of it ever runs again, not even a `finally`; what it sent before may still arrive

Work for threads runs in turns with everything else (threads.py), in each process one piece after the other; a process
whose pools are `apart` works on one piece in each of them.
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
"""How long work waits for a thread."""

_process: ContextVar["Process | None"] = ContextVar("process", default=None)


class SimulationError(AssertionError):
    """The simulation cannot go on: nothing can ever happen again, or something never ends."""


class Process:
    """What can be paused and killed as one: the callbacks, timers and tasks that its code makes."""

    def __init__(self, name: str, loop: "SimulatedLoop") -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.waiting: deque[Any] = deque()
        self.apart = False
        """Its threads never wait for those of another pool: a real lock would stop the whole simulation."""
        self.jobs: dict[Any, Jobs] = {}
        """Work for the threads of each pool; the first is under way."""
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._loop = loop
        self._context = Context()
        self._context.run(_process.set, self)

    def __repr__(self) -> str:
        return f"<Process {self.name}{'' if self.alive else ' dead'}{' paused' if self.paused else ''}>"

    @property
    def context(self) -> Context:
        """For callbacks that shall belong to this process."""
        return self._context.copy()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a task as part of this process."""
        return self._loop.create_task(coroutine, context=self.context)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def kill(self) -> None:
        """Called from within, the caller must not return to its own code: await something that never comes."""
        self.alive = False
        # Kept, so that no `finally` of theirs runs when they would be thrown away.
        self._loop.graveyard.extend(self.tasks)
        self.waiting.clear()


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop without a selector, threads or real time."""

    def __init__(self, seed: int | str) -> None:
        super().__init__()
        self.steps = 0
        self.failures: list[str] = []
        """Exceptions that nobody caught, in any process."""
        self.graveyard: list[asyncio.Task[Any]] = []
        self.outside = Process("outside", self)
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
        """Give what is ready, and the timers that are due, to their processes."""
        ready: deque[Any] = self._ready  # type: ignore[attr-defined]
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while timers and (timers[0]._cancelled or timers[0]._when <= self._now):
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if not timer._cancelled:
                ready.append(timer)
        while ready:
            handle = ready.popleft()
            process = handle._context.get(_process) or self.outside
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
        process = (context.get(_process) if context is not None else _process.get()) or self.outside
        process.tasks.add(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._finished:
            self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    # -- threads ----------------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        process = _process.get() or self.outside
        done: asyncio.Future[T] = self.create_future()
        jobs = process.jobs.setdefault(executor if process.apart else None, deque())
        jobs.append((partial(func, *args), done))
        if len(jobs) == 1:
            self._soon(process, jobs)
        return done

    def _soon(self, process: Process, jobs: Jobs) -> None:
        self.call_later(self._chance.uniform(*THREAD_START_S), self._begin, process, jobs, context=process.context)

    def _begin(self, process: Process, jobs: Jobs) -> None:
        worker = self._workers.take()
        worker.begin(jobs[0][0])
        self._look(process, jobs, worker)

    def _look(self, process: Process, jobs: Jobs, worker: SimulatedThread) -> None:
        """The baton came back."""
        if worker.request is not None:
            asked = process.start(worker.request())
            asked.add_done_callback(partial(self._answer, process, jobs, worker), context=process.context)
            return
        _, done = jobs.popleft()
        self._workers.give_back(worker)
        if jobs:
            self._soon(process, jobs)
        if done.done():
            return
        if worker.error is not None:
            done.set_exception(worker.error)
        else:
            done.set_result(worker.result)

    def _answer(self, process: Process, jobs: Jobs, worker: SimulatedThread, asked: "asyncio.Task[Any]") -> None:
        error = asked.exception()
        worker.answer(None if error is not None else asked.result(), error)
        self._look(process, jobs, worker)

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector, so nobody has to be woken."""

    def _timer_handle_cancelled(self, _handle: Any) -> None:
        """Cancelled timers are skipped when their time comes."""

    def finish(self) -> None:
        """Let go of the tasks of killed and running processes; whatever their `finally` says now is not heard."""
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
    """interfaces.Clock of one simulated machine: its wall clock may be wrong, and may jump."""

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
    """A callback that never returns stops virtual time: real time has to catch it."""
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

"""Blocking code in a simulation: it runs in a thread, but only while the loop stands still.

The loop hands a baton to the thread and waits until the thread hands it back: with a result, or with a request to a
store. In the second case the thread stands still until the loop has the answer. So exactly one thread runs at any
moment, and the seed alone decides which one. Between two requests of blocking code other callbacks run, time passes,
and the process of the code may be paused or killed.
"""

import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Killed(BaseException):
    """The simulation has ended, and with it this thread. No code catches it."""


class SimulatedThread(threading.Thread):
    """One thread: it waits for work or for an answer, and works while it holds the baton."""

    def __init__(self) -> None:
        super().__init__(name="simulated", daemon=True)
        self.request: Callable[[], Coroutine[Any, Any, Any]] | None = None
        """The request that the work waits for; None if the work is done."""
        self.result: Any = None
        self.error: BaseException | None = None
        self._work: Callable[[], Any] | None = None
        self._doomed = False
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self.start()

    def begin(self, work: Callable[[], Any]) -> None:
        """Run until the first request, or to the end."""
        self._work = work
        self._hand_over()

    def answer(self, result: Any, error: BaseException | None) -> None:
        """Run from a request to the next, or to the end."""
        self.request, self.result, self.error = None, result, error
        self._hand_over()

    def stop(self) -> None:
        """End the thread; work that waits for an answer gets Killed."""
        self._doomed = True
        while self.request is not None:
            self.answer(None, Killed())
        self._work = None
        self._go.release()
        self.join()

    def ask(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Called by the work: hand the request to the loop, and wait for its answer."""
        if self._doomed:
            raise Killed
        self.request = request
        self._back.release()
        self._go.acquire()
        if self.error is not None:
            raise self.error
        found: T = self.result
        return found

    def _hand_over(self) -> None:
        self._go.release()
        self._back.acquire()

    def run(self) -> None:
        while True:
            self._go.acquire()
            if self._work is None:
                return
            try:
                self.result, self.error = self._work(), None
            except BaseException as error:
                # Every exception, Killed included, is handed to the loop.
                self.result, self.error = None, error
            self._back.release()


class SimulatedThreads:
    """The threads of one simulation."""

    def __init__(self) -> None:
        self._all: list[SimulatedThread] = []
        self._idle: list[SimulatedThread] = []

    def take(self) -> SimulatedThread:
        if not self._idle:
            self._idle.append(SimulatedThread())
            self._all.append(self._idle[-1])
        return self._idle.pop()

    def give_back(self, worker: SimulatedThread) -> None:
        self._idle.append(worker)

    def stop(self) -> None:
        for worker in self._all:
            worker.stop()
        self._all, self._idle = [], []


def wait_for(request: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """For blocking code: run a coroutine in the loop, as a part of the same process, and return its result."""
    worker = threading.current_thread()
    if not isinstance(worker, SimulatedThread):
        raise RuntimeError("wait_for may be called in a simulated thread only")

    return worker.ask(request)

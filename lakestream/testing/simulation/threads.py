"""Blocking code in a simulation: it has a thread, but the thread runs only while the loop stands still.

The loop hands the baton to the thread and waits until it comes back: with a result, or with something to wait for (a
request to a store, say). Then the thread stands still until the loop has the answer. So exactly one thread runs at
any moment, and the seed alone says which; between any two requests of blocking code all others have their turn, time
passes, and the process that the code belongs to may be paused or killed.
"""

import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Killed(BaseException):
    """The simulation is over, and with it this thread. Nobody catches it."""


class SimulatedThread(threading.Thread):
    """One thread, which waits for work, or for an answer, or works while whoever gave it the baton waits."""

    def __init__(self) -> None:
        super().__init__(name="simulated", daemon=True)
        self.request: Callable[[], Coroutine[Any, Any, Any]] | None = None
        """What the work waits for; None if it is done."""
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
        """End the thread; work that waits for an answer is told that it will never come."""
        self._doomed = True
        while self.request is not None:
            self.answer(None, Killed())
        self._work = None
        self._go.release()
        self.join()

    def ask(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Called by the work."""
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
                # Whatever it is, it is the answer to who asked for the work.
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
    """For blocking code: what a coroutine gives that runs in the loop, as a part of the same process."""
    worker = threading.current_thread()
    if not isinstance(worker, SimulatedThread):
        raise RuntimeError("only work that was handed to a thread can wait")
    return worker.ask(request)

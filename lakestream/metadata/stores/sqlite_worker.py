"""Workers on the SQLite file: a thread beside a broker's event loop, or the event loop of the owner process.

Jobs that arrive during another job are taken together: neighbouring appends share a transaction, and its sync. In a
broker a quick append skips the thread (`try_now`): the way there and back costs 75 us of 265 us a tick (decision 7).
"""

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from lakestream.errors import LakestreamError, Unknown
from lakestream.metadata.stores.sqlite_file import SqliteFile
from lakestream.process.lock_file import LockFile

MAX_GROUP_JOBS = 1024
MAX_GROUP_BYTES = 16 * 1024 * 1024
TIDY_DELAY_S = 0.001

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Job:
    """An append of commands, or some other work."""

    done: asyncio.Future[Any]
    commands: Sequence[bytes]
    size: int
    work: Callable[[SqliteFile], Any] | None = None


@dataclass(slots=True)
class Answers:
    """The results of some jobs, and the commands that they added to the log."""

    values: list[tuple[asyncio.Future[Any], Any]]
    errors: list[tuple[asyncio.Future[Any], Exception]]
    size: int
    first: int = 0
    committed: Sequence[bytes] = ()


Deliver = Callable[[Answers], None]


class SqliteWorker(Protocol):
    """Takes jobs from the event loop and delivers answers to it, in order."""

    def put(self, job: Job) -> None: ...

    def try_now(self, job: Job) -> bool:
        """Do the job on the event loop, and deliver, unless another job runs or waits; whether the job was done."""
        ...

    async def stop(self) -> None:
        """Finish the jobs that were put, then close the file."""
        ...


class OpenFile:
    """The file and the lock on it; a reader takes no lock."""

    def __init__(self, path: str, *, read_only: bool) -> None:
        self._lock = None if read_only else LockFile(path + ".lock")
        self._read_only = read_only
        try:
            self.file = SqliteFile(path, read_only=read_only)
        except BaseException:
            self._unlock()
            raise

    def work(self, jobs: list[Job]) -> Iterator[Answers]:
        for run in _runs(jobs):
            yield _append_all(self.file, run) if run[0].work is None else _answer(self.file, run[0])

    def tidy(self) -> None:
        if self._read_only:
            return
        try:
            self.file.tidy()
        except LakestreamError as error:
            log.warning("SQLite's write-ahead log stays long for now: %s", error)

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # all that was acknowledged is in the write-ahead log
            self.file.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()


class InlineWorker:
    """Works on the event loop itself: no switch of threads, but the whole process waits during a sync."""

    def __init__(self, path: str, deliver: Deliver) -> None:
        self._open = OpenFile(path, read_only=False)
        self._deliver = deliver
        self._jobs: list[Job] = []
        self._loop = asyncio.get_running_loop()
        self._tidying: asyncio.TimerHandle | None = None

    def put(self, job: Job) -> None:
        if not self._jobs:
            self._loop.call_soon(self._work)
        self._jobs.append(job)

    def try_now(self, job: Job) -> bool:
        return False  # jobs of all clients that arrive together share a sync

    async def stop(self) -> None:
        self._work()
        if self._tidying is not None:
            self._tidying.cancel()
        self._open.close()

    def _work(self) -> None:
        jobs, self._jobs = self._jobs, []
        if not jobs:
            return
        for answers in self._open.work(jobs):
            self._deliver(answers)
        if self._tidying is None and self._open.file.untidy:
            self._tidying = self._loop.call_later(TIDY_DELAY_S, self._tidy)  # the answers go out first

    def _tidy(self) -> None:
        self._tidying = None
        self._open.tidy()


class ThreadWorker:
    """Works in a thread of its own, which also opens the file. The event loop waits for the disk only in `try_now`."""

    def __init__(self, path: str, deliver: Deliver, *, read_only: bool) -> None:
        self._path = path
        self._read_only = read_only
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._unanswered = 0
        self._opened: OpenFile | None = None
        self._using = threading.Lock()
        """Held while the thread, or the event loop in `try_now`, works on the file."""
        threading.Thread(target=self._run, name="command-log", daemon=True).start()

    def put(self, job: Job) -> None:
        self._unanswered += 1
        self._jobs.put(job)

    def try_now(self, job: Job) -> bool:
        opened = self._opened
        if self._unanswered or opened is None or not self._using.acquire(blocking=False):
            return False
        try:
            (answers,) = opened.work([job])
            untidy = opened.file.untidy
        finally:
            self._using.release()
        if untidy:
            self.put(Job(self._loop.create_future(), (), 0, lambda file: None))  # the thread tidies after its jobs
        self._deliver(answers)
        return True

    async def stop(self) -> None:
        self._jobs.put(None)
        await asyncio.shield(self._ended)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _answered(self, answers: Answers) -> None:
        self._unanswered -= len(answers.values) + len(answers.errors)
        self._deliver(answers)

    # What follows runs in the thread.

    def _run(self) -> None:
        try:
            opened = OpenFile(self._path, read_only=self._read_only)
        except (LakestreamError, OSError) as error:
            self._refuse_all(error)
        else:
            self._opened = opened
            self._serve(opened)
            with self._using:
                self._opened = None
                opened.close()
        self._call_loop(self._end)

    def _serve(self, opened: OpenFile) -> None:
        ending = False
        while not ending:
            jobs, ending = self._next_jobs()
            with self._using:
                for answers in opened.work(jobs):
                    self._call_loop(self._answered, answers)
                opened.tidy()

    def _next_jobs(self) -> tuple[list[Job], bool]:
        """Wait for a job, then take all that wait. Returns them, and whether the worker ends after them."""
        jobs: list[Job] = []
        size = 0
        try:
            job = self._jobs.get()
            while job is not None:
                jobs.append(job)
                size += job.size
                if len(jobs) >= MAX_GROUP_JOBS or size >= MAX_GROUP_BYTES:
                    return jobs, False
                job = self._jobs.get_nowait()
        except Empty:
            return jobs, False
        return jobs, True

    def _refuse_all(self, error: Exception) -> None:
        while (job := self._jobs.get()) is not None:
            self._call_loop(self._answered, Answers([], [(job.done, error)], job.size))

    def _call_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: no caller waits any more
            self._loop.call_soon_threadsafe(call, *arguments)


def _runs(jobs: list[Job]) -> Iterator[list[Job]]:
    """Neighbouring appends together, anything else alone; the order stays."""
    start = 0
    for end in range(1, len(jobs) + 1):
        if end == len(jobs) or jobs[end].work is not None or jobs[start].work is not None:
            yield jobs[start:end]
            start = end


def _append_all(file: SqliteFile, jobs: list[Job]) -> Answers:
    """All appends in one transaction: all succeed or all fail."""
    commands = [command for job in jobs for command in job.commands]
    size = sum(job.size for job in jobs)
    try:
        first = file.append(commands)
    except LakestreamError as error:
        return Answers([], [(job.done, error) for job in jobs], size)
    except Exception as error:  # after a defect the callers must not wait, nor believe that nothing happened
        log.exception("append failed")
        return Answers([], [(job.done, Unknown(str(error))) for job in jobs], size)
    values: list[tuple[asyncio.Future[Any], Any]] = []
    sequence = first
    for job in jobs:
        values.append((job.done, sequence))
        sequence += len(job.commands)
    return Answers(values, [], size, first, commands)


def _answer(file: SqliteFile, job: Job) -> Answers:
    assert job.work is not None
    try:
        return Answers([(job.done, job.work(file))], [], job.size)
    except Exception as error:  # the caller handles every kind of error
        return Answers([], [(job.done, error)], job.size)

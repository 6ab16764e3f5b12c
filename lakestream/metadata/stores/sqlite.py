"""A command log in a SQLite file that this process owns: one thread, group commit, recent commands in memory.

Appends that arrive while a commit runs go together in the next transaction, so that the cost of a sync is shared.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from lakestream.errors import LakestreamError, Missing, Retry, Unknown
from lakestream.interfaces import Appended, CheckpointNote, Logged
from lakestream.metadata.stores.limits import PAGE_COMMANDS, check_append
from lakestream.metadata.stores.lock_file import LockFile
from lakestream.metadata.stores.recent import Recent
from lakestream.metadata.stores.sqlite_file import SqliteFile
from lakestream.metadata.stores.wakeups import Wakeups

MAX_GROUP_JOBS = 1024
MAX_GROUP_BYTES = 16 * 1024 * 1024
MAX_QUEUED_BYTES = 64 * 1024 * 1024
DROP_AT_ONCE = 2000
"""Commands that truncation drops in one transaction; appends go in between."""
POLL_S = 0.005

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class _Job:
    """Work for the thread: an append if `work` is None."""

    done: asyncio.Future[Any]
    commands: Sequence[bytes]
    size: int
    work: Callable[[SqliteFile], Any] | None = None


@dataclass(slots=True)
class _Answers:
    """What the thread did, handed to the event loop in one call."""

    values: list[tuple[asyncio.Future[Any], Any]]
    errors: list[tuple[asyncio.Future[Any], Exception]]
    size: int
    first: int = 0
    committed: Sequence[bytes] = ()


class SqliteLog:
    """`CommandLog` on a file. `open` it; a second process that does gets an error naming the first.

    With `read_only` it takes no lock and follows what the owning process appends, by polling.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool) -> None:
        self.path = os.path.realpath(path)
        self._read_only = read_only
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._queued_bytes = 0
        self._closing = False
        self._recent = Recent(0)
        self._wakeups = Wakeups()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="command-log", daemon=True)

    @classmethod
    async def open(cls, path: str | os.PathLike[str], *, read_only: bool = False) -> "SqliteLog":
        """Raises Retry if another process owns the file, Halted if a newer version wrote it, Corrupt if it is none."""
        opened = cls(path, read_only=read_only)
        opened._thread.start()
        try:
            last = await opened._do(lambda file: file.last)
        except BaseException:
            await opened.close()
            raise
        opened._recent = Recent(last)
        opened._wakeups.announce(last)
        return opened

    @property
    def last(self) -> int:
        """The newest sequence that is known here."""
        return self._wakeups.last

    async def append(self, commands: Sequence[bytes], after: int) -> Appended:
        check_append(commands)
        first = await self._submit(commands, None)
        try:
            tail = await self.read(after, PAGE_COMMANDS)
        except (Missing, Retry):
            tail = []  # the append itself is done; `read` will tell the caller why there is no tail
        return Appended(first, tail)

    async def read(self, after: int, limit: int) -> list[Logged]:
        page = None if self._read_only or self._closing else self._recent.page(max(after, 1), limit)
        return await self._do(lambda file: file.read(after, limit)) if page is None else page

    async def wait(self, after: int, timeout_s: float) -> None:
        self._check_open()
        if not self._read_only:
            return await self._wakeups.wait(after, timeout_s)
        deadline = self._loop.time() + timeout_s
        while True:
            self._wakeups.announce(await self._do(SqliteFile.refresh))
            left = deadline - self._loop.time()
            if self.last > after or left <= 0:
                return
            await self._wakeups.wait(after, min(POLL_S, left))

    async def save_checkpoint(self, note: CheckpointNote) -> None:
        await self._do(lambda file: file.save_checkpoint(note))

    async def checkpoints(self) -> list[CheckpointNote]:
        return await self._do(SqliteFile.checkpoints)

    async def truncate(self, through: int) -> None:
        floor = 0
        while floor <= through:
            before, floor = floor, await self._do(lambda file: file.drop(through, DROP_AT_ONCE))
            self._recent.drop_below(floor)
            if floor == before:
                break

    async def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._jobs.put(None)
        await asyncio.shield(self._ended)
        self._wakeups.wake_all()

    async def _do(self, work: Callable[[SqliteFile], T]) -> T:
        result: T = await self._submit((), work)
        return result

    def _submit(self, commands: Sequence[bytes], work: Callable[[SqliteFile], Any] | None) -> asyncio.Future[Any]:
        self._check_open()
        size = sum(map(len, commands))
        if self._queued_bytes + size > MAX_QUEUED_BYTES:
            raise Retry(f"{self.path}: more than {MAX_QUEUED_BYTES} bytes are waiting to be appended")
        self._queued_bytes += size
        job = _Job(self._loop.create_future(), commands, size, work)
        self._jobs.put(job)
        return job.done

    def _check_open(self) -> None:
        if self._closing:
            raise Retry(f"{self.path} is closed")

    def _deliver(self, answers: _Answers) -> None:
        """On the event loop: first what everybody may read, then the answers, then the wake-ups."""
        self._queued_bytes -= answers.size
        if answers.committed:
            self._recent.extend(answers.first, answers.committed)
        for done, value in answers.values:
            if not done.done():
                done.set_result(value)
        for done, error in answers.errors:
            if isinstance(error, Unknown):
                self._recent.forget()
            _fail(done, error)
        if answers.committed:
            self._wakeups.announce(self._recent.last)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    # What follows runs in the thread.

    def _run(self) -> None:
        lock: LockFile | None = None
        file: SqliteFile | None = None
        try:
            lock = None if self._read_only else LockFile(self.path + ".lock")
            file = SqliteFile(self.path, read_only=self._read_only)
            self._serve(file)
        except (LakestreamError, OSError) as error:
            while (job := self._jobs.get()) is not None:
                self._call_loop(_fail, job.done, error)
        finally:
            with contextlib.suppress(sqlite3.Error):
                if file is not None:
                    file.close()
            if lock is not None:
                lock.release()
            self._call_loop(self._end)

    def _serve(self, file: SqliteFile) -> None:
        ending = False
        while not ending:
            jobs, ending = self._next_jobs()
            for run in _runs(jobs):
                self._call_loop(self._deliver, _append_all(file, run) if run[0].work is None else _answer(file, run[0]))
            if not self._read_only:
                _tidy(file)

    def _next_jobs(self) -> tuple[list[_Job], bool]:
        """Wait for a job, then take all that came meanwhile; and whether to end after them."""
        jobs: list[_Job] = []
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

    def _call_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(call, *arguments)


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


def _runs(jobs: list[_Job]) -> Iterator[list[_Job]]:
    """Neighbouring appends together, anything else alone; the order stays."""
    start = 0
    for end in range(1, len(jobs) + 1):
        if end == len(jobs) or jobs[end].work is not None or jobs[start].work is not None:
            yield jobs[start:end]
            start = end


def _append_all(file: SqliteFile, jobs: list[_Job]) -> _Answers:
    """All appends in one transaction: all succeed or all fail."""
    commands = [command for job in jobs for command in job.commands]
    size = sum(job.size for job in jobs)
    try:
        first = file.append(commands)
    except LakestreamError as error:
        return _Answers([], [(job.done, error) for job in jobs], size)
    except Exception as error:  # a defect must not leave the callers waiting, nor tell them that nothing happened
        log.exception("append failed")
        return _Answers([], [(job.done, Unknown(str(error))) for job in jobs], size)
    values: list[tuple[asyncio.Future[Any], Any]] = []
    sequence = first
    for job in jobs:
        values.append((job.done, sequence))
        sequence += len(job.commands)
    return _Answers(values, [], size, first, commands)


def _answer(file: SqliteFile, job: _Job) -> _Answers:
    assert job.work is not None
    try:
        return _Answers([(job.done, job.work(file))], [], job.size)
    except Exception as error:  # whatever it is, it is the caller's to handle
        return _Answers([], [(job.done, error)], job.size)


def _tidy(file: SqliteFile) -> None:
    try:
        file.tidy()
    except LakestreamError as error:
        log.warning("the SQLite write-ahead log stays long for now: %s", error)

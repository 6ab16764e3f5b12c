"""A command log in a SQLite file that this process owns: group commit, recent commands in memory, wake-ups."""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from lakestream.errors import Missing, Retry, Unknown
from lakestream.interfaces import Appended, CheckpointNote, Clock, Logged
from lakestream.metadata.stores.limits import PAGE_COMMANDS, check_append
from lakestream.metadata.stores.recent import Recent
from lakestream.metadata.stores.sqlite_file import SqliteFile
from lakestream.metadata.stores.sqlite_worker import Answers, InlineWorker, Job, SqliteWorker, ThreadWorker
from lakestream.metadata.stores.wakeups import Wakeups
from lakestream.process.sync_pace import SyncPace

MAX_QUEUED_BYTES = 64 * 1024 * 1024
DROPPED_PAGES = 32
"""Pages that truncation drops in one transaction, in about a millisecond; appends run in between."""
DROP_PAUSE_S = 0.005
MAX_INLINE_BYTES = 16 * 1024
POLL_S = 0.005

T = TypeVar("T")


class SqliteLog:
    """`CommandLog` on a file. A second process that opens the file gets an error that names the first."""

    def __init__(
        self, path: str | os.PathLike[str], *, read_only: bool, inline: bool, clock: Clock | None
    ) -> None:
        self.path = os.path.realpath(path)
        self._read_only = read_only
        self._pace = SyncPace(clock)
        self._loop = asyncio.get_running_loop()
        self._queued_bytes = 0
        self._closed = False
        self._recent = Recent(0)
        self._wakeups = Wakeups()
        self._worker: SqliteWorker = (
            InlineWorker(self.path, self._deliver)
            if inline
            else ThreadWorker(self.path, self._deliver, read_only=read_only)
        )

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        inline: bool = False,
        clock: Clock | None = None,
    ) -> "SqliteLog":
        """Open the file, or create it.

        A `read_only` log takes no lock, and polls for the commands that the owner appends. An `inline` log works on
        the event loop instead of in a thread: for the owner process, which has nothing else to do. With a `clock`,
        small appends are done on the event loop while the disk is quick.

        Raises Retry if another process owns the file, Halted if a newer version wrote it, Corrupt if it is no log.
        """
        opened = cls(path, read_only=read_only, inline=inline, clock=clock)
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
        """The newest known sequence."""
        return self._wakeups.last

    async def append(self, commands: Sequence[bytes], after: int) -> Appended:
        check_append(commands)
        began = self._pace.begin()
        first = await self._submit(commands, None)
        self._pace.end(began)
        try:
            tail = await self.read(after, PAGE_COMMANDS)
        except (Missing, Retry):
            tail = []  # the append itself is done; the caller's next `read` raises the same error
        return Appended(first, tail)

    async def read(self, after: int, limit: int) -> list[Logged]:
        self._check_open()
        page = None if self._read_only else self._recent.page(max(after, 1), limit)
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
            before, floor = floor, await self._do(lambda file: file.drop(through, DROPPED_PAGES))
            self._recent.drop_below(floor)
            if floor == before:
                break
            await asyncio.sleep(DROP_PAUSE_S)

    async def blank(self, sequence: int, command: bytes) -> bool:
        blanked = await self._do(lambda file: file.blank(sequence, command))
        self._recent.forget()
        return blanked

    async def close(self) -> None:
        """Finish and answer the requests that were submitted, then close the file."""
        if not self._closed:
            self._closed = True
            await self._worker.stop()
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
        job = Job(self._loop.create_future(), commands, size, work)
        quick = work is None and size <= MAX_INLINE_BYTES and self._pace.quick
        if not (quick and self._worker.try_now(job)):
            self._worker.put(job)
        return job.done

    def _check_open(self) -> None:
        if self._closed:
            raise Retry(f"{self.path} is closed")

    def _deliver(self, answers: Answers) -> None:
        """On the event loop: first publish the commands to readers, then the answers, then the wake-ups."""
        self._queued_bytes -= answers.size
        if answers.committed:
            self._recent.extend(answers.first, answers.committed)
        for done, value in answers.values:
            if not done.done():
                done.set_result(value)
        for done, error in answers.errors:
            if isinstance(error, Unknown):
                self._recent.forget()
            if not done.done():
                done.set_exception(error)
        if answers.committed:
            self._wakeups.announce(self._recent.last)

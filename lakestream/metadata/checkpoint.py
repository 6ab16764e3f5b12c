"""Checkpoints: the state as one object, so that starting does not mean folding everything that ever happened.

A checkpoint object is the identity of the last folded command (16 bytes, L5) and the state's dump (L10). It is put
create-only, then noted in the command log, once a majority agrees with it (checkpointer.py); commands older than the
older of the two noted checkpoints are dropped.

Writing and reading large states stays off the event loop: a forked child writes them, a thread reads them.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable

from lakestream.errors import Corrupt, Exists, Missing, Retry, Unknown
from lakestream.interfaces import Buffer, CheckpointNote, CommandLog, Wal
from lakestream.model.batches.wal_object import checkpoint_key
from lakestream.model.levels import NEWEST
from lakestream.model.state import State, dump, load

log = logging.getLogger(__name__)

IDENTITY_BYTES = 16
READ_BYTES = 1 << 40
CHILD_NICE = 10
IDLE_ONLY_S = 10.0
"""For so long the child that writes a checkpoint runs only on an idle processor; then it competes at low priority."""
CHILD_LIMIT_S = 300.0
"""A child that takes longer is killed."""
LOADED_AT_ONCE_BYTES = 256 * 1024
"""A larger checkpoint is loaded in a thread: one of 100,000 partitions takes about 3 seconds."""
DROPPED_AT_ONCE = 500

Dump = Callable[[State], Awaitable[bytes]]


async def load_newest(command_log: CommandLog, wal: Wal, level: int = NEWEST) -> tuple[State, bytes] | None:
    """The newest readable checkpoint's state and the identity of its last command; None if none was ever noted."""
    notes = await command_log.checkpoints()
    while True:
        try:
            return await _load_one_of(notes, wal, level)
        except Corrupt:
            # Newer checkpoints may have replaced these, and the collector removed them, while we read.
            before, notes = notes, await command_log.checkpoints()
            if notes == before:
                raise


async def _load_one_of(notes: list[CheckpointNote], wal: Wal, level: int) -> tuple[State, bytes] | None:
    problems = []
    for note in notes:
        try:
            [stored] = await wal.read(note.key, [(0, READ_BYTES)])
            state = await load_beside(memoryview(stored)[IDENTITY_BYTES:], level)
            if state.sequence != note.sequence:
                raise Corrupt(f"it holds sequence {state.sequence}")
            return state, bytes(stored[:IDENTITY_BYTES])
        except (Corrupt, Missing) as error:
            log.error("checkpoint %s cannot be used: %s", note.key, error)
            problems.append(f"{note.key}: {error}")
    if problems:
        raise Corrupt("no noted checkpoint can be read: " + "; ".join(problems))
    return None


async def load_beside(checkpoint: Buffer, level: int) -> State:
    """The state of a checkpoint. A large one is loaded in a thread, so that the event loop goes on."""
    if len(checkpoint) <= LOADED_AT_ONCE_BYTES:
        return load(checkpoint, level)
    return await asyncio.to_thread(load, checkpoint, level)


async def store_state(
    state: State, identity: bytes, member: int, epoch: int, wal: Wal, dump_state: Dump
) -> tuple[CheckpointNote, int]:
    """Store the state as it is now. Returns the note, for `note_stored`, and the size. Raises Retry."""
    note = CheckpointNote(state.sequence, checkpoint_key(state.cluster, state.sequence, member, epoch))
    body = await dump_state(state)
    try:
        await wal.put(note.key, [identity, body])
    except (Unknown, Exists) as error:
        raise Retry(f"checkpoint {note.sequence} was not stored: {error}") from error
    return note, len(body)


async def note_stored(stored: CheckpointNote, command_log: CommandLog) -> None:
    """Note a stored checkpoint, then drop the commands that no kept checkpoint needs. Raises Retry or Unknown."""
    await command_log.save_checkpoint(stored)
    notes = await command_log.checkpoints()
    if len(notes) == 2:
        # The last command that the older checkpoint holds stays: a broker that starts from it compares that one (L5).
        await command_log.truncate(notes[1].sequence - 1)


async def dump_in_process(state: State) -> bytes:
    """For small states and simulations: at once, in this process."""
    return dump(state)


async def dump_in_a_fork(state: State) -> bytes:
    """A forked child sees the state as it is now, and writes it into a pipe while this process serves. Raises Retry."""
    read_end, child = _fork(state)
    ends = [read_end]
    loop = asyncio.get_running_loop()
    timers = (loop.call_later(IDLE_ONLY_S, child.let_compete), loop.call_later(CHILD_LIMIT_S, child.kill))
    try:
        body, status = await asyncio.to_thread(_collect, ends, child)
    except asyncio.CancelledError:
        child.kill()  # the thread waits for its end
        raise
    except (MemoryError, RuntimeError) as error:  # there is no room for the bytes, or for a thread
        child.kill()
        if ends:
            _collect_nothing(ends, child)
        raise Retry(f"the checkpoint cannot be taken from the process that writes it: {error!r}") from error
    finally:
        for timer in timers:
            timer.cancel()
    if status != 0:
        raise Retry("the process that writes the checkpoint failed, or was killed because it took too long")
    return body


class _Child:
    """A forked process until it is waited for: afterwards its number may belong to another."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = False
        self._lock = threading.Lock()

    def let_compete(self) -> None:
        with self._lock, contextlib.suppress(AttributeError, OSError):  # not every system knows this, or allows it
            if not self._ended:
                os.sched_setscheduler(self._pid, os.SCHED_OTHER, os.sched_param(0))

    def kill(self) -> None:
        with self._lock:
            if not self._ended:
                log.warning("the process that writes the checkpoint is killed: it takes too long, or the broker stops")
                os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        """The exit status of the child. Call it once the child has closed the pipe: then the wait is short."""
        with self._lock:
            self._ended = True
            return os.waitpid(self._pid, 0)[1]


def _fork(state: State) -> tuple[int, _Child]:
    """The end of a pipe to read from, and the child that writes the state into it. Raises Retry."""
    try:
        read_end, write_end = os.pipe()
    except OSError as error:
        raise Retry(f"there is no pipe for a checkpoint: {error}") from error
    try:
        pid = os.fork()
    except OSError as error:
        os.close(read_end)
        os.close(write_end)
        raise Retry(f"there is no process for a checkpoint: {error}") from error
    if pid == 0:
        _write(state, read_end, write_end)
    os.close(write_end)
    return read_end, _Child(pid)


def _write(state: State, read_end: int, write_end: int) -> None:
    """The work of the child; never returns."""
    status = 1
    try:
        os.nice(CHILD_NICE)
        with contextlib.suppress(AttributeError, OSError):  # not every system knows this
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        os.close(read_end)
        left = memoryview(dump(state))
        while left:
            left = left[os.write(write_end, left) :]
        status = 0
    finally:
        os._exit(status)


def _collect(ends: list[int], child: _Child) -> tuple[bytes, int]:
    """The bytes out of the pipe, and the child's status. The task that takes the end out of `ends` closes the pipe."""
    with os.fdopen(ends.pop(), "rb") as pipe:
        try:
            body = pipe.read()
        except MemoryError:
            child.kill()
            child.wait()
            raise
    return body, child.wait()


def _collect_nothing(ends: list[int], child: _Child) -> None:
    """Close the pipe of a killed child that no thread waits for."""
    os.close(ends.pop())
    child.wait()


class ReplacedState:
    """The large parts of a replaced state: to free 100,000 objects at once would hold the event loop."""

    def __init__(self, state: State) -> None:
        self._parts: list[list[object]] = [
            list(part.values())
            for part in (
                state.streams.by_id, state.streams.objects, state.streams.dead, state.producers.by_id,
                state.groups.by_name, state.catalog.landings,
            )
        ]  # fmt: skip

    async def free(self) -> None:
        """Free the parts in pieces; other tasks run in between."""
        for part in self._parts:
            while part:
                del part[-DROPPED_AT_ONCE:]
                await asyncio.sleep(0)

"""Checkpoints: the state as one object, so that starting does not mean folding everything that ever happened.

A checkpoint object is the identity of the last folded command (16 bytes, L5) and the state's dump (L10). It is put
create-only, then noted in the command log; commands older than the older of the two noted checkpoints are dropped.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable

from lakestream.errors import Corrupt, Exists, Missing, Retry, Unknown
from lakestream.interfaces import CheckpointNote, CommandLog, Wal
from lakestream.model.state import State, dump, load
from lakestream.model.wal_object import checkpoint_key

log = logging.getLogger(__name__)

IDENTITY_BYTES = 16
READ_BYTES = 1 << 40
CHILD_NICE = 10
IDLE_ONLY_S = 10.0
"""Who writes a checkpoint gets only the time that nobody wants; after so long, a small share of the rest too."""

Dump = Callable[[State], Awaitable[bytes]]


async def load_newest(command_log: CommandLog, wal: Wal) -> tuple[State, bytes] | None:
    """The newest readable checkpoint's state and the identity of its last command; None if none was ever noted."""
    notes = await command_log.checkpoints()
    while True:
        try:
            return await _load_one_of(notes, wal)
        except Corrupt:
            # They may have been replaced and collected while we read.
            before, notes = notes, await command_log.checkpoints()
            if notes == before:
                raise


async def _load_one_of(notes: list[CheckpointNote], wal: Wal) -> tuple[State, bytes] | None:
    problems = []
    for note in notes:
        try:
            [stored] = await wal.read(note.key, [(0, READ_BYTES)])
            state = load(stored[IDENTITY_BYTES:])
            if state.sequence != note.sequence:
                raise Corrupt(f"it holds sequence {state.sequence}")
            return state, bytes(stored[:IDENTITY_BYTES])
        except (Corrupt, Missing) as error:
            log.error("checkpoint %s cannot be used: %s", note.key, error)
            problems.append(f"{note.key}: {error}")
    if problems:
        raise Corrupt("no noted checkpoint can be read: " + "; ".join(problems))
    return None


async def save(
    state: State, identity: bytes, member: int, epoch: int, command_log: CommandLog, wal: Wal, dump_state: Dump
) -> CheckpointNote | None:
    """Store and note the state as it is now; then drop the commands that no kept checkpoint needs. None: not now."""
    sequence = state.sequence
    key = checkpoint_key(state.cluster, sequence, member, epoch)
    body = await dump_state(state)
    try:
        await wal.put(key, [identity, body])
        await command_log.save_checkpoint(CheckpointNote(sequence, key))
        notes = await command_log.checkpoints()
        if len(notes) == 2:
            # The last command that the older one holds stays: who starts from it compares that one first (L5).
            await command_log.truncate(notes[1].sequence - 1)
    except (Retry, Unknown, Exists) as error:
        log.warning("checkpoint %d was not saved: %s", sequence, error)
        return None
    return CheckpointNote(sequence, key)


async def dump_here(state: State) -> bytes:
    """For small states and simulations: at once, in this process."""
    return dump(state)


async def dump_in_a_fork(state: State) -> bytes:
    """Off the serving path: a forked child sees the state as it is now, and writes it into a pipe."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.nice(CHILD_NICE)
            with contextlib.suppress(AttributeError, OSError):  # where the system knows this
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.close(read_end)
            left = memoryview(dump(state))
            while left:
                left = left[os.write(write_end, left) :]
            status = 0
        finally:
            os._exit(status)
    os.close(write_end)
    hurry = asyncio.get_running_loop().call_later(IDLE_ONLY_S, _let_compete, child)
    try:
        body, status = await asyncio.to_thread(_collect, read_end, child)
    finally:
        hurry.cancel()
    if status != 0:
        raise Retry("the process that writes the checkpoint failed")
    return body


def _let_compete(child: int) -> None:
    with contextlib.suppress(OSError):  # it is through, or may not
        os.sched_setscheduler(child, os.SCHED_OTHER, os.sched_param(0))


def _collect(read_end: int, child: int) -> tuple[bytes, int]:
    with os.fdopen(read_end, "rb") as pipe:
        body = pipe.read()
    return body, os.waitpid(child, 0)[1]

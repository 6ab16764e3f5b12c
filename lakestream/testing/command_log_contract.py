"""The contract of `CommandLog` as a check for authors of a command log: run `check_command_log` on yours.

It checks everything that one process can see. Durability over `kill -9` and lost answers need tests with processes.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from lakestream.errors import Missing
from lakestream.interfaces import CheckpointNote, CommandLog, Logged

OpenHandle = Callable[[], Awaitable[CommandLog]]

PATIENCE_S = 10.0
"""The most time that one step may take, far above the time that a healthy store needs."""


async def check_command_log(
    open_handle: OpenHandle,
    *,
    persistent: bool,
    max_handles: int = 3,
    appends_each: int = 30,
    seed: int = 1,
) -> None:
    """Raise AssertionError, with the rule that is broken, unless the log keeps the contract of `CommandLog`.

    Each call of `open_handle` opens a handle on the same log, which is empty at first. `persistent` means that the log
    outlives its handles. For a store that allows one handle at a time pass `max_handles=1`.
    """
    contract = _Contract(open_handle, max_handles, appends_each, random.Random(seed))
    for check in (
        contract.an_empty_log_reads_empty,
        contract.an_append_is_gapless_and_returns_the_tail,
        contract.bytes_come_back_identical,
        contract.a_read_starts_at_after_and_keeps_its_limit,
        contract.an_append_beyond_the_end_shows_it,
        contract.many_writers_make_one_order_without_gaps,
        contract.a_wait_ends_with_its_timeout,
        contract.a_wait_ends_when_another_appends,
        contract.checkpoints_are_monotonic_and_two_are_kept,
        contract.truncation_keeps_the_rest_and_the_last,
    ):
        async with asyncio.timeout(PATIENCE_S * 3):
            await check()
    if persistent:
        async with asyncio.timeout(PATIENCE_S * 3):
            await contract.everything_is_there_after_reopening()


class _Contract:
    def __init__(self, open_handle: OpenHandle, max_handles: int, appends_each: int, chance: random.Random) -> None:
        self._open_handle = open_handle
        self._max_handles = max_handles
        self._appends_each = appends_each
        self._chance = chance

    @asynccontextmanager
    async def _handles(self, number: int) -> AsyncIterator[list[CommandLog]]:
        """Open so many handles; if the store allows fewer, the last one is repeated."""
        opened = [await self._open_handle() for _ in range(min(number, self._max_handles))]
        try:
            yield opened + [opened[-1]] * (number - len(opened))
        finally:
            for handle in opened:
                await handle.close()

    async def an_empty_log_reads_empty(self) -> None:
        async with self._handles(1) as (log,):
            _equal(await log.read(0, 10), [], "a new log must be empty (check a fresh one)")
            _equal(await log.read(1, 10), [], "reading above the end must give an empty list")
            _equal(await log.checkpoints(), [], "a new log must have no checkpoints")

    async def an_append_is_gapless_and_returns_the_tail(self) -> None:
        async with self._handles(2) as (log, other):
            one = await log.append([b"one"], 0)
            _equal((one.first, one.tail), (1, [(1, b"one")]), "the first append must be command 1, in its own tail")
            many = await log.append([b"two", b"three", b"four"], 1)
            _equal(many.first, 2, "the commands of an append must follow the last one")
            _equal(
                many.tail,
                [(1, b"one"), (2, b"two"), (3, b"three"), (4, b"four")],
                "the tail must begin with `after` itself (L5) and hold the append's own commands, consecutively",
            )
            await other.append([b"five"], 4)
            last = await log.append([b"six"], 4)
            _equal(
                last.tail,
                [(4, b"four"), (5, b"five"), (6, b"six")],
                "the tail must hold what another handle appended in between",
            )
            _equal(await other.read(0, 100), await log.read(0, 100), "two handles must read the same")

    async def bytes_come_back_identical(self) -> None:
        async with self._handles(2) as (log, other):
            end = await _end(log)
            commands = [
                b"",
                bytes(range(256)),
                b"\x00" * 4096,
                self._chance.randbytes(1024 * 1024),
                b"",
                self._chance.randbytes(70_000),
            ]
            first = (await log.append(commands, end)).first
            expected = list(enumerate(commands, first))
            _equal(await _read_all(other, end), expected, "bytes must come back as they were appended")
            _equal(await _read_all(log, end), expected, "bytes must come back to the handle that appended them")

    async def a_read_starts_at_after_and_keeps_its_limit(self) -> None:
        async with self._handles(1) as (log,):
            start = (await log.append([b"r%d" % index for index in range(10)], await _end(log))).first
            _equal(await log.read(start, 1), [(start, b"r0")], "a read must begin with the command at `after`")
            _equal(
                await log.read(start + 2, 3),
                [(start + 2, b"r2"), (start + 3, b"r3"), (start + 4, b"r4")],
                "a read must give the commands from `after` on, and no more than its limit",
            )
            _equal(await log.read(start + 9, 10), [(start + 9, b"r9")], "a read at the end must give the last command")
            _equal(await log.read(start + 10, 10), [], "above the end a read gives nothing")
            _equal((await log.read(0, 1))[0][0], 1, "a read after 0 must begin with the first command")

    async def an_append_beyond_the_end_shows_it(self) -> None:
        async with self._handles(1) as (log,):
            end = await _end(log)
            appended = await log.append([b"x"], end + 1000)
            _equal(appended.first, end + 1, "an append must go to the end, whatever `after` says")
            _equal(appended.tail, [], "the tail must be empty if the log ends below `after` (L5)")

    async def many_writers_make_one_order_without_gaps(self) -> None:
        """Several handles append while readers follow: no reader may see a gap, or a command change."""
        async with self._handles(4) as handles:
            start = await _end(handles[0])
            writers = [
                asyncio.create_task(self._write(handle, start, f"{number}-{lane}"))
                for number, handle in enumerate(handles[:3])
                for lane in range(2)
            ]
            total = start + len(writers) * self._appends_each * 2
            readers = [asyncio.create_task(_follow(handle, start, total)) for handle in handles]
            seen = [await reader for reader in readers]
            wrote = [command for writer in writers for command in await writer]
            for each in seen[1:]:
                _equal(each, seen[0], "all readers must see the same order")
            _equal(sorted(seen[0]), sorted(wrote), "the log must hold what the writers were told, once each")

    async def _write(self, log: CommandLog, after: int, name: str) -> list[Logged]:
        """Appends of 1 to 3 commands, two on average, each folded by its tail as a replica does."""
        wrote: list[Logged] = []
        known: list[Logged] = await log.read(after, 1)
        for turn in range(self._appends_each):
            commands = [f"{name}.{turn}.{index}".encode() for index in range((1, 3, 2, 2)[turn % 4])]
            if turn == self._appends_each - 1:  # the total is fixed, so that readers know where to stop
                commands = [b"%s.end.%d" % (name.encode(), i) for i in range(2 * self._appends_each - len(wrote))]
            appended = await log.append(commands, known[-1][0])
            own = list(enumerate(commands, appended.first))
            wrote += own
            known = _joined(known, appended.tail)
            _equal(
                known[appended.first - known[0][0] :][: len(own)],
                own,
                "an append's commands must stand together at the sequences that it returned",
            )
        return wrote

    async def a_wait_ends_with_its_timeout(self) -> None:
        async with self._handles(1) as (log,):
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await log.wait(await _end(log), 0.02)
            except TimeoutError:
                raise AssertionError("a wait must return after its timeout") from None

    async def a_wait_ends_when_another_appends(self) -> None:
        async with self._handles(2) as (log, other):
            end = await _end(log)
            waiting = asyncio.create_task(log.wait(end, PATIENCE_S * 2))
            await asyncio.sleep(0.02)
            await other.append([b"wake up"], end)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await waiting
            except TimeoutError:
                raise AssertionError("a wait must end when another handle appends") from None
            _equal(await log.read(end + 1, 10), [(end + 1, b"wake up")], "after the wake-up the command must be there")
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await log.wait(end, PATIENCE_S * 2)
            except TimeoutError:
                raise AssertionError("a wait must end at once if there are commands beyond `after`") from None

    async def checkpoints_are_monotonic_and_two_are_kept(self) -> None:
        async with self._handles(2) as (log, other):
            notes = [CheckpointNote(sequence, f"checkpoint/{sequence}") for sequence in (3, 5, 9)]
            await log.save_checkpoint(notes[0])
            _equal(await other.checkpoints(), notes[:1], "a noted checkpoint must show through every handle")
            await other.save_checkpoint(notes[1])
            await log.save_checkpoint(notes[2])
            kept = [notes[2], notes[1]]
            _equal(await log.checkpoints(), kept, "the two newest checkpoints must be kept, newest first")
            await log.save_checkpoint(CheckpointNote(7, "late"))
            await log.save_checkpoint(CheckpointNote(9, "again"))
            _equal(await other.checkpoints(), kept, "a note that is not newer must change nothing (L10)")

    async def truncation_keeps_the_rest_and_the_last(self) -> None:
        async with self._handles(2) as (log, other):
            end = await _end(log)
            kept = await log.read(end - 1, 10)
            await log.truncate(end - 2)
            for handle in (log, other):
                _equal(await handle.read(end - 1, 10), kept, "what lies above a truncation must stay")
                await _missing(handle, end - 2)
                await _missing(handle, 0)
            _equal((await other.append([b"low"], 1)).tail, [], "the tail must be empty if `after` is below the floor")
            await other.truncate(1)
            await log.truncate(end + 100)
            _equal(await other.read(end + 1, 10), [(end + 1, b"low")], "truncation must keep the last command (L9)")
            await _missing(other, end)
            _equal((await other.append([b"on"], end + 1)).first, end + 2, "numbers must go on after truncation (L9)")

    async def everything_is_there_after_reopening(self) -> None:
        async with self._handles(1) as (log,):
            end = await _end(log)
            await log.truncate(end)
        async with self._handles(1) as (log,):
            last = await log.read(end, 10)
            _equal([sequence for sequence, _ in last], [end], "the last command must survive both (L9)")
            await _missing(log, end - 1)
            appended = await log.append([b"after reopening"], end)
            _equal(appended.first, end + 1, "numbers must never be used again, also after reopening (L9)")
            notes = await log.checkpoints()
        async with self._handles(1) as (log,):
            _equal(await log.read(end, 10), appended.tail, "an appended command must survive reopening")
            _equal(await log.checkpoints(), notes, "checkpoints must survive reopening")


def _equal(got: object, expected: object, rule: str) -> None:
    if got != expected:
        raise AssertionError(f"{rule}\n  expected {_short(expected)}\n  got      {_short(got)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 500 else f"{text[:240]} ... {text[-240:]}"


async def _missing(log: CommandLog, after: int) -> None:
    try:
        got = await log.read(after, 1)
    except Missing:
        return
    raise AssertionError(f"reading at {after}, below the floor, must raise Missing (L9); got {_short(got)}")


async def _end(log: CommandLog) -> int:
    """The sequence at which the log ends, found by appending a mark."""
    return (await log.append([b"mark"], 0)).first


async def _read_all(log: CommandLog, after: int) -> list[Logged]:
    """The commands after `after`; the store chooses the size of a page."""
    commands: list[Logged] = []
    at = after
    while True:
        page = await log.read(at, 1000)
        fresh = page if at == 0 else page[1:]
        if not fresh:
            return commands
        commands += fresh
        at = fresh[-1][0]


async def _follow(log: CommandLog, after: int, until: int) -> list[Logged]:
    """Follow the log as a replica does: wait, read from the last known command on, and compare that command."""
    known = await log.read(after, 1)
    while known[-1][0] < until:
        await log.wait(known[-1][0], PATIENCE_S)
        known = _joined(known, await log.read(known[-1][0], 7))
    return known[1:]


def _joined(known: list[Logged], page: list[Logged]) -> list[Logged]:
    """The known commands, extended by a page that begins with the last of them."""
    _equal(page[:1], known[-1:], "a page must begin with the command at `after`, unchanged (L5)")
    sequences = [sequence for sequence, _ in page]
    _equal(
        sequences,
        list(range(sequences[0], sequences[0] + len(page))),
        "no reader may ever see a gap or another order",
    )
    return known + page[1:]

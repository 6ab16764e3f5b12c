"""One member's copy of the state: appends proposals to the command log, folds all commands, reports outcomes.

Proposals go out in the order in which they came, one append at a time, which carries all that is ready (L1). A lost
answer is cured by appending the same commands again: `apply` accepts each number once. A proposal that waited too long
is given up by a `Noop` with its number; the one that is folded first wins, so the answer is certain either way. When
the log has no room, proposals whose answer was never lost are taken back at once, and their numbers are used again.

Three loops share the log, and all end in `_fold`, which skips commands that are folded already:
    propose    append -> fold the tail that comes with the answer
    follow     wait for commands of other members -> read -> fold
    catch up   read to the end for callers that must not say no from an old state (L6)
"""

import asyncio
import logging
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from lakestream.errors import Corrupt, Fenced, Halted, LakestreamError, Missing, NoRoom, Retry, Unknown
from lakestream.interfaces import PAGE_BYTES, Clock, CommandLog, Logged, Wal
from lakestream.metadata.catch_up import CatchUp
from lakestream.metadata.checkpoint import ReplacedState, load_newest
from lakestream.metadata.older_log import contradiction, traces
from lakestream.metadata.proposals import Done, Proposal, Proposals, give_up_old
from lakestream.model.commands import ENVELOPE, Body, Noop, Register, encode, pack
from lakestream.model.levels import FIRST, NEWEST
from lakestream.model.reasons import No, NotInTurn
from lakestream.model.state import Outcome, State, apply, check_level
from lakestream.process.store_room import StoreRoom

log = logging.getLogger(__name__)

READ_LIMIT = 1000
DIGESTS_KEPT = 8192
POLL_S = 1.0
BACKOFF_S = (0.01, 1.0)
GIVE_UP_S = 30.0


class Replica:
    """A folded copy of the state, and the way to change it."""

    def __init__(
        self, command_log: CommandLog, wal: Wal, clock: Clock, member_id: int, level: int = NEWEST
    ) -> None:
        self.state = State()
        self.member_id = member_id
        self.level = level
        """The newest feature level that this member knows."""
        self.epoch = 0
        self.leaving = False
        """This member ends its epoch itself."""
        self.superseded = False
        """The last epoch ended because another process registered with our member id."""
        self.on_fold: list[Callable[[], None]] = []
        self.on_command: list[Callable[[int, bytes, Outcome], None]] = []
        self.last_fold = self.last_read = clock.monotonic()
        """The times of the last fold, and of the last read to the end of the log."""
        self.room = StoreRoom("the command log", clock)
        self.folded_bytes = 0
        """Bytes of all commands that this process folded."""
        self.halted: Halted | None = None
        self._log = command_log
        self._wal = wal
        self._clock = clock
        self._prefix = b""
        self._identity = b""
        self._digests = [0] * DIGESTS_KEPT
        self._loading = asyncio.Lock()
        self._proposals = Proposals()
        self._registering: tuple[bytes, asyncio.Future[Outcome]] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._catching_up = CatchUp(self._read_to_end)
        self._tasks: list[asyncio.Task[None]] = []

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the newest checkpoint, fold to the end of the log, and go on following it."""
        await self._reload(0)
        await self._read_to_end()
        await self._refuse_an_older_log()
        for loop in (self._propose_loop, self._follow_loop, self._catch_up_loop):
            self._tasks.append(asyncio.create_task(self._guard(loop), name=f"replica-{loop.__name__}"))

    async def _refuse_an_older_log(self) -> None:
        """L5 for a process that has just started: the objects in the store may know more than the log."""
        found = await traces(self._wal, self.state)
        await self._read_to_end()  # other members go on: all that was listed lies below the end of the log as it is now
        if proof := contradiction(found, self.state):
            raise Halted(proof)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail_all(Unknown("this broker stops"))

    async def _guard(self, loop: Callable[[], Any]) -> None:
        try:
            await loop()
        except (Halted, Corrupt) as error:
            self.halt(error if isinstance(error, Halted) else Halted(str(error)))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("the replica's %s failed", loop.__name__)
            self.halt(Halted(f"internal error: {error!r}", restart_helps=True))

    def halt(self, error: Halted) -> None:
        """Stop for good rather than guess or skip (L3, L5, L10)."""
        if self.halted is None:
            log.critical("halted: %s", error)
            self.halted = error
        self._fail_all(Unknown(f"halted: {error}"))
        self._notify()

    # -- proposing --------------------------------------------------------------------------------------------------

    async def propose(self, body: Body) -> Outcome:
        """Append one command and return its outcome from `apply`; a refusal is a value (`No`).

        Raises Fenced or Retry if the command certainly has no effect, Unknown if it may have one.
        """
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome | LakestreamError) -> None:
            if not answer.done():
                answer.set_result(outcome)

        self.propose_later(body.KIND, pack(body), done, body.needed_level())
        outcome = await answer
        if isinstance(outcome, LakestreamError):
            raise outcome
        return outcome

    def propose_later(self, kind: int, payload: bytes, done: Done, level: int = FIRST) -> None:
        """Queue one command; the event loop calls `done` with its outcome or an error."""
        if self.halted is not None:
            done(Retry(f"halted: {self.halted}"))
        elif not self.epoch:
            done(Fenced("not registered"))
        else:
            self._proposals.add(Proposal(level, kind, payload, done, self._clock.monotonic()))

    async def register(self, body: Register) -> int | No:
        """Begin a new epoch. Proposals of the old epoch fail, since no member applies them any more."""
        self._end_epoch()
        command = encode(FIRST, Register.KIND, self.member_id, 0, 0, pack(body))
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._registering = (command, answer)
        try:
            while not answer.done():
                try:
                    await self._append([command])
                    await self._read_to_end()
                except NoRoom as error:
                    self.room.refused(error)
                    await asyncio.sleep(BACKOFF_S[1])
                except (Retry, Unknown) as error:
                    log.warning("cannot register yet: %s", error)
                    await asyncio.sleep(BACKOFF_S[1])
        finally:
            self._registering = None
        outcome = answer.result()
        if isinstance(outcome, int):
            self.epoch, self.leaving, self.superseded = outcome, False, False
            self._proposals.begin_epoch()
            self._prefix = ENVELOPE.pack(0, 0, self.member_id, self.epoch, 0)[2:14]
        return outcome  # type: ignore[no-any-return]

    async def _propose_loop(self) -> None:
        while True:
            await self._proposals.added.wait()
            self._proposals.added.clear()
            while self._proposals.waiting:
                self._idle.clear()
                try:
                    await self._send(self._proposals.number_some())
                finally:
                    self._idle.set()

    async def _send(self, proposals: list[Proposal]) -> None:
        """Append until every proposal has its outcome, however many answers are lost (L1)."""
        epoch, backoff, may_be_there = self.epoch, BACKOFF_S[0], False
        while True:
            give_up_old(proposals, self._clock.monotonic() - GIVE_UP_S)
            commands = [self._encoded(one) for one in self._proposals.without_outcome(proposals)]
            if not commands or self.epoch != epoch or self.halted:
                return
            try:
                await self._append(commands)
                may_be_there = True
                self.room.taken()
                if self._proposals.numbered:
                    await self._read_to_end()
                if self.epoch == epoch and self._proposals.without_outcome(proposals):
                    raise Halted("a command was appended and folded, and yet has no outcome", restart_helps=True)
                continue
            except Unknown as error:
                may_be_there = True
                log.warning("an append's answer was lost: %s", error)
            except NoRoom as error:
                self.room.refused(error)
                if not may_be_there:
                    self._proposals.take_back(proposals, error)
            except Retry as error:
                log.warning("an append failed: %s", error)
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, BACKOFF_S[1])

    def _encoded(self, proposal: Proposal) -> bytes:
        level, kind, payload = proposal.level, proposal.kind, proposal.payload
        if proposal.given_up:
            level, kind, payload = FIRST, Noop.KIND, pack(Noop())
        return encode(level, kind, self.member_id, self.epoch, proposal.n, payload)

    async def _append(self, commands: list[bytes]) -> None:
        appended = await self._log.append(commands, self.state.sequence)
        self._fold(appended.tail)

    # -- following --------------------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Fold to the end of the log as it is now or later. Call it before every no (L6)."""
        if self.halted is not None:
            raise Retry(f"halted: {self.halted}")
        await self._catching_up.wait()

    async def _catch_up_loop(self) -> None:
        await self._catching_up.run()

    async def _follow_loop(self) -> None:
        while True:
            try:
                after = self.state.sequence
                await self._log.wait(after, POLL_S)
                await self._idle.wait()
                if self.state.sequence == after:  # else the answer to our own append brought the commands along
                    await self._read_to_end()
            except (Retry, Unknown) as error:
                log.warning("cannot read the command log: %s", error)
                await asyncio.sleep(BACKOFF_S[1])

    async def _read_to_end(self) -> None:
        while True:
            after = self.state.sequence
            try:
                entries = await self._log.read(after, READ_LIMIT)
            except Missing:
                await self._reload(after)
                continue
            if not entries and after:
                raise Halted(f"the command log ends below {after}, which was folded: it was restored or failed over")
            self._fold(entries)
            if len(entries) < READ_LIMIT and sum(len(command) for _, command in entries) < PAGE_BYTES:
                self.last_read = self._clock.monotonic()
                return
            await asyncio.sleep(0)

    async def _reload(self, missing: int) -> None:
        """Load the newest checkpoint. Callers whose outcome lies below it get Unknown (L9)."""
        async with self._loading:
            if self.state.sequence != missing:
                return  # another loop has reloaded already
            await self._load_newest()

    async def _load_newest(self) -> None:
        missing = self.state.sequence
        found = await load_newest(self._log, self._wal, self.level)
        if self.state.sequence != missing:
            return  # the answer to our own append brought commands along
        if found is None:
            if self.state.sequence:
                raise Halted("the command log was truncated, and there is no checkpoint that covers it")
            return
        state, identity = found
        if state.sequence < self.state.sequence:
            raise Halted(f"the newest checkpoint is older than {self.state.sequence}, which was folded")
        replaced = ReplacedState(self.state)
        self.state, self._identity = state, identity
        self._digests = [0] * DIGESTS_KEPT
        if self._proposals.numbered:  # their numbers may be used or free: only a new epoch counts from 1 again
            self.epoch, self._prefix = 0, b""
        self._fail_all(Unknown("the outcome lies below a checkpoint"))
        self._check_epoch()
        self._notify()
        await replaced.free()

    # -- folding ----------------------------------------------------------------------------------------------------

    def _fold(self, entries: list[Logged]) -> None:
        state = self.state
        if not entries:
            return
        first, command = entries[0]
        if first == state.sequence and identity_of(command) != self._identity:
            raise Halted(f"the command log changed at {first}, which was folded: it was restored or failed over")
        folded = False
        for sequence, command in entries:
            if sequence <= state.sequence:
                continue
            if sequence != state.sequence + 1:
                break
            self._fold_one(sequence, command)
            folded = True
        if folded:
            self._identity = identity_of(command)
            self.last_fold = self._clock.monotonic()
            self._check_epoch()
            self._notify()

    def _fold_one(self, sequence: int, command: bytes) -> None:
        try:
            outcome = apply(self.state, sequence, command)
            check_level(self.state, self.level)
        except Halted:
            raise
        except Exception as error:
            log.exception("folding command %d failed", sequence)
            raise Halted(f"command {sequence} cannot be applied: {error!r}") from error
        self._digests[sequence % DIGESTS_KEPT] = self.state.digest
        self.folded_bytes += len(command)
        if command[2:14] == self._prefix:
            if not isinstance(outcome, NotInTurn):
                self._proposals.resolve(ENVELOPE.unpack_from(command)[4], command[1], outcome)
        elif self._registering is not None and command == self._registering[0]:
            answer = self._registering[1]
            if not answer.done():
                answer.set_result(outcome)
        for listener in self.on_command:
            listener(sequence, command, outcome)

    def _check_epoch(self) -> None:
        me = self.state.members.by_id.get(self.member_id)
        if self.epoch and (me is None or me.epoch != self.epoch or not me.alive):
            level = logging.INFO if self.leaving else logging.WARNING
            log.log(level, "epoch %d of member %d has ended", self.epoch, self.member_id)
            self.superseded = me is not None and me.epoch > self.epoch
            self._end_epoch()

    def _end_epoch(self) -> None:
        self.epoch = 0
        self._prefix = b""
        self._fail_all(Fenced("this member's epoch has ended"))

    def _fail_all(self, error: LakestreamError) -> None:
        self._proposals.fail_all(error)
        self._catching_up.fail(error)

    def _notify(self) -> None:
        for listener in self.on_fold:
            listener()

    # -- questions of other parts -----------------------------------------------------------------------------------

    def digest_at(self, sequence: int) -> int | None:
        """The digest of outcomes up to `sequence`; None if it is forgotten, or not known yet (L10)."""
        if not self.state.sequence - DIGESTS_KEPT < sequence <= self.state.sequence:
            return None
        return self._digests[sequence % DIGESTS_KEPT] or None

    @property
    def identity(self) -> bytes:
        """The identity of the last folded command; a checkpoint carries it (L5)."""
        return self._identity


def identity_of(command: bytes) -> bytes:
    return blake2b(command, digest_size=16).digest()

"""Commands on their way to the log, and which of them go down together so that a stream's order holds (L16)."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from lakestream.errors import LakestreamError, NoRoom, Retry
from lakestream.model.append_rows import appended_streams
from lakestream.model.commands import APPEND, Noop
from lakestream.model.stamped_append import STAMPED_APPEND, unpack_stamped
from lakestream.model.state import Outcome

log = logging.getLogger(__name__)

BATCH_LIMIT = 256
BATCH_BYTES = 4 * 1024 * 1024

Done = Callable[[Outcome | LakestreamError], None]


class Proposal:
    """A command on its way. `done` is called once, with the outcome or with an error."""

    __slots__ = ("done", "given_up", "kind", "level", "n", "payload", "since")

    def __init__(self, level: int, kind: int, payload: bytes, done: Done, since: float) -> None:
        self.level = level
        self.kind = kind
        self.payload = payload
        self.done = done
        self.since = since
        self.n = 0
        self.given_up = False
        """A `Noop` with the proposal's number is appended in its place."""

    def appended(self) -> set[int]:
        """The streams whose batches the command appends."""
        if self.kind == APPEND:
            return appended_streams(self.payload)
        if self.kind == STAMPED_APPEND and (found := unpack_stamped(memoryview(self.payload))) is not None:
            return appended_streams(found[2])
        return set()


class Proposals:
    """One member's proposals: those that wait for an append, and those that were numbered and have no outcome yet."""

    __slots__ = ("_next_n", "added", "numbered", "waiting")

    def __init__(self) -> None:
        self.added = asyncio.Event()
        self.waiting: deque[Proposal] = deque()
        self.numbered: dict[int, Proposal] = {}
        self._next_n = 1

    def begin_epoch(self) -> None:
        self._next_n = 1

    def add(self, proposal: Proposal) -> None:
        self.waiting.append(proposal)
        self.added.set()

    def number_some(self) -> list[Proposal]:
        """The next proposals, as many as one append carries, with their numbers."""
        taken: list[Proposal] = []
        size = 0
        while self.waiting and len(taken) < BATCH_LIMIT:
            size += len(self.waiting[0].payload)
            if taken and size > BATCH_BYTES:
                break
            proposal = self.waiting.popleft()
            proposal.n = self._next_n
            self._next_n += 1
            self.numbered[proposal.n] = proposal
            taken.append(proposal)
        return taken

    def without_outcome(self, proposals: Iterable[Proposal]) -> list[Proposal]:
        return [one for one in proposals if one.n in self.numbered]

    def resolve(self, n: int, kind: int, outcome: Outcome) -> None:
        """The command with this number and kind was folded."""
        proposal = self.numbered.pop(n, None)
        if proposal is None:
            return
        if kind == Noop.KIND != proposal.kind:
            outcome = Retry("given up: the command log could not be reached in time")
            give_up_behind(self.waiting, proposal.appended())
        tell(proposal, outcome)

    def take_back(self, proposals: Iterable[Proposal], error: NoRoom) -> None:
        """Fail proposals that were never appended, and all that wait behind them; their numbers are free again."""
        taken_back = self.without_outcome(proposals)
        self._next_n = min((one.n for one in taken_back), default=self._next_n)
        for one in taken_back:
            del self.numbered[one.n]
        failed = [*taken_back, *self.waiting]
        self.waiting.clear()
        for proposal in failed:
            tell(proposal, error)

    def fail_all(self, error: LakestreamError) -> None:
        failed = [*self.numbered.values(), *self.waiting]
        self.numbered.clear()
        self.waiting.clear()
        for proposal in failed:
            tell(proposal, error)


def tell(proposal: Proposal, outcome: Outcome | LakestreamError) -> None:
    """Call `done`. An error in the callback is logged: it must not stop the fold or other proposals."""
    try:
        proposal.done(outcome)
    except Exception:
        log.exception("the callback of a proposal of kind %d failed", proposal.kind)


def give_up_old(proposals: list[Proposal], before: float) -> None:
    """Give up the proposals that wait since before this time, and the younger appends of their streams (L16)."""
    for one in proposals:
        if one.since >= before:
            break  # the proposals are in the order in which they came
        one.given_up = True
    give_up_behind(proposals, set())


def give_up_behind(proposals: Iterable[Proposal], broken: set[int]) -> None:
    """Give up appends to streams whose earlier append was given up: their order would change (L16).

    `broken` has the streams of an earlier append that was given up; those given up among `proposals` count as well.
    """
    for one in proposals:
        if one.given_up or (broken and not broken.isdisjoint(one.appended())):
            one.given_up = True
            broken = broken | one.appended()

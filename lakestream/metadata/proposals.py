"""Commands on their way to the log, and which of them go down together so that a stream's order holds (L16)."""

import logging
from collections.abc import Callable, Iterable

from lakestream.errors import LakestreamError
from lakestream.model.commands import APPEND
from lakestream.model.stamped_append import STAMPED_APPEND, unpack_stamped
from lakestream.model.state import Outcome
from lakestream.model.streams import appended_streams

log = logging.getLogger(__name__)

Done = Callable[[Outcome | LakestreamError], None]


class Proposal:
    """A command on its way: `done` is called once, with the outcome or with the error that took its place."""

    __slots__ = ("done", "given_up", "kind", "level", "n", "payload", "since")

    def __init__(self, level: int, kind: int, payload: bytes, done: Done, since: float) -> None:
        self.level = level
        self.kind = kind
        self.payload = payload
        self.done = done
        self.since = since
        self.n = 0
        self.given_up = False
        """A `Noop` with its number goes out in its place."""

    def appended(self) -> set[int]:
        """The streams that it has batches of."""
        if self.kind == APPEND:
            return appended_streams(self.payload)
        if self.kind == STAMPED_APPEND and (found := unpack_stamped(memoryview(self.payload))) is not None:
            return appended_streams(found[2])
        return set()


def tell(proposal: Proposal, outcome: Outcome | LakestreamError) -> None:
    """A callback that raises harms its own request only: the fold and the proposals beside it go on."""
    try:
        proposal.done(outcome)
    except Exception:
        log.exception("the callback of a proposal of kind %d failed", proposal.kind)


def give_up_old(proposals: list[Proposal], before: float) -> None:
    """Give up the proposals that wait since before this time, and the younger appends of their streams (L16)."""
    for one in proposals:
        if one.since >= before:
            break  # they stand in the order in which they came
        one.given_up = True
    give_up_behind(proposals, set())


def give_up_behind(proposals: Iterable[Proposal], broken: set[int]) -> None:
    """An append of a stream whose earlier append was given up would change the stream's order (L16).

    `broken` has the streams of one that was given up before these; those given up among them drag others along too.
    """
    for one in proposals:
        if one.given_up or (broken and not broken.isdisjoint(one.appended())):
            one.given_up = True
            broken = broken | one.appended()

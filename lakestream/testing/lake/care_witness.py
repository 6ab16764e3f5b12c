"""The witness of care: checks that the caretaker does what operators requested, all of it and nothing else."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from lakestream.model.catalog.care import DONE, RequestCare, TellCare
from lakestream.model.commands import ENVELOPE
from lakestream.model.configs import TABLE_RETENTION
from lakestream.model.reasons import No, NotInTurn
from lakestream.model.state import Outcome, State
from lakestream.testing.simulation.ledger import Violation

Cell = tuple[int, int]
_REQUEST = msgspec.msgpack.Decoder(RequestCare)
_TELL = msgspec.msgpack.Decoder(TellCare)


class RowRange(NamedTuple):
    """Rows that an operator deletes, as an SQL condition and as a plain test."""

    partition: int
    start: int
    end: int

    @property
    def where(self) -> str:
        return f"stream_partition = {self.partition} and stream_offset between {self.start} and {self.end - 1}"

    def holds(self, cell: Cell) -> bool:
        return cell[0] == self.partition and self.start <= cell[1] < self.end


class CareWitness:
    """Follows the requests in the command log. An operator notes the rows of a deletion in `spans` beforehand."""

    def __init__(self) -> None:
        self.spans: dict[bytes, RowRange] = {}
        """The rows to delete, by request."""
        self.done: dict[str, int] = {}
        self._due: dict[bytes, tuple[bytes, set[Cell]]] = {}
        """The topic and the rows that existed when a deletion was requested, by request."""
        self._kinds: dict[bytes, str] = {}

    def watch(self, command: bytes, outcome: Outcome, cells: Mapping[bytes, set[Cell]]) -> None:
        if command[1] not in (RequestCare.KIND, TellCare.KIND) or isinstance(outcome, No | NotInTurn):
            return
        if command[1] == RequestCare.KIND:
            asked = _REQUEST.decode(command[ENVELOPE.size :])
            if asked.request in self._kinds:
                return  # the operator repeats a request whose answer was lost
            self._kinds[asked.request] = asked.kind
            span = self.spans.get(asked.request)
            if span is not None:
                there = {cell for cell in cells.get(asked.topic_id, ()) if span.holds(cell)}
                self._due[asked.request] = asked.topic_id, there
            return
        told = _TELL.decode(command[ENVELOPE.size :])
        if told.status == DONE:
            kind = self._kinds[told.request]
            self.done[kind] = self.done.get(kind, 0) + 1
            topic_id, due = self._due.get(told.request, (b"", set()))
            if left := due & cells.get(topic_id, set()):
                raise Violation(f"a deletion is reported as done, but rows are left: {sorted(left)[:5]} ({len(left)})")

    def check_removed(
        self, state: State, topic_id: bytes, care: str, removed: Collection[Cell], landed_ms: Mapping[Cell, int]
    ) -> None:
        """Raise Violation unless care of this kind may remove these rows."""
        if care == "retention":
            wrong = [cell for cell in removed if not _is_over(state, topic_id, cell, landed_ms[cell])]
        elif care == "delete":
            wrong = _unasked(removed, self._open(state, topic_id))
        else:
            wrong = list(removed)
        if wrong:
            raise Violation(f"{care} removed rows without a reason: {sorted(wrong)[:5]} ({len(wrong)})")

    def _open(self, state: State, topic_id: bytes) -> list[RowRange]:
        """The deletions of a topic in the state; a slow pipeline may still work on one that another has done."""
        requests = state.care.requests.items()
        return [self.spans[request] for request, one in requests if one.topic_id == topic_id and request in self.spans]


def _unasked(removed: Collection[Cell], spans: Iterable[RowRange]) -> list[Cell]:
    """The removed rows that no single request explains."""
    left = [[cell for cell in removed if not span.holds(cell)] for span in spans]
    return min(left, key=len, default=list(removed))


def _is_over(state: State, topic_id: bytes, cell: Cell, landed_ms: int) -> bool:
    """Whether retention may remove a row: it is below the log start and older than the table's retention (T21)."""
    topic = state.topics.by_id[topic_id]
    kept_ms = int(topic.configs.get(TABLE_RETENTION, -2))
    below = cell[1] < state.streams.by_id[topic.streams[cell[0]]].start
    return below and kept_ms != -1 and (kept_ms < 0 or landed_ms < state.members.time_ms - kept_ms)

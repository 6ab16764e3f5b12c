"""The result of a job of care, or the error that says why it was not done."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from lakestream.errors import LakestreamError

Progress = Callable[[str], Awaitable[None]]
"""Called with a sentence that says how far a job is."""


class NotDone(LakestreamError):
    """A job of care could not be done; says why."""


class Hung(NotDone):
    """A job of care did not end in time; the next attempt may."""


class Lost(NotDone):
    """A file of the table is missing, or damaged."""


@dataclass(slots=True)
class Result:
    """A sentence about a finished job, and its figures."""

    text: str = ""
    figures: dict[str, int] = field(default_factory=dict)

    def count(self, **figures: int) -> None:
        for name, value in figures.items():
            self.figures[name] = self.figures.get(name, 0) + value


class NothingToDo(LakestreamError):
    """There is nothing to commit."""

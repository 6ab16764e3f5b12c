"""What a protocol gives to the appender: the batches of one request, and what the appender calls for them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from lakestream.errors import LakestreamError
from lakestream.model.append_rows import BatchRow
from lakestream.model.kernels.produce_loops import STREAM
from lakestream.stream.batch_tables import ManyBatches

AppendAnswer = list[int] | LakestreamError
"""A base offset or a negative reason for each batch; or the error that failed all of them."""


class Batches(Protocol):
    """The batches of one request: `release` is called when their bytes are not needed any more, then `done`, once.

    `rows`, `views` and `results` belong together, item by item; `size` is the sum of the rows' lengths. `stamped` has
    the places of those that get an append time (L19).
    """

    rows: list[BatchRow]
    views: list[memoryview]
    results: list[int]
    size: int

    @property
    def stamped(self) -> Sequence[int]: ...

    def release(self) -> None: ...

    def done(self, answer: AppendAnswer, /) -> None: ...


class Submission:
    """Batches with functions to call."""

    __slots__ = ("done", "release", "results", "rows", "size", "stamped", "views")

    def __init__(
        self,
        rows: list[BatchRow],
        views: list[memoryview],
        release: Callable[[], None],
        done: Callable[[AppendAnswer], None],
        stamped: Sequence[int] = (),
    ) -> None:
        self.rows = rows
        self.views = views
        self.release = release
        self.done = done
        self.size = sum(row[2] for row in rows)
        self.results = [0] * len(rows)
        self.stamped = stamped


Submitted = Batches | ManyBatches


def streams_of(submission: Submitted) -> set[int]:
    if isinstance(submission, ManyBatches):
        return set(submission.table[:, STREAM].tolist())
    return {row[0] for row in submission.rows}

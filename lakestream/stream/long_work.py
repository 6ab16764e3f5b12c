"""Long work in steps: a generator that yields where the event loop may serve other tasks, and returns its result."""

import asyncio
from collections.abc import Generator, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]


class _Work(Generic[T]):
    """Iterates over the steps; `result` is set after the last one."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self.result: T

    def __iter__(self) -> Iterator[None]:
        self.result = yield from self._steps


async def run_in_steps(steps: Steps[T]) -> T:
    """The result of the work; the event loop serves other tasks after each step."""
    try:
        while True:
            next(steps)
            await asyncio.sleep(0)
    except StopIteration as end:
        result: T = end.value
        return result


def at_once(steps: Steps[T]) -> T:
    """The result of the work, without a pause: for callers outside of an event loop."""
    work = _Work(steps)
    for _ in work:
        pass
    return work.result


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]

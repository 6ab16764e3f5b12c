"""Long work in steps: a generator that yields wherever others may have their turn, and returns its result."""

import asyncio
from collections.abc import Generator, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]


class _Work(Generic[T]):
    """Its steps, one by one; the result is there after the last."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self.result: T

    def __iter__(self) -> Iterator[None]:
        self.result = yield from self._steps


async def in_turns(steps: Steps[T]) -> T:
    """Others have their turn after each step."""
    try:
        while True:
            next(steps)
            await asyncio.sleep(0)
    except StopIteration as end:
        result: T = end.value
        return result


def at_once(steps: Steps[T]) -> T:
    """Where nobody else waits."""
    work = _Work(steps)
    for _ in work:
        pass
    return work.result


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]

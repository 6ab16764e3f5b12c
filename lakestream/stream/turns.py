"""Long work in steps: a generator that yields wherever others may have their turn, and returns its result."""

import asyncio
from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]


async def in_turns(work: Steps[T]) -> T:
    """Others have their turn after each step."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


def at_once(work: Steps[T]) -> T:
    """Where nobody else waits."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]

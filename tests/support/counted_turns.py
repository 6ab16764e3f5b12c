"""Counts the turns that other tasks have while a long call runs."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def turns_beside(work: Awaitable[T]) -> tuple[T, int]:
    """The result, and how often another task had its turn meanwhile."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(others())
    try:
        return await work, turns
    finally:
        beside.cancel()

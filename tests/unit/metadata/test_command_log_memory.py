"""The memory log: several handles on one store, the same steps at each run."""

import asyncio

import pytest

from lakestream.errors import Retry
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore


async def test_handles_share_the_store_and_close_alone() -> None:
    store = MemoryLogStore()
    one, two = MemoryLog(store), MemoryLog(store)
    await one.append([b"a"], 0)
    await one.close()
    assert await two.read(0, 5) == [(1, b"a")]
    with pytest.raises(Retry):
        await one.read(0, 5)


async def test_an_append_happens_in_one_step_without_giving_way() -> None:
    store = MemoryLogStore()
    order: list[str] = []

    async def append(name: str) -> None:
        await MemoryLog(store).append([name.encode()], 0)
        order.append(name)

    await asyncio.gather(*(append(name) for name in "abc"))
    assert order == ["a", "b", "c"]
    assert [command for _, command in store.commands] == [b"a", b"b", b"c"]


async def test_waiters_wake_in_the_order_in_which_they_came() -> None:
    store = MemoryLogStore()
    woken: list[int] = []

    async def wait(number: int) -> None:
        await MemoryLog(store).wait(0, 5)
        woken.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(5)]
    await asyncio.sleep(0)
    await MemoryLog(store).append([b"x"], 0)
    await asyncio.gather(*tasks)
    assert woken == [0, 1, 2, 3, 4]

"""Replicas that fell behind what truncation kept: what the simulator found there, each by itself."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from lakestream.data.memory import MemoryWal
from lakestream.errors import Retry, Unknown
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.append_rows import AppendRow, pack_append
from lakestream.model.batches.wal_object import HEADER_BYTES, header, lay_out, tick_tail, wal_key
from lakestream.model.commands import AdvanceLogStart, AllocateProducerId, CreateTopic, Register
from lakestream.model.levels import NEWEST
from lakestream.model.state import dump
from lakestream.stream.cache import Cache
from lakestream.stream.limits import ReadLimits
from lakestream.stream.reader import Reader
from lakestream.testing.faults import NO_FAULTS, FaultyLog, FaultyWal, Link
from lakestream.testing.simulation.event_loop import Process, SimClock, SimulatedLoop, run
from tests.support.memory_broker import checkpoint_now

TOPIC = bytes(16)


class Pair:
    """Two members of one cluster; the link of the second to the command log can be cut."""

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self.store, self.wal, self.loop = MemoryLogStore(), MemoryWal(), loop
        self.links: list[Link] = []
        self.replicas: list[Replica] = []
        self.memberships: list[Membership] = []
        for number in range(2):
            process = Process(f"member-{number}", loop)
            link = Link(loop, process, Random(f"{seed}-{number}"), NO_FAULTS, process.kill)
            replica = Replica(FaultyLog(MemoryLog(self.store), link), FaultyWal(self.wal, link), SimClock(loop), number)
            about = Register(b"", "", "broker", "host", 1, "", 1, NEWEST)
            timing = Timing(heartbeat_s=0.5, session_s=1000.0)
            self.links.append(link)
            self.replicas.append(replica)
            self.memberships.append(Membership(replica, SimClock(loop), Random(f"{seed}-{number}"), about, timing))

    async def start(self) -> None:
        for replica, membership in zip(self.replicas, self.memberships, strict=True):
            await replica.start()
            await membership.join()

    async def leave_behind(self) -> None:
        """The first member goes on and stores two checkpoints; of a second that was cut off the log keeps nothing."""
        first = self.replicas[0]
        for _ in range(2):
            for _ in range(5):
                await first.propose(AllocateProducerId())
            await checkpoint_now(first, MemoryLog(self.store), self.wal)


def with_pair(body: Callable[[Pair], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    async def main(loop: SimulatedLoop) -> None:
        pair = Pair(loop, seed)
        await pair.start()
        await body(pair)
        assert [replica.halted for replica in pair.replicas] == [None, None]
        for replica in pair.replicas:
            await replica.catch_up()
        assert dump(pair.replicas[0].state) == dump(pair.replicas[1].state)

    run(main, seed)


@pytest.mark.parametrize("seed", range(8))
def test_several_loops_that_find_the_log_truncated_reload_once_L9(seed: int) -> None:
    async def body(pair: Pair) -> None:
        behind = pair.replicas[1]
        pair.links[1].cut = True
        await pair.leave_behind()
        pair.links[1].cut = False
        await asyncio.gather(behind.catch_up(), *(pair.replicas[0].propose(AllocateProducerId()) for _ in range(3)))
        assert isinstance(await behind.propose(AllocateProducerId()), int)

    with_pair(body, seed)


def test_numbers_in_doubt_after_a_reload_cost_the_epoch_not_the_broker_L1() -> None:
    async def body(pair: Pair) -> None:
        behind = pair.replicas[1]
        pair.links[1].cut = True
        waiting = asyncio.ensure_future(behind.propose(AllocateProducerId()))
        await asyncio.sleep(3.0)
        await pair.leave_behind()
        pair.links[1].cut = False
        await behind.catch_up()
        with pytest.raises(Unknown):
            await waiting
        await pair.memberships[1].join()
        assert isinstance(await behind.propose(AllocateProducerId()), int)

    with_pair(body)


def test_digests_from_before_a_reload_are_forgotten_L10() -> None:
    async def body(pair: Pair) -> None:
        behind = pair.replicas[1]
        known = behind.state.sequence
        assert behind.digest_at(known) is not None
        pair.links[1].cut = True
        await pair.leave_behind()
        pair.links[1].cut = False
        await behind.catch_up()
        assert behind.digest_at(known) is None

    with_pair(body)


def test_the_older_checkpoint_is_good_for_a_start_L10() -> None:
    async def body(pair: Pair) -> None:
        await pair.leave_behind()
        newest, older = pair.store.notes
        await pair.wal.delete([newest.key])
        late = Replica(MemoryLog(pair.store), pair.wal, SimClock(pair.loop), 7)
        await late.start()
        assert older.sequence < newest.sequence <= late.state.sequence
        assert dump(late.state) == dump(pair.replicas[0].state)

    with_pair(body)


def test_who_waits_for_the_end_of_the_log_hears_of_a_halt_L5() -> None:
    async def main(loop: SimulatedLoop) -> None:
        pair = Pair(loop, 1)
        await pair.start()
        await pair.replicas[0].catch_up()
        sequence, command = pair.store.commands[-1]
        pair.store.commands[-1] = (sequence, command + b"another history")
        with pytest.raises(Retry):
            await asyncio.wait_for(pair.replicas[0].catch_up(), 60)
        assert pair.replicas[0].halted is not None

    run(main, 1)


def test_a_reader_on_a_replaced_state_is_not_told_of_lost_bytes_L22() -> None:
    """Its object went, and so did the state that knew it: that is no corruption, and no endless search."""

    async def body(pair: Pair) -> None:
        first, behind = pair.replicas
        await first.propose(CreateTopic("t", TOPIC, 1, 1, {}))
        await store_batch(pair, first)
        await behind.catch_up()
        stream = behind.state.streams.by_id[1]
        reader = Reader(behind, pair.wal, Cache(1 << 20), ReadLimits())
        pair.links[1].cut = True
        await first.propose(AdvanceLogStart([(1, 1)]))
        await pair.leave_behind()
        await pair.wal.delete([wal_key(first.state.cluster, 0, first.epoch, 1)])
        pair.links[1].cut = False
        with pytest.raises(Retry):
            await reader.read(stream, 0, 1000)
        assert behind.state.streams.by_id[1] is not stream

    with_pair(body)


async def store_batch(pair: Pair, replica: Replica) -> None:
    batch = bytes(70)
    body = bytearray(header(0)) + batch
    tail = tick_tail(body, lay_out([(1, len(batch), 1)]))
    await pair.wal.put(wal_key(replica.state.cluster, replica.member_id, replica.epoch, 1), [body, tail])
    row: AppendRow = (1, 1, HEADER_BYTES, len(batch), 0, -1, -1, -1)
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    replica.propose_later(10, pack_append(1, len(body) + len(tail), [row]), done.set_result)
    assert await done == [0]

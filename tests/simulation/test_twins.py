"""Two processes with one broker id: the younger one serves, the older one stops with a sentence."""

import asyncio
from random import Random

from lakestream.data.memory import MemoryWal
from lakestream.errors import Halted
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.commands import AllocateProducerId, Register, encode, pack
from lakestream.model.levels import FIRST, NEWEST
from lakestream.testing.simulation.event_loop import SimClock, SimulatedLoop, run

TIMING = Timing(heartbeat_s=0.5, session_s=2.5)


class Twin:
    """One process that believes to be broker 7."""

    def __init__(self, loop: SimulatedLoop, store: MemoryLogStore, wal: MemoryWal, pid: int) -> None:
        clock = SimClock(loop)
        self.replica = Replica(MemoryLog(store), wal, clock, 7)
        about = Register(b"", "", "broker", "host", 9092, "", pid, NEWEST)
        self.membership = Membership(self.replica, clock, Random(pid), about, TIMING)
        self.running: asyncio.Future[None] | None = None

    async def start(self) -> None:
        await self.replica.start()
        await self.membership.join()
        self.running = asyncio.ensure_future(self.membership.run())


def test_the_older_of_two_processes_with_one_broker_id_halts_and_the_younger_goes_on() -> None:
    async def main(loop: SimulatedLoop) -> None:
        store, wal = MemoryLogStore(), MemoryWal()
        older, younger = Twin(loop, store, wal, 11), Twin(loop, store, wal, 22)
        await older.start()
        await younger.start()
        await asyncio.sleep(30.0)
        assert older.running is not None and older.running.done()
        halted = older.running.exception()
        assert isinstance(halted, Halted) and "another process has joined as broker 7 (process 22" in str(halted)
        assert younger.running is not None and not younger.running.done()
        assert isinstance(await younger.replica.propose(AllocateProducerId()), int)
        assert younger.replica.state.members.next_epoch == 3
        younger.running.cancel()
        await asyncio.gather(younger.running, return_exceptions=True)

    run(main, 1)


def test_a_late_registration_of_a_process_that_is_gone_costs_an_epoch_and_no_broker_L1() -> None:
    async def main(loop: SimulatedLoop) -> None:
        store, wal = MemoryLogStore(), MemoryWal()
        broker = Twin(loop, store, wal, 11)
        await broker.start()
        late = Register(b"of the dead", "", "broker", "host", 9092, "", 5, NEWEST)
        await MemoryLog(store).append([encode(FIRST, Register.KIND, 7, 0, 0, pack(late))], 0)
        await asyncio.sleep(30.0)
        assert broker.running is not None and not broker.running.done()
        assert broker.replica.epoch == 3
        broker.running.cancel()
        await asyncio.gather(broker.running, return_exceptions=True)

    run(main, 1)

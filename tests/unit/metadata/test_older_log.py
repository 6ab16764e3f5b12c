"""L5 at a start: a command log that was restored from an older copy is refused if the store proves it."""

import pytest

from lakestream.data.memory import MemoryWal
from lakestream.errors import Halted
from lakestream.interfaces import StoredObject
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.batches.wal_object import header, merged_key, wal_key
from tests.support.housekeeping_cluster import CLUSTER, Broker, World


def copied(store: MemoryLogStore) -> MemoryLogStore:
    older = MemoryLogStore()
    older.commands = list(store.commands)
    return older


async def started(world: World, member: int = 1) -> Replica:
    replica = Replica(MemoryLog(world.store), world.wal, world.clock, member)
    await replica.start()
    return replica


async def a_broker_that_appends(world: World) -> tuple[Broker, int]:
    broker = await world.broker()
    [stream] = (await broker.create("t")).streams
    await broker.fill(stream, 3)
    return broker, stream


async def test_l5_a_tail_that_was_lost_within_an_epoch_is_noticed_by_the_next_tick_that_was_written() -> None:
    world = World()
    broker, stream = await a_broker_that_appends(world)
    older = copied(world.store)
    await broker.fill(stream, 3)
    await broker.replica.stop()
    world.store = older
    with pytest.raises(Halted, match=r"the writer of .* had folded .*restored from an older copy"):
        await started(world)


async def test_l5_an_epoch_that_the_log_never_gave_is_noticed_whoever_had_it() -> None:
    world = World()
    broker, stream = await a_broker_that_appends(world)
    older = copied(world.store)
    other = await world.broker(member=22)
    await other.replica.catch_up()
    await other.fill(stream, 1)
    for one in (broker, other):
        await one.replica.stop()
    world.store = older
    with pytest.raises(Halted, match=r"never gave epoch 2, .*wal/22/"):
        await started(world)


async def test_l5_merged_objects_prove_it_too() -> None:
    world = World()
    broker, _ = await a_broker_that_appends(world)
    await broker.replica.stop()
    await world.wal.put(merged_key(CLUSTER, 1, broker.replica.epoch, 900), [header(10_000)])
    with pytest.raises(Halted, match="had folded 10000"):
        await started(world)


async def test_l5_what_crashed_ticks_leave_accuses_nobody() -> None:
    world = World()
    broker, _ = await a_broker_that_appends(world)
    state, epoch = broker.replica.state, broker.replica.epoch
    await world.wal.put(wal_key(CLUSTER, 1, epoch, 4), [header(state.sequence), b"never appended"])
    await world.wal.put(wal_key(CLUSTER, 1, epoch, 9), [b"too short"])
    await world.wal.put(f"{CLUSTER}/wal/notes.txt", [b"somebody's"])
    await world.wal.put(f"{CLUSTER}/wal/7/notes.txt", [b"somebody's"])
    await broker.replica.stop()
    again = await started(world)
    assert again.state.sequence == state.sequence
    await again.stop()


class Meanwhile(MemoryWal):
    """Others register and write while we look around."""

    def __init__(self, before: MemoryWal, world: World) -> None:
        super().__init__()
        self._objects = before._objects
        self._world = world
        self.busy = False

    async def list(self, prefix: str, after: str = "", limit: int = 0) -> list[StoredObject]:
        if not self.busy:
            self.busy = True
            other = await self._world.broker(member=3)
            await other.fill(other.replica.state.topics.by_name["t"].streams[0], 2)
            await other.replica.stop()
        return await super().list(prefix, after, limit)


async def test_l22_what_others_write_while_we_start_accuses_nobody() -> None:
    world = World()
    broker, _ = await a_broker_that_appends(world)
    await broker.replica.stop()
    wal = world.wal = Meanwhile(world.wal, world)
    again = await started(world)
    assert wal.busy and again.state.members.next_epoch == 3
    await again.stop()


class Counting(MemoryWal):
    requests = names = 0

    async def list(self, prefix: str, after: str = "", limit: int = 0) -> list[StoredObject]:
        found = await super().list(prefix, after, limit)
        self.requests += 1
        self.names += len(found)
        return found


async def test_a_start_lists_little_however_many_objects_there_are() -> None:
    world = World(wal=Counting())
    broker, stream = await a_broker_that_appends(world)
    await broker.fill(stream, 200)
    await broker.beat()
    await broker.replica.stop()
    wal = world.wal
    assert isinstance(wal, Counting)
    wal.requests = wal.names = 0
    await (await started(world)).stop()
    assert wal.requests < 10 and wal.names < 10


async def test_l5_the_collector_removes_nothing_of_epochs_that_the_log_never_gave_and_halts() -> None:
    world = World()
    broker, stream = await a_broker_that_appends(world)
    foreign = wal_key(CLUSTER, 1, broker.replica.epoch + 1, 1)
    orphan = wal_key(CLUSTER, 1, broker.replica.epoch, 2)
    await broker.delete(broker.replica.state.streams.by_id[stream].topic)
    await broker.beat(10_000_000)
    await world.wal.put(foreign, [b"of an epoch that a lost tail gave"])
    before = [one.key for one in await world.wal.list("")]
    assert orphan in before
    assert await broker.collector.collect() == 0
    assert [one.key for one in await world.wal.list("")] == before
    assert broker.replica.halted is not None and "never gave epoch" in str(broker.replica.halted)
    await broker.replica.stop()

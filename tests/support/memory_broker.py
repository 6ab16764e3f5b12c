"""The layers below the protocols on memory stores, for tests: one call makes a broker that can append and read."""

import asyncio
from dataclasses import dataclass
from random import Random

from lakestream.data.memory import MemoryWal
from lakestream.interfaces import CheckpointNote, Clock, CommandLog, Wal
from lakestream.metadata.checkpoint import dump_in_process, note_stored, store_state
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.batches.header import HEADER
from lakestream.model.batches.records import Record, decode_batch, encode_batch
from lakestream.model.commands import CreateTopic, Register
from lakestream.model.levels import NEWEST
from lakestream.model.streams import Stream
from lakestream.process.clock import SystemClock
from lakestream.stream.appender import Appender
from lakestream.stream.cache import Cache
from lakestream.stream.limits import AppendLimits, ReadLimits
from lakestream.stream.reader import Reader
from lakestream.stream.submissions import AppendAnswer, Submission
from lakestream.stream.waiting import Waiting


@dataclass
class TestBroker:
    """Everything but the protocols."""

    __test__ = False
    replica: Replica
    membership: Membership
    wal: Wal
    cache: Cache
    appender: Appender
    reader: Reader
    waiting: Waiting

    async def topic(self, name: str, partitions: int = 1, **configs: str) -> list[Stream]:
        outcome = await self.replica.propose(CreateTopic(name, name.encode().ljust(16, b"."), partitions, 1, configs))
        assert outcome == partitions
        state = self.replica.state
        return [state.streams.by_id[stream] for stream in state.topics.by_name[name].streams]

    async def append(self, *batches: tuple[Stream, bytes]) -> AppendAnswer:
        answered: asyncio.Future[AppendAnswer] = asyncio.get_running_loop().create_future()
        rows, views = [], []
        for stream, batch in batches:
            head = HEADER.unpack_from(batch)
            rows.append((stream.id, head[12], len(batch), head[8], head[9], head[10], head[11]))
            views.append(memoryview(batch))
        self.appender.submit(Submission(rows, views, lambda: None, answered.set_result))
        return await answered

    async def records(self, stream: Stream, offset: int = 0, max_bytes: int = 1 << 20) -> list[Record]:
        found: list[Record] = []
        while offset < stream.next:
            for view in await self.reader.read(stream, offset, max_bytes):
                at = 0
                while at < len(view):
                    length = 12 + int.from_bytes(view[at + 8 : at + 12], "big")
                    found += decode_batch(view[at : at + length])
                    at += length
            offset = found[-1].offset + 1
        return found

    async def stop(self) -> None:
        await self.replica.stop()


def batch(*values: bytes, timestamp: int = 1000, producer: int = -1, epoch: int = -1, sequence: int = -1) -> bytes:
    records = [Record(offset=i, timestamp=timestamp + i, key=None, value=v) for i, v in enumerate(values)]
    return encode_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


async def checkpoint_now(replica: Replica, log: CommandLog, wal: Wal) -> CheckpointNote:
    """Store and note the state as it is, without waiting until it is due or agreed on."""
    note, _ = await store_state(replica.state, replica.identity, replica.member_id, replica.epoch, wal, dump_in_process)
    await note_stored(note, log)
    return note


async def start_broker(
    store: MemoryLogStore | CommandLog | None = None,
    wal: Wal | None = None,
    broker_id: int = 0,
    append_limits: AppendLimits | None = None,
    read_limits: ReadLimits | None = None,
    seed: int = 1,
    role: str = "broker",
    level: int = NEWEST,
    clock: Clock | None = None,
) -> TestBroker:
    """A broker that has joined the cluster of this log, and knows this feature level."""
    log: CommandLog = MemoryLog(store) if isinstance(store, MemoryLogStore) else store or MemoryLog(MemoryLogStore())
    wal = wal or MemoryWal()
    clock = clock or SystemClock()
    replica = Replica(log, wal, clock, broker_id)
    about = Register(b"", "", role, "127.0.0.1", 9092 + broker_id, "", 1, level)
    membership = Membership(replica, clock, Random(seed * 1000 + broker_id), about, Timing())
    cache = Cache(8 << 20)
    made = TestBroker(
        replica=replica,
        membership=membership,
        wal=wal,
        cache=cache,
        appender=Appender(replica, wal, cache, clock, append_limits or AppendLimits()),
        reader=Reader(replica, wal, cache, read_limits or ReadLimits()),
        waiting=Waiting(replica),
    )
    await replica.start()
    await membership.join()
    return made

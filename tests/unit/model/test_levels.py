"""Feature levels: mixed versions fold alike, the level is raised by command, old checkpoints load (L3)."""

import asyncio
from random import Random
from typing import ClassVar

import msgspec
import pytest

from lakestream.data.memory import MemoryWal
from lakestream.errors import Halted, Retry
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model import members, state, streams
from lakestream.model.commands import Body, Heartbeat, RaiseLevel, Register, encode, envelope_of, pack
from lakestream.model.levels import FIRST, NEWEST
from lakestream.model.reasons import No, Reason
from lakestream.model.state import State, apply, dump, load
from lakestream.testing.simulation.event_loop import SimClock, SimulatedLoop, run
from tests.support.places import GOLDEN

TIMING = Timing(heartbeat_s=0.1, session_s=1.0)


class FromTomorrow(Body, frozen=True, array_like=True):
    """A command that the level after the newest one brings."""

    KIND: ClassVar[int] = 240
    LEVEL: ClassVar[int] = NEWEST + 1


@pytest.fixture
def tomorrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process runs the code of the next version, which knows one more command."""
    rules = {**state._RULES, 240: (NEWEST + 1, msgspec.msgpack.Decoder(FromTomorrow), lambda *_: 7)}
    monkeypatch.setattr(state, "_RULES", rules)


class Pair:
    """Two brokers on one log, each with the levels that its code knows."""

    def __init__(self, loop: SimulatedLoop, *levels: int) -> None:
        self.store, self.wal = MemoryLogStore(), MemoryWal()
        self.loop = loop
        self.replicas: list[Replica] = []
        self.memberships: list[Membership] = []
        for level in levels:
            self.add(level)

    def add(self, level: int, number: int | None = None) -> Membership:
        number = len(self.replicas) if number is None else number
        replica = Replica(MemoryLog(self.store), self.wal, SimClock(self.loop), number, level)
        about = Register(b"", "", "broker", "host", 1, "", 1, level)
        membership = Membership(replica, SimClock(self.loop), Random(len(self.replicas)), about, TIMING)
        self.replicas.append(replica)
        self.memberships.append(membership)
        return membership

    async def join(self) -> None:
        for replica, membership in zip(self.replicas, self.memberships, strict=True):
            await replica.start()
            await membership.join()

    async def beat(self, seconds: float) -> None:
        tasks = [asyncio.ensure_future(one.run()) for one in self.memberships]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_brokers_of_two_versions_share_a_log_and_the_last_upgrade_raises_the_level_L3(tomorrow: None) -> None:
    async def main(loop: SimulatedLoop) -> None:
        pair = Pair(loop)
        pair.add(NEWEST, 1)
        pair.add(NEWEST + 1, 0)
        await pair.join()
        await pair.beat(1.0)
        old, new = pair.replicas
        assert new.halted is old.halted is None and new.state.level == NEWEST
        refused = await new.propose(FromTomorrow())
        assert isinstance(refused, No) and refused.reason == Reason.NEWER_LEVEL
        await pair.memberships.pop(0).leave()
        await old.stop()
        await pair.beat(0.5)
        assert new.state.level == NEWEST + 1
        assert await new.propose(FromTomorrow()) == 7
        with pytest.raises(Halted, match=rf"level {NEWEST + 1}.*up to {NEWEST}; upgrade"):
            await pair.add(NEWEST, 1)._replica.start()

    run(main, 1)


def test_every_command_carries_its_own_level_L3(tomorrow: None) -> None:
    async def main(loop: SimulatedLoop) -> None:
        pair = Pair(loop, NEWEST + 1)
        await pair.join()
        await pair.replicas[0].propose(FromTomorrow())
        seen = [envelope for _, command in pair.store.commands if (envelope := envelope_of(command)) is not None]
        levels = {envelope.kind: envelope.level for envelope in seen}
        assert levels[Register.KIND] == levels[Heartbeat.KIND] == levels[RaiseLevel.KIND] == FIRST
        assert levels[FromTomorrow.KIND] == NEWEST + 1

    run(main, 1)


def test_a_checkpoint_above_the_known_level_halts_with_a_sentence_L3() -> None:
    newer = State()
    newer.level = NEWEST + 1
    with pytest.raises(Halted, match=f"level {NEWEST + 1}, this version knows levels up to {NEWEST}"):
        load(dump(newer))


def test_a_member_that_falls_asleep_wakes_up_above_its_level_and_halts_L3() -> None:
    async def main(loop: SimulatedLoop) -> None:
        pair = Pair(loop, NEWEST)
        await pair.join()
        log = MemoryLog(pair.store)
        epoch = pair.replicas[0].epoch
        n = pair.replicas[0].state.members.by_id[0].last_n
        leave = encode(FIRST, 5, 0, epoch, n + 1, b"\x90")
        register = encode(FIRST, Register.KIND, 1, 0, 0, pack(Register(b"i", "", "broker", "h", 1, "", 1, NEWEST + 1)))
        raised = encode(FIRST, RaiseLevel.KIND, 1, epoch + 1, 1, pack(RaiseLevel(NEWEST + 1)))
        await log.append([leave, register, raised], 0)
        with pytest.raises(Retry):
            await pair.replicas[0].catch_up()
        assert "upgrade" in str(pair.replicas[0].halted)

    run(main, 1)


def test_a_kind_of_a_newer_level_is_refused_whatever_its_envelope_says_L3(tomorrow: None) -> None:
    folded = State()
    register = Register(b"i", "c", "broker", "h", 1, "", 1, NEWEST)
    apply(folded, 1, encode(FIRST, Register.KIND, 0, 0, 0, pack(register)))
    outcome = apply(folded, 2, encode(FIRST, FromTomorrow.KIND, 0, 1, 1, pack(FromTomorrow())))
    assert isinstance(outcome, No) and outcome.reason == Reason.NEWER_LEVEL


def test_rows_of_checkpoints_may_have_more_or_fewer_fields_than_the_code_knows_L3() -> None:
    raised = load((GOLDEN / "checkpoint-level-1.bin").read_bytes())
    raised.level = NEWEST
    before = load(dump(raised))
    fields = msgspec.msgpack.decode(memoryview(dump(before))[state.CHECKPOINT.size :], strict=False)
    rows = [*fields[4][2], *fields[6][3], *fields[6][4], *fields[5][1], *fields[6][5]]
    assert rows
    for row in rows:
        row.append(b"of tomorrow")
    fields.append(["a family of tomorrow"])
    body = msgspec.msgpack.encode(fields)
    head = state.CHECKPOINT.pack(state.CHECKPOINT_MAGIC, state.CHECKPOINT_VERSION, state.crc32c(body))
    assert dump(load(head + body)) == dump(before)
    assert getattr(members.Member.load(fields[4][2][0][:-2]), members.STORED[-1]) == 0
    assert len(streams.STORED) == len(fields[6][3][0]) - 1


def test_a_checkpoint_of_a_cluster_that_is_not_raised_is_what_the_first_version_wrote_L3() -> None:
    stored = (GOLDEN / "checkpoint-level-1.bin").read_bytes()
    assert load(stored).level == FIRST
    assert dump(load(stored)) == stored


async def test_a_fresh_cluster_is_at_the_newest_level_once_its_first_broker_joined_L3() -> None:
    from tests.support.memory_broker import checkpoint_now, start_broker

    store = MemoryLogStore()
    broker = await start_broker(store)
    assert broker.replica.state.level == NEWEST
    await checkpoint_now(broker.replica, MemoryLog(store), broker.wal)
    again = await start_broker(store, broker.wal, 1)
    assert again.replica.state.level == NEWEST
    await broker.stop()
    await again.stop()

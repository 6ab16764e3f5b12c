"""One member's copy of the state: proposing through lost answers, following, halting, starting from checkpoints."""

import asyncio
from collections.abc import Sequence

import pytest

from lakestream.data.memory import MemoryWal
from lakestream.errors import Fenced, Halted, Retry, Unknown
from lakestream.interfaces import Appended, CheckpointNote
from lakestream.metadata import replica as replica_module
from lakestream.metadata.checkpoint import dump_here, load_newest, save
from lakestream.metadata.membership import digests_agree
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.commands import AllocateProducerId, Expire, Noop
from lakestream.model.reasons import No, Reason
from lakestream.model.state import dump
from tests.core import TestBroker, batch, start_broker


class LossyLog(MemoryLog):
    """Loses the next answers: the commands are appended, and nobody is told."""

    lose = 0
    fail = 0

    async def append(self, commands: Sequence[bytes], after: int) -> Appended:
        if self.fail:
            self.fail -= 1
            raise Retry("not now")
        appended = await super().append(commands, after)
        if self.lose:
            self.lose -= 1
            raise Unknown("the answer was lost")
        return appended


async def test_l1_a_lost_answer_is_cured_by_appending_again_and_the_command_counts_once() -> None:
    log = LossyLog(MemoryLogStore())
    broker = await start_broker(log)
    log.lose = 3
    assert await broker.replica.propose(AllocateProducerId()) == 0
    assert await broker.replica.propose(AllocateProducerId()) == 1
    log.fail = 2
    assert await broker.replica.propose(AllocateProducerId()) == 2
    await broker.stop()


async def test_l1_giving_up_is_a_noop_with_the_same_number_and_the_answer_is_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = LossyLog(MemoryLogStore())
    broker = await start_broker(log)
    monkeypatch.setattr(replica_module, "GIVE_UP_S", 0.05)
    log.fail = 6
    with pytest.raises(Retry):
        await broker.replica.propose(AllocateProducerId())
    monkeypatch.undo()
    assert await broker.replica.propose(AllocateProducerId()) == 0
    await broker.stop()


async def test_a_refusal_is_a_value_and_a_new_incarnation_fences_the_old_one() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    old = await start_broker(store, wal, 0)
    refused = await old.replica.propose(Expire(7, 7, 7))
    assert isinstance(refused, No) and refused.reason == Reason.UNKNOWN_MEMBER
    new = await start_broker(store, wal, 0, seed=2)
    with pytest.raises(Fenced):
        await old.replica.propose(Noop())
    assert old.replica.epoch == 0 and new.replica.epoch == 2
    await old.stop()
    await new.stop()


async def test_l6_catching_up_shows_what_others_appended_before_the_call() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    one, other = await start_broker(store, wal, 0), await start_broker(store, wal, 1)
    await one.topic("fresh")
    await other.replica.catch_up()
    assert "fresh" in other.replica.state.topics.by_name
    await one.stop()
    await other.stop()


async def test_long_polls_wake_when_another_broker_appends() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    one, other = await start_broker(store, wal, 0), await start_broker(store, wal, 1)
    [stream] = await one.topic("t")
    waiting = asyncio.create_task(other.waiting.wait([stream.id], 5))
    await asyncio.sleep(0.01)
    await one.append((stream, batch(b"a")))
    assert await waiting
    assert not await other.waiting.wait([stream.id], 0.01)
    await one.stop()
    await other.stop()


async def wait_for_halt(broker: TestBroker) -> Halted:
    for _ in range(300):
        if broker.replica.halted is not None:
            return broker.replica.halted
        await asyncio.sleep(0.01)
    raise AssertionError("it did not halt")


async def test_l5_a_log_that_went_back_halts_the_broker() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    broker = await start_broker(store, wal)
    await broker.topic("t")
    store.commands.clear()
    with pytest.raises(Retry):
        await broker.replica.catch_up()
    assert "ends below" in str(await wait_for_halt(broker))
    with pytest.raises(Retry):
        await broker.replica.propose(Noop())


async def test_l5_a_log_whose_last_folded_command_is_another_one_halts_the_broker() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    broker = await start_broker(store, wal)
    await broker.topic("t")
    store.commands[-1] = (store.last, b"something else")
    with pytest.raises(Retry):
        await broker.replica.catch_up()
    assert "changed" in str(await wait_for_halt(broker))


async def test_l3_a_command_that_this_version_does_not_know_halts_it_and_names_it() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    broker = await start_broker(store, wal)
    await MemoryLog(store).append([bytes([1, 250]) + bytes(40)], 0)
    with pytest.raises(Retry):
        await broker.replica.catch_up()
    assert "kind 250" in str(await wait_for_halt(broker))


async def checkpoint(broker: TestBroker, store: MemoryLogStore) -> CheckpointNote:
    replica = broker.replica
    log = MemoryLog(store)
    note = await save(replica.state, replica.identity, 0, replica.epoch, log, broker.wal, dump_here)
    assert note is not None
    return note


async def test_l10_a_broker_starts_from_the_older_checkpoint_if_the_newest_is_damaged() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    broker = await start_broker(store, wal)
    for number in range(3):
        await broker.topic(f"t{number}")
        last = await checkpoint(broker, store)
    wal._objects[last.key] = wal._objects[last.key][:-1] + b"?"  # type: ignore[attr-defined]
    fresh = await start_broker(store, wal, 1)
    await broker.replica.catch_up()
    assert dump(fresh.replica.state) == dump(broker.replica.state)
    assert len(await MemoryLog(store).checkpoints()) == 2
    await broker.stop()
    await fresh.stop()


async def test_l9_a_replica_that_fell_below_the_floor_reloads_a_checkpoint_and_goes_on() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    slow, busy = await start_broker(store, wal, 0), await start_broker(store, wal, 1)
    await slow.replica.stop()
    for number in range(4):
        await busy.topic(f"t{number}")
        await checkpoint(busy, store)
    await slow.replica.start()
    assert "t3" in slow.replica.state.topics.by_name
    assert await slow.replica.propose(AllocateProducerId()) == 0
    await slow.stop()
    await busy.stop()


async def test_a_checkpoint_that_never_was_is_no_error() -> None:
    assert await load_newest(MemoryLog(MemoryLogStore()), MemoryWal()) is None


async def test_l10_a_replica_that_folds_to_other_outcomes_than_most_is_told_so() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    brokers = [await start_broker(store, wal, number) for number in range(3)]
    assert all(digests_agree(broker.replica) for broker in brokers)
    odd = brokers[0].replica
    odd._digests = [digest + 1 for digest in odd._digests]
    await odd.catch_up()
    assert not digests_agree(odd)
    assert digests_agree(brokers[1].replica)
    for broker in brokers:
        await broker.stop()

"""One member's copy of the state: proposing through lost answers, following, halting, starting from checkpoints."""

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from lakestream.data.memory import MemoryWal
from lakestream.errors import Fenced, Halted, NoRoom, Retry, Unknown
from lakestream.interfaces import Appended, CheckpointNote
from lakestream.metadata import replica as replica_module
from lakestream.metadata.checkpoint import load_newest
from lakestream.metadata.membership import digests_agree
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.append_rows import pack_append
from lakestream.model.commands import APPEND, AllocateProducerId, Expire, Noop, pack
from lakestream.model.reasons import No, Reason
from lakestream.model.state import dump
from tests.support.memory_broker import TestBroker, batch, checkpoint_now, start_broker


class LossyLog(MemoryLog):
    """Loses the next answers: the commands are appended, and nobody is told."""

    lose = 0
    fail = 0
    full = 0

    def __init__(self, store: MemoryLogStore) -> None:
        super().__init__(store)
        self.lost = asyncio.Event()

    async def append(self, commands: Sequence[bytes], after: int) -> Appended:
        if self.full and not self.lose:
            self.full -= 1
            raise NoRoom("the disk is full")
        if self.fail:
            self.fail -= 1
            raise Retry("not now")
        appended = await super().append(commands, after)
        if self.lose:
            self.lose -= 1
            self.lost.set()
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


async def test_where_the_log_has_no_room_proposals_fail_at_once_and_their_numbers_are_used_again() -> None:
    log = LossyLog(MemoryLogStore())
    broker = await start_broker(log)
    replica = broker.replica
    assert await replica.propose(AllocateProducerId()) == 0
    log.full = 1
    several = [replica.propose(AllocateProducerId()) for _ in range(300)]
    told = await asyncio.gather(*several, return_exceptions=True)
    assert {type(one) for one in told} == {NoRoom}, "all that wait fail together: none may overtake another"
    assert replica.room.why == "the disk is full"
    assert await replica.propose(AllocateProducerId()) == 1
    await broker.stop()


async def test_l17_a_proposal_whose_answer_was_lost_is_not_said_to_have_failed_when_the_log_has_no_room() -> None:
    log = LossyLog(MemoryLogStore())
    broker = await start_broker(log)
    log.lose, log.full = 1, 3
    assert await broker.replica.propose(AllocateProducerId()) == 0, "it was appended, though nobody was told"
    assert log.full == 0
    await broker.stop()


async def test_l8_on_a_full_disk_who_reads_the_log_to_its_end_is_not_blind() -> None:
    log = LossyLog(MemoryLogStore())
    broker = await start_broker(log)
    replica, session_s = broker.replica, 9.0
    replica.last_fold -= 2 * session_s
    assert broker.membership.blind
    replica.room.refused(NoRoom("the disk is full"))
    await replica.catch_up()
    assert not broker.membership.blind
    replica.last_read -= 2 * session_s
    assert broker.membership.blind, "the log cannot be read either"
    await broker.stop()


async def test_batches_are_refused_unwritten_while_the_command_log_has_no_room() -> None:
    log = LossyLog(MemoryLogStore())
    broker = await start_broker(log)
    (stream,) = await broker.topic("t")
    broker.replica.room.refused(NoRoom("the disk is full"))
    assert isinstance(await broker.append((stream, batch(b"x"))), NoRoom)
    assert await broker.wal.list("") == []
    broker.replica.room.why = ""
    assert await broker.append((stream, batch(b"x"))) == [0]
    await broker.stop()


async def test_a_callback_that_raises_harms_its_own_request_only() -> None:
    broker = await start_broker()
    replica, told = broker.replica, []

    def raises(outcome: object) -> None:
        raise ValueError("a fault of the caller")

    payload = pack(AllocateProducerId())
    replica.propose_later(AllocateProducerId.KIND, payload, raises)
    replica.propose_later(AllocateProducerId.KIND, payload, told.append)
    assert await replica.propose(AllocateProducerId()) == 2
    assert told == [1] and replica.halted is None
    await broker.stop()


async def test_l16_when_an_append_is_given_up_the_younger_ones_of_its_streams_are_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = LossyLog(MemoryLogStore())
    broker = await start_broker(log)
    await broker.topic("t", 3)
    replica = broker.replica
    told: dict[str, object] = {}

    def propose(name: str, tick: int, *streams: int) -> None:
        rows = [(stream, 1, 16, 70, 0, -1, -1, -1) for stream in streams]
        replica.propose_later(APPEND, pack_append(tick, 200, rows), partial(told.__setitem__, name))

    monkeypatch.setattr(replica_module, "GIVE_UP_S", 0.4)
    log.fail = 10**6
    propose("old", 1, 1)
    await asyncio.sleep(0.45)
    log.fail = 0
    propose("younger of the same stream", 2, 1, 2)
    propose("younger of a stream that the one before drags along", 3, 2)
    propose("of another stream", 4, 3)
    assert await replica.propose(AllocateProducerId()) == 0
    given_up = [name for name, outcome in told.items() if isinstance(outcome, Retry)]
    assert given_up == list(told)[:3] and told["of another stream"] == [0]
    propose("after the answers", 5, 1)
    assert await replica.propose(AllocateProducerId()) == 1
    assert told["after the answers"] == [0]
    await broker.stop()


async def test_l16_an_append_behind_one_that_is_to_be_given_up_is_given_up_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest append's end is folded by another loop, and the next one waits for its turn: then a third comes."""
    log = LossyLog(MemoryLogStore())
    broker = await start_broker(log)
    await broker.topic("t", 3)
    replica = broker.replica
    told: dict[str, object] = {}

    def propose(name: str, tick: int, *streams: int) -> None:
        rows = [(stream, 1, 16, 70, 0, -1, -1, -1) for stream in streams]
        replica.propose_later(APPEND, pack_append(tick, 200, rows), partial(told.__setitem__, name))

    monkeypatch.setattr(replica_module, "GIVE_UP_S", 0.4)
    log.fail = 10**6
    propose("old", 1, 1)
    await asyncio.sleep(0.45)
    propose("younger of the same stream", 2, 1, 2)
    log.fail, log.lose = 0, 1
    await asyncio.wait_for(log.lost.wait(), 10)
    await replica.catch_up()
    assert isinstance(told["old"], Retry) and len(told) == 1
    monkeypatch.setattr(replica_module, "GIVE_UP_S", 30.0)
    propose("of a stream that the one before drags along", 3, 2)
    propose("of another stream", 4, 3)
    assert await replica.propose(AllocateProducerId()) == 0
    given_up = [name for name, outcome in told.items() if isinstance(outcome, Retry)]
    assert given_up == list(told)[:3] and told["of another stream"] == [0]
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
    return await checkpoint_now(broker.replica, MemoryLog(store), broker.wal)


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


async def test_l10_only_brokers_vote_and_a_pipeline_that_disagrees_gives_way() -> None:
    store, wal = MemoryLogStore(), MemoryWal()
    broker, pipeline = await start_broker(store, wal, 0), await start_broker(store, wal, 1, role="pipeline")
    pipeline.replica._digests = [digest + 1 for digest in pipeline.replica._digests]
    pipeline.replica.state.digest += 1
    await pipeline.membership._beat()
    await broker.membership._beat()
    await pipeline.replica.catch_up()
    assert digests_agree(broker.replica)
    assert not digests_agree(pipeline.replica)
    await broker.stop()
    await pipeline.stop()

"""The simulator can fail: each test breaks one rule on purpose, and asserts that some seed catches it soon."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lakestream.errors import LakestreamError, Rejected, Retry, Unknown
from lakestream.metadata.proposals import Proposal
from lakestream.metadata.replica import BACKOFF_S, Replica
from lakestream.model import state, streams
from lakestream.model.append_rows import HEAD, pack_append
from lakestream.model.commands import APPEND
from lakestream.model.groups import offsets
from lakestream.model.levels import FIRST
from lakestream.model.members import Members
from lakestream.model.pieces import Dismantle
from lakestream.model.reasons import No
from lakestream.stream.appender import Appender, Tick
from lakestream.stream.housekeeping import collector
from lakestream.stream.housekeeping.collector import Collector
from lakestream.stream.housekeeping.long_topics import LongTopics
from lakestream.stream.housekeeping.mover import Mover
from lakestream.testing.simulation.event_loop import SimulationError
from lakestream.testing.simulation.ledger import Violation
from lakestream.testing.simulation.mixes import MIXES
from lakestream.testing.simulation.node import Classes
from lakestream.testing.simulation.scenario import simulate

SEEDS = 60


def first_violation(classes: Classes, mixes: Sequence[str], seeds: int = SEEDS) -> str:
    """The message of the first seed that notices the broken rule."""
    for seed in range(seeds):
        try:
            simulate(seed, mixes[seed % len(mixes)], classes)
        except (Violation, SimulationError) as violation:
            return str(violation)
    pytest.fail(f"{seeds} seeds did not notice")


class AppendsAgainUnderANewNumber(Replica):
    """Breaks L1: after a lost answer the same body is proposed once more, as if it were another command."""

    async def _send(self, proposals: list[Proposal]) -> None:
        epoch = self.epoch
        while not self.halted and self.epoch == epoch and any(one.n in self._proposals.numbered for one in proposals):
            try:
                await self._append([self._encoded(one) for one in proposals])
                await self._read_to_end()
            except Retry:
                await asyncio.sleep(BACKOFF_S[0])
            except Unknown:
                for one in proposals:
                    self._proposals.numbered.pop(one.n, None)
                await self._look()
                taken = self.state.members.by_id[self.member_id].last_n
                for n, one in enumerate(proposals, taken + 1):
                    one.n = n
                    self._proposals.numbered[n] = one
                self._proposals._next_n = taken + len(proposals) + 1

    async def _look(self) -> None:
        while True:
            try:
                return await self._read_to_end()
            except (Retry, Unknown):
                await asyncio.sleep(BACKOFF_S[0])


def test_a_lost_answer_cured_by_a_new_number_is_noticed_L1() -> None:
    assert first_violation(Classes(replica=AppendsAgainUnderANewNumber), ["lost and late answers"])


class StampsTheNewestLevel(Replica):
    """Breaks L3: every command says that it needs the newest level, as if a release had made them all anew."""

    def _encoded(self, proposal: Proposal) -> bytes:
        proposal.level = self.level
        return super()._encoded(proposal)


def test_commands_that_carry_the_codes_level_instead_of_their_own_are_noticed_L3() -> None:
    """Everybody refuses what the upgraded brokers propose, so clients are told no where they never are."""
    with pytest.raises(Rejected, match="is not in use yet"):
        simulate(1, "rolling upgrade", Classes(replica=StampsTheNewestLevel))


class AcksBeforeTheFold(Appender):
    """Breaks C1: answers what it expects, before the command is in the log."""

    def _settle(self) -> None:
        for tick in list(self._order):
            if tick.written and tick.failed is None and tick.epoch == self._replica.epoch:
                self._order.remove(tick)
                by_id = self._replica.state.streams.by_id
                guess = [by_id[row[0]].next if row[0] in by_id else -3 for row in tick.rows]
                payload = pack_append(tick.number, tick.size, tick.rows)
                self._replica.propose_later(APPEND, payload, lambda outcome: None)
                self._finish_early(tick, guess)
        super()._settle()

    def _finish_early(self, tick: Tick, guess: list[int]) -> None:
        self._settled = max(self._settled, tick.number)
        for (submission, index), result in zip(tick.owners, guess, strict=True):
            submission.results[index] = result
        self._answer(tick.submissions, None)


def test_an_ack_before_the_fold_is_noticed_C1() -> None:
    assert first_violation(Classes(appender=AcksBeforeTheFold), ["crash between any two steps", "cut off"])


class AppendsBeforeTheBytesAreThere(Appender):
    """Breaks "data before metadata": proposes a tick whether or not its object could be written."""

    def _fail(self, tick: Tick, error: LakestreamError) -> None:
        if tick.rows and tick.failed is None:
            tick.written = True
        else:
            super()._fail(tick, error)


def test_metadata_before_data_is_noticed() -> None:
    said = first_violation(Classes(appender=AppendsBeforeTheBytesAreThere), ["object-store errors"])
    assert "lost" in said or "do not exist" in said


def test_a_state_machine_that_takes_duplicates_is_noticed_C3(monkeypatch: pytest.MonkeyPatch) -> None:
    real = streams.judge

    def judge(producers: Any, producer_id: int, stream_id: int, *rest: Any) -> int | None:
        answer = real(producers, producer_id, stream_id, *rest)
        return None if answer is not None and answer >= 0 else answer

    monkeypatch.setattr(streams, "judge", judge)
    assert first_violation(Classes(), ["lost and late answers", "paused brokers"])


class NeverLooksAtTheEnd(Replica):
    """Breaks L6: says no from the state at hand."""

    async def catch_up(self) -> None:
        return


def test_a_no_from_an_old_state_is_noticed_L6() -> None:
    assert first_violation(Classes(replica=NeverLooksAtTheEnd), ["lost and late answers", "cut off"])


class CallsTheUnknownANo(Replica):
    """Breaks L17: a lost answer is reported as if nothing had happened."""

    async def _append(self, commands: list[bytes]) -> None:
        try:
            await super()._append(commands)
        except Unknown as error:
            for proposal in list(self._proposals.numbered.values()):
                proposal.done(Retry(str(error)))
            raise


def test_an_unknown_outcome_told_as_a_no_is_noticed_L17() -> None:
    assert first_violation(Classes(replica=CallsTheUnknownANo), ["lost and late answers"])


def test_a_collector_that_takes_what_is_not_settled_is_noticed_L22(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "is_settled", lambda *_: True)
    said = first_violation(Classes(), ["object-store errors", "calm", "lost and late answers"])
    assert any(sign in said for sign in ("entries point to it", "not there", "do not exist"))


class ForgetsToCollect(Collector):
    """Breaks C10: orphans are never deleted."""

    async def collect(self) -> int:
        return 0


def test_what_is_never_collected_is_noticed_C10() -> None:
    assert "without an entry" in first_violation(Classes(collector=ForgetsToCollect), ["object-store errors"])


class KeepsServingAfterItsEpoch(Replica):
    """Breaks fencing: a member whose epoch has ended tells its clients that all went well."""

    def _end_epoch(self) -> None:
        for proposal in [*self._proposals.numbered.values()]:
            if proposal.kind == APPEND:
                count = HEAD.unpack_from(proposal.payload)[2]
                proposal.done([10_000 + proposal.n] * count)
        super()._end_epoch()


def test_an_ack_after_the_end_of_an_epoch_is_noticed_L1() -> None:
    said = first_violation(Classes(replica=KeepsServingAfterItsEpoch), ["paused brokers", "everything"], seeds=200)
    # Whoever meets it first: the ledger, a consumer, the producer whose lost batch leaves a gap in its sequence, or the
    # reader that finds the lost tick's bytes in the cache under the number of another object.
    assert any(sign in said for sign in ("acknowledged", "asked for offset", "called out of order", "unpack_from"))


class MovesWithoutOffsets(Mover):
    """Breaks C2: merged ranges are swapped between the streams of a merge."""

    async def _replace(self, merge: Any, rows: Any, number: int, size: int) -> None:
        if len(rows) > 1:
            rows = [rows[-1], *rows[1:-1], rows[0]]
        await super()._replace(merge, rows, number, size)


def test_a_mover_that_mixes_streams_up_is_noticed_C2() -> None:
    assert first_violation(Classes(mover=MovesWithoutOffsets), ["calm", "lost and late answers"])


def test_outcomes_that_differ_between_brokers_are_noticed_L10(monkeypatch: pytest.MonkeyPatch) -> None:
    real = streams.append
    calls = iter(range(1, 1_000_000))

    def append(*arguments: Any) -> list[int] | No:
        return No(1, "a bad day") if next(calls) % 97 == 0 else real(*arguments)

    monkeypatch.setitem(state.PACKED_RULES, APPEND, (FIRST, append))
    assert first_violation(Classes(), ["calm"])


def test_a_cluster_time_that_a_clock_can_freeze_is_noticed_L14(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Members, "settle_time", Members.settle_time_first)
    assert "not collected" in first_violation(Classes(), ["wrong clocks"])


def test_every_mix_that_the_mutations_name_exists() -> None:
    named = {"calm", "lost and late answers", "crash between any two steps", "paused brokers", "wrong clocks"}
    assert named <= set(MIXES)


def test_commits_of_a_generation_that_is_over_are_noticed_L30(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "commit_problem", lambda *_: None)
    said = first_violation(Classes(), ["paused brokers", "everything", "lost and late answers"])
    assert "generation" in said


class FinishesNothing(LongTopics):
    """Breaks the promise that a topic is made and deleted to the end, whoever died in between."""

    async def finish(self) -> int:
        return 0


def test_a_topic_that_nobody_finishes_is_noticed() -> None:
    crash = "crash between any two steps"
    assert "to the end" in first_violation(Classes(long_topics=FinishesNothing), [crash])


class ForgetsProducers(LongTopics):
    """Breaks the finishing of a deletion: what producers remember of it stays for good."""

    async def _dismantle(self, topic_id: bytes) -> int:
        while not isinstance(await self._replica.propose(Dismantle(topic_id, [], [], last=True)), No):
            pass
        return 1


def test_what_is_left_of_a_deleted_topic_is_noticed() -> None:
    assert "name streams that are deleted" in first_violation(Classes(long_topics=ForgetsProducers), ["calm"])

"""A member's commit between a join phase and the assignment: the group refuses it, unless somebody joins."""

import asyncio

import pytest
from msgspec.structs import replace

from lakestream.model.commands import RaiseLevel, encode, pack
from lakestream.model.groups.group import GroupState, MemberRow
from lakestream.model.groups.membership import NewGeneration
from lakestream.model.groups.offsets import CommitOffsets
from lakestream.model.levels import BOUNDED, FIRST
from lakestream.model.reasons import No, Reason
from lakestream.model.state import apply
from tests.support.bounded_state import BoundedState
from tests.support.group_brokers import GroupCluster, refuses, rest

MEMBER = MemberRow("a", None, "client", "/127.0.0.1", 10_000, 60_000, [("range", b"")])


def completing(level: int) -> tuple[BoundedState, CommitOffsets]:
    """A group without its assignment yet, and a commit of its member while somebody joins."""
    bounded = BoundedState(level)
    bounded.topic("t")
    assert bounded.say(NewGeneration("g", 0, 0, "consumer", [MEMBER], [])) == 1
    return bounded, CommitOffsets("g", 1, "a", None, [(bounded.streams("t")[0], 7, -1, "")], joining=True)


def test_the_state_takes_the_commits_of_its_members_while_somebody_joins() -> None:
    bounded, commit = completing(BOUNDED)
    for refused, reason in (
        (replace(commit, joining=False), Reason.REBALANCING),
        (replace(commit, generation=2), Reason.STALE_GENERATION),
        (replace(commit, member="b"), Reason.UNKNOWN_GROUP_MEMBER),
    ):
        outcome = bounded.say(refused)
        assert isinstance(outcome, No)
        assert outcome.reason == reason
    assert bounded.say(commit) == [0]
    assert [one.offset for one in bounded.state.groups.by_name["g"].offsets.values()] == [7]


def test_below_its_level_the_word_of_a_join_counts_for_nothing() -> None:
    bounded, commit = completing(FIRST)
    assert (commit.needed_level(), replace(commit, joining=False).needed_level()) == (BOUNDED, FIRST)
    command = encode(FIRST, commit.KIND, 0, 1, 3, pack(commit))
    outcome = apply(bounded.state, bounded.state.sequence + 1, command)
    assert isinstance(outcome, No)
    assert outcome.reason == Reason.REBALANCING


@pytest.mark.parametrize("level", [FIRST, BOUNDED])
async def test_a_commit_before_the_assignment_is_taken_while_another_joins(level: int) -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        await broker.replica.propose(RaiseLevel(level))
        stream = (await broker.topic())[0]
        place = await broker.join()
        commit = CommitOffsets("g", 1, place.member_id, None, [(stream, 7, -1, "")])
        with refuses(Reason.REBALANCING):
            await broker.offsets.commit(commit)
        joining = asyncio.create_task(broker.join())
        await rest()
        assert (broker.state().state, joining.done()) == (GroupState.COMPLETING, False)
        if level < BOUNDED:
            with refuses(Reason.REBALANCING):
                await broker.offsets.commit(commit)
        else:
            assert await broker.offsets.commit(commit) == [0]
        await broker.join(place.member_id)
        assert (await joining).generation == 2
        with refuses(Reason.STALE_GENERATION):
            await broker.offsets.commit(commit)

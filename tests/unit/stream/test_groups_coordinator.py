"""The coordinator of groups: joins, rebalances, sessions, static members."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from lakestream.errors import Rejected
from lakestream.model.groups.group import MAX_MEMBER_BYTES, GroupState
from lakestream.model.groups.offsets import CommitOffsets
from lakestream.model.reasons import Reason
from lakestream.settings import Settings
from lakestream.stream.groups.waiting_members import Joined, MemberIdRequired
from tests.support.group_brokers import SETTINGS, GroupBroker, GroupCluster, join_request, refuses, rest

FIRST_PHASE = Settings(group_min_session_timeout_ms=100, group_initial_rebalance_delay_ms=3000)


async def two_members(broker: GroupBroker, **more: Any) -> tuple[Joined, Joined]:
    """A stable group of two, the first of which leads."""
    first = await broker.join(**more)
    await broker.sync(first, (first.member_id, b"all"))
    waiting = asyncio.create_task(broker.join())
    await rest()
    again = asyncio.create_task(broker.join(first.member_id, **more))
    first, second = await again, await waiting
    follower = asyncio.create_task(broker.sync(second))
    await rest()
    synced = await broker.sync(first, (first.member_id, b"one"), (second.member_id, b"two"))
    assert (synced.assignment, (await follower).assignment) == (b"one", b"two")
    return first, second


async def test_a_newcomer_gets_an_id_first_and_then_a_generation() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        with pytest.raises(MemberIdRequired) as answer:
            await broker.groups.join(join_request("g", ""))
        assert answer.value.member_id.startswith("client-")
        assert "g" not in broker.replica.state.groups.by_name
        place = await broker.groups.join(join_request("g", answer.value.member_id))
        assert (place.member_id, place.generation, place.leader) == (answer.value.member_id, 1, place.member_id)
        assert place.members == [(place.member_id, None, b"meta")]
        assert (await broker.sync(place, (place.member_id, b"all"))).assignment == b"all"
        await broker.beat(place)


async def test_an_old_client_joins_at_once() -> None:
    async with GroupCluster() as cluster:
        place = await (await cluster.add()).groups.join(join_request("g", "", needs_member_id=False))
        assert place.generation == 1


async def test_two_members_rebalance_and_share() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first, second = await two_members(broker)
        assert (first.generation, second.generation, second.leader) == (2, 2, first.member_id)
        assert {one for one, _, _ in first.members} == {first.member_id, second.member_id}
        assert second.members == []
        await broker.beat(first)
        await broker.beat(second)


async def test_members_are_told_to_join_again_while_somebody_waits() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first, second = await two_members(broker)
        third = asyncio.create_task(broker.join())
        await rest()
        for member in (first, second):
            with refuses(Reason.REBALANCING):
                await broker.beat(member)
            with refuses(Reason.REBALANCING):
                await broker.sync(member)
        places = await asyncio.gather(third, broker.join(first.member_id), broker.join(second.member_id))
        assert {place.generation for place in places} == {3}
        assert {place.leader for place in places} == {first.member_id}


async def test_who_does_not_join_again_in_time_is_out() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first, second = await two_members(broker)
        third = asyncio.create_task(broker.join())
        again = asyncio.create_task(broker.join(first.member_id))
        for _ in range(6):
            await broker.pass_time(5)
            assert not third.done()
            with refuses(Reason.REBALANCING):
                await broker.beat(second)
        await broker.pass_time(1)
        assert {one.member_id for one in (await third, await again)} == set(broker.state().members)
        with refuses(Reason.UNKNOWN_GROUP_MEMBER):
            await broker.beat(second)


async def test_a_member_that_leaves_makes_the_others_rebalance() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first, second = await two_members(broker)
        nobody = int(Reason.UNKNOWN_GROUP_MEMBER)
        leavers = [(first.member_id, None), ("nobody", None), ("", "i"), (first.member_id, None)]
        assert await broker.groups.leave("g", leavers) == [0, nobody, nobody, nobody]
        with refuses(Reason.REBALANCING):
            await broker.beat(second)
        alone = await broker.join(second.member_id)
        assert (alone.leader, alone.generation) == (second.member_id, 3)
        assert await broker.groups.leave("g", [(second.member_id, None)]) == [0]
        assert broker.state().state == GroupState.EMPTY
        assert await broker.groups.leave("h", [("x", None)]) == [nobody]


async def test_who_leaves_while_it_waits_is_let_go() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first = await broker.join()
        waiting = asyncio.create_task(broker.join())
        await rest()
        local = broker.groups.coordinated.get("g")
        assert local is not None
        assert await broker.groups.leave("g", [(next(iter(local.joins)), None)]) == [0]
        with refuses(Reason.UNKNOWN_GROUP_MEMBER):
            await waiting
        with pytest.raises(MemberIdRequired) as answer:
            await broker.groups.join(join_request("g", ""))
        assert await broker.groups.leave("g", [(answer.value.member_id, None)]) == [0]
        await broker.beat(first)


async def test_a_silent_member_is_expired_and_one_that_beats_is_not() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first, second = await two_members(broker)
        for _ in range(4):
            await broker.pass_time(3)
            try:
                await broker.beat(first)
            except Rejected as error:
                assert error.reason == Reason.REBALANCING
        assert list(broker.state().members) == [first.member_id]
        with refuses(Reason.UNKNOWN_GROUP_MEMBER):
            await broker.beat(second)


async def test_a_commit_keeps_a_session_alive() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        stream = (await broker.topic())[0]
        place = await broker.join()
        await broker.sync(place)
        for offset in range(4):
            await broker.pass_time(6)
            await broker.offsets.commit(CommitOffsets("g", 1, place.member_id, None, [(stream, offset, -1, "")]))
        assert list(broker.state().members) == [place.member_id]


async def test_l13_an_outage_expires_nobody() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        place = await broker.join()
        await broker.sync(place)
        await broker.pass_time(9)
        broker.current[0] = False
        await broker.pass_time(60)
        broker.current[0] = True
        await broker.pass_time(0.5)
        await broker.beat(place)
        await broker.pass_time(9)
        await broker.beat(place)


async def test_l13_a_broker_that_was_frozen_expires_nobody_before_it_could_hear_them() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        place = await broker.join()
        await broker.sync(place)
        await broker.pass_time(9)
        broker.clock.now += 60
        await broker.pass_time(0.5)
        await broker.beat(place)


async def test_who_never_syncs_is_out_though_it_beats() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first, second = await two_members(broker)
        third = asyncio.create_task(broker.join(rebalance_ms=5_000))
        await rest()
        again = [broker.join(one.member_id, rebalance_ms=5_000) for one in (first, second)]
        places = await asyncio.gather(third, *again)
        leader = next(place for place in places if place.leader == place.member_id)
        waiting = asyncio.create_task(broker.sync(next(place for place in places if place is not leader)))
        for _ in range(8):
            await broker.pass_time(1)
            if broker.state().state == GroupState.COMPLETING:
                await broker.beat(leader)
        with refuses(Reason.REBALANCING):
            await waiting
        assert leader.member_id not in broker.state().members


async def test_an_id_that_is_never_used_delays_nobody_for_long() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first, second = await two_members(broker)
        with pytest.raises(MemberIdRequired):
            await broker.groups.join(join_request("g", "", session_ms=1000))
        joins = [asyncio.create_task(broker.join(one.member_id)) for one in (first, second)]
        await broker.pass_time(0.5)
        assert not joins[0].done()
        await broker.pass_time(1)
        assert {(await join).generation for join in joins} == {3}


async def test_a_member_that_asks_again_gets_the_same_place() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first = await broker.join()
        assert await broker.join(first.member_id) == first
        await broker.sync(first, (first.member_id, b"all"))
        assert (await broker.sync(first)).assignment == b"all"
        first, second = await two_members_more(broker, first)
        assert (await broker.join(second.member_id)).generation == second.generation
        leader_again = asyncio.create_task(broker.join(first.member_id))
        await rest()
        assert not leader_again.done()
        again = await broker.join(second.member_id, protocols=[("range", b"other")])
        assert again.generation == second.generation + 1 == (await leader_again).generation


async def two_members_more(broker: GroupBroker, first: Joined) -> tuple[Joined, Joined]:
    waiting = asyncio.create_task(broker.join())
    await rest()
    first, second = await broker.join(first.member_id), await waiting
    follower = asyncio.create_task(broker.sync(second))
    await broker.sync(first, (first.member_id, b"one"), (second.member_id, b"two"))
    await follower
    return first, second


async def test_a_join_that_comes_again_replaces_the_one_that_waits() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        await broker.join()
        with pytest.raises(MemberIdRequired) as answer:
            await broker.groups.join(join_request("g", ""))
        tries = [asyncio.create_task(broker.join(answer.value.member_id)) for _ in range(2)]
        await rest()
        with refuses(Reason.REBALANCING):
            await tries[0]
        assert not tries[1].done()
        tries[1].cancel()
        await rest()
        local = broker.groups.coordinated.get("g")
        assert local is not None
        assert not local.joins


async def test_a_newcomer_whose_connection_is_gone_becomes_no_ghost() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first = await broker.join()
        ghost = asyncio.create_task(
            broker.groups.join(join_request("g", "", needs_member_id=False, connected=lambda: False))
        )
        await rest()
        assert (await broker.join(first.member_id, protocols=[("range", b"new")])).generation == 2
        assert list(broker.state().members) == [first.member_id]
        with refuses(Reason.UNKNOWN_GROUP_MEMBER):
            await ghost


async def test_the_first_rebalance_waits_for_more_members_if_it_is_told_to() -> None:
    async with GroupCluster(FIRST_PHASE) as cluster:
        broker = await cluster.add()
        joins = [asyncio.create_task(broker.join())]
        await broker.pass_time(2)
        joins.append(asyncio.create_task(broker.join()))
        await broker.pass_time(2)
        assert not joins[0].done()
        await broker.pass_time(3)
        assert {(await join).generation for join in joins} == {1}


@pytest.mark.parametrize("committed", [False, True])
async def test_a_group_in_its_first_join_phase_is_seen_and_takes_commits_of_nobody(committed: bool) -> None:
    async with GroupCluster(FIRST_PHASE) as cluster:
        broker = await cluster.add()
        commit = CommitOffsets("g", -1, "", None, [((await broker.topic())[0], 1, -1, "")])
        if committed:
            assert await broker.offsets.commit(commit) == [0]
        joining = asyncio.create_task(broker.join(instance="i"))
        await rest()
        [listed], described = await broker.offsets.list(), await broker.offsets.describe("g")
        for seen in (listed, described):
            assert (seen.group.name, seen.state, seen.protocol_type) == ("g", GroupState.PREPARING, "consumer")
            assert [row.instance for row in seen.newcomers] == ["i"]
        with refuses(Reason.UNKNOWN_GROUP_MEMBER):
            await broker.offsets.commit(commit)
        with refuses(Reason.STALE_GENERATION):
            await broker.offsets.commit(replace(commit, member=described.newcomers[0].id))
        assert ("g" in broker.replica.state.groups.by_name) == committed
        await broker.pass_time(7)
        assert (await joining).generation == 1
        assert [seen.newcomers for seen in await broker.offsets.list()] == [[]]


async def test_a_static_member_that_joins_can_be_made_to_leave_by_its_instance() -> None:
    async with GroupCluster(FIRST_PHASE) as cluster:
        broker = await cluster.add()
        joining = asyncio.create_task(broker.join(instance="i"))
        await rest()
        assert await broker.groups.leave("g", [("", "j"), ("", "i")]) == [Reason.UNKNOWN_GROUP_MEMBER, 0]
        with refuses(Reason.UNKNOWN_GROUP_MEMBER):
            await joining
        assert await broker.offsets.list() == []


async def test_what_cannot_be_is_refused() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        place = await broker.join()
        for reason, more in [
            (Reason.INVALID_GROUP_ID, {"group": ""}),
            (Reason.INVALID_SESSION_TIMEOUT, {"session_ms": 99}),
            (Reason.INVALID_SESSION_TIMEOUT, {"session_ms": SETTINGS.group_max_session_timeout_ms + 1}),
            (Reason.INCONSISTENT_PROTOCOL, {"protocols": [("sticky", b"")]}),
            (Reason.INCONSISTENT_PROTOCOL, {"protocols": []}),
            (Reason.INCONSISTENT_PROTOCOL, {"protocol_type": "connect"}),
            (Reason.INCONSISTENT_PROTOCOL, {"protocol_type": "", "group": "new"}),
            (Reason.INCONSISTENT_PROTOCOL, {"protocols": [], "group": "new"}),
            (Reason.UNKNOWN_GROUP_MEMBER, {"member_id": "nobody"}),
            (Reason.UNKNOWN_GROUP_MEMBER, {"member_id": "nobody", "group": "new"}),
            (Reason.UNKNOWN_GROUP_MEMBER, {"member_id": place.member_id, "instance": "i"}),
            (Reason.GROUP_FULL, {"protocols": [("range", bytes(MAX_MEMBER_BYTES))]}),
        ]:
            with refuses(reason):
                await broker.join(**more)  # type: ignore[arg-type]
        for generation, reason in ((0, Reason.STALE_GENERATION), (2, Reason.STALE_GENERATION)):
            with refuses(reason):
                await broker.groups.heartbeat("g", generation, place.member_id, None)
        with refuses(Reason.INCONSISTENT_PROTOCOL):
            await broker.sync(place, protocol="sticky")
        with refuses(Reason.INCONSISTENT_PROTOCOL):
            await broker.sync(place, protocol_type="connect")
        for name, reason in (("", Reason.INVALID_GROUP_ID), ("nobody", Reason.UNKNOWN_GROUP_MEMBER)):
            with refuses(reason):
                await broker.groups.heartbeat(name, 1, "x", None)
            with refuses(reason):
                await broker.sync(place, group=name)


async def test_a_full_group_takes_nobody_more() -> None:
    async with GroupCluster(Settings(group_min_session_timeout_ms=100, group_max_size=1)) as cluster:
        broker = await cluster.add()
        first = await broker.join()
        with refuses(Reason.GROUP_FULL):
            await broker.join()
        assert (await broker.join(first.member_id)).generation == 1


async def test_a_static_member_restarts_without_a_rebalance_and_its_old_self_is_fenced() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first, second = await two_members(broker, instance="i")
        again = await broker.join(instance="i")
        assert again.member_id != first.member_id
        assert (again.generation, again.leader, again.skip_assignment) == (2, again.member_id, True)
        assert len(again.members) == 2
        assert (await broker.sync(again, instance="i")).assignment == b"one"
        await broker.beat(second)
        await broker.beat(again, instance="i")
        with refuses(Reason.FENCED_INSTANCE):
            await broker.beat(first, instance="i")
        with refuses(Reason.FENCED_INSTANCE):
            await broker.join(first.member_id, instance="i")
        with refuses(Reason.UNKNOWN_GROUP_MEMBER):
            await broker.beat(first)
        assert await broker.groups.leave("g", [(first.member_id, "i"), ("", "i")]) == [Reason.FENCED_INSTANCE, 0]
        assert list(broker.state().members) == [second.member_id]


async def test_an_older_static_leader_is_not_told_that_it_leads() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first, _ = await two_members(broker, instance="i")
        again = await broker.join(instance="i", may_skip_assignment=False)
        assert (again.leader, again.members, again.skip_assignment) == (first.member_id, [], False)


async def test_of_two_that_join_as_one_static_member_the_later_stays() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first = await broker.join()
        early = asyncio.create_task(broker.join(instance="i"))
        await rest()
        late = asyncio.create_task(broker.join(instance="i"))
        await rest()
        with refuses(Reason.FENCED_INSTANCE):
            await early
        await broker.join(first.member_id, protocols=[("range", b"new")])
        assert (await late).generation == 2


async def test_a_static_member_that_restarts_in_a_rebalance_fences_the_join_of_its_old_self() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first, second = await two_members(broker, instance="i")
        third = asyncio.create_task(broker.join())
        await rest()
        old = asyncio.create_task(broker.join(first.member_id, instance="i"))
        await rest()
        new = asyncio.create_task(broker.join(instance="i"))
        await rest()
        with refuses(Reason.FENCED_INSTANCE):
            await old
        places = await asyncio.gather(new, third, broker.join(second.member_id))
        assert {place.generation for place in places} == {3}


async def test_a_static_member_that_is_away_keeps_its_place_through_a_rebalance() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first, second = await two_members(broker, instance="i", session_ms=60_000, rebalance_ms=5_000)
        await broker.groups.leave("g", [(second.member_id, None)])
        joined = asyncio.create_task(broker.join(rebalance_ms=5_000))
        await broker.pass_time(6)
        assert set((await joined).members and broker.state().members) == {first.member_id, (await joined).member_id}


async def test_when_only_absent_static_members_are_left_the_group_waits_for_them() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first, second = await two_members(broker, instance="i", session_ms=60_000, rebalance_ms=0)
        await broker.groups.leave("g", [(second.member_id, None)])
        await broker.pass_time(40)
        assert list(broker.state().members) == [first.member_id]
        assert broker.state().state == GroupState.PREPARING
        await broker.pass_time(40)
        assert broker.state().state == GroupState.EMPTY
        assert broker.groups.coordinated.get("g") is None


async def test_when_nobody_joins_again_the_group_is_empty() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        first, second = await two_members(broker, session_ms=600_000, rebalance_ms=1_000)
        await broker.groups.leave("g", [(second.member_id, None)])
        await broker.pass_time(2)
        assert (broker.state().state, broker.state().generation) == (GroupState.EMPTY, 3)
        with refuses(Reason.UNKNOWN_GROUP_MEMBER):
            await broker.beat(first)


async def test_a_stopping_broker_sends_everybody_on() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        place = await broker.join()
        waiting = asyncio.create_task(broker.join())
        await rest()
        await broker.groups.stop()
        with refuses(Reason.NOT_COORDINATOR):
            await waiting
        with refuses(Reason.NOT_COORDINATOR):
            await broker.beat(place)


async def test_the_timers_run_by_themselves() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()
        place = await broker.join(session_ms=150)
        await broker.sync(place)
        running = asyncio.create_task(broker.groups.run())
        await asyncio.sleep(0.15)
        broker.clock.now += 0.5
        await asyncio.sleep(0.25)
        running.cancel()
        assert broker.state().state == GroupState.EMPTY

"""Groups without a home: brokers come and go, groups carry on (L30)."""

import asyncio
from collections.abc import Sequence

import pytest

from lakestream.errors import Fenced, Retry, Unknown
from lakestream.interfaces import Appended
from lakestream.metadata.stores.memory import MemoryLog
from lakestream.model.groups.group import GroupState
from lakestream.model.groups.membership import RemoveMembers, coordinator
from lakestream.model.groups.offsets import CommitOffsets
from lakestream.model.reasons import Reason
from tests.support.group_brokers import GroupCluster, refuses, rest


async def test_l30_members_carry_on_at_the_next_coordinator_with_the_same_id_and_generation() -> None:
    async with GroupCluster() as cluster:
        one, other = await cluster.pair()
        stream = (await one.topic())[0]
        place = await one.join()
        await one.sync(place, (place.member_id, b"all"))
        commit = CommitOffsets("g", place.generation, place.member_id, None, [(stream, 42, -1, "")])
        assert await one.offsets.commit(commit) == [0]
        await one.replica.stop()
        await cluster.expire(one.replica.member_id, other)
        await other.pass_time(9)
        await other.beat(place)
        assert (await other.offsets.fetch("g"))[stream].offset == 42
        assert (await other.sync(place)).assignment == b"all"
        assert await other.offsets.commit(commit) == [0]
        assert other.state().generation == place.generation


async def test_l13_the_next_coordinator_gives_everybody_a_full_session_and_no_more() -> None:
    async with GroupCluster() as cluster:
        one, other = await cluster.pair()
        place = await one.join()
        await one.sync(place)
        await one.pass_time(9.5)
        await cluster.expire(one.replica.member_id, other)
        await other.pass_time(9.5)
        assert list(other.state().members) == [place.member_id]
        await other.pass_time(1)
        assert other.state().state == GroupState.EMPTY


async def test_a_broker_that_is_not_the_coordinator_says_so_after_a_look_at_the_log_l6() -> None:
    async with GroupCluster() as cluster:
        one, other = await cluster.pair()
        place = await one.join()
        with refuses(Reason.NOT_COORDINATOR):
            await other.join()
        with refuses(Reason.NOT_COORDINATOR):
            await other.beat(place)
        with refuses(Reason.NOT_COORDINATOR):
            await other.sync(place)
        with refuses(Reason.NOT_COORDINATOR):
            await other.groups.leave("g", [(place.member_id, None)])
        with refuses(Reason.NOT_COORDINATOR):
            await other.offsets.fetch("g")
        with refuses(Reason.NOT_COORDINATOR):
            await other.offsets.commit(CommitOffsets("g", 1, place.member_id, None, []))


async def test_who_waits_when_the_coordinator_moves_is_sent_on() -> None:
    async with GroupCluster() as cluster:
        one = await cluster.add(0)
        names = [f"g{number}" for number in range(8)]
        places = {name: await one.join(group=name) for name in names}
        joins = {name: asyncio.create_task(one.join(group=name)) for name in names}
        await rest()
        other = await cluster.add(1)
        await one.replica.catch_up()
        one.groups.coordinated.tick()
        await rest()
        moved = [name for name in names if coordinator(one.replica.state, name) == 1]
        assert 0 < len(moved) < 8
        for name in names:
            if name not in moved:
                assert not joins[name].done()
                joins[name].cancel()
                continue
            with refuses(Reason.NOT_COORDINATOR):
                await joins[name]
            other.groups.coordinated.tick()
            await other.beat(places[name], group=name)


async def test_a_sync_that_waits_when_the_coordinator_moves_is_answered_by_the_next() -> None:
    async with GroupCluster() as cluster:
        one, other = await cluster.pair()
        first = await one.join()
        waiting = asyncio.create_task(one.join())
        await rest()
        first, second = await one.join(first.member_id, protocols=[("range", b"new")]), await waiting
        sync = asyncio.create_task(one.sync(second))
        await rest()
        await cluster.expire(one.replica.member_id, other)
        await one.replica.catch_up()
        one.groups.coordinated.tick()
        with refuses(Reason.NOT_COORDINATOR):
            await sync
        sync = asyncio.create_task(other.sync(second))
        await rest()
        assert (await other.sync(first, (second.member_id, b"two"))).assignment == b""
        assert (await sync).assignment == b"two"


async def test_a_rebalance_that_somebody_caused_by_leaving_goes_on_at_the_next_coordinator() -> None:
    async with GroupCluster() as cluster:
        one, other = await cluster.pair()
        first = await one.join()
        waiting = asyncio.create_task(one.join())
        await rest()
        first, second = await one.join(first.member_id, protocols=[("range", b"new")]), await waiting
        await one.groups.leave("g", [(first.member_id, None)])
        await cluster.expire(one.replica.member_id, other)
        other.groups.coordinated.tick()
        with refuses(Reason.REBALANCING):
            await other.beat(second)
        assert (await other.join(second.member_id)).generation == second.generation + 1


async def test_l30_a_coordinator_that_does_not_know_that_it_is_none_changes_nothing() -> None:
    async with GroupCluster() as cluster:
        one, other = await cluster.pair()
        place = await one.join()
        await one.sync(place)
        silent = [(place.member_id, one.state().members[place.member_id].heard)]
        await cluster.expire(one.replica.member_id, other)
        with pytest.raises(Fenced):
            await one.replica.propose(RemoveMembers("g", 1, silent))
        await other.replica.catch_up()
        assert list(other.state().members) == [place.member_id]


async def test_a_coordinator_that_comes_back_takes_its_groups_again() -> None:
    async with GroupCluster() as cluster:
        one, other = await cluster.pair()
        place = await one.join()
        await one.sync(place)
        await cluster.expire(one.replica.member_id, other)
        await other.beat(place)
        again = await cluster.add(one.replica.member_id)
        await other.replica.catch_up()
        with refuses(Reason.NOT_COORDINATOR):
            await other.beat(place)
        await again.beat(place)
        await again.pass_time(11)
        assert again.state().state == GroupState.EMPTY
        await one.replica.stop()


class MoodyLog(MemoryLog):
    """A log that can be out of order."""

    error: Exception | None = None

    async def append(self, commands: Sequence[bytes], after: int) -> Appended:
        if self.error is not None:
            raise self.error
        return await super().append(commands, after)


async def test_l17_a_join_phase_that_could_not_be_ended_is_nobodys_and_can_be_tried_again() -> None:
    async with GroupCluster() as cluster:
        log = MoodyLog(cluster.store)
        broker = await cluster.add(0, log)
        log.error = Unknown("the answer was lost")
        join = asyncio.create_task(broker.join())
        await rest()
        broker.replica._fail_all(Unknown("stopped"))
        with refuses(Reason.COORDINATOR_UNAVAILABLE):
            await join
        local = broker.groups.coordinated.get("g")
        assert local is not None
        assert not local.joins
        assert not local.proposing


async def test_l6_without_a_look_at_the_log_there_is_no_no() -> None:
    async with GroupCluster() as cluster:
        broker = await cluster.add()

        async def unreachable(after: int, limit: int) -> list[tuple[int, bytes]]:
            raise Retry("no store")

        broker.replica._log.read = unreachable  # type: ignore[method-assign]
        with pytest.raises(Retry):
            await broker.groups.heartbeat("g", 1, "nobody", None)
        with pytest.raises(Retry):
            await broker.offsets.fetch("g")

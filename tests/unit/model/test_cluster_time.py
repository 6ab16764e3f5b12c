"""Cluster time goes on whatever clocks say: it never stands still, goes back, or believes a glitch (L14)."""

import asyncio
from random import Random

import pytest

from lakestream.data.memory import MemoryWal
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore
from lakestream.model.cluster_time import BEHIND_MS, JUMP_HEARTBEATS, JUMP_MS
from lakestream.model.commands import Body, Expire, Heartbeat, Register, encode, pack
from lakestream.model.levels import BOUNDED, FIRST
from lakestream.model.state import State, apply, dump, load
from lakestream.testing.simulation.event_loop import SimClock, SimulatedLoop, run

NOW = 1_700_000_000_000
YEAR = 365 * 24 * 3_600_000
BEAT = 2_000


class Cluster:
    """A bare state, and members whose clocks can be set."""

    def __init__(self, hosts: dict[int, str], level: int = BOUNDED, roles: dict[int, str] | None = None) -> None:
        self.state = State()
        self.state.level = level
        self.clocks: dict[int, int] = {}
        for member, host in hosts.items():
            self.register(member, host, (roles or {}).get(member, "broker"))

    @property
    def time(self) -> int:
        return self.state.members.time_ms

    def register(self, member: int, host: str, role: str = "broker") -> None:
        incarnation = self.state.sequence.to_bytes(16, "big")
        body = Register(incarnation, "c", role, host, 1, "", 1, BOUNDED)
        command = encode(FIRST, Register.KIND, member, 0, 0, pack(body))
        assert isinstance(apply(self.state, self.state.sequence + 1, command), int)
        self.clocks[member] = self.clocks.get(member, NOW)

    def say(self, member: int, body: Body) -> None:
        me = self.state.members.by_id[member]
        command = encode(FIRST, body.KIND, member, me.epoch, me.last_n + 1, pack(body))
        apply(self.state, self.state.sequence + 1, command)

    def beat(self, rounds: int = 1, passed: int = BEAT) -> None:
        """Time passes, and every live member says what its clock shows."""
        for _ in range(rounds):
            for member in self.clocks:
                self.clocks[member] += passed
                if self.state.members.by_id[member].alive:
                    before = self.time
                    self.say(member, Heartbeat(self.clocks[member], 0, 0, 0))
                    assert self.time >= before, "cluster time never goes back"

    def jump(self, by: int, *members: int) -> None:
        for member in members or tuple(self.clocks):
            self.clocks[member] += by


def test_l14_time_goes_on_after_every_clock_was_a_year_ahead_for_a_while() -> None:
    cluster = Cluster({1: "a", 2: "b"})
    cluster.beat(3)
    cluster.jump(YEAR)
    cluster.beat(20)
    wrong = cluster.time
    assert wrong > NOW + YEAR
    cluster.jump(-YEAR)
    cluster.beat(1800)
    assert 1795 * BEAT <= cluster.time - wrong <= 1800 * BEAT, "an hour by the clocks is an hour of cluster time"


def test_l14_time_that_a_former_version_let_freeze_goes_on_with_the_level() -> None:
    cluster = Cluster({1: "a"}, FIRST)
    cluster.jump(YEAR)
    cluster.beat()
    cluster.jump(-YEAR)
    cluster.beat(30)
    frozen = cluster.time
    assert frozen == NOW + YEAR + BEAT, "the rule of the first level"
    cluster.state.level = BOUNDED
    cluster.beat(30)
    assert cluster.time >= frozen + 29 * BEAT


def test_l14_one_clock_far_ahead_moves_nothing_however_long() -> None:
    cluster = Cluster({1: "a", 2: "b", 3: "c"})
    cluster.beat()
    cluster.jump(YEAR, 2)
    cluster.beat(50)
    assert cluster.time <= NOW + 51 * BEAT


def test_l14_the_members_of_one_host_have_one_vote() -> None:
    """Three brokers and their pipeline share a clock that is a year ahead; the other host's clock is right."""
    roles = {7: "pipeline"}
    cluster = Cluster({1: "a", 2: "a", 3: "a", 7: "", 4: "b"}, roles=roles)
    cluster.beat()
    cluster.jump(YEAR, 1, 2, 3, 7)
    cluster.beat(50)
    assert NOW + 50 * BEAT <= cluster.time <= NOW + 51 * BEAT


def test_l14_a_jump_above_an_hour_is_taken_after_it_held() -> None:
    cluster = Cluster({1: "a"})
    cluster.beat(2)
    cluster.jump(YEAR)
    for heard in range(1, JUMP_HEARTBEATS):
        cluster.beat()
        assert cluster.time < NOW + JUMP_MS, f"after {heard} heartbeats"
    cluster.beat()
    assert cluster.time == cluster.clocks[1]


def test_l14_a_glitch_of_a_clock_is_never_taken() -> None:
    cluster = Cluster({1: "a"})
    cluster.beat(2)
    for _ in range(20):
        cluster.jump(YEAR)
        cluster.beat(JUMP_HEARTBEATS - 1)
        cluster.jump(-YEAR)
        cluster.beat()
    assert cluster.time == cluster.clocks[1], "and time went on meanwhile"


def test_l14_a_clock_that_leaps_again_and_again_does_not_count_its_leaps_together() -> None:
    cluster = Cluster({1: "a"})
    cluster.beat(2)
    for _ in range(20):
        cluster.jump(2 * JUMP_MS)
        cluster.beat()
    assert cluster.time < NOW + JUMP_MS


def test_l14_up_to_an_hour_a_clock_is_followed_at_once() -> None:
    cluster = Cluster({1: "a"})
    cluster.beat()
    cluster.jump(JUMP_MS - BEAT)
    cluster.beat()
    assert cluster.time == cluster.clocks[1]


def test_l14_a_clock_set_back_a_little_is_waited_for_and_further_it_is_not() -> None:
    for back in (BEHIND_MS // 2, BEHIND_MS + 1, 60_000, YEAR):
        cluster = Cluster({1: "a"})
        cluster.beat()
        before = cluster.time
        cluster.jump(-back)
        cluster.beat(10)
        assert cluster.time - before >= 10 * BEAT - BEHIND_MS - BEAT
        assert cluster.time - before <= 10 * BEAT


def test_l14_a_clock_that_wavers_does_not_drive_time_ahead() -> None:
    cluster = Cluster({1: "a"})
    for step in (BEHIND_MS // 2, 3 * BEHIND_MS, 10 * BEHIND_MS):
        for _ in range(50):
            cluster.jump(-step)
            cluster.beat(3)
            cluster.jump(step)
            cluster.beat(3)
    assert cluster.time - cluster.clocks[1] <= BEAT


def test_l14_a_new_registration_begins_its_vote_anew() -> None:
    cluster = Cluster({1: "a"})
    cluster.beat(3)
    cluster.jump(YEAR)
    cluster.beat(JUMP_HEARTBEATS - 1)
    cluster.register(1, "a")
    cluster.beat(JUMP_HEARTBEATS - 1)
    assert cluster.time < NOW + JUMP_MS
    cluster.beat()
    assert cluster.time == cluster.clocks[1], "after a long stop the clock is followed, too"


def test_l14_the_vote_of_an_expired_member_does_not_hold_time_up() -> None:
    cluster = Cluster({1: "a", 2: "b"})
    cluster.beat(3)
    target = cluster.state.members.by_id[2]
    cluster.say(1, Expire(2, target.epoch, target.heard))
    cluster.beat(10)
    assert cluster.time == cluster.clocks[1]


def test_l14_votes_survive_a_checkpoint_and_a_former_version_reads_those_below_the_level() -> None:
    cluster = Cluster({1: "a", 2: "b"})
    cluster.beat(2)
    cluster.jump(YEAR)
    cluster.beat(JUMP_HEARTBEATS - 1)
    loaded = load(dump(cluster.state))
    assert [(one.time_ms, one.ahead) for one in loaded.members.live()] == [
        (one.time_ms, one.ahead) for one in cluster.state.members.live()
    ]
    assert loaded.members.live()[0].ahead == JUMP_HEARTBEATS - 1
    assert len(cluster.state.members.dump(FIRST)[2][0]) == 19, "the fields of the first level"


async def join(store: MemoryLogStore, wal: MemoryWal, clock: SimClock, broker: int) -> tuple[Replica, Membership]:
    replica = Replica(MemoryLog(store), wal, clock, broker)
    about = Register(b"", "", "broker", f"host-{broker}", 1, "", 1, BOUNDED)
    membership = Membership(replica, clock, Random(clock.wall_ms() + broker), about, Timing())
    await replica.start()
    await membership.join()
    return replica, membership


@pytest.mark.parametrize("others_left", [True, False])
def test_l14_after_a_long_stop_a_broker_serves_when_cluster_time_has_followed(others_left: bool) -> None:
    """A broker that died without leaving has a vote until it is expired."""

    async def main(loop: SimulatedLoop) -> None:
        store, wal = MemoryLogStore(), MemoryWal()
        first, leaving = await join(store, wal, SimClock(loop), 1)
        second, other = await join(store, wal, SimClock(loop), 2)
        if others_left:
            await other.leave()
        await leaving.leave()
        await first.stop()
        await second.stop()
        later = SimClock(loop, 7 * 24 * 3_600_000)
        began = loop.time()
        again, _ = await join(store, wal, later, 1)
        assert again.state.level == BOUNDED
        assert later.wall_ms() - again.state.members.time_ms < 5_000
        assert loop.time() - began < (3 if others_left else 12)
        await again.stop()

    run(main, 1)


def test_l14_a_broker_whose_clock_alone_is_ahead_serves_after_a_while() -> None:
    async def main(loop: SimulatedLoop) -> None:
        store, wal = MemoryLogStore(), MemoryWal()
        first, membership = await join(store, wal, SimClock(loop), 1)
        beating = asyncio.ensure_future(membership.run())
        ahead, _ = await join(store, wal, SimClock(loop, YEAR), 2)
        assert ahead.state.members.time_ms < SimClock(loop).wall_ms() + JUMP_MS
        assert loop.time() < 20
        beating.cancel()
        await ahead.stop()
        await first.stop()

    run(main, 1)

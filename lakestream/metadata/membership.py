"""The life of a member: register, heartbeat, watch other members, notice the end of its epoch, take checkpoints.

    joining  --registered-->  serving  --epoch ended by others-->  joining (with a new incarnation)
    serving  --nothing folded for a session-->  blind: clients are disconnected until a command is folded again (L8)
    serving  --leave-->  gone

A member expires others only while its own heartbeats fold, so that an outage of the store expires no member (L13).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lakestream.errors import Fenced, Halted, NoRoom, Retry, Unknown
from lakestream.interfaces import Clock, CommandLog, Wal
from lakestream.metadata.checkpoint import Dump, dump_in_process
from lakestream.metadata.checkpointer import Checkpointer
from lakestream.metadata.replica import Replica
from lakestream.model.cluster_time import JUMP_MS
from lakestream.model.commands import Expire, Heartbeat, Leave, RaiseLevel, Register
from lakestream.model.reasons import No, Reason

log = logging.getLogger(__name__)

BROKER = "broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often and how long."""

    heartbeat_s: float = 2.0
    session_s: float = 9.0
    checkpoint_commands: int = 20_000
    """A checkpoint is due after so many commands."""
    checkpoint_bytes: int = 64 * 1024 * 1024
    """A checkpoint is due after so many bytes of commands."""


class Membership:
    """Keeps one member alive in the state."""

    def __init__(self, replica: Replica, clock: Clock, random: Random, about: Register, timing: Timing) -> None:
        self._replica = replica
        self._clock = clock
        self._random = random
        self._about = about
        self._timing = timing
        self.settled: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """The last tick and the last move that are committed or given up; the appender and the mover know (L22)."""
        self.on_join: list[Callable[[], None]] = []
        self._heard: dict[int, tuple[int, int, float]] = {}
        self._last_heartbeat = clock.monotonic()
        self._checkpoints = Checkpointer(replica, clock, timing.checkpoint_commands, timing.checkpoint_bytes)
        self._leaving = False

    async def join(self) -> None:
        """Register as a new incarnation, again and again until there is an epoch."""
        while True:
            incarnation = self._random.randbytes(16)
            cluster = self._replica.state.cluster or self._random.randbytes(8).hex()
            outcome = await self._replica.register(replace_register(self._about, incarnation, cluster))
            if not isinstance(outcome, No):
                log.info("joined as member %d with epoch %d", self._replica.member_id, outcome)
                self._last_heartbeat = self._clock.monotonic()
                await self._beat()
                await self._raise_level()
                await self._agree_on_time()
                for listener in self.on_join:
                    listener()
                return
            if outcome.reason in (Reason.LEVEL_UNSUPPORTED, Reason.MALFORMED):
                raise Halted(outcome.message)
            log.warning("registration was refused, trying again: %s", outcome.message)
            await asyncio.sleep(self._timing.heartbeat_s / 4)

    async def _agree_on_time(self) -> None:
        """Do not serve while cluster time lies far behind our clock, as it does after a long stop (L14).

        Cluster time jumps after several heartbeats, and dead members may have to expire first. If cluster time never
        follows, the clocks of other members disagree with ours.
        """
        until = self._clock.monotonic() + self._timing.session_s + 2 * self._timing.heartbeat_s
        while (ahead_ms := self._ahead_ms()) > JUMP_MS:
            if self._clock.monotonic() >= until:
                log.warning("this machine's clock is %d s ahead of cluster time: please check it", ahead_ms // 1000)
                return
            await asyncio.sleep(self._timing.heartbeat_s / 4)
            await self._beat()
            await self._watch()

    def _ahead_ms(self) -> int:
        """How far our clock was ahead of cluster time at our last heartbeat."""
        members = self._replica.state.members
        me = members.by_id.get(self._replica.member_id)
        return me.clock_ms - members.time_ms if me is not None and me.alive and me.ahead else 0

    @property
    def current(self) -> bool:
        """Whether our own heartbeats fold, so that our timers may judge others (L13)."""
        return bool(self._replica.epoch) and self._age() < self._timing.session_s / 2

    @property
    def blind(self) -> bool:
        """Nothing was folded for a session, or there is no epoch: other members may have gone on without this one (L8).

        On a full disk no member can append, so there is nothing to fold: a member that reads to the end is current.
        """
        replica = self._replica
        if replica.halted is not None or not replica.epoch:
            return True
        current = max(replica.last_fold, replica.last_read) if replica.room.why else replica.last_fold
        return self._clock.monotonic() - current > self._timing.session_s

    def _age(self) -> float:
        return self._clock.monotonic() - self._last_heartbeat

    async def run(self) -> None:
        """Heartbeat and watch until cancelled."""
        while self._replica.halted is None and not self._leaving:
            await asyncio.sleep(self._timing.heartbeat_s)
            await self._beat()
            if not self._replica.epoch:
                await self._yield_to_a_twin()
                await self.join()
            self._compare_digests()
            await self._raise_level()
            await self._watch()

    async def _yield_to_a_twin(self) -> None:
        """Halt if another process has our broker id: two processes that fence each other serve no client.

        A registration without a further proposal for a session is a late append of a dead process.
        """
        replica = self._replica
        deadline = self._clock.monotonic() + self._timing.session_s
        while replica.superseded and self._about.role == BROKER and self._clock.monotonic() < deadline:
            twin = replica.state.members.by_id[replica.member_id]
            if twin.last_n:
                raise Halted(
                    f"another process has joined as broker {twin.id} (process {twin.pid}, {twin.host}:{twin.port}); "
                    "this one, the older, stops: give every broker an id of its own"
                )
            await asyncio.sleep(self._timing.heartbeat_s / 4)

    async def leave(self) -> None:
        """End our own epoch, so that no member has to wait for the end of our session."""
        self._leaving = self._replica.leaving = True
        try:
            await asyncio.wait_for(self._replica.propose(Leave()), self._timing.heartbeat_s)
        except (Fenced, Retry, Unknown, TimeoutError) as error:
            log.info("the epoch was not ended by a command: %s", error)

    async def _beat(self) -> None:
        replica = self._replica
        sequence = replica.state.sequence
        tick, move = self.settled()
        beat = Heartbeat(self._clock.wall_ms(), sequence, replica.state.digest, tick, move)
        try:
            await replica.propose(beat)
            self._last_heartbeat = self._clock.monotonic()
        except NoRoom:
            return  # StoreRoom has logged it
        except (Fenced, Retry, Unknown) as error:
            log.warning("a heartbeat did not get through: %s", error)

    async def _raise_level(self) -> None:
        """The live broker with the lowest id proposes the newest level that all live members know (L3)."""
        state = self._replica.state
        live, brokers = state.members.live(), state.members.brokers()
        if not brokers or brokers[0].id != self._replica.member_id:
            return
        fresh = not state.topics.by_id and state.members.next_epoch == 2
        known = min(member.level for member in live)
        if known <= state.level:
            return
        try:
            outcome = await self._replica.propose(RaiseLevel(known))
        except (Fenced, Retry, Unknown) as error:
            log.warning("the feature level could not be raised yet: %s", error)
            return
        if isinstance(outcome, No):
            log.info("the feature level stays at %d: %s", state.level, outcome.message)
        elif not fresh:
            log.info("the cluster is at feature level %d now: older versions cannot join any more", outcome)

    async def _watch(self) -> None:
        """Expire members that were not heard for a session, by our own clock."""
        if not self.current:
            self._heard.clear()
            return
        now = self._clock.monotonic()
        for member in self._replica.state.members.live():
            epoch, heard, since = self._heard.get(member.id, (0, 0, 0.0))
            if (epoch, heard) != (member.epoch, member.heard):
                self._heard[member.id] = (member.epoch, member.heard, now)
            elif member.id != self._replica.member_id and now - since > self._timing.session_s:
                log.warning("member %d was not heard since command %d: expiring it", member.id, member.heard)
                try:
                    await self._replica.propose(Expire(member.id, member.epoch, member.heard))
                except (Fenced, Retry, Unknown) as error:
                    log.warning("the expiry did not get through: %s", error)
                    return

    def _compare_digests(self) -> None:
        """Halt if half of the live brokers, or more, fold to other outcomes than this one (L10)."""
        if not digests_agree(self._replica):
            text = "most live brokers have other outcomes for the same commands"
            self._replica.halt(Halted(text, restart_helps=True))

    async def checkpoint_if_due(self, command_log: CommandLog, wal: Wal, dump: Dump = dump_in_process) -> bool:
        """Take a checkpoint if this is the live broker with the lowest id, and most brokers agree with its state (L10).

        Returns whether a checkpoint was noted. Raises Retry or Unknown.
        """
        if not digests_agree(self._replica):
            return False
        return await self._checkpoints.step(command_log, wal, dump)


def digests_agree(replica: Replica) -> bool:
    """Whether more than half of the live brokers have our outcomes. A pipeline has no vote, and gives way (L10)."""
    voters = replica.state.members.brokers()
    against = 0
    for member in voters:
        own = replica.digest_at(member.digest_sequence)
        against += own is not None and own != member.digest and member.id != replica.member_id
    return against * 2 < len(voters) or not against


def replace_register(about: Register, incarnation: bytes, cluster: str) -> Register:
    return Register(
        incarnation, cluster, about.role, about.host, about.port, about.http, about.pid, about.level, about.rack
    )



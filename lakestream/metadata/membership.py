"""Being a member: register, heartbeat, watch the others, notice one's own end, and take checkpoints.

    joining  --registered-->  serving  --epoch ended by others-->  joining (with a new incarnation)
    serving  --nothing folded for a session-->  blind: clients are let go until something is folded again (L8)
    serving  --leave-->  gone

Others are expired only while our own heartbeats fold, so that an outage of the store expires nobody (L13).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lakestream.errors import Fenced, Halted, Retry, Unknown
from lakestream.interfaces import Clock, CommandLog, Wal
from lakestream.metadata.checkpoint import Dump, dump_here, save
from lakestream.metadata.replica import Replica
from lakestream.model.commands import LEVEL, Expire, Heartbeat, Leave, Register
from lakestream.model.reasons import No, Reason

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often and how long."""

    heartbeat_s: float = 2.0
    session_s: float = 9.0
    checkpoint_commands: int = 20_000
    """A checkpoint is due after so many commands."""


class Membership:
    """Keeps one member alive in the state."""

    def __init__(self, replica: Replica, clock: Clock, random: Random, about: Register, timing: Timing) -> None:
        self._replica = replica
        self._clock = clock
        self._random = random
        self._about = about
        self._timing = timing
        self.settled: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """The last tick and the last move that are committed or given up; whoever numbers them sets this (L22)."""
        self.on_join: list[Callable[[], None]] = []
        self._heard: dict[int, tuple[int, int, float]] = {}
        self._last_heartbeat = clock.monotonic()
        self._checkpointed = 0
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
                for listener in self.on_join:
                    listener()
                return
            if outcome.reason in (Reason.LEVEL_UNSUPPORTED, Reason.MALFORMED):
                raise Halted(outcome.message)
            log.warning("registration was refused, trying again: %s", outcome.message)
            await asyncio.sleep(self._timing.heartbeat_s / 4)

    @property
    def current(self) -> bool:
        """Whether our own heartbeats fold, so that our timers may judge others (L13)."""
        return bool(self._replica.epoch) and self._age() < self._timing.session_s / 2

    @property
    def blind(self) -> bool:
        """Nothing was folded for a session's length, or we have no epoch: others may have gone on without us (L8)."""
        if self._replica.halted is not None or not self._replica.epoch:
            return True
        return self._clock.monotonic() - self._replica.last_fold > self._timing.session_s

    def _age(self) -> float:
        return self._clock.monotonic() - self._last_heartbeat

    async def run(self) -> None:
        """Heartbeat and watch until cancelled."""
        while self._replica.halted is None and not self._leaving:
            await asyncio.sleep(self._timing.heartbeat_s)
            await self._beat()
            if not self._replica.epoch:
                await self.join()
            self._compare_digests()
            await self._watch()

    async def leave(self) -> None:
        """End our own epoch, so that nobody waits for a session to pass."""
        self._leaving = self._replica.leaving = True
        try:
            await asyncio.wait_for(self._replica.propose(Leave()), self._timing.heartbeat_s)
        except (Fenced, Retry, Unknown, TimeoutError) as error:
            log.info("left without saying so: %s", error)

    async def _beat(self) -> None:
        replica = self._replica
        sequence = replica.state.sequence
        tick, move = self.settled()
        beat = Heartbeat(self._clock.wall_ms(), sequence, replica.state.digest, tick, move)
        try:
            await replica.propose(beat)
            self._last_heartbeat = self._clock.monotonic()
        except (Fenced, Retry, Unknown) as error:
            log.warning("a heartbeat did not get through: %s", error)

    async def _watch(self) -> None:
        """Propose the end of members that were not heard for a session, by our own clock."""
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
        """Halt if half of the live members, or more, fold to other outcomes than we do (L10)."""
        if not digests_agree(self._replica):
            text = "most live members have other outcomes for the same commands"
            self._replica.halt(Halted(text, restart_helps=True))

    async def checkpoint_if_due(self, command_log: CommandLog, wal: Wal, dump: Dump = dump_here) -> bool:
        """The live broker with the lowest id checkpoints for all; only a state that the others agree with (L10)."""
        state = self._replica.state
        live = state.members.brokers()
        due = state.sequence - self._checkpointed >= self._timing.checkpoint_commands
        if not due or not live or live[0].id != self._replica.member_id or not digests_agree(self._replica):
            return False
        identity = self._replica.identity
        self._checkpointed = state.sequence
        note = await save(state, identity, self._replica.member_id, self._replica.epoch, command_log, wal, dump)
        return note is not None


def digests_agree(replica: Replica) -> bool:
    live = replica.state.members.live()
    against = 0
    for member in live:
        own = replica.digest_at(member.digest_sequence)
        against += own is not None and own != member.digest and member.id != replica.member_id
    return against * 2 < len(live) or not against


def replace_register(about: Register, incarnation: bytes, cluster: str) -> Register:
    return Register(
        incarnation, cluster, about.role, about.host, about.port, about.http, about.pid, LEVEL, about.rack
    )



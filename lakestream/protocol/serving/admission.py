"""Which connections may go on reading while memory is short.

Frames that have not arrived completely may hold half of the memory. Over that, only the connection whose frame misses
the fewest bytes reads on and the others wait, so that every frame gets through and announcing a large frame costs
nothing. Small frames never wait. Frames in flight may hold the other half. Over that, the connections that
produce pause once their current frame is complete, and TCP holds their clients back.
"""

from dataclasses import dataclass
from typing import Protocol

from lakestream.protocol.serving.slabs import SlabPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one server; clients above them are closed or paused."""

    max_frame_bytes: int = 100 << 20
    max_other_frame_bytes: int = 16 << 20
    """Of requests that append no records: reading one makes objects of several times its size."""
    memory_bytes: int = 256 << 20
    slab_bytes: int = 4 << 20
    receive_bytes: int = 1 << 20
    small_bytes: int = 16 << 10
    """Rests of this size are copied, and never wait for memory."""
    max_in_flight: int = 4096
    """Unanswered appending requests of one connection."""
    max_connections: int = 20_000
    idle_timeout_s: float = 600.0
    stall_timeout_s: float = 30.0
    unsent_bytes: int = 256 << 20
    """Answers that clients do not take; over it, those that take nothing for the stall timeout are closed."""


class ReceivingConnection(Protocol):
    """A connection that may hold bytes of an incomplete frame."""

    held: int
    missing: int
    """Bytes that its frame lacks; 0 if the frame is complete and waits for requests before it."""
    active_at: float
    """When bytes last came."""
    waits_for_memory: bool

    def update_reading(self) -> None: ...

    def pending_bytes(self) -> int: ...


class Admission:
    """Counts the held bytes, chooses the connection that reads on, pauses and resumes producers."""

    __slots__ = ("_chosen", "_full", "_halted", "_held", "_holders", "_limits", "_pool", "_producers", "short")

    def __init__(self, limits: Limits, pool: SlabPool) -> None:
        self._limits = limits
        self._pool = pool
        self._held = 0
        # Dictionaries, because unlike sets they keep the order in which connections came.
        self._holders: dict[ReceivingConnection, None] = {}
        self._producers: dict[ReceivingConnection, None] = {}
        self._chosen: ReceivingConnection | None = None
        self._halted = False
        self._full = False
        self.short = False
        """Incomplete frames hold more than their half."""

    @property
    def held_bytes(self) -> int:
        return self._held

    @property
    def producers_paused(self) -> bool:
        return self._halted or self._full

    def holders(self) -> list[ReceivingConnection]:
        return list(self._holders)

    # Incomplete frames

    def hold(self, reader: ReceivingConnection, size: int) -> None:
        """From now on the reader holds `size` bytes; 0 for none."""
        self._held += size - reader.held
        reader.held = size
        if size:
            self._holders[reader] = None
        else:
            self._holders.pop(reader, None)
        if self.short:
            self._while_short(reader)
        elif self._held > self._limits.memory_bytes // 2:
            self.short = True
            for each in self._holders:
                each.waits_for_memory = each.missing > 0
                each.update_reading()
            self._choose()

    def choose_again(self, now: float, silent_s: float) -> list[ReceivingConnection]:
        """While memory is short: choose another reader if the chosen one is silent; returns the stalled connections."""
        if not self.short:
            return []
        stalled = [
            reader
            for reader in self._holders
            if reader.missing and now - reader.active_at >= self._limits.stall_timeout_s and not reader.pending_bytes()
        ]
        chosen = self._chosen
        if chosen is None or (now - chosen.active_at >= silent_s and not chosen.pending_bytes()):
            self._choose(only_pending=True)
        return stalled

    def _while_short(self, reader: ReceivingConnection) -> None:
        if self._held <= self._limits.memory_bytes // 8 * 3:
            self.short = False
            self._chosen = None
            for each in [*self._holders, reader]:
                each.waits_for_memory = False
                each.update_reading()
            return
        chosen = self._chosen
        if reader is chosen:
            if not reader.missing or not reader.held:
                self._choose()
        elif reader.held and reader.missing:
            if chosen is None or reader.missing < chosen.missing:
                self._choose()
            elif not reader.waits_for_memory:
                reader.waits_for_memory = True
                reader.update_reading()
        elif reader.waits_for_memory:
            reader.waits_for_memory = False
            reader.update_reading()

    def _choose(self, only_pending: bool = False) -> None:
        waiting = sorted((each for each in self._holders if each.missing), key=lambda each: each.missing)
        best = waiting[0] if waiting else None
        if only_pending:
            best = next((each for each in waiting if each.pending_bytes()), self._chosen or best)
        before, self._chosen = self._chosen, best
        if before is self._chosen:
            return
        if before is not None:
            before.waits_for_memory = before.held > 0 and before.missing > 0
            before.update_reading()
        if self._chosen is not None:
            self._chosen.waits_for_memory = False
            self._chosen.update_reading()

    # Producers

    def add_producer(self, reader: ReceivingConnection) -> None:
        self._producers[reader] = None

    def forget(self, reader: ReceivingConnection) -> None:
        self._producers.pop(reader, None)
        self.hold(reader, 0)

    def halt_producers(self, halted: bool) -> None:
        """The appender has no room for records, or has room again."""
        self._set(halted, self._full)

    def check_memory(self) -> None:
        """Pause producers if the memory in use is above its limit, or let them go on."""
        used, limit = self._pool.used_bytes, self._limits.memory_bytes // 2
        if self._full:
            self._set(self._halted, used > limit // 4 * 3)
        elif used > limit:
            self._set(self._halted, True)

    def _set(self, halted: bool, full: bool) -> None:
        before = self.producers_paused
        self._halted, self._full = halted, full
        if before != self.producers_paused:
            for each in list(self._producers):
                each.update_reading()

"""When the state is stored as a checkpoint, and when the stored one is noted (L10).

    due       so many commands, or so many bytes of them, were folded since the last one
    stored    by the live broker with the lowest id
    noted     once most live brokers, this one included, reported the same outcomes at or above its sequence

No broker starts from a checkpoint before it is noted: a replica that went wrong just before it stored the checkpoint
would pass its mistake to all others. A checkpoint that is never noted is collected once two newer ones are noted.
"""

from dataclasses import dataclass, field

from lakestream.interfaces import CheckpointNote, Clock, CommandLog, Wal
from lakestream.metadata.checkpoint import Dump, note_stored, store_state
from lakestream.metadata.replica import Replica
from lakestream.model.state import State

RETRY_S = 30.0
"""After a checkpoint that could not be stored."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A checkpoint that waits for agreement."""

    note: CheckpointNote
    state: State
    """The state that was stored. After a reload the replica has another one, whose digests say nothing of this one."""
    agreed: set[tuple[int, int]] = field(default_factory=set)
    """Brokers that agree, as (id, epoch)."""


class Checkpointer:
    """Stores and notes checkpoints for all members."""

    def __init__(self, replica: Replica, clock: Clock, commands: int, size_bytes: int) -> None:
        self._replica = replica
        self._clock = clock
        self._commands = commands
        self._size_bytes = size_bytes
        self._sequence = 0
        self._folded_bytes = 0
        self._last_bytes = 0
        self._not_before = 0.0
        self._stored: _Stored | None = None
        replica.on_fold.append(self._hear)

    @property
    def due(self) -> bool:
        """Whether enough commands were folded since the last one, or enough bytes for the size of the state."""
        replica = self._replica
        many = replica.state.sequence - self._sequence >= self._commands
        large = replica.folded_bytes - self._folded_bytes >= max(self._size_bytes, self._last_bytes)
        return many or large

    async def step(self, command_log: CommandLog, wal: Wal, dump: Dump) -> bool:
        """Store a checkpoint that is due, note one that is agreed on; True if one was noted. Raises Retry, Unknown."""
        live = self._replica.state.members.brokers()
        if not live or live[0].id != self._replica.member_id:
            self._stored = None
            return False
        if self._stored is None and self.due and self._clock.monotonic() >= self._not_before:
            await self._store(wal, dump)
        if self._stored is None or not self._is_agreed():
            return False
        await note_stored(self._stored.note, command_log)
        self._stored = None
        return True

    async def _store(self, wal: Wal, dump: Dump) -> None:
        replica, state = self._replica, self._replica.state
        self._not_before = self._clock.monotonic() + RETRY_S
        folded = replica.folded_bytes
        note, size = await store_state(state, replica.identity, replica.member_id, replica.epoch, wal, dump)
        self._not_before = 0.0
        self._sequence, self._folded_bytes, self._last_bytes = note.sequence, folded, size
        self._stored = _Stored(note, state)
        self._hear()

    def _hear(self) -> None:
        """Compare heartbeats as they are folded: old digests are forgotten."""
        stored, replica = self._stored, self._replica
        if stored is None:
            return
        if replica.state is not stored.state:
            self._stored = None
            return
        for member in stored.state.members.brokers():
            if member.digest_sequence >= stored.note.sequence and (member.id, member.epoch) not in stored.agreed:
                own = replica.digest_at(member.digest_sequence)
                if own is not None and own == member.digest:
                    stored.agreed.add((member.id, member.epoch))

    def _is_agreed(self) -> bool:
        """Whether most live brokers agree, this broker included."""
        assert self._stored is not None
        live = self._replica.state.members.brokers()
        for_it = sum(
            member.id == self._replica.member_id or (member.id, member.epoch) in self._stored.agreed for member in live
        )
        return for_it * 2 > len(live)

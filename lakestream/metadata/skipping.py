"""How an operator skips a command that no member can fold (L3).

A replica never skips a command by itself: it cannot know whether the other replicas do. With all members stopped, an
operator replaces the command by an empty one, which every version folds to nothing. No command behind it was ever
acknowledged: a member folds before it acknowledges. A member of a newer version that could fold the command would
disagree with all others; so the tool refuses to skip a command that its own version can fold.
"""

from dataclasses import dataclass

from lakestream.errors import Halted, Rejected
from lakestream.interfaces import CommandLog, RepairableLog, Wal
from lakestream.metadata.checkpoint import load_newest
from lakestream.metadata.replica import READ_LIMIT
from lakestream.model.levels import NEWEST
from lakestream.model.reasons import Reason
from lakestream.model.state import State, apply, check_level


@dataclass(frozen=True, slots=True)
class Stuck:
    """The first command that this version cannot fold."""

    sequence: int
    command: bytes
    reason: str


async def find_stuck(command_log: CommandLog, wal: Wal) -> Stuck | None:
    """Fold from the newest checkpoint to the end of the log, or to the command that stops every replica.

    Raises Halted if a newer version has raised the cluster's level: then upgrading helps, and skipping would harm.
    """
    found = await load_newest(command_log, wal)
    state = found[0] if found is not None else State()
    while True:
        page = await command_log.read(state.sequence, READ_LIMIT)
        for sequence, command in page:
            if sequence <= state.sequence:
                continue
            try:
                apply(state, sequence, command)
            except Halted as error:
                return Stuck(sequence, command, str(error))
            except Exception as error:  # any error in a rule stops the replicas
                return Stuck(sequence, command, repr(error))
            check_level(state, NEWEST)  # a newer version has gone on: this version cannot judge its commands
        if len(page) <= 1:
            return None


def wanted(stuck: Stuck | None, sequence: int) -> Stuck:
    """The command at `sequence`. Raises Rejected if another command, or none, stops the replicas."""
    if stuck is None:
        raise Rejected(Reason.INVALID_REQUEST, "every command of the log can be folded: there is nothing to skip")
    if stuck.sequence != sequence:
        text = f"command {sequence} is not what stops the replicas: that is command {stuck.sequence} ({stuck.reason})"
        raise Rejected(Reason.INVALID_REQUEST, text)
    return stuck


async def skip(command_log: RepairableLog, stuck: Stuck) -> None:
    """Blank the command. Raises Rejected if the log has another command in its place by now."""
    if not await command_log.blank(stuck.sequence, stuck.command):
        text = f"command {stuck.sequence} changed meanwhile: stop all brokers and try again"
        raise Rejected(Reason.INVALID_REQUEST, text)

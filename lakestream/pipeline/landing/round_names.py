"""The names of rounds, and whether one is over: then its data files are in the table, or never will be (T12).

The folder of a data file names the member, the epoch and the round that wrote it. Once the epoch has ended, or the
round is settled, no command can refer to the file any more, so it is an orphan if the table does not refer to it.
Callers list files first, then fold the log to its end, and judge last. Files of other engines are never candidates.
"""

from collections.abc import Iterable
from typing import NamedTuple

from lakestream.model.state import State


class RoundName(NamedTuple):
    """The member, the epoch and the round that wrote a file."""

    member: int
    epoch: int
    round: int


def round_of(uri: str) -> RoundName | None:
    """From `.../data/<member>-<epoch>-<round>/<file>`; None for a file that is not ours."""
    match uri.split("/")[-3:]:
        case ["data", folder, _]:
            numbers = folder.split("-")
            if len(numbers) == 3 and all(number.isdecimal() for number in numbers):
                return RoundName(*map(int, numbers))
    return None


def epoch_is_over(state: State, member_id: int, epoch: int) -> bool:
    """Whether no command of this epoch can come any more."""
    member = state.members.by_id.get(member_id)
    ended = member is None or not member.alive or member.epoch != epoch
    return ended and epoch < state.members.next_epoch


def is_over(state: State, name: RoundName) -> bool:
    """Whether no command of this round can come any more."""
    if epoch_is_over(state, name.member, name.epoch):
        return True
    member = state.members.by_id.get(name.member)
    return member is not None and member.epoch == name.epoch and name.round <= member.tick


def candidates(uris: Iterable[str], state: State) -> list[str]:
    """The files of ours whose round is over: they are in the table by now, or never will be."""
    named = ((uri, round_of(uri)) for uri in uris)
    return [uri for uri, name in named if name is not None and is_over(state, name)]

"""Sweeping: data files of ours that no table refers to, and never will (T12).

A file's folder names who wrote it: member, epoch and round. Once the epoch has ended, or the round is settled, no
command can refer to it any more, so a file that the table does not know then is an orphan. The files are listed first,
then the log is folded to its end, and only then is judged; others' files are never touched here.
"""

from collections.abc import Iterable
from typing import NamedTuple

from lakestream.model.state import State


class RoundName(NamedTuple):
    """Who wrote a file, and in which round."""

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
    """Files of ours that are either in the table by now or never will be."""
    named = ((uri, round_of(uri)) for uri in uris)
    return [uri for uri, name in named if name is not None and is_over(state, name)]

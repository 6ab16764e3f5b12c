"""Logs of commands and checkpoints of earlier versions still mean what they meant.

`python -m tests.property.test_state_golden NAME` writes such files for a new version, beside the old ones.
"""

import struct
import sys
from typing import NamedTuple

import pytest

from lakestream.model.reasons import No, NotInTurn
from lakestream.model.state import dump, load
from tests.support.places import GOLDEN
from tests.support.random_commands import commands, fold, normal_kind

KINDS = {*range(1, 7), *range(10, 28)}
"""The commands of the first version."""
LENGTH = struct.Struct("<I")


class Golden(NamedTuple):
    """A log and the checkpoint at its half."""

    name: str
    digest: int
    kinds: set[int]

    def commands(self) -> list[bytes]:
        data, made, at = (GOLDEN / f"commands-{self.name}.bin").read_bytes(), [], 0
        while at < len(data):
            (length,) = LENGTH.unpack_from(data, at)
            made.append(data[at + LENGTH.size : at + LENGTH.size + length])
            at += LENGTH.size + length
        return made

    def checkpoint(self) -> bytes:
        return (GOLDEN / f"checkpoint-{self.name}.bin").read_bytes()


VERSIONS = [
    Golden("v1", 4294300724, KINDS),
    Golden("level-1", 2314605045, KINDS - {25, 26} | {44, 45, 47, 49, 50, 51, 52, 53}),
    Golden("level-2", 3195149661, KINDS | {*range(40, 43), 44, 45, 47, *range(49, 58), 65, 75}),
]
"""The first version, the last one of the first feature level, and the first one of the second."""
golden = pytest.mark.parametrize("old", VERSIONS, ids=lambda old: old.name)


@golden
def test_an_old_log_folds_to_the_outcomes_it_had(old: Golden) -> None:
    made = old.commands()
    state, outcomes = fold(made)
    assert len(made) == state.sequence
    assert state.digest == old.digest
    accepted = {
        normal_kind(command)
        for command, outcome in zip(made, outcomes, strict=True)
        if not isinstance(outcome, No | NotInTurn | Exception)
    }
    assert accepted == old.kinds


@golden
def test_an_old_checkpoint_loads_and_the_commands_after_it_go_on_from_there(old: Golden) -> None:
    made = old.commands()
    half = len(made) // 2
    state = load(old.checkpoint())
    assert state.sequence == half
    assert dump(state) == dump(fold(made[:half])[0])
    resumed, _ = fold(made[half:], state)
    assert dump(resumed) == dump(fold(made)[0])


if __name__ == "__main__":
    name, count = sys.argv[1], 1500
    drawn = commands(name, count)
    (GOLDEN / f"commands-{name}.bin").write_bytes(b"".join(LENGTH.pack(len(one)) + one for one in drawn))
    (GOLDEN / f"checkpoint-{name}.bin").write_bytes(dump(fold(drawn[: count // 2])[0]))
    print("digest", fold(drawn)[0].digest)

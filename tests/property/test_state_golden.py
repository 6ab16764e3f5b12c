"""A log of commands and a checkpoint of the first version still mean what they meant.

`python -m tests.property.test_state_golden` writes such files: for a new version, under new names beside the old ones.
"""

import struct
from pathlib import Path

from lakestream.model.reasons import No, Stranger
from lakestream.model.state import dump, load
from tests.command_source import commands, fold, normal_kind

GOLDEN = Path(__file__).parents[1] / "golden"
COMMANDS, CHECKPOINT = GOLDEN / "commands-v1.bin", GOLDEN / "checkpoint-v1.bin"
KINDS = {*range(1, 7), *range(10, 28)}
"""The commands of the first version."""
LENGTH = struct.Struct("<I")
COUNT, HALF = 1000, 500
DIGEST = 4294300724


def read_commands() -> list[bytes]:
    data, made, at = COMMANDS.read_bytes(), [], 0
    while at < len(data):
        (length,) = LENGTH.unpack_from(data, at)
        made.append(data[at + LENGTH.size : at + LENGTH.size + length])
        at += LENGTH.size + length
    return made


def test_an_old_log_folds_to_the_outcomes_it_had() -> None:
    made = read_commands()
    state, outcomes = fold(made)
    assert len(made) == state.sequence == COUNT
    assert state.digest == DIGEST
    accepted = {
        normal_kind(command)
        for command, outcome in zip(made, outcomes, strict=True)
        if not isinstance(outcome, No | Stranger | Exception)
    }
    assert accepted == KINDS


def test_an_old_checkpoint_loads_and_the_commands_after_it_go_on_from_there() -> None:
    made = read_commands()
    state = load(CHECKPOINT.read_bytes())
    assert state.sequence == HALF
    assert dump(state) == dump(fold(made[:HALF])[0])
    resumed, _ = fold(made[HALF:], state)
    assert dump(resumed) == dump(fold(made)[0])


if __name__ == "__main__":
    drawn = commands("golden2", COUNT)
    COMMANDS.write_bytes(b"".join(LENGTH.pack(len(one)) + one for one in drawn))
    CHECKPOINT.write_bytes(dump(fold(drawn[:HALF])[0]))
    print("digest", fold(drawn)[0].digest)

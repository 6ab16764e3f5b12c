"""Properties of the state machine: determinism, refusals that change nothing, garbage refused alike, checkpoints."""

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.errors import Corrupt, Halted
from lakestream.model.commands import APPEND, ENVELOPE, Noop, RaiseLevel, Register, encode, pack
from lakestream.model.levels import FIRST, NEWEST
from lakestream.model.members import STORED
from lakestream.model.reasons import No, NotInTurn, Reason
from lakestream.model.stamped_append import STAMPED_APPEND
from lakestream.model.state import CHECKPOINT, State, apply, dump, load
from tests.support.places import ROOT
from tests.support.random_commands import KINDS, CommandSource, commands, fold, level_of, normal_kind

seeds = st.integers(0, 1_000_000)
SEQUENCE, DIGEST, MEMBERS = 0, 1, 4
DRAWN = {*range(1, 7), *range(10, 28), *range(40, 43), *range(50, 53), *range(54, 58), 65, STAMPED_APPEND}
"""What the source makes: members, topics, streams, producers, groups, namespaces, care, views."""


def parts(state: State) -> list[Any]:
    """The dump, field by field."""
    fields: list[Any] = msgspec.msgpack.decode(memoryview(dump(state))[CHECKPOINT.size :])
    return fields


def without_proposer(fields: list[Any], member: int, *, sequence_only: bool) -> list[Any]:
    """What a refusal must leave alone: all but the sequence, the digest, and the proposer's number and `heard`."""
    kept = list(fields)
    kept[SEQUENCE] = 0
    if not sequence_only:
        kept[DIGEST] = 0
        kept[MEMBERS] = [*fields[MEMBERS][:2], [_bare(one, member) for one in fields[MEMBERS][2]]]
    return kept


def _bare(fields: list[Any], member: int) -> dict[str, Any]:
    named = dict(zip(STORED, fields, strict=False))
    return named if named["id"] != member else {k: v for k, v in named.items() if k not in ("last_n", "heard")}


@given(seeds)
@settings(max_examples=40)
def test_the_same_commands_give_the_same_state_byte_for_byte(seed: int) -> None:
    made = commands(seed, 150)
    first, outcomes = fold(made)
    second, again = fold(made)
    assert dump(first) == dump(second)
    assert [repr(one) for one in outcomes] == [repr(one) for one in again]


def test_the_hash_seed_does_not_matter() -> None:
    def digest(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "tests.support.random_commands", "7", "2000"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert digest("1") == digest("2") != ""


@given(seeds, st.integers(0, 150))
@settings(max_examples=40)
def test_a_checkpoint_in_between_changes_nothing(seed: int, cut: int) -> None:
    made = commands(seed, 150)
    whole, outcomes = fold(made)
    half, before = fold(made[:cut])
    rest, after = fold(made[cut:], load(dump(half)))
    assert dump(rest) == dump(whole)
    assert [repr(one) for one in before + after] == [repr(one) for one in outcomes]


@given(seeds)
@settings(max_examples=25)
def test_a_checkpoint_survives_the_round_trip_at_every_step(seed: int) -> None:
    source, state = CommandSource(seed), State()
    for sequence in range(1, 80):
        apply(state, sequence, source.next(state))
        stored = dump(state)
        assert dump(load(stored)) == stored


@given(seeds)
@settings(max_examples=40)
def test_a_refusal_moves_only_the_proposers_number_L2(seed: int) -> None:
    source, state = CommandSource(seed), State()
    refused = 0
    for sequence in range(1, 120):
        command = source.next(state)
        before = parts(state)
        outcome = apply(state, sequence, command)
        if isinstance(outcome, No | NotInTurn):
            refused += 1
            member = ENVELOPE.unpack_from(command)[2]
            stranger = isinstance(outcome, NotInTurn)
            left = without_proposer(before, member, sequence_only=stranger)
            assert without_proposer(parts(state), member, sequence_only=stranger) == left, outcome
    assert refused


@given(seeds, st.data())
@settings(max_examples=150)
def test_garbage_never_raises_and_is_refused_alike_L2(seed: int, data: st.DataObject) -> None:
    source, state = CommandSource(seed), State()
    for sequence in range(1, 60):
        apply(state, sequence, source.next(state))
    twin = load(dump(state))
    for _ in range(30):
        live = state.members.live()
        if not live:
            return
        member, kind = live[0], data.draw(st.sampled_from(sorted(KINDS)))
        if kind == APPEND or data.draw(st.booleans()):
            payload = data.draw(st.binary(max_size=120))
        else:
            payload = source.twist(state, member.id, kind)
        command = encode(level_of(kind), kind, member.id, member.epoch, member.last_n + 1, payload)
        outcome, other = (apply(one, one.sequence + 1, command) for one in (state, twin))
        assert repr(outcome) == repr(other)
        assert dump(load(dump(state))) == dump(state) == dump(twin)


@given(seeds, st.binary(max_size=40))
@settings(max_examples=100)
def test_any_bytes_are_a_command_of_a_stranger_or_refused_or_unknown(seed: int, command: bytes) -> None:
    state, _ = fold(commands(seed, 20))
    before = parts(state)
    try:
        outcome = apply(state, state.sequence + 1, command)
    except Halted:
        level, kind = command[:2]
        assert level <= state.level and kind not in KINDS
        assert parts(state) == before
        return
    if isinstance(outcome, NotInTurn):
        after = parts(state)
        assert after[SEQUENCE] == before[SEQUENCE] + 1 and after[1:] == before[1:]
    else:
        assert normal_kind(command) == Register.KIND


def test_an_unknown_kind_stops_everybody_only_at_or_below_the_level_L3() -> None:
    state, _ = fold(commands(1, 40))
    member = state.members.live()[0]
    unknown = encode(state.level, 250, member.id, member.epoch, member.last_n + 1, b"")
    with pytest.raises(Halted, match="kind 250"):
        apply(state, state.sequence + 1, unknown)
    newer = encode(state.level + 1, 250, member.id, member.epoch, member.last_n + 1, b"")
    outcome = apply(state, state.sequence + 1, newer)
    assert isinstance(outcome, No) and outcome.reason == Reason.NEWER_LEVEL


def test_a_level_is_raised_only_when_all_live_members_know_it_L3() -> None:
    state = State()
    for member, level in ((1, NEWEST + 1), (2, NEWEST)):
        body = Register(bytes([member] * 16), "c", "broker", "h", 1, "", 1, level)
        apply(state, state.sequence + 1, encode(1, Register.KIND, member, 0, 0, pack(body)))
    raised = pack(RaiseLevel(NEWEST + 1))
    refused = apply(state, 3, encode(1, RaiseLevel.KIND, 1, 1, 1, raised))
    assert isinstance(refused, No) and refused.reason == Reason.LEVEL_UNSUPPORTED
    apply(state, 4, encode(1, 5, 2, 2, 1, b"\x90"))
    assert apply(state, 5, encode(1, RaiseLevel.KIND, 1, 1, 2, raised)) == NEWEST + 1
    body = Register(bytes([9] * 16), "c", "broker", "h", 1, "", 1, NEWEST)
    late = apply(state, 6, encode(1, Register.KIND, 2, 0, 0, pack(body)))
    assert isinstance(late, No) and late.reason == Reason.LEVEL_UNSUPPORTED


@given(seeds, st.data())
@settings(max_examples=60)
def test_a_damaged_checkpoint_is_never_loaded(seed: int, data: st.DataObject) -> None:
    stored = bytearray(dump(fold(commands(seed, 30))[0]))
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] ^= data.draw(st.integers(1, 255))
    # The three bytes after the version are padding.
    if 5 <= at < 8:
        return
    with pytest.raises((Corrupt, Halted)):
        load(stored)
    with pytest.raises(Corrupt):
        load(stored[: data.draw(st.integers(0, len(stored) - 1))])


def test_every_kind_is_drawn_and_applied() -> None:
    """The properties above say something about every command."""
    accepted: set[int] = set()
    for seed in range(30):
        made = commands(seed, 600)
        for command, outcome in zip(made, fold(made)[1], strict=True):
            if not isinstance(outcome, No | NotInTurn | Halted):
                accepted.add(normal_kind(command))
    assert accepted >= DRAWN


def test_a_member_of_another_cluster_is_refused_and_the_first_one_names_the_cluster_L4() -> None:
    state = State()
    for member, cluster in ((1, "ours"), (2, ""), (3, "ours")):
        body = Register(bytes([member] * 16), cluster, "broker", "h", 1, "", 1, NEWEST)
        assert apply(state, state.sequence + 1, encode(FIRST, Register.KIND, member, 0, 0, pack(body))) == member
    assert state.cluster == "ours"
    other = Register(b"x", "theirs", "broker", "h", 1, "", 1, NEWEST)
    refused = apply(state, state.sequence + 1, encode(FIRST, Register.KIND, 4, 0, 0, pack(other)))
    assert isinstance(refused, No) and refused.reason == Reason.OTHER_CLUSTER


def test_a_noop_fills_its_number_once_L1() -> None:
    state, _ = fold(commands(3, 30))
    member = state.members.live()[0]
    command = encode(FIRST, Noop.KIND, member.id, member.epoch, member.last_n + 1, pack(Noop()))
    assert apply(state, state.sequence + 1, command) is None
    assert isinstance(apply(state, state.sequence + 1, command), NotInTurn)

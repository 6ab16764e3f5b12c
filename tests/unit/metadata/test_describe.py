"""The state in words: one JSON document, in pieces that hold up nobody."""

import json

from lakestream.metadata.describe import PARTITIONS_A_PIECE, describe_state
from lakestream.model.commands import CreateTopic, DeleteTopic, Register, encode, pack
from lakestream.model.levels import FIRST
from lakestream.model.state import State, apply

LONG = 3 * PARTITIONS_A_PIECE + 1


def folded() -> State:
    state = State()
    register = Register(b"i", "c", "broker", "h", 1, "", 1, FIRST)
    apply(state, 1, encode(FIRST, Register.KIND, 0, 0, 0, pack(register)))
    for number, (name, partitions) in enumerate((("long", LONG), ("short", 1)), 1):
        body = CreateTopic(name, bytes([number]) * 16, partitions, 1, {})
        apply(state, number + 1, encode(FIRST, CreateTopic.KIND, 0, 1, number, pack(body)))
    return state


def test_the_pieces_are_one_document_and_none_has_many_partitions() -> None:
    pieces = list(describe_state(folded()))
    told = json.loads(b"".join(pieces))
    assert [(topic["name"], len(topic["partitions"]), topic["bytes"]) for topic in told["topics"]] == [
        ("long", LONG, 0), ("short", 1, 0),
    ]  # fmt: skip
    assert told["sequence"] == 3 and told["members"][0]["id"] == 0
    assert max(piece.count(b'"stream"') for piece in pieces) == PARTITIONS_A_PIECE


def test_a_topic_that_is_deleted_between_two_pieces_is_shown_by_its_ids() -> None:
    state = folded()
    pieces = describe_state(state)
    first = [next(pieces) for _ in range(3)]
    apply(state, 4, encode(FIRST, DeleteTopic.KIND, 0, 1, 3, pack(DeleteTopic(b"\x01" * 16))))
    told = json.loads(b"".join([*first, *pieces]))
    assert told["topics"][0]["partitions"][0]["end"] == 0
    assert told["topics"][0]["partitions"][-1] == {"stream": LONG}

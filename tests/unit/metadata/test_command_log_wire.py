"""The owner's protocol: every message comes back as it went in, and bad bytes are refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.errors import Corrupt, Halted, LakestreamError, Missing, Retry, Unknown
from lakestream.interfaces import CheckpointNote
from lakestream.metadata.stores import wire
from lakestream.metadata.stores.wire import FrameKind, Frames

SEQUENCES = st.integers(0, 2**64 - 1)


@given(st.lists(st.binary(max_size=50), max_size=20), SEQUENCES)
def test_appends_round_trip(commands: list[bytes], after: int) -> None:
    assert wire.decode_append(wire.encode_append(commands, after)) == (commands, after)


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(1, 2**63))
def test_pages_round_trip(commands: list[bytes], first: int) -> None:
    page = list(enumerate(commands, first))
    assert wire.decode_page(wire.encode_page(page)) == page


@given(st.lists(st.tuples(SEQUENCES, st.text(max_size=30)), max_size=3))
def test_notes_round_trip(notes: list[tuple[int, str]]) -> None:
    expected = [CheckpointNote(sequence, key) for sequence, key in notes]
    assert wire.decode_notes(wire.encode_notes(expected)) == expected


@pytest.mark.parametrize("kind", [Retry, Unknown, Missing, Corrupt, Halted])
def test_errors_keep_their_kind_and_message(kind: type[LakestreamError]) -> None:
    error = wire.decode_error(wire.encode_error(kind("why")))
    assert (type(error), str(error)) == (kind, "why")


@given(st.lists(st.binary(max_size=100), max_size=10), st.integers(1, 40))
def test_frames_are_cut_alike_however_the_bytes_arrive(payloads: list[bytes], step: int) -> None:
    sent = b"".join(wire.frame(FrameKind.READ, number, payload) for number, payload in enumerate(payloads))
    frames = Frames(1000)
    got = []
    for start in range(0, len(sent), step):
        frames.feed(sent[start : start + step])
        while (frame := frames.next()) is not None:
            got.append(frame)
    assert [(frame.request, frame.payload) for frame in got] == list(enumerate(payloads))


def test_a_frame_above_the_limit_is_refused_before_it_is_read() -> None:
    frames = Frames(1000)
    frames.feed((1001).to_bytes(4, "little"))
    with pytest.raises(Corrupt):
        frames.next()


def test_another_version_is_refused_by_name() -> None:
    with pytest.raises(Halted, match="version 2"):
        wire.decode_hello(b"LKCL\x02\x00" + bytes(8))
    with pytest.raises(Corrupt):
        wire.decode_hello(b"GET / HTTP/1.1")


@given(st.binary(max_size=60))
def test_random_payloads_are_refused_or_decoded_and_never_anything_else(payload: bytes) -> None:
    for decode in (wire.decode_append, wire.decode_page, wire.decode_read, wire.decode_notes, wire.decode_sequence):
        with contextlib.suppress(Corrupt):
            decode(payload)
    wire.decode_error(payload)

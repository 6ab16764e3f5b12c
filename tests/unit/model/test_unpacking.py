"""Large msgpack values are decoded in pieces to what msgspec makes of them at once; damaged ones are refused."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.errors import Corrupt
from lakestream.model import unpacking
from lakestream.model.unpacking import free, unpack

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(max_size=40) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner, max_size=18),
    max_leaves=25,
)  # fmt: skip


@given(value=st.lists(VALUES, max_size=10), piece=st.sampled_from([1, 8, 100, 1000]))
@settings(max_examples=60, deadline=None)
def test_pieces_make_the_same_value(value: list[Any], piece: int) -> None:
    data = msgspec.msgpack.encode(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpacking, "PIECE_BYTES", piece)
        assert unpack(memoryview(data)) == value


@given(value=st.lists(VALUES, min_size=1, max_size=5), cut=st.floats(0, 1, exclude_max=True))
@settings(max_examples=40, deadline=None)
def test_what_was_cut_short_is_refused(value: list[Any], cut: float) -> None:
    data = msgspec.msgpack.encode(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpacking, "PIECE_BYTES", 4)
        with pytest.raises(Corrupt):
            unpack(memoryview(data)[: int(cut * len(data))])


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpacking, "PIECE_BYTES", 4)
        with suppress(Corrupt):
            unpack(memoryview(data))


def test_items_of_every_width() -> None:
    texts = ["x" * 300, b"y" * 300, "x" * 70_000, b"y" * 70_000]
    value = [[0] * 20, [0] * 70_000, {str(n): n for n in range(70_000)}, texts]
    assert unpack(memoryview(msgspec.msgpack.encode(value))) == value


def test_a_freed_list_is_empty_and_so_are_those_in_it() -> None:
    inner: list[Any] = [[n] for n in range(5_000)]
    outer = [1, [inner, 2], "x"]
    free(outer)
    assert outer == inner == []

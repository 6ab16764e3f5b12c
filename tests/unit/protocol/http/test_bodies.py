"""Bodies of requests: the same values whichever way they are decoded, and a loop that turns meanwhile."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.protocol.http.bodies import BodyDecoder, decode_gently
from lakestream.protocol.http.iceberg.catalog import PropertiesRequest, TransactionRequest
from lakestream.protocol.http.iceberg.drafts import CommitRequest, CreateRequest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e300, 1e300) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


@given(st.lists(OBJECTS, max_size=4), st.lists(OBJECTS, max_size=4), st.booleans())
def test_both_ways_give_the_same(requirements: list[Any], updates: list[Any], ascii_only: bool) -> None:
    told = {"requirements": requirements, "updates": updates, "more": [1]}
    body = json.dumps(told, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert decode_gently(body, CommitRequest) == msgspec.json.decode(body, type=CommitRequest)
    many = json.dumps({"table-changes": [told, told]}).encode()
    assert decode_gently(many, TransactionRequest) == msgspec.json.decode(many, type=TransactionRequest)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[", b"{", b'{"requirements": [], "updates": [1]}', b'{"requirements": {}, "updates": []}',
        b'{"requirements": []}', b'{"requirements": [], "updates": [{"a": NaN}]}', b"7", b"[]", b"null",
        b'{"requirements": [], "updates": [{"a": "\\ud800"}]}', b'{"requirements": [], "updates": [{"\\udc00": 1}]}',
        b'{"requirements": [], "updates": [{"a": "\xff"}]}', b'\xef\xbb\xbf{"requirements": [], "updates": []}',
        b'{"requirements": [], "updates": []} x', b'{"requirements": [], "updates": [{"a": 01}]}',
        b'{"requirements": null, "updates": []}', b'{"requirements": [], "updates": [{"a": 1e999}]}',
    ],
)  # fmt: skip
def test_both_ways_refuse_the_same(body: bytes) -> None:
    for decode in (decode_gently, lambda body, kind: msgspec.json.decode(body, type=kind)):
        with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
            decode(body, CommitRequest)


def test_optional_lists_and_renamed_fields_are_understood() -> None:
    assert decode_gently(b'{"removals": ["a"], "updates": null}', PropertiesRequest) == PropertiesRequest(["a"], None)
    body = b'{"name": "t", "schema": {"fields": [1]}, "stage-create": true}'
    assert decode_gently(body, CreateRequest) == msgspec.json.decode(body, type=CreateRequest)


def test_deep_nesting_is_refused_and_not_fatal() -> None:
    with pytest.raises((RecursionError, msgspec.MsgspecError)):
        decode_gently(b'{"requirements": [], "updates": ' + b"[" * 100_000, CommitRequest)


async def test_the_loop_turns_while_a_large_body_is_decoded() -> None:
    update = {"action": "add-snapshot", "snapshot": {"summary": {str(n): n for n in range(50)}}}
    body = json.dumps({"requirements": [], "updates": [update] * 3000}).encode()
    turns, done = 0, False

    async def turn() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    found = await BodyDecoder().decode(body, CommitRequest)
    done = True
    await turning
    assert len(found.updates) == 3000 and found.updates[-1] == update
    assert turns > 20, "one compiled call would let it turn once or twice"
